"""Stage outputs are found by what they were made from, survive a kill, and are refused when
damaged.
"""

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind

from storage import artifacts
from storage.artifacts import MANIFEST, Store, file_digest
from storage.durable import write_atomically
from storage.errors import StorageError

RECIPE: dict[str, Any] = {"config": {"a": 1}, "inputs": {"x": "0" * 64}, "code": "c"}


def make(store: Store, text: str = "content", **changes: Any) -> str:
    recipe = RECIPE | changes
    with store.stage("demo", **recipe) as stage:
        if stage.ref is None:
            (stage.out / "file").write_text(text)
            stage.finish({"n": 1})
        assert stage.ref is not None
        return stage.ref.uri


def test_same_recipe_is_found_and_not_made_again(tmp_path: Path) -> None:
    """The second run returns the first one's output, whatever it would have written."""
    store = Store(tmp_path)
    uri = make(store, "first")
    assert make(Store(tmp_path), "second") == uri
    assert (Path(uri.removeprefix("file://")) / "file").read_text() == "first"


@pytest.mark.parametrize(
    "change",
    [{"config": {"a": 2}}, {"inputs": {"x": "1" * 64}}, {"code": "d"}],
    ids=["config", "input", "code"],
)
def test_any_change_of_the_recipe_makes_it_anew(tmp_path: Path, change: dict[str, Any]) -> None:
    """Configuration, inputs and code version each belong to the key."""
    store = Store(tmp_path)
    assert make(store) != make(store, **change)


def test_what_a_killed_stage_left_can_be_resumed(tmp_path: Path) -> None:
    """An exception or a kill leaves the working folder; the next run is given the same one."""
    store = Store(tmp_path)
    with pytest.raises(RuntimeError), store.stage("demo", **RECIPE) as stage:
        (stage.work / "checkpoint").write_text("half")
        raise RuntimeError
    with store.stage("demo", **RECIPE) as stage:
        assert stage.ref is None
        assert (stage.work / "checkpoint").read_text() == "half"
        stage.finish({})
        assert not stage.work.exists()


@pytest.mark.parametrize("damage", ["edit", "remove", "manifest"])
def test_damaged_output_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    folder = Path(make(store).removeprefix("file://"))
    if damage == "edit":
        (folder / "file").write_text("contenT")
    elif damage == "remove":
        (folder / "file").unlink()
    else:
        ref = store.find("demo", folder.name)
        assert ref is not None
        (folder / MANIFEST).write_text("{}")
        with pytest.raises(StorageError, check=of_kind("changed-manifest", saying=MANIFEST)):
            Store(tmp_path).open(ref)
        return
    with pytest.raises(StorageError, check=of_kind("damaged-artifact", saying="file")):
        make(Store(tmp_path))


@pytest.mark.parametrize("recent", [False, True], ids=["old file", "recent file"])
def test_opening_reads_an_unchanged_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, recent: bool
) -> None:
    """Each of n parts opens its inputs, so reading them every time would take n times as long. A
    file that changed within the resolution of the clock may change again unseen, so that one is
    read every time.
    """
    store = Store(tmp_path)
    folder = Path(make(store).removeprefix("file://"))
    ref = store.find("demo", folder.name)
    assert ref is not None
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return file_digest(path)

    monkeypatch.setattr(artifacts, "file_digest", counted)
    monkeypatch.setattr(artifacts, "_RECENT_NS", 10**15 if recent else 0)
    for _ in range(3):
        Store(tmp_path).open(ref)
    assert read == [folder / "file"] * (3 if recent else 1)


def test_a_change_that_keeps_size_and_times_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    folder = Path(make(store).removeprefix("file://"))
    ref = store.find("demo", folder.name)
    assert ref is not None
    monkeypatch.setattr(artifacts, "_RECENT_NS", 0)
    file = folder / "file"
    store.open(ref)
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:
        file.write_text("contenT")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StorageError, check=of_kind("damaged-artifact", saying="file")):
        store.open(ref)


def test_a_small_file_is_whole_though_two_write_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers on one workspace may have the same process number: the second begins and ends
    within the first.
    """
    real, file = os.fsync, tmp_path / "file"

    def another_first(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        write_atomically(file, b"second")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", another_first)
    write_atomically(file, b"first")
    assert file.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [file]


def _slow(folder: str, started: Any) -> None:
    with Store(Path(folder)).stage("demo", **RECIPE) as stage:
        started.set()
        time.sleep(0.5)
        (stage.out / "file").write_text("by the first")
        stage.finish({})


def test_two_processes_do_not_compute_the_same_stage(tmp_path: Path) -> None:
    """The second waits for the first one's lock and finds its output."""
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    first = context.Process(target=_slow, args=(str(tmp_path), started))
    first.start()
    assert started.wait(30)
    uri = make(Store(tmp_path), "by the second")
    first.join()
    assert (Path(uri.removeprefix("file://")) / "file").read_text() == "by the first"
