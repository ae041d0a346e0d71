"""The imbalance study on a small set: checked first, resumed, ranked; and the suite that it
describes.
"""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import of_kind

from mechanisms.errors import MechanismError
from studies import imbalance, rare_codes, results, suite, tables
from studies.imbalance import cells_of
from studies.tables import Columns, Table

TINY: dict[str, Any] = {"records": 80, "minority": 16, "numeric": {"a": [0, 1]}, "one_hot": ["b"]}
REAL = imbalance.suite()


def write(file: Path, *, rows: int = 80, b: str = "1,0", header: str = "a,b=x,b=y,label") -> Path:
    generator = torch.Generator().manual_seed(0)
    with file.open("w", newline="") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(header.split(","))
        for row in range(rows):
            label = int(row % 5 == 0)
            a = 0.3 + 0.4 * label + 0.1 * float(torch.rand(1, generator=generator))
            lines.writerow([f"{a:.4f}", *(b.split(",") if row else ["0", "1"]), label])
    return file


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    whole = imbalance.suite()
    monkeypatch.setattr(
        imbalance, "suite", lambda: {"sets": {"tiny": TINY}, "published": whole["published"]}
    )
    write(tmp_path / "tiny.csv")
    return tmp_path


def test_the_suite_is_the_papers() -> None:
    """Eight sets with the imbalance of its table 11; every system has a limit only where it runs
    too long.
    """
    ratios = [
        round((s["records"] - s["minority"]) / s["minority"], 1)
        for s in imbalance.suite()["sets"].values()
    ]
    assert sorted(ratios) == sorted([8.6, 28.1, 19.4, 9.7, 11.9, 25.6, 42.0, 129.5])
    assert set(imbalance.LIMITS) < set(imbalance.SYSTEMS)
    assert set(imbalance.suite()["published"]["ranks"]) < set(imbalance.SYSTEMS)


def test_a_set_is_read_by_its_description(tmp_path: Path) -> None:
    """Numbers scaled by public bounds, one-hots undone to one column."""
    table = tables.read(write(tmp_path / "tiny.csv"), TINY)
    assert table.columns.widths == (1, 2)
    assert table.features.shape == (80, 3)
    assert (table.features[:, 1:].sum(1) == 1).all()


@pytest.mark.parametrize(
    ("how", "refusal"),
    [
        ({"rows": 79}, of_kind("another-version", saying=("tiny.csv has 79", "80 and 16"))),
        ({"b": "1,1"}, of_kind("not-one-hot", saying="`b=…`")),
        ({"header": "a,c=x,c=y,label"}, of_kind("no-columns", saying="`b=…`")),
        ({"header": "z,b=x,b=y,label"}, of_kind("another-column", saying="`a`")),
    ],
)
def test_a_wrong_file_is_refused_before_work(
    tmp_path: Path, how: dict[str, Any], refusal: of_kind
) -> None:
    with pytest.raises(MechanismError, check=refusal):
        tables.read(write(tmp_path / "tiny.csv", **how), TINY)


def test_killed_it_goes_on_and_more_seeds_add_to_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was finished before is the same again, noise included; only the rest is fitted."""
    measure, fitted = imbalance.measure, []

    def counted(*given: Any) -> results.Row:
        if len(fitted) == 3:
            raise KeyboardInterrupt
        fitted.append(given)
        return measure(*given)

    def run(seeds: int) -> list[results.Row]:
        systems = "plain-logistic,objective,weighted-objective"
        imbalance.run(tiny, tiny / "out", systems=systems, epsilons="1,5", seeds=seeds)
        return results.load(tiny / "out" / "imbalance.csv")

    monkeypatch.setattr(imbalance, "measure", counted)
    with pytest.raises(KeyboardInterrupt):
        run(1)
    finished = results.load(tiny / "out" / "imbalance.csv")
    assert len(finished) == 3
    monkeypatch.setattr(imbalance, "measure", measure)
    rows = run(1)
    assert rows[:3] == finished
    assert len(rows) == 5
    assert run(2)[:5] == rows
    page = (tiny / "out" / "imbalance-tables.md").read_text()
    assert "replace-one, ε 1" in page
    assert "## Ranks over 2 of 2 pairs" in page
    assert (tiny / "out" / "imbalance.svg").read_text().startswith("<?xml")


def made(
    system: str, auc: float, *, seed: int = 0, name: str = "s", epsilon: float = 1
) -> results.Row:
    figures = dict.fromkeys((*imbalance.DRAWN, "average_precision"), 0.5) | {"auc": auc}
    return {
        "set": name,
        "system": system,
        "epsilon": epsilon,
        "seed": seed,
        "relation": "replace-one",
        "claimed": 1.0,
        **figures,
    }


def test_an_option_lifts_its_own_restriction() -> None:
    """A full run leaves most cells of the transformer out; one that names sets has all of them."""
    asked = (["ecoli", "car_eval_34"], ["ft-transformer"], (0.5, 1, 5), 3)
    left = {(cell["set"], cell["epsilon"], cell["seed"]) for cell in imbalance.places(*asked)}
    assert left == {("car_eval_34", epsilon, seed) for epsilon in (1, 5) for seed in (0, 1)}
    cells = imbalance.places(*asked, lifted=("sets", "seeds"))
    assert {cell["set"] for cell in cells} == {"ecoli", "car_eval_34"}
    assert {cell["seed"] for cell in cells} == {0, 1, 2}
    assert {cell["epsilon"] for cell in cells} == {1, 5}


def test_ranks_average_ties_and_sum() -> None:
    """AUC .9, .8, .8: ranks 1, 2.5, 2.5, whose sum is 6."""
    cells = cells_of([made("a", 0.9), made("b", 0.8), made("c", 0.8)])
    assert imbalance.ranks(cells, ["a", "b", "c"], "auc") == {"a": 1.0, "b": 2.5, "c": 2.5}


def test_the_papers_systems_are_ranked_where_all_of_them_ran() -> None:
    """FTTransformer with a cell in one pair does not take the ranks of the others down to that
    pair.
    """
    names = ("objective", "weighted-objective-paper", "gem")
    rows = [
        made(system, 0.5 + 0.1 * place, name=name, epsilon=epsilon)
        for place, system in enumerate(names)
        for name in ("s", "t")
        for epsilon in (1, 5)
    ]
    text = imbalance.tables(cells_of([*rows, made("ft-transformer", 0.9, epsilon=5)]))
    assert "## Ranks over 4 of 4 pairs" in text
    assert "| GEM + XGBoost | 1.00 (1.45) |" in text


def test_a_gap_counts_beyond_two_standard_errors() -> None:
    """Of the mean over seeds; a seed with fewer places is no mean of the same."""
    assert results.verdict([0.1, 0.12, 0.11]).startswith("holds")
    assert results.verdict([-0.1, -0.12, -0.11]).startswith("does not hold")
    assert results.verdict([0.1, -0.12, 0.05]).startswith("within the error")
    assert "fewer than two" in results.verdict([0.1])
    rows = [made("a", 0.9, seed=s, name=n) for s in (0, 1) for n in ("s", "t")]
    rows += [made("b", 0.8, seed=s, name=n) for s, n in ((0, "s"), (0, "t"), (1, "s"))]
    assert imbalance.gap(cells_of(rows), "a", "b", "auc") == [pytest.approx(0.1)]


def test_a_rare_class_is_thinned_in_training_alone() -> None:
    """Three of label 1 stay in training, and the held-out records are as they were. More than there
    are is refused.
    """
    labels = (torch.arange(100) < 20).long()
    table = Table(torch.rand(100, 1).double(), labels, Columns((1,)))
    whole, test = imbalance.split(table, "tiny", 0)
    train, same = imbalance.split(table, "tiny", 0, minority=3)
    assert (int(train.labels.sum()), int(whole.labels.sum())) == (3, 16)
    assert torch.equal(test.features, same.features)
    assert len(train) == len(whole) - 13
    with pytest.raises(
        MechanismError, check=of_kind("too-few-minority-records", saying=("90", "16"))
    ):
        imbalance.split(table, "tiny", 0, minority=90)
    sets = imbalance.suite()["sets"]
    assert all(max(rare_codes.SIZES) < sets[name]["minority"] * 0.8 for name in rare_codes.THINNED)


def test_plain_systems_have_the_papers_figures_beside_them(tiny: Path) -> None:
    """`--systems plain` is the nine rows of tables 13 to 20; pictures of the set are written."""
    quick = imbalance.SYSTEMS | {"plain-ft-transformer": ("x", imbalance.PlainLogistic())}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imbalance, "SYSTEMS", quick)
        imbalance.run(tiny, tiny / "out", systems="plain", epsilons="1,5", seeds=2)
    rows = results.load(tiny / "out" / "imbalance.csv")
    assert [row["system"] for row in rows if row["seed"] == 0] == list(imbalance.PLAIN)
    assert len(imbalance.PLAIN) == 9
    assert (tiny / "out" / "imbalance-tiny.svg").stat().st_size > 10_000
    cells = cells_of([made("plain-logistic", 0.9, name="ecoli"), made("gem", 0.8, name="ecoli")])
    assert "| Logistic regression | 0.500 (0.09) |" in imbalance.plain_table(
        cells, imbalance.suite()["published"]["f1_without_privacy"]
    )


def test_synthetic_records_are_compared_where_both_ran(tmp_path: Path) -> None:
    cells = cells_of(
        [made(system, 0.9, epsilon=e) for system in ("gem", "privbayes") for e in (1, 5)]
    )
    file = tmp_path / "x.svg"
    imbalance.draw_set(cells, file, title="x", systems=imbalance.SYNTHETIC)
    assert "PrivBayes" in file.read_text()


def test_the_sets_are_counted_from_the_files(tiny: Path) -> None:
    """Table 11 from a file, with the paper's figures beside it; another file is refused."""
    described = TINY | {"published": {"ratio": 4, "records": 80, "features": 3}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imbalance, "suite", lambda: {"sets": {"tiny": described}})
        suite.sets(tiny, tiny / "out")
    (row,) = results.load(tiny / "out" / "sets.csv")
    assert (row["records"], row["minority"], row["ratio"]) == (80, 16, 4)
    assert (row["columns_of_the_file"], row["attributes"]) == (3, 2)
    published = {name: one["published"] for name, one in REAL["sets"].items()}
    assert {name: REAL["sets"][name]["records"] for name in published} == {
        name: one["records"] for name, one in published.items()
    }


def test_a_large_penalty_calls_nothing_rare(tmp_path: Path) -> None:
    """C 0.001 has F1 0 where C 1e6 finds the rare class: what regularisation alone does."""
    labels = (torch.arange(400) % 10 == 0).long()
    noise = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    table = Table(0.5 + 0.1 * labels[:, None] + 0.03 * noise, labels, Columns((1,)))
    strong, weak = (
        suite.penalised(table, "x", inverse_penalty=c, scale="as in the file", seed=0)
        for c in (1e-3, 1e6)
    )
    assert (strong["f1"], strong["auc"]) == (0, weak["auc"])
    assert weak["f1"] > 0.5
