"""Whatever dies, a training run on the stack ends with the result of an unbroken run, and with one
release. Nightly five of them, and a full disk where one may be mounted, hit one run one after the
other, in a few minutes; `--faults-repeat 5` gives each fault a run of its own, five times, each in
another stage, with the network cut for five minutes ($AUTOCODER_TEST_CUT_SECONDS).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults import FAULTS, Disk, Proxy, Scene, Worker, own_disk
from runs import ended, in_state, processes_of, release_run, releases, small, start, with_settings
from stacks import Stack

from storage.bundle.seal import release_key
from storage.paths import Workspace

pytestmark = [pytest.mark.servers, pytest.mark.postgres, pytest.mark.timeout(2400)]

SEED = 61
STAGES = 8
"""Faults hit when so many stages are finished, in turn; a run has a few more."""

IN_ONE_RUN = ("handed-to-two", "server-killed", "postgres-killed", "redis-lost", "network-cut")
"""Not the killed process, which is test_production's; nor the lost host, whose heartbeat is missed
after seven minutes. Starts are four in all, by housekeeping: the first, one after the full disk,
the second process, and one to spare.
"""


@pytest.fixture(scope="module")
def worker(stack: Stack) -> Iterator[Worker]:
    """A worker with a pool and a deployment of its own, behind a proxy."""
    proxy = Proxy(int(stack.api.rpartition(":")[2].partition("/")[0]))
    own = Worker(stack, "faults", proxy)
    own.start()
    stack.wait(
        "the pool",
        lambda: any(p["name"] == "faults" for p in stack.post("/work_pools/filter").json()),
    )
    known = stack.deployment("retrain/demo")
    kept = (
        "flow_id",
        "entrypoint",
        "pull_steps",
        "parameters",
        "parameter_openapi_schema",
        "enforce_parameter_schema",
    )
    made = stack.post(
        "/deployments/",
        {k: known[k] for k in kept} | {"name": "faults", "work_pool_name": "faults"},
    )
    assert made.status_code in (200, 201), made.text
    yield own
    own.stop()
    proxy.close()


PACE = 5
"""How many times longer training takes where one run must outlast five restarts."""


def longer(stack: Stack, pace: int) -> dict[str, Any]:
    """A training run whose stages take a few seconds each, times the pace, so that a fault finds
    one at work.
    """
    method = {"fine_tune": {"epochs": 20 * pace}, "collect": {"epochs": 30 * pace}}
    draws = {"risk_draws": 400, "sensitivity_draws": 400}
    return with_settings(small(stack, seed=SEED), {"method": method | {"pseudo_posterior": draws}})


def manifests(home: Path) -> dict[str, bytes]:
    root = home / "private" / "stages"
    return {
        str(p.parent.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("manifest.json"))
    }


def give_keys(stack: Stack, home: Path) -> None:
    """Gives a workspace the stack's registry key, since a ledger has one and stages are named with
    it, and the stack's signing key, which is the one that the ledger's policy lists.
    """
    shared, own = (Workspace(folder).create().private for folder in (stack.home, home))
    if not (shared / "registry.key").exists():
        (shared / "registry.key").write_bytes(b"k" * 32)
        (shared / "registry.key").chmod(0o600)
    release_key(Workspace(stack.home))
    for name in (Path("registry.key"), Path("keys", "signing-key.pem")):
        file = own / name
        if not file.exists():
            file.parent.mkdir(mode=0o700, exist_ok=True)
            file.write_bytes((shared / name).read_bytes())
            file.chmod(0o600)


@pytest.fixture(scope="module")
def unbroken(stack: Stack, worker: Worker) -> Callable[[int], dict[str, bytes]]:

    @cache
    def stages(pace: int) -> dict[str, bytes]:
        home = stack.folder / f"unbroken-{pace}"
        give_keys(stack, home)
        parameters = with_settings(
            longer(stack, pace), {"release": {"enabled": False}, "run": {"home": str(home)}}
        )
        run = start(stack, "retrain/faults", parameters).json()
        done = stack.wait("the unbroken run", lambda: ended(stack, run["id"]))
        assert done["state_type"] == "COMPLETED", done["state"]
        return manifests(home)

    return stages


def hurt(scene: Scene, home: Path, fault: str, *, after: int) -> None:
    scene.stack.wait(
        f"{after} stages",
        lambda: len(manifests(home)) >= after or ended(scene.stack, scene.run["id"]),
    )
    assert not ended(scene.stack, scene.run["id"]), f"the run was over before {fault}"
    FAULTS[fault](scene)


def check_ended(scene: Scene, home: Path, unbroken: dict[str, bytes], key: Path) -> None:
    """The run completes with the unbroken one's stages, byte for byte, and one release follows its
    approval.
    """
    stack, run_id = scene.stack, scene.run["id"]
    done = stack.wait("the retrain's end", lambda: ended(stack, run_id))
    assert done["state_type"] == "COMPLETED", done["state"]
    for process in scene.spare:
        process.wait(1800)
    assert manifests(home) == unbroken
    asked = stack.wait("the release run", lambda: release_run(stack, run_id))
    stack.wait("its suspension", lambda: in_state(stack, asked["id"], "PAUSED"))
    assert releases(stack, of_run=run_id) == []
    posted = stack.command(
        "approve", asked["parameters"]["plan"], "--key", str(key), "--yes", "--post"
    )
    assert posted.returncode == 0, posted.stderr
    stack.wait("the release", lambda: in_state(stack, asked["id"], "COMPLETED"))
    (row,) = releases(stack, of_run=run_id)
    assert row.state == "committed"
    assert [p.name for p in (home / "bundles").iterdir()] == [row.release_id]
    assert stack.command("ledger", "verify").returncode == 0


def begin(
    stack: Stack, worker: Worker, home: Path, label: str, *, cut_seconds: float, pace: int
) -> Scene:
    """Start a training run in a workspace of its own, under a label of its own."""
    give_keys(stack, home)
    parameters = with_settings(
        longer(stack, pace), {"release": {"label": label}, "run": {"home": str(home)}}
    )
    run = start(stack, "retrain/faults", parameters).json()
    return Scene(stack, worker, run, cut_seconds)


def fill(scene: Scene, home: Path, disk: Disk, *, after: int) -> None:
    """The full disk ends the run with its reason; with room made, *Retry* continues."""
    stack, run_id = scene.stack, scene.run["id"]
    stack.wait(f"{after} stages", lambda: len(manifests(home)) >= after or ended(stack, run_id))
    disk.fill()
    failed = stack.wait("the full disk's failure", lambda: ended(stack, run_id))
    assert failed["state_type"] == "FAILED", failed["state"]
    assert "no space left on the disk" in failed["state"]["message"]
    assert "Free space" in failed["state"]["message"]
    disk.free()
    retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
    assert stack.post(f"/flow_runs/{run_id}/set_state", retry).json()["status"] == "ACCEPT"


@pytest.mark.long
def test_all_faults_in_one_run(
    stack: Stack, worker: Worker, unbroken: Callable[[int], dict[str, bytes]], officer: Path
) -> None:
    """The disk is full, the run is handed to two, server and database die, Redis forgets, the
    network is cut.
    """
    home = stack.folder / "all-faults"
    with own_disk(home) as disk:
        scene = begin(stack, worker, home, home.name, cut_seconds=10, pace=PACE)
        if disk is not None:
            fill(scene, home, disk, after=2)
        for number, fault in enumerate(IN_ONE_RUN):
            hurt(scene, home, fault, after=3 + number)
        check_ended(scene, home, unbroken(PACE), officer)


@pytest.mark.long
def test_a_database_that_is_away_ends_no_run(
    stack: Stack, worker: Worker, unbroken: Callable[[int], dict[str, bytes]], officer: Path
) -> None:
    """For 2 s in a stage and for 25 s in another one, as in an upgrade of PostgreSQL: Prefect's and
    the ledger's. It goes on, or, where it reads the ledger meanwhile, is taken up.
    """
    home, expected = stack.folder / "database-away", unbroken(PACE)
    scene = begin(stack, worker, home, home.name, cut_seconds=2, pace=PACE)
    hurt(scene, home, "postgres-away", after=2)
    hurt(replace(scene, cut_seconds=25), home, "postgres-away", after=3)
    check_ended(scene, home, expected, officer)
    assert stack.run(scene.run["id"])["run_count"] <= 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        rounds = range(int(metafunc.config.getoption("--faults-repeat") or 0))
        none = [
            pytest.param("none", 0, marks=pytest.mark.skip(reason="asked for by --faults-repeat N"))
        ]
        each = [(f, n) for n in rounds for f in (*FAULTS, "disk-full")]
        metafunc.parametrize(("fault", "number"), each or none, ids=lambda value: str(value))


@pytest.mark.long
def test_one_fault(
    stack: Stack,
    worker: Worker,
    unbroken: Callable[[int], dict[str, bytes]],
    officer: Path,
    fault: str,
    number: int,
) -> None:
    """Each fault alone, in a stage that differs from round to round."""
    home = stack.folder / f"{fault}-{number}"
    if fault == "disk-full":
        with own_disk(home) as disk:
            if disk is None:
                pytest.skip("a disk that is full wants a user who may mount one")
            scene = begin(stack, worker, home, home.name, cut_seconds=0, pace=1)
            fill(scene, home, disk, after=1 + number)
            check_ended(scene, home, unbroken(1), officer)
        return
    cut = float(os.environ.get("AUTOCODER_TEST_CUT_SECONDS", "300"))
    scene = begin(stack, worker, home, home.name, cut_seconds=cut, pace=1)
    hurt(scene, home, fault, after=1 + (number + 3 * list(FAULTS).index(fault)) % STAGES)
    check_ended(scene, home, unbroken(1), officer)


def test_cancelled_it_stops_within_seconds_and_leaves_nothing(stack: Stack) -> None:
    """As the page's *Cancel* does it, in the middle of a long training: no process, no plan, no
    release.
    """
    home = stack.folder / "cancelled"
    settings = {"method": {"fine_tune": {"epochs": 10_000}}, "run": {"home": str(home)}}
    run = start(stack, "retrain/demo", with_settings(small(stack, seed=SEED), settings)).json()
    stack.wait("training", lambda: list((home / "private" / "work").glob("branch-fit/*/*/*")))
    assert processes_of(run)
    asked = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    assert stack.post(f"/flow_runs/{run['id']}/set_state", asked).json()["status"] == "ACCEPT"
    # Prefect gives a run 30 s to end by itself; how long it takes is not this test's to measure
    stack.wait("the end of its process", lambda: not [p for p in processes_of(run) if _alive(p)])
    stack.wait("its state", lambda: stack.run(run["id"])["state_type"] == "CANCELLED")

    def states() -> set[str]:
        of_run = {"flow_runs": {"id": {"any_": [run["id"]]}}}
        return {one["state_type"] for one in stack.post("/task_runs/filter", of_run).json()}

    # A stage that did not end by itself is killed; the watch ends it on the page.
    stack.wait("its stages' states", lambda: states() == {"COMPLETED", "CANCELLED"})
    assert not list((home / "private").glob("plans/*"))
    assert not list((home / "bundles").iterdir())
    assert release_run(stack, run["id"]) is None
    assert releases(stack, of_run=run["id"]) == []


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
