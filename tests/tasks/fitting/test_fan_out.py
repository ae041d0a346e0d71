"""A pass in shards gives what one process gives, bit for bit; shards that are lost are run again, alone.

The server and its workers are played here; tests/flows/test_shards.py has real ones.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import played_workers
import pytest
import tiny_jobs
from played_workers import PlayedWorkers, on
from prefect.client.schemas.objects import StateType

from storage.errors import InputError, StorageError
from tasks.fitting.risks import Draws
from tasks.parameters import FanOut, RetrainParameters
from tasks.releasing import preflight
from tasks.running import shards
from tasks.running.stage import Context

SPREAD = ("risks", "sensitivity")


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> RetrainParameters:
    """A job of seconds on the tiny encoder."""
    data = tiny_jobs.demo(tmp_path_factory.mktemp("data"), records=160)
    return tiny_jobs.retrain(data, tiny_roberta, risk_draws=7, reweight=False)


@pytest.fixture(scope="module")
def single(parameters: RetrainParameters, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of a job in one process."""
    home = tmp_path_factory.mktemp("single")
    run(parameters, home, FanOut())
    return home


def run(parameters: RetrainParameters, home: Path, settings: FanOut) -> None:
    """Fit and measure."""
    tiny_jobs.fitted(tiny_jobs.workspace(home, fan_out=settings), parameters)


def manifests(home: Path, *names: str) -> dict[str, bytes]:
    """Of the finished stages of these names: they hold the digest of every file."""
    root = home / "private" / "stages"
    return {f"{n}/{p.parent.name}": p.read_bytes() for n in names for p in (root / n).glob("*/manifest.json")}


@pytest.fixture
def home(single: Path, tmp_path: Path) -> Path:
    """A workspace where all is finished but the passes.

    What follows the passes is found there if they give the same bytes, and is fitted again, under another key, if not.
    """
    stages = Path("private") / "stages"
    left_out = shutil.ignore_patterns(*SPREAD)
    shutil.copytree(single / stages, tmp_path / "home" / stages, ignore=left_out, copy_function=os.link)
    return tmp_path / "home"


@pytest.fixture
def workers(home: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedWorkers:
    """Workers on the same workspace as the job."""
    return played_workers.play(monkeypatch, on(home))


@pytest.mark.parametrize(
    ("fates", "asked"),
    [
        ([], 6),
        (["crashed", "done", "failed", "done", "cancelled"], 9),
        (["deleted"], 7),
        (["twice"] * 6, 6),
    ],
    ids=["unbroken", "lost", "deleted", "twice"],
)
def test_shards_end_as_one_process(
    parameters: RetrainParameters, single: Path, home: Path, workers: PlayedWorkers, fates: list[str], asked: int
) -> None:
    """The same keys and the same bytes, weights and running maximum included, and so the same fits after it.

    A lost shard is asked for again, the others are not; one that two workers got counts once.
    """
    workers.fates = list(fates)
    run(parameters, home, FanOut(shards=3, patience_seconds=1000))
    for names in (SPREAD, ("risk-weights", "swag", "evaluate")):
        expected = manifests(single, *names)
        assert expected
        assert manifests(home, *names) == expected
    assert len(workers.requests) == asked
    assert len(manifests(home, "risk-shard")) == 6
    assert not workers.cancelled
    assert manifests(single, "risk-shard") == {}, "one process asks for no shards"


@pytest.mark.parametrize("patience", [0, 0.2])
def test_without_workers_it_computes_the_shards_itself(
    parameters: RetrainParameters, single: Path, home: Path, workers: PlayedWorkers, patience: float
) -> None:
    """Nobody serves the pool: it ends all the same, alike, and takes back what it had asked for."""
    workers.fates = ["queued"] * 6
    run(parameters, home, FanOut(shards=3, patience_seconds=patience))
    assert manifests(home, *SPREAD) == manifests(single, *SPREAD)
    assert sorted(workers.cancelled) == sorted(str(i) for i in range(6))


def test_machines_that_share_only_a_place_end_alike(
    parameters: RetrainParameters, single: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers with a workspace of their own fetch what the shards read, and the job fetches the shards."""
    monkeypatch.setenv("AUTOCODER_STORAGE", str(tmp_path / "shared"))
    played_workers.play(monkeypatch, on(tmp_path / "worker"))
    run(parameters, home, FanOut(shards=2, patience_seconds=1000))
    assert manifests(home, *SPREAD) == manifests(single, *SPREAD)
    assert len(manifests(tmp_path / "worker", "risk-shard")) == 4
    assert not manifests(tmp_path / "worker", *SPREAD), "the merged pass is the job's own"


def test_a_shard_that_dies_too_often_ends_the_job_and_nothing_is_lost(
    parameters: RetrainParameters, single: Path, home: Path, workers: PlayedWorkers
) -> None:
    """The reason is told, what has not begun is taken back, what is finished stays for the next try."""
    workers.fates = ["done", "crashed", "queued", "crashed"]
    with pytest.raises(StorageError, match="risk draws 3 to 4: lost 2 times; last reason: its reason"):
        run(parameters, home, FanOut(shards=3, attempts=2, patience_seconds=1000))
    assert workers.cancelled == ["2"]
    before = len(workers.requests)
    run(parameters, home, FanOut(shards=3, patience_seconds=1000))
    assert len(workers.requests) - before == 2 + 3, "two of the risk shards, three of the sensitivity's"
    assert manifests(home, *SPREAD) == manifests(single, *SPREAD)


def test_a_pass_that_is_stopped_takes_its_shards_along(
    parameters: RetrainParameters, home: Path, workers: PlayedWorkers
) -> None:
    """Those at work too: somebody pressed Cancel, and nobody waits for them."""
    workers.fates = ["running", "running", "queued"]
    looks = iter((False, True))
    states = workers.states

    def then_stopped(runs: Sequence[str]) -> dict[str, tuple[StateType | None, str]]:
        if next(looks):
            raise KeyboardInterrupt
        return states(runs)

    workers.states = then_stopped
    with pytest.raises(KeyboardInterrupt):
        run(parameters, home, FanOut(shards=3, patience_seconds=1000))
    assert workers.cancelled == ["0", "1", "2"]


def test_workers_that_share_nothing_are_told_what_to_set(
    parameters: RetrainParameters, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker lacks the inputs; or it says that it is done and its output is nowhere to be seen."""
    workers = played_workers.play(monkeypatch, on(tmp_path / "worker"))
    with pytest.raises(StorageError, match="Give all workers the same AUTOCODER_STORAGE"):
        run(parameters, home, FanOut(shards=2))
    workers.fates = ["elsewhere"] * 2
    said = r"ended without output in this workspace\. Give all workers the same AUTOCODER"
    with pytest.raises(StorageError, match=said):
        run(parameters, home, FanOut(shards=2))


@pytest.mark.usefixtures("workers")
def test_a_shard_removed_before_the_merge_is_no_smaller_maximum(
    parameters: RetrainParameters, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer draws would understate the sensitivity: refused."""
    finish = shards._Round.finish

    def lossy(self: Any) -> None:
        finish(self)
        shutil.rmtree(next((home / "private" / "stages" / "risk-shard").iterdir()))

    monkeypatch.setattr(shards._Round, "finish", lossy)
    with pytest.raises(StorageError, match="was removed before it was merged"):
        run(parameters, home, FanOut(shards=3))


def test_a_worker_of_another_version_refuses(parameters: RetrainParameters, home: Path, workers: PlayedWorkers) -> None:
    """Its output would have another key: it would never be found."""
    run(parameters, home, FanOut(shards=2))
    with pytest.raises(StorageError, match="code or libraries differ"):
        on(home)(json.loads(workers.requests[0]) | {"key": "0" * 32})


@pytest.mark.parametrize(("number", "shards"), [(7, 3), (5, 5), (2, 9), (1000, 7), (1, 1)])
def test_shards_are_all_draws_once(number: int, shards: int) -> None:
    """In order, sizes that differ by one at most, none empty."""
    whole: Any = {"model": {}, "seed": 1, "std_scale": 1, "purpose": "risk", "end": number}
    parts = Draws.model_validate(whole).split(shards)
    assert [s for part in parts for s in range(part.first, part.end)] == list(range(number))
    sizes = [part.end - part.first for part in parts]
    assert len(sizes) == min(number, shards)
    assert max(sizes) - min(sizes) <= 1


def test_a_deployment_releases_by_itself_the_demo_alone(
    parameters: RetrainParameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever empties `Release deployment` in the form gets round neither the approvals nor the worker with the key."""
    context = Context(home=str(tmp_path))
    at_once = parameters.release.model_copy(update={"enabled": True})
    parameters = parameters.model_copy(update={"release": at_once})
    monkeypatch.setattr(preflight, "deployment_id", lambda: None)
    preflight.check(context, parameters, to_release=True)
    monkeypatch.setattr(preflight, "deployment_id", lambda: "of-a-deployment")
    real = parameters.model_copy(update={"data": parameters.data.model_copy(update={"population": "injuries"})})
    demo = parameters.model_copy(update={"data": parameters.data.model_copy(update={"population": "demo"})})
    preflight.check(context, demo, to_release=True)
    with pytest.raises(InputError, match=r"release\.deployment: .* of the population demo only"):
        preflight.check(context, real, to_release=True)
    for release in ({"deployment": "release/release"}, {"enabled": False}):
        changed = real.model_copy(update={"release": real.release.model_copy(update=release)})
        preflight.check(context, changed, to_release=True)


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ({"licence": "/gone"}, "release.licence"),
        ({"signing_key": "/gone"}, "/gone"),
        ({"supersedes": "x"}, "supersedes"),
    ],
)
def test_what_could_not_release_is_refused_before_it_trains(
    parameters: RetrainParameters, tmp_path: Path, release: dict[str, str], said: str
) -> None:
    """Files that are not there, and a release that this ledger does not have."""
    asked = parameters.model_copy(update={"release": parameters.release.model_copy(update=release)})
    with pytest.raises(InputError, match=said):
        preflight.check(Context(home=str(tmp_path)), asked, to_release=True)


def test_shards_are_refused_in_the_first_second(
    parameters: RetrainParameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, and without a server to ask."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    context = Context(home=str(tmp_path), fan_out=FanOut(shards=2))
    with pytest.raises(InputError, match="PREFECT_API_URL"):
        preflight.check(context, parameters)
    half = parameters.pseudo_posterior.model_copy(update={"precision": "bfloat16"})
    with pytest.raises(InputError, match="Use float32 with shards"):
        preflight.check(context, parameters.model_copy(update={"pseudo_posterior": half}))
