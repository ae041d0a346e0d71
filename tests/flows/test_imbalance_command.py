"""`autocoder imbalance` on a small suite: checked first, resumed, ranked."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from mechanisms.errors import MechanismError
from mechanisms.mechanism import Task
from mechanisms.model.schema import FeatureColumn, FeatureSchema
from mechanisms.privacy.claims import epsilon_of_one_replaced
from storage.errors import InputError
from tasks.branches.branch import standard_branches
from tasks.imbalance import cell, page, run, suite, tables
from tasks.imbalance.suite import Suite, TableSet

SCHEMA = FeatureSchema(columns=(FeatureColumn(name="a", kind="numeric", bounds=(0, 1)),) * 2)
SUITE = {
    "title": "small",
    "epsilons": [1, 5],
    "test_share": 0.25,
    "label": "label",
    "sets": {"tiny": {"records": 80, "minority": 16, "numeric": {"a": [0, 1]}, "one_hot": ["b"]}},
    "branches": {"plain-logistic": {}, "objective": {}, "weighted-objective": {"epsilons": [5]}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the one set."""
    write(tmp_path / "tiny.csv")
    return tmp_path


def write(file: Path, *, rows: int = 80, b: str = "1,0", header: str = "a,b=x,b=y,label") -> None:
    generator = torch.Generator().manual_seed(0)
    with file.open("w", newline="") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(header.split(","))
        for row in range(rows):
            label = int(row % 5 == 0)
            a = 0.3 + 0.4 * label + 0.1 * float(torch.rand(1, generator=generator))
            lines.writerow([f"{a:.4f}", *(b.split(",") if row else ["0", "1"]), label])


def small() -> Suite:
    return Suite.model_validate(SUITE)


def everything(folder: Path, *, seeds: int = 2, fitting: bool = True) -> list[cell.Cell]:
    given = small()
    sets = suite.read_sets(given, folder, ("tiny",))
    return run.run(given, given.chosen, sets, seeds=seeds, folder=folder / "cells", before={}, fitting=fitting)


def test_the_suite_that_ships_is_valid() -> None:
    """Eight sets with the imbalance of the paper's table 11, five epsilons, branches that are there."""
    given = suite.load(suite.STANDARD)
    ratios = [round((one.records - one.minority) / one.minority, 1) for one in given.sets.values()]
    assert sorted(ratios) == sorted([8.6, 28.1, 19.4, 9.7, 11.9, 25.6, 42.0, 129.5])
    assert given.epsilons == (0.05, 0.1, 0.5, 1, 5)
    assert list(given.chosen) == list(given.branches)


def test_places_are_seed_by_seed_and_within_limits() -> None:
    """A branch without protection once a seed; a limited one at its epsilon alone."""
    given = small()
    places = run.places(given, given.chosen, sets=("tiny",), seeds=2)
    assert [at[3] for at in places] == sorted(at[3] for at in places)
    assert places[:4] == [
        ("tiny", "plain-logistic", None, 0),
        ("tiny", "objective", 1, 0),
        ("tiny", "objective", 5, 0),
        ("tiny", "weighted-objective", 5, 0),
    ]


def test_killed_it_goes_on_and_more_seeds_add_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was finished before is the same again, noise included; only the rest is fitted."""
    fit, fitted = cell.Fits.fit, []

    def counted(self: cell.Fits, table: TableSet, *rest: Any) -> cell.Cell:
        if len(fitted) == 3:
            raise KeyboardInterrupt
        fitted.append(rest)
        return fit(self, table, *rest)

    monkeypatch.setattr(cell.Fits, "fit", counted)
    with pytest.raises(KeyboardInterrupt):
        everything(folder, seeds=1)
    assert not list((folder / "cells").glob("*.partial"))
    monkeypatch.setattr(cell.Fits, "fit", fit)
    finished = everything(folder, seeds=1, fitting=False)
    assert len(finished) == 3
    one = everything(folder, seeds=1)
    assert one[:3] == finished
    assert everything(folder)[: len(one)] == one


def test_claims_name_what_neighbours_are(folder: Path) -> None:
    """Objective perturbation: replace-one, delta 0, at the target."""
    cells = everything(folder, seeds=1)
    assert {(c.kind, c.relation, c.delta) for c in cells if c.epsilon} == {("formal", "replace-one", 0.0)}
    assert all(c.claimed is not None and 0.99 * c.epsilon <= c.claimed <= c.epsilon for c in cells if c.epsilon)
    assert tables.relation(cells[0]) == "none: not private"


def test_every_epsilon_is_for_one_record_replaced(folder: Path) -> None:
    """A descent whose claim is for a record added or removed gets the noise that costs the ε replaced: about half of it
    in its own relation. As it plans itself, one record replaced would cost about twice the ε."""
    table = suite.read_sets(small(), folder, ("tiny",))["tiny"]
    descent = standard_branches()["weighted-descent"]
    for epsilon in (0.5, 5.0):
        fitted = cell.Fits(0.25).fit(table, descent, epsilon, 0, "k")
        assert fitted.relation == "add-remove"
        assert fitted.replaced is not None
        assert fitted.claimed is not None
        assert 0.99 * epsilon <= fitted.replaced <= epsilon * (1 + 1e-6)
        assert fitted.claimed < 0.6 * epsilon
        assert tables.relation(fitted) == f"δ 1/n² (add-remove: ε {fitted.claimed:.2g})"
        task = Task(records=60, classes=2, target_epsilon=epsilon, delta=60**-2.0, features=3, columns=2)
        plain = descent.mechanism.plan(task).event
        assert plain is not None
        unequal = epsilon_of_one_replaced(plain, delta=task.delta, records_per_unit=1)
        assert unequal is not None
        assert unequal > 1.8 * epsilon


def test_the_papers_systems_are_ranked_where_all_of_them_ran() -> None:
    """FTTransformer with a cell in one of forty pairs does not take the ranks of the others down to that pair."""
    given = suite.load(suite.STANDARD)
    names = ("objective", "weighted-objective-paper", "gem")
    cells = [
        made(name, 0.5 + 0.1 * at).model_copy(update={"set": place, "epsilon": epsilon})
        for at, name in enumerate(names)
        for place in given.sets
        for epsilon in given.epsilons
    ]
    cells.append(made("ft-transformer", 0.9).model_copy(update={"set": "car_eval_34", "epsilon": 5.0}))
    sets = {name: TableSet(name, torch.rand(4, 2), torch.tensor([0, 1, 0, 1]), SCHEMA, "", ()) for name in given.sets}
    text = page.page(given, given.chosen, sets, cells, suite="imbalance.yaml", notes="")
    assert "over the 40 of 40 pairs" in text
    assert "Not ranked, with fewer pairs: FTTransformer" in text
    assert "| GEM + XGBoost | 1.00 (1.45) |" in text


def test_the_page_says_ranks_that_add_up(folder: Path) -> None:
    """And its cells lie beside it, which a later run takes up without fitting."""
    given, cells = small(), everything(folder)
    sets = suite.read_sets(given, folder, ("tiny",))
    page.write(folder / "small.md", given, given.chosen, sets, cells, suite="small.yaml")
    text = (folder / "small.md").read_text()
    assert "| system | ε, one replaced | δ, and the claim |" in text
    assert "| 1 | δ 0 |" in text
    assert "--suite deployments/suites/small.yaml" in text
    assert "| tiny | 80 | 16 | 4.0 | 2 | 3 |" in text
    assert run.load_cells(page.cells_beside(folder / "small.md")) == {c.key: c for c in cells}


def made(branch: str, auc: float, *, seed: int = 0) -> cell.Cell:
    figures = dict.fromkeys((*cell.METRICS, "precision", "average_precision", "seconds"), 0.5) | {"auc": auc}
    return cell.Cell(key=f"{branch}{auc}{seed}", set="s", branch=branch, epsilon=1, seed=seed, kind="formal",
                     relation="replace-one", claimed=1, delta=0, **figures)  # fmt: skip


def test_ranks_average_ties_and_sum() -> None:
    """AUC .9, .8, .8: ranks 1, 2.5, 2.5, whose sum is 6."""
    cells = tables.Cells([made("a", 0.9), made("b", 0.8), made("c", 0.8)])
    assert tables.ranks(cells, ["a", "b", "c"], "auc", [("s", 1)]) == {"a": 1.0, "b": 2.5, "c": 2.5}


def test_an_ordering_counts_beyond_two_standard_errors() -> None:
    assert tables.answer([0.1, 0.12, 0.11]).startswith("holds")
    assert tables.answer([-0.1, -0.12, -0.11]).startswith("does not hold")
    assert tables.answer([0.1, -0.12, 0.05]).startswith("within the spread")
    assert "fewer than two" in tables.answer([0.1])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"rows": 79}, r"tiny\.csv has 79 records, 16 of label 1; the suite expects 80 and 16"),
        ({"b": "1,1"}, r"exactly one of the columns `b=…`"),
        ({"header": "a,c=x,c=y,label"}, r"no columns `b=…`"),
        ({"header": "z,b=x,b=y,label"}, r"column"),
    ],
)
def test_a_wrong_file_is_refused_before_work(folder: Path, how: dict[str, Any], said: str) -> None:
    write(folder / "tiny.csv", **how)
    with pytest.raises(InputError, match=said):
        suite.read_sets(small(), folder, ("tiny",))


def test_an_empty_folder_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lacks tiny\.csv\. Provide one CSV per set"):
        suite.read_sets(small(), tmp_path, ("tiny",))


def test_a_wrong_suite_is_refused_by_field(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(SUITE | {"test_share": 2}))
    with pytest.raises(InputError, match="test_share"):
        suite.load(file)
    file.write_text(yaml.safe_dump(SUITE | {"branches": {"nothing": {}}}))
    with pytest.raises(InputError, match="no branch `nothing`"):
        _ = suite.load(file).chosen


def test_the_command_from_option_to_page(folder: Path) -> None:
    """In this process: no server, no ledger."""
    from typer.testing import CliRunner

    from flows import cli

    (folder / "s.yaml").write_text(yaml.safe_dump(SUITE))
    given = ["imbalance", "--data", str(folder), "--suite", str(folder / "s.yaml"), "--home", str(folder / "home")]
    done = CliRunner().invoke(cli.app, [*given, "--seeds", "1", "--results", str(folder / "p.md"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["cells"] == 4
    assert (folder / "p.md").is_file()
    assert ((folder / "home" / "private").stat().st_mode & 0o777) == 0o700
    done = CliRunner().invoke(cli.app, [*given, "--seeds", "1", "--epsilons", "1", "--json"])
    assert json.loads(done.stdout)["cells"] == 2, "no branch limited to epsilon 5"
    with pytest.raises(InputError, match="--epsilons: `2` is unknown"):
        CliRunner().invoke(cli.app, [*given, "--epsilons", "2"], catch_exceptions=False)
    with pytest.raises(InputError, match="--branches: `x` is unknown"):
        CliRunner().invoke(cli.app, [*given, "--branches", "x"], catch_exceptions=False)


def test_a_rare_class_is_thinned_in_training_alone(folder: Path) -> None:
    """Of 12 training records of label 1 three stay, another three by another split; nothing else moves, and the
    key tells the two apart. More than there are is refused."""
    given = small()
    whole = suite.read_sets(given, folder, ("tiny",))["tiny"]
    labels = whole.labels.numpy()
    train = np.random.default_rng(0).permutation(60)
    rows = cell.thin(train, labels, 3)
    assert labels[rows].sum() == 3
    assert set(train) - set(rows) == set(train[labels[train] == 1][3:])
    assert set(cell.thin(train[::-1], labels, 3)) != set(rows)
    branch, few = given.chosen["objective"], replace(whole, training_minority=3)
    assert cell.key_of(few, branch, 1, 0, 0.25) != cell.key_of(whole, branch, 1, 0, 0.25)
    assert cell.Fits(0.25).fit(few, given.chosen["plain-logistic"], None, 0, "k").recall <= 1
    with pytest.raises(MechanismError, match="requires 90 training records of label 1, and the split has 12"):
        cell.thin(train, labels, 90)


def test_the_suite_of_rare_classes_is_valid() -> None:
    """Three sets at four sizes each, within what their training halves hold."""
    given = suite.load(suite.STANDARD.with_name("rare.yaml"))
    assert [one.training_minority for one in given.sets.values()] == [5, 10, 20, 50] * 3
    assert all(one.training_minority < one.minority * 0.8 - 1 for one in given.sets.values() if one.training_minority)
    assert list(given.chosen) == list(given.branches)
