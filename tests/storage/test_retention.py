"""What a purge removes: old stages, abandoned work and superseded copies; what plans name and what
is young stays.
"""

import os
import time
from pathlib import Path

import pytest

from storage.artifacts import Store
from storage.retention import expired, remove
from storage.shared_store import SharedStore

DAY = 86_400


def aged(folder: Path, days: float) -> None:
    """Sets the last write of every file below to so many days ago."""
    for path in folder.rglob("*"):
        os.utime(path, times=(time.time() - days * DAY,) * 2)


def finished(store: Store, name: str, *, days: float, content: str = "x") -> Path:
    with store.stage(name, config={"content": content}, inputs={}, code="c") as stage:
        (stage.out / "records.txt").write_text(content)
        ref = stage.finish({})
    aged(ref.path, days)
    return ref.path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "stages").mkdir(mode=0o700)
    return Store(tmp_path / "private", SharedStore(str(tmp_path / "stages")))


def test_old_stages_go_and_young_ones_stay(store: Store, tmp_path: Path) -> None:
    """Here and in the store that machines share; the same key is computed again afterwards."""
    old, young = finished(store, "ingest", days=100), finished(store, "encode", days=10)
    (entry,) = expired(store.private, older_than_days=30)
    assert (entry.stage, entry.place, entry.folder) == ("ingest", "stages", old)
    remove(store, entry)
    assert not old.exists()
    assert young.exists()
    assert store.find("ingest", old.name) is None
    assert list((tmp_path / "stages").rglob("records.txt")), "the young stage is still shared"
    assert expired(store.private, older_than_days=30) == []


def test_one_young_file_keeps_its_folder(store: Store) -> None:
    """A fit that was resumed yesterday is at work, however old its first checkpoint is."""
    work = store.private / "work" / "fit" / ("a" * 32)
    work.mkdir(parents=True)
    (work / "epoch-1.safetensors").write_bytes(b"1")
    aged(work, 100)
    assert len(expired(store.private, older_than_days=30)) == 1
    (work / "epoch-2.safetensors").write_bytes(b"2")
    assert expired(store.private, older_than_days=30) == []


@pytest.mark.parametrize("place", ["", "reserved"])
def test_what_a_young_plan_names_stays(store: Store, place: str) -> None:
    """Of a plan written since the cutoff, reserved or not; an older plan keeps nothing."""
    old = finished(store, "ingest", days=100)
    plan = store.private / "plans" / place / "plan.json"
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.write_text(f'{{"uri": "file://{old}"}}')
    assert expired(store.private, older_than_days=30) == []
    aged(store.private / "plans", 100)
    assert [entry.folder for entry in expired(store.private, older_than_days=30)] == [old]


def test_nothing_else_is_ever_listed(store: Store, tmp_path: Path) -> None:
    """Keys, plans, metrics, bundles and whatever a link leads to."""
    outside = tmp_path / "outside" / ("b" * 32)
    outside.mkdir(parents=True)
    (outside / "file").write_text("x")
    for name in ("keys", "plans", "metrics"):
        (store.private / name / "x" / ("c" * 32)).mkdir(parents=True)
        (store.private / name / "x" / ("c" * 32) / "file").write_text("x")
    (store.private / "stages" / "ingest").mkdir(parents=True)
    (store.private / "stages" / "ingest" / ("b" * 32)).symlink_to(outside)
    (store.private / "stages" / "linked").symlink_to(outside.parent)
    aged(tmp_path, 1000)
    assert expired(store.private, older_than_days=1) == []
