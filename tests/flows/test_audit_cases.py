"""Which audits a command line asks for: its own, and one of each `--vary`."""

from __future__ import annotations

from pathlib import Path

from flows.commands.audit import BranchOptions, EffortOptions, VariationOptions, _cases
from flows.commands.options import RunOptions
from storage.demo_data import write_demo_data

SEARCHED = "pseudo_posterior.c=0.5; pseudo_posterior.target_epsilon=2"


def run(folder: Path, profile: str) -> RunOptions:
    data = write_demo_data(folder, records=60, seed=1)
    return RunOptions(data=[data.csv], codelist=[data.codelist], profile=profile, home=folder / "home")


def test_a_target_that_is_varied_is_not_overruled(tmp_path: Path) -> None:
    """`--epsilon` is of all that does not name its own; a case once ran at it that asked for another."""
    varied = VariationOptions(vary=["fit.adamw.epochs=3", SEARCHED])
    cases = _cases(run(tmp_path, "demo"), BranchOptions(target_epsilon="5"), EffortOptions(trials=0), varied)
    assert [case.terms.target_epsilon for case in cases.values()] == [5.0, 5.0, "match"]
    assert cases[SEARCHED].parameters.pseudo_posterior.target_epsilon == 2


def test_a_formal_target_holds_where_something_else_is_varied(tmp_path: Path) -> None:
    """A formal profile names no epsilon of its own; a change of another setting keeps the one that was given."""
    varied = VariationOptions(vary=["fit.seed=7", "formal.target_epsilon=2"])
    cases = _cases(run(tmp_path, "demo-formal"), BranchOptions(target_epsilon="5"), EffortOptions(trials=0), varied)
    targets = [case.parameters.formal.target_epsilon for case in cases.values() if case.parameters.formal is not None]
    assert targets == [5.0, 5.0, 2.0]
    assert [case.terms.target_epsilon for case in cases.values()] == [5.0, 5.0, "match"]
