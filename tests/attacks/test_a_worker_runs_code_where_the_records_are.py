"""Would win: code of an engine's worker in the process that has the records, the ledger's password
and a login, by a pickle that this process reads.
"""

from collections.abc import Iterator
from pathlib import Path

import engine_bodies
import pytest
from engine_cluster import Cluster

from mechanisms.errors import MechanismError
from storage.errors import InputError, StorageError
from tasks.running import engine

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("rogue")
    made = Cluster(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(engine.CERTIFICATES, str(folder / "cluster"))
        made.start_scheduler()
        made.start_worker()
        try:
            made.wait_for_a_worker()
            yield made
        finally:
            made.close()


@pytest.mark.parametrize(
    ("rogue", "fails"),
    [
        (engine_bodies.rogue_value, False),
        (engine_bodies.rogue_warning, False),
        (engine_bodies.rogue_type, False),
        (engine_bodies.rogue_error, True),
    ],
)
def test_a_workers_answer_runs_no_code_here(
    rogue: object, fails: bool, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its value, the type of it, its exception, and a warning to whom it may concern.

    The worker writes the file where it makes the pickle only if it unpickles it itself, which none
    of these does.
    """
    trap = tmp_path / "written"
    monkeypatch.setattr(engine, "_guarded", rogue)
    if fails:
        with pytest.raises((StorageError, MechanismError)):
            engine.map_parts(engine_bodies.square, [str(trap)], engine=cluster.address)
    else:
        engine.map_parts(engine_bodies.square, [str(trap)], engine=cluster.address)
    assert not trap.exists()


def test_a_message_of_the_scheduler_runs_no_code_here(cluster: Cluster, tmp_path: Path) -> None:
    """A worker can take the scheduler over, which then says anything in Dask's protocol."""
    from distributed.protocol import ToPickle, dumps, loads

    engine.check(cluster.address)
    trap = tmp_path / "written"
    frames = dumps({"op": "anything", "value": ToPickle(engine_bodies._Trap(str(trap)))})
    assert "value" in loads(frames)
    assert not trap.exists()


def test_a_reason_in_another_form_is_no_reason(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that has the form is shown, without what would act on a terminal."""
    monkeypatch.setattr(engine, "_guarded", engine_bodies.rogue_events)
    with pytest.raises(InputError) as raised:
        engine.map_parts(engine_bodies.square, [str(tmp_path / "x")], engine=cluster.address)
    assert "\x1b" not in str(raised.value)
    assert str(raised.value).endswith("red")
    assert raised.value.kind == ""
