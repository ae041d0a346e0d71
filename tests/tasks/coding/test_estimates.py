"""Counts with intervals: they cover where the model's own counts do not, and are narrower than the sample's."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from csv_files import rows_of, write_csv
from numpy.typing import NDArray

from storage.errors import InputError
from tasks.coding.estimates import TOTAL, Sample, estimate, plot, predicted, strata_of, write_table
from tasks.coding.quality import draw
from tasks.coding.strata import allocate

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROWS, DRAWN, DRAWS = 4000, 400, 300


def population(rng: np.random.Generator, rows: int = ROWS) -> tuple[Ints, Ints, Floats]:
    """True codes, the model's and its scores: it takes a third of code 1 for 0, and a twelfth of all others for any."""
    true = rng.choice(6, rows, p=[0.3, 0.25, 0.2, 0.15, 0.08, 0.02])
    model, score = true.copy(), rng.uniform(0.85, 1.0, rows)
    wrong = np.where(true == 1, rng.random(rows) < 0.33, rng.random(rows) < 0.08)
    model[wrong] = np.where(true[wrong] == 1, 0, rng.integers(0, 6, wrong.sum()))
    score[wrong] = rng.uniform(0.3, 0.95, wrong.sum())
    return true, model, score


def strata(score: Floats) -> Ints:
    return np.digitize(score, [0.5, 0.9])


@pytest.mark.parametrize("stratified", [False, True])
def test_intervals_cover_and_the_model_s_counts_do_not(stratified: bool) -> None:
    """300 samples of 400 of 4,000 rows: intervals of the six counts cover in 95 % of the draws.

    Four standard deviations of 300 draws at 95 % are 5 points, and fewer than 90 % are rejected. The sample alone,
    a model's codes that say nothing, has intervals wider by a fifth or more; the model's count of codes 0 and 1 lies
    outside nearly all intervals.
    """
    rng = np.random.default_rng(0)
    true, model, score = population(rng)
    counts, machine = np.bincount(true, minlength=6), np.bincount(model, minlength=6)
    cells = [np.flatnonzero(strata(score) == at) for at in range(3)] if stratified else [np.arange(ROWS)]
    errors = [1 - score[cell].mean() for cell in cells]
    sizes = allocate([len(cell) for cell in cells], [(error * (2 - error)) ** 0.5 for error in errors], DRAWN)
    hits: Counter[tuple[str, int]] = Counter()
    widths = np.zeros(2)
    for _ in range(DRAWS):
        drawn = [rng.choice(cell, size, replace=False) for cell, size in zip(cells, sizes, strict=True)]
        weights = np.concatenate([np.full(s, len(c) / s) for c, s in zip(cells, sizes, strict=True)])
        rows = np.concatenate(drawn)
        sample = Sample(true[rows], model[rows], weights, strata_of(weights))
        for code in range(6):
            y, f = (sample.human == code).astype(float), (sample.model == code).astype(float)
            powered = predicted(sample, y, f, int(machine[code]), 0.8)
            alone = predicted(sample, y, np.zeros_like(f), 0, 0.0)
            hits["powered", code] += powered.low <= counts[code] <= powered.high
            hits["machine", code] += powered.low <= machine[code] <= powered.high
            widths += [one.high - one.low for one in (powered, alone)]
    assert min(hits["powered", code] for code in range(6)) > 0.9 * DRAWS, hits
    assert sum(hits["powered", code] for code in range(6)) < 0.985 * 6 * DRAWS, "wider than they need to be"
    assert hits["machine", 0] < 0.2 * DRAWS
    assert hits["machine", 1] < 0.2 * DRAWS
    assert widths[0] < 0.8 * widths[1]


def test_neyman_s_allocation_has_the_least_variance() -> None:
    """n_h is in proportion to N_h S_h, within what a stratum has; a bound met leaves the rest to the others."""
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
        [f"text {at}", f"q{at % 4 + 1}", f"1{model[at]}", f"code {model[at]}", f"{score[at]:.4f}"] for at in range(rows)
    )
    return write_csv(path, ["Text", "quarter", "code", "title", "score"], lines), true


def fill_in(sample: Path, true: Ints, *, but: int = 0) -> None:
    """A person's codes, without those of the first rows."""
    rows = rows_of(sample)
    for number, row in enumerate(rows):
        row["human_code"] = "" if number < but else f"1{true[int(row['qa_row']) - 1]}"
    write_csv(sample, list(rows[0]), [list(row.values()) for row in rows])


def test_hours_become_strata_and_weights(tmp_path: Path) -> None:
    """Six hours of two minutes are 180 rows, more of them of low scores; their weights add up to the table's rows."""
    coded, _ = table_of(tmp_path / "coded.csv")
    done = draw(coded, tmp_path / "s.csv", columns=["Text"], sensitive=["15"], seed=1, size=180)
    rows, scores = rows_of(tmp_path / "s.csv"), [float(row["score"]) for row in rows_of(coded)]
    assert (done.sampled, len(rows)) == (180, 180)
    assert list(rows[0]) == ["qa_row", "Text", "qa_weight", "human_code"], "the coder does not see the model's code"
    assert sum(float(row["qa_weight"]) for row in rows) == pytest.approx(2000, abs=0.01)
    at = [int(row["qa_row"]) - 1 for row in rows]
    weights = np.array([float(row["qa_weight"]) for row in rows])
    low, high = (np.array([found(scores[n]) for n in at]) for found in (lambda s: s < 0.5, lambda s: s >= 0.9))
    assert weights[low].max() < 2000 / 180 < weights[high].mean()
    with pytest.raises(InputError, match="sensitive codes alone have"):
        draw(coded, tmp_path / "t.csv", columns=["Text"], sensitive=["15"], seed=1, size=5)


def test_a_table_s_counts_add_up_and_say_what_they_do_not_know(tmp_path: Path) -> None:
    """Groups and total; a code that the sample lacks has no estimate and is named."""
    coded, true = table_of(tmp_path / "coded.csv")
    sample = tmp_path / "s.csv"
    draw(coded, sample, columns=["Text"], seed=1, size=240)
    fill_in(sample, true, but=7)
    found = estimate(coded, sample, by=["quarter"])
    assert (found.sampled, found.missing) == (233, 7)
    assert {one.group for one in found.every} == {(TOTAL,), ("q1",), ("q2",), ("q3",), ("q4",)}
    counts = Counter(true.tolist())
    for one in found.totals:
        assert one.estimate
        assert one.estimate.low <= counts[int(one.code[1])] <= one.estimate.high, one
    assert sum(one.estimate.value for one in found.totals if one.estimate) == pytest.approx(2000, rel=0.05)
    assert any("7 rows of the sample have no code" in line for line in found.warnings())
    lost = np.where(true == 5, 0, true)
    rare = re.sub("text 3,q4,1[0-3]", "text 3,q4,19", coded.read_text().replace(",15,code 5,", ",10,code 0,"))
    coded.write_text(rare)
    fill_in(sample, lost)
    found = estimate(coded, sample)
    (alone,) = [one for one in found.every if one.code == "19"]
    assert (alone.machine, alone.sampled, alone.estimate, alone.note) == (1, 0, None, "none")
    assert any(
        "the sample says nothing of 1 codes (1 rows by the model; the largest is 19)" in w for w in found.warnings()
    )
    write_table(found, tmp_path / "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    assert len(rows) == len(found.every)
    assert {row["note"]: row["estimate"] for row in rows if row["code"] == "19"} == {"none": ""}
    plot(found, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_another_table_s_sample_is_refused(tmp_path: Path) -> None:
    """By the sum of its weights; so is a column that is missing."""
    coded, true = table_of(tmp_path / "coded.csv")
    other, _ = table_of(tmp_path / "other.csv", rows=2200)
    sample = tmp_path / "s.csv"
    draw(coded, sample, columns=["Text"], seed=1)
    fill_in(sample, true)
    with pytest.raises(InputError, match="add up to 2,000 rows, and the table has 2,200"):
        estimate(other, sample)
    with pytest.raises(InputError, match="state"):
        estimate(coded, sample, by=["state"])
