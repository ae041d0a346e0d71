"""An audit's reruns in shards are those of one process, byte for byte; a chunk that is done is not done again.

The server and its workers are played here; tests/flows/test_fanned_out.py has real ones.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import played_workers
import pytest
import tiny_jobs
from played_workers import on

from tasks.auditing import pool as audit_pool
from tasks.auditing import trials
from tasks.auditing.run import reruns
from tasks.auditing.settings import AuditParameters
from tasks.auditing.trials import TrialRange
from tasks.branches.branch import Terms, standard_branches
from tasks.comparing import run as comparison
from tasks.parameters import FanOut, RetrainParameters
from tasks.running.stage import run_step

TRIALS = 20
"""In three chunks, the last of them smaller."""


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> RetrainParameters:
    """A job of seconds on the tiny encoder."""
    data = tiny_jobs.demo(tmp_path_factory.mktemp("data"), records=160)
    return tiny_jobs.retrain(data, tiny_roberta, reweight=False)


def rerun(parameters: RetrainParameters, home: Path, settings: FanOut) -> dict[str, bytes]:
    """Files of the reruns of SWAG-PPM, whose randomness has seeds."""
    context = tiny_jobs.workspace(home, fan_out=settings)
    do = partial(run_step, context)
    branch = standard_branches()["swag-ppm"]
    study = comparison.run(
        context.model_copy(update={"fan_out": FanOut()}), parameters, Terms(), (branch,), do=do
    ).study
    pool = do(audit_pool.pool(parameters.model, canaries=4, seed=parameters.fit.seed, **study.records))
    ref, _ = reruns(study, AuditParameters(trials=TRIALS, trial_draws=3), branch, pool)
    folder = context.store.open(ref)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def single(parameters: RetrainParameters, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A workspace where all is done in one process, and the reruns there."""
    home = tmp_path_factory.mktemp("single")
    return home, rerun(parameters, home, FanOut())


@pytest.fixture
def home(single: tuple[Path, dict[str, bytes]], tmp_path: Path) -> Path:
    """A workspace where all is finished but the reruns."""
    stages = Path("private") / "stages"
    shutil.copytree(single[0] / stages, tmp_path / "home" / stages, ignore=shutil.ignore_patterns("audit-trials"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("fates", "shards", "asked"),
    [([], 2, 2), (["crashed", "done", "failed"], 3, 5), (["twice"] * 3, 9, 3), (["queued"] * 2, 2, 2)],
    ids=["unbroken", "lost", "twice", "no-worker"],
)
def test_shards_are_the_trials_of_one_process(
    parameters: RetrainParameters,
    single: tuple[Path, dict[str, bytes]],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    fates: list[str],
    shards: int,
    asked: int,
) -> None:
    """The same bytes and the same manifest, so that what reads them is found under the same key."""
    workers = played_workers.play(monkeypatch, on(home), *fates)
    patience = 0.1 if "queued" in fates else 1000
    assert rerun(parameters, home, FanOut(shards=shards, patience_seconds=patience)) == single[1]
    assert len(workers.requests) == asked
    assert set(workers.deployments) == {("shard/shard", None)}
    assert len(list((home / "private" / "stages" / "trials-shard").iterdir())) == min(shards, 3)


def test_machines_that_share_only_a_place_end_alike(
    parameters: RetrainParameters,
    single: tuple[Path, dict[str, bytes]],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker has a workspace of its own, and is told references, numbers and settings alone."""
    monkeypatch.setenv("AUTOCODER_STORAGE", str(tmp_path / "shared"))
    workers = played_workers.play(monkeypatch, on(tmp_path / "worker"))
    assert rerun(parameters, home, FanOut(shards=3, patience_seconds=1000)) == single[1]
    assert len(list((tmp_path / "worker" / "private" / "stages" / "trials-shard").iterdir())) == 3
    for text in workers.requests:
        told = json.loads(text)
        assert set(told) == {"settings", "inputs", "key"}
        assert set(told["inputs"]) == {"pool", "dataset", "plan"}
        assert all(set(ref) == {"kind", "uri", "sha256"} for ref in told["inputs"].values())


def test_a_chunk_that_is_done_is_not_done_again(
    parameters: RetrainParameters,
    single: tuple[Path, dict[str, bytes]],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker dies after its first chunk, and the audit with it; the next one goes on there."""
    ran: list[str] = []
    real = trials.checkpoint.save

    def counted(file: Path, *rest: Any) -> None:
        if file.name.startswith("chunk_"):
            if dying and ran:
                raise KeyboardInterrupt  # nothing of ours catches it
            ran.append(file.name)
        real(file, *rest)

    played_workers.play(monkeypatch, on(home))
    monkeypatch.setattr(trials.checkpoint, "save", counted)
    dying = True
    with pytest.raises(KeyboardInterrupt):
        rerun(parameters, home, FanOut(shards=2, patience_seconds=1000))
    dying = False
    assert rerun(parameters, home, FanOut(shards=2, patience_seconds=1000)) == single[1]
    assert len(ran) == 3, "each chunk once"


@pytest.mark.parametrize(("number", "shards"), [(16, 2), (20, 3), (100, 7), (33, 50), (32, 1)])
def test_shards_are_all_trials_once_in_the_chunks_of_one_process(number: int, shards: int) -> None:
    """What runs side by side is the same, so that the last bits are."""
    whole: Any = {"model": {}, "seed": 1, "delta": 1e-5, "unit": ("record", 1), "end": number}
    asked = TrialRange.model_validate(whole)
    parts = asked.split(shards, chunk=asked.chunk)
    assert [chunk for part in parts for chunk in part.chunks] == asked.chunks
    assert len(parts) == min(shards, len(asked.chunks))
    assert [t for chunk in asked.chunks for t in chunk] == list(range(number))
