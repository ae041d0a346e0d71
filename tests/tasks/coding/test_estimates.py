"""Counts with intervals: they cover where the model's own counts do not, and are narrower than the
sample's.
"""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from coded_populations import Design, symmetric
from csv_files import rows_of, write_csv
from numpy.typing import NDArray
from refusals import of_kind

from storage.errors import InputError
from tasks.coding.estimates import TOTAL, Sample, estimate, plot, write_table
from tasks.coding.quality import draw, read_double_coded
from tasks.coding.strata import allocate

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def population(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Floats]:
    """True codes, the model's and its scores: it takes a third of code 1 for 0, and a twelfth of
    all others for any.
    """
    true = rng.choice(6, rows, p=[0.3, 0.25, 0.2, 0.15, 0.08, 0.02])
    model, score = true.copy(), rng.uniform(0.85, 1.0, rows)
    wrong = np.where(true == 1, rng.random(rows) < 0.33, rng.random(rows) < 0.08)
    model[wrong] = np.where(true[wrong] == 1, 0, rng.integers(0, 6, wrong.sum()))
    score[wrong] = rng.uniform(0.3, 0.95, wrong.sum())
    return true, model, score


@pytest.mark.parametrize("design", [Design("simple"), Design("strata")], ids=["simple", "strata"])
def test_intervals_cover_from_five_rows_on(design: Design) -> None:
    """Some 2,000 intervals of codes with 5 to 49 sampled rows: 90 to 97 % cover, with one point for
    their number. Those of before are too wide for it, and those to which nothing is added too
    narrow; so is the model's own count for codes that it gives to others. What covers is narrower
    by a fifth than before.
    """
    rng = np.random.default_rng(3)
    hits: defaultdict[str, list[tuple[bool, float]]] = defaultdict(list)
    for population in (design.population(rng) for _ in range(8)):
        true, machine = population.counts(population.true), population.counts(population.model)
        for sample in population.samples(rng, 10):
            every = np.ones(len(sample.human), dtype=bool)
            for code, count in enumerate(machine.tolist()):
                y, f = sample.human == code, sample.model == code
                if not 5 <= (y | f).sum() < 50:
                    continue
                own = sample.count(code, every, machine=count, rows=design.rows)
                ends = {"own": (own.low, own.high)}
                ends |= {
                    name: symmetric(sample, y, f, count, added=name == "before")
                    for name in ("before", "naive")
                }
                for name, (low, high) in ends.items():
                    hits[name].append((low - 1e-9 <= true[code] <= high + 1e-9, high - low))
    covers, widths = (
        {name: np.mean([hit for hit, _ in own]) for name, own in hits.items()},
        {name: np.mean([width for _, width in own]) for name, own in hits.items()},
    )
    assert 0.89 < covers["own"] < 0.98, covers
    assert covers["before"] > 0.985
    assert covers["naive"] < 0.89
    assert widths["own"] < 0.85 * widths["before"]


def test_the_page_says_what_was_measured() -> None:
    """The least and the largest share of all designs, from five sampled rows on."""
    docs = Path(__file__).parents[3] / "docs"
    designs = json.loads((docs / "studies/results/estimates.json").read_text(encoding="utf-8"))[
        "designs"
    ]
    shares = [
        cell["covers"] for one in designs for rows, cell in one["this"].items() if rows != "1 to 4"
    ]
    said = f"{100 * min(shares):.1f}% to {100 * max(shares):.1f}%"
    assert said in (docs / "how-to/measure-quality.md").read_text(encoding="utf-8")
    assert 0.9 <= min(shares) <= max(shares) < 0.98


def test_a_count_that_is_known_has_no_width() -> None:
    """All rows drawn: the interval is the people's own count, whatever the model says."""
    rng = np.random.default_rng(0)
    true, model, _ = population(rng, 300)
    sample, every = Sample(true, model, np.ones(300)), np.ones(300, dtype=bool)
    for code in range(6):
        found = sample.count(code, every, machine=int((model == code).sum()), rows=300)
        assert (found.low, found.value, found.high) == pytest.approx((sum(true == code),) * 3)


def test_neyman_s_allocation_has_the_least_variance() -> None:
    """n_h is in proportion to N_h S_h, within what a stratum has; a bound met leaves the rest to
    the others.
    """
    assert allocate([100, 100, 200], [1.0, 3.0, 0.5], 50) == [10, 30, 10]
    assert allocate([10, 1000], [9.0, 0.1], 60) == [10, 50]
    assert allocate([1, 500, 500], [0.1, 0.1, 5.0], 20) == [1, 2, 17]
    assert sum(allocate([3, 3, 3], [1.0, 1.0, 1.0], 100)) == 9
    rng = np.random.default_rng(1)
    for _ in range(50):
        sizes, spreads = rng.integers(1, 400, 12), rng.uniform(0.05, 1, 12)
        total = int(rng.integers(24, sizes.sum() + 24))
        drawn = np.array(allocate(sizes.tolist(), spreads.tolist(), total))
        assert drawn.sum() == min(total, sizes.sum())
        assert (drawn >= np.minimum(2, sizes)).all()
        assert (drawn <= sizes).all()


def table_of(path: Path, rows: int = 2000) -> tuple[Path, Ints]:
    """A coded table of four codes (the last is rare) by quarter, and the true codes."""
    true, model, score = population(np.random.default_rng(2), rows)
    lines = (
        [f"text {at}", f"q{at % 4 + 1}", f"1{model[at]}", f"code {model[at]}", f"{score[at]:.4f}"]
        for at in range(rows)
    )
    return write_csv(path, ["Text", "quarter", "code", "title", "score"], lines), true


def fill_in(sample: Path, true: Ints, *, but: int = 0) -> None:
    rows = rows_of(sample)
    for number, row in enumerate(rows):
        row["human_code"] = "" if number < but else f"1{true[int(row['qa_row']) - 1]}"
    write_csv(sample, list(rows[0]), [list(row.values()) for row in rows])


def test_hours_become_strata_and_weights(tmp_path: Path) -> None:
    """Six hours of two minutes are 180 rows, more of them of low scores; their weights add up to
    the table's rows.
    """
    coded, _ = table_of(tmp_path / "coded.csv")
    done = draw(coded, tmp_path / "s.csv", columns=["Text"], sensitive=["15"], seed=1, size=180)
    rows, scores = rows_of(tmp_path / "s.csv"), [float(row["score"]) for row in rows_of(coded)]
    assert (done.sampled, len(rows)) == (180, 180)
    assert list(rows[0]) == ["qa_row", "Text", "qa_weight", "human_code"], (
        "the coder does not see the model's code"
    )
    assert sum(float(row["qa_weight"]) for row in rows) == pytest.approx(2000, abs=0.01)
    at = [int(row["qa_row"]) - 1 for row in rows]
    weights = np.array([float(row["qa_weight"]) for row in rows])
    low, high = (
        np.array([found(scores[n]) for n in at])
        for found in (lambda s: s < 0.5, lambda s: s >= 0.9)
    )
    assert weights[low].max() < 2000 / 180 < weights[high].mean()
    with pytest.raises(InputError, check=of_kind("too-few-rows")):
        draw(coded, tmp_path / "t.csv", columns=["Text"], sensitive=["15"], seed=1, size=5)


def test_a_table_s_counts_add_up_and_say_what_they_do_not_know(tmp_path: Path) -> None:
    """Groups and total; a code that the sample lacks has no estimate and is named."""
    coded, true = table_of(tmp_path / "coded.csv")
    sample = tmp_path / "s.csv"
    draw(coded, sample, columns=["Text"], seed=1, size=240)
    fill_in(sample, true, but=7)
    found = estimate(read_double_coded(coded, sample, by=["quarter"]))
    assert (found.sampled, found.missing) == (233, 7)
    assert {one.group for one in found.every} == {(TOTAL,), ("q1",), ("q2",), ("q3",), ("q4",)}
    counts = Counter(true.tolist())
    for one in found.totals:
        assert one.estimate
        assert one.estimate.low <= counts[int(one.code[1])] <= one.estimate.high, one
    assert sum(one.estimate.value for one in found.totals if one.estimate) == pytest.approx(
        2000, rel=0.05
    )
    assert any("7 rows of the sample have no code" in line for line in found.warnings())
    lost = np.where(true == 5, 0, true)
    rare = re.sub(
        "text 3,q4,1[0-3]", "text 3,q4,19", coded.read_text().replace(",15,code 5,", ",10,code 0,")
    )
    coded.write_text(rare)
    fill_in(sample, lost)
    found = estimate(read_double_coded(coded, sample))
    (alone,) = [one for one in found.every if one.code == "19"]
    assert (alone.machine, alone.sampled, alone.estimate, alone.note) == (1, 0, None, "few")
    assert any(
        "fewer than 5 rows in the sample, and get no estimate" in line for line in found.warnings()
    )
    write_table(found, tmp_path / "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    assert len(rows) == len(found.every)
    assert {row["note"]: row["estimate"] for row in rows if row["code"] == "19"} == {"few": ""}
    plot(found, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_another_table_s_sample_is_refused(tmp_path: Path) -> None:
    """By the sum of its weights; so is a column that is missing."""
    coded, true = table_of(tmp_path / "coded.csv")
    other, _ = table_of(tmp_path / "other.csv", rows=2200)
    sample = tmp_path / "s.csv"
    draw(coded, sample, columns=["Text"], seed=1)
    fill_in(sample, true)
    with pytest.raises(
        InputError, check=of_kind("weights-of-another-table", saying=("2,000", "2,200"))
    ):
        estimate(read_double_coded(other, sample))
    with pytest.raises(InputError, check=of_kind("no-column", column="state")):
        read_double_coded(coded, sample, by=["state"])
