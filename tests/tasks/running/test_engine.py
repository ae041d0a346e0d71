"""Parts have the same answers in this process, in processes here and on a cluster, anyone who dies
meanwhile.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import engine_bodies
import pytest
from engine_cluster import Cluster
from refusals import of_kind

from storage.errors import InputError, StorageError
from tasks.running import engine
from tasks.running.failures import StageError


@pytest.fixture(autouse=True, scope="module")
def _close() -> Iterator[None]:
    yield
    engine.disconnect("2")


def answers(
    body: Callable[[str], str],
    parts: list[str],
    folder: Path,
    chosen: str,
    ended: list[int] | None = None,
) -> list[str]:
    """What a body stored for each part, in the parts' order."""
    stored = [folder / f"answer-{number}" for number in range(len(parts))]
    asked = [
        json.dumps([f"{body.__name__}", part, str(file)])
        for part, file in zip(parts, stored, strict=True)
    ]
    done = (lambda number: None) if ended is None else ended.append
    engine.map_parts(engine_bodies.stored, asked, engine=chosen, done=done)
    return [file.read_text() for file in stored]


@pytest.mark.parametrize("chosen", ["", "2"])
def test_every_part_is_computed_and_told_once(chosen: str, tmp_path: Path) -> None:
    ended: list[int] = []
    parts = [str(number) for number in range(20)]
    assert answers(engine_bodies.square, parts, tmp_path, chosen, ended) == [
        str(number**2) for number in range(20)
    ]
    assert sorted(ended) == list(range(20))


def test_processes_share_the_parts(tmp_path: Path) -> None:
    """None is this one."""
    workers = set(answers(engine_bodies.where, ["x"] * 8, tmp_path, "2"))
    assert len(workers) == 2
    assert str(os.getpid()) not in workers


def test_a_worker_keeps_its_memory_and_its_share_of_the_cores(tmp_path: Path) -> None:
    """Not what Dask sets, with which encoding takes a fifth longer."""
    wanted = engine.worker_variables(2)
    found = answers(engine_bodies.variable, [*wanted], tmp_path, "2")
    assert found == [os.environ.get(name, value) for name, value in wanted.items()]


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    """The parts that it was at are resumed by others."""
    parts = [json.dumps([str(tmp_path), number]) for number in range(6)]
    assert answers(engine_bodies.die_once, parts, tmp_path, "2") == [
        str(number) for number in range(6)
    ]
    assert (tmp_path / "died-1").exists(), "a worker was killed"


def test_a_part_that_kills_every_worker_ends_the_run() -> None:
    """It is not tried for ever."""
    with pytest.raises(StorageError, check=of_kind("workers-died")):
        engine.map_parts(engine_bodies.die, ["x"], engine="2")


@pytest.mark.parametrize("chosen", ["", "2"])
@pytest.mark.parametrize(
    ("part", "refused", "refusal"),
    [
        ("input", InputError, of_kind("no-file", saying="name a file")),
        ("storage", StorageError, of_kind("records-changed", saying="run again")),
        ("other", None, None),
    ],
)
def test_an_error_of_ours_comes_as_it_is(
    chosen: str, part: str, refused: type[Exception] | None, refusal: of_kind | None
) -> None:
    """That of a library quotes a value: from a worker comes its type and place alone."""
    if refused is not None and refusal is not None:
        with pytest.raises(refused, check=refusal):
            engine.map_parts(engine_bodies.fail, [part], engine=chosen)
    elif chosen:
        with pytest.raises(StageError, match=r"KeyError at engine_bodies\.py") as raised:
            engine.map_parts(engine_bodies.fail, [part], engine=chosen)
        assert "narrative" not in repr(raised.value)


@pytest.mark.parametrize(
    ("chosen", "refusal"),
    [
        *(("0", of_kind("engine-form")), ("many", of_kind("engine-form"))),
        *(
            ("tcp://10.1.2.3:8786", of_kind("unencrypted-engine")),
            ("tls://10.1.2.3:8786", of_kind("no-certificates")),
        ),
        *(
            ("http://10.1.2.3:8786", of_kind("engine-address")),
            ("tcp://127.0.0.1:1", of_kind("no-scheduler")),
        ),
    ],
)
def test_what_could_not_compute_is_refused(
    chosen: str, refusal: of_kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(engine.CERTIFICATES, raising=False)
    with pytest.raises(InputError, check=refusal):
        engine.check(chosen)


def test_certificates_are_closed_and_made_once(tmp_path: Path) -> None:
    engine.make_certificates(tmp_path / "cluster")
    files = list((tmp_path / "cluster").iterdir())
    assert {file.name for file in files} == {engine.CERTIFICATE, engine.KEY}
    assert all(file.stat().st_mode & 0o077 == 0 for file in [tmp_path / "cluster", *files])
    with pytest.raises(InputError, check=of_kind("certificates-exist")):
        engine.make_certificates(tmp_path / "cluster")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    monkeypatch.setenv(engine.CERTIFICATES, str(tmp_path / "cluster"))
    engine.disconnect("2")
    made.start_scheduler()
    made.start_worker()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.servers
def test_a_cluster_by_the_commands_survives_its_scheduler(cluster: Cluster, tmp_path: Path) -> None:
    """Killed while parts are at work, and started again with a worker; every answer comes, in
    order.
    """
    cluster.wait_for_a_worker()
    parts = [json.dumps([str(tmp_path), number]) for number in range(8)]
    ended: list[int] = []
    asking = threading.Thread(
        target=partial(
            engine.map_parts, engine_bodies.slow, parts, engine=cluster.address, done=ended.append
        )
    )
    asking.start()
    while not (tmp_path / "done-1").exists():
        time.sleep(0.05)
    cluster.end("scheduler")
    cluster.end("worker")
    cluster.start_scheduler()
    cluster.start_worker()
    asking.join(120)
    assert sorted(ended) == list(range(8))
    assert all((tmp_path / f"done-{number}").exists() for number in range(8))


@pytest.mark.servers
def test_who_has_other_certificates_is_let_in_nowhere(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.wait_for_a_worker()
    assert answers(engine_bodies.square, ["3"], tmp_path, cluster.address) == ["9"]
    engine.disconnect(cluster.address)
    engine.make_certificates(tmp_path / "strangers")
    monkeypatch.setenv(engine.CERTIFICATES, str(tmp_path / "strangers"))
    with pytest.raises(InputError, check=of_kind("no-scheduler")):
        engine.check(cluster.address)
    with pytest.raises(InputError, check=of_kind("no-scheduler")):
        engine.check(cluster.address.replace("tls:", "tcp:"))
