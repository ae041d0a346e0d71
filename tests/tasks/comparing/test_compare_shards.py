"""A comparison whose branches workers run is the comparison of one process: its stages, in the same bytes.

The server and its workers are played here; tests/flows/test_fanned_out.py has real ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import played_workers
import pytest
import tiny_jobs

from storage.errors import InputError, StorageError
from tasks.branches.branch import Terms, standard_branches
from tasks.comparing import run as comparison
from tasks.comparing import shards
from tasks.comparing.summary import summarise
from tasks.parameters import FanOut, RetrainParameters, ShardSettings
from tasks.running.stage import Context, Step, run_step

BRANCHES = ("non-private", "swag-ppm", "prior-descent")
OWN = ("branch-shard", "branch-settings")
"""Stages that only a comparison with workers has."""
NOISE = "prior-descent"
"""The branch whose noise has no seed: it is anew in each comparison, and the same in one."""


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> RetrainParameters:
    """A job of seconds on the tiny encoder."""
    data = tiny_jobs.demo(tmp_path_factory.mktemp("data"), records=160)
    return tiny_jobs.retrain(data, tiny_roberta, reweight=False)


def stages(home: Path) -> dict[str, bytes]:
    """Manifests of the finished stages: they hold the digest of every file."""
    root = home / "private" / "stages"
    found = {str(p.parent.relative_to(root)): p.read_bytes() for p in root.rglob("manifest.json")}
    return {name: content for name, content in found.items() if name.partition("/")[0] not in OWN}


def compare(
    parameters: RetrainParameters,
    home: Path,
    settings: ShardSettings | None = None,
    *,
    branches: tuple[str, ...] = BRANCHES,
    ran: list[str] | None = None,
) -> Any:
    """The comparison's aggregates; `ran` gets the stages that were computed in this process."""
    context = tiny_jobs.workspace(home)

    def do(step: Step) -> Any:
        if ran is not None and step.find(context.store) is None:
            ran.append(step.name)
        return run_step(context, step)

    elsewhere = None if settings is None else partial(shards.finish, settings, lambda done, total: None)
    chosen = tuple(standard_branches()[name] for name in branches)
    compared = comparison.run(context, parameters, Terms(epochs=2), chosen, do=do, seeds=2, run_on_workers=elsewhere)
    return compared.study.target, summarise(compared.outcomes)


def on(home: Path) -> Callable[[dict[str, Any]], object]:
    """A worker with this workspace."""

    def work(asked: dict[str, Any]) -> object:
        return played_workers.compute(tiny_jobs.workspace(home), asked)

    return work


@pytest.fixture(scope="module")
def single(parameters: RetrainParameters, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A comparison in one process: its workspace and its aggregates."""
    home = tmp_path_factory.mktemp("single")
    return home, compare(parameters, home)


@pytest.mark.parametrize(
    ("fates", "asked"),
    [(["crashed", "done", "failed", "done"], 8), (["twice", "queued", "queued", "twice"], 6)],
    ids=["lost", "twice-and-no-worker"],
)
def test_workers_run_what_one_process_runs(
    parameters: RetrainParameters,
    single: tuple[Path, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fates: list[str],
    asked: int,
) -> None:
    """The target that is taken from SWAG-PPM first; then all stages, byte for byte; then the same aggregates, in the
    same order. A formal branch has noise of its own, drawn once a seed.
    """
    workers = played_workers.play(monkeypatch, on(tmp_path / "home"), *fates)
    patience = 0.1 if "queued" in fates else 1000
    ran: list[str] = []
    target, told = compare(parameters, tmp_path / "home", ShardSettings(patience_seconds=patience), ran=ran)
    assert target == single[1][0]
    assert [one for one in told if one.branch != NOISE] == [one for one in single[1][1] if one.branch != NOISE]
    assert [one.branch for one in told] == list(BRANCHES)
    expected, found = stages(single[0]), stages(tmp_path / "home")
    repeatable = {name: content for name, content in expected.items() if found.get(name) == content}
    different = {name.partition("/")[0] for name in expected.keys() - repeatable}
    assert different <= {"branch-fit", "predictions", "scores"}
    for kind in ("swag", "sensitivity", "risk-weights", "features"):
        of_kind = [name for name in expected if name.startswith(f"{kind}/")]
        assert of_kind
        assert set(of_kind) <= set(repeatable)
    assert len([n for n in found if n.startswith("branch-fit/")]) == len(
        [n for n in expected if n.startswith("branch-fit/")]
    )
    assert len(workers.requests) == asked
    assert set(ran) <= {"ingest", "titles", "features"}, "what branches run is run as a shard alone"


def test_a_worker_needs_neither_the_records_nor_the_ledger(
    parameters: RetrainParameters, single: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares a place with the comparison; file and code list are gone there. It is told digests and numbers."""
    monkeypatch.setenv("AUTOCODER_STORAGE", str(tmp_path / "shared"))
    own = tmp_path / "records"
    own.mkdir()
    data = parameters.data
    assert data.codelist is not None
    files = {"source": shutil.copy(data.source[0], own), "codelist": shutil.copy(data.codelist, own)}
    moved = parameters.model_copy(update={"data": data.model_copy(update=files)})
    real = shards.spreading.finish

    def away(*arguments: Any) -> None:
        own.rename(tmp_path / "gone")
        real(*arguments)
        (tmp_path / "gone").rename(own)

    monkeypatch.setattr(shards.spreading, "finish", away)
    workers = played_workers.play(monkeypatch, on(tmp_path / "worker"))
    branches = ("non-private", "swag-ppm")
    _, told = compare(moved, tmp_path / "home", ShardSettings(patience_seconds=1000), branches=branches)
    assert told == [one for one in single[1][1] if one.branch in branches]
    assert not list((tmp_path / "worker").rglob("ledger*"))
    for text in workers.requests:
        asked = json.loads(text)
        assert set(asked) == {"settings", "inputs", "key"}
        assert set(asked["inputs"]) == {"dataset", "prepared", "settings"}
        assert all(set(ref) == {"kind", "uri", "sha256"} for ref in asked["inputs"].values())


def test_a_comparison_that_died_asks_only_for_what_is_missing(
    parameters: RetrainParameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that failed too often ends it; what is finished stays."""
    home = tmp_path / "home"
    branches = ("non-private", "swag-ppm")
    workers = played_workers.play(monkeypatch, on(home), "done", "done", "done", "failed")
    with pytest.raises(StorageError, match=r"swag-ppm, seed \d+: lost 1 times"):
        compare(parameters, home, ShardSettings(patience_seconds=1000, attempts=1), branches=branches)
    before = len(workers.requests)
    compare(parameters, home, ShardSettings(patience_seconds=1000), branches=branches)
    assert len(workers.requests) - before == 1


def test_slots_and_workers_are_not_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And without a server nobody can be asked."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    context = Context(home=str(tmp_path), fan_out=FanOut())
    with pytest.raises(InputError, match="slots"):
        shards.preflight(context, slots=2)
    with pytest.raises(InputError, match="PREFECT_API_URL"):
        shards.preflight(context)
