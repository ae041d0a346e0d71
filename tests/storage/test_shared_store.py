"""Stages under one URL: another machine finds them, damage is refused, and an upload that died
counts for nothing. A machine is a workspace of its own. The S3 server is moto's, over HTTP, with
credentials from the environment.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from refusals import of_kind

from storage.artifacts import ArtifactRef, Store
from storage.errors import InputError, StorageError
from storage.shared_store import SharedStore

RECIPE: dict[str, Any] = {"config": {"a": 1}, "inputs": {"x": "0" * 64}, "code": "c"}
FILES = {"one": b"first", "folder/two": b"second", "empty": b""}


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.servers)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        str(tmp_path / "shared")
        if request.param == "folder"
        else request.getfixturevalue("s3_bucket")()
    )


def make(store: Store, files: dict[str, bytes] = FILES) -> ArtifactRef:
    with store.stage("demo", **RECIPE) as stage:
        if stage.ref is None:
            for name, content in files.items():
                (stage.out / name).parent.mkdir(parents=True, exist_ok=True)
                (stage.out / name).write_bytes(content)
            stage.finish({"n": 1})
        assert stage.ref is not None
        return stage.ref


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def objects(url: str) -> list[str]:
    fs, root = fsspec.url_to_fs(
        url, **({"use_listings_cache": False} if url.startswith("s3") else {})
    )
    fs.invalidate_cache()
    return sorted(fs.find(root)) if fs.exists(root) else []


def test_what_one_machine_made_another_has(url: str, tmp_path: Path) -> None:
    """Found without being fetched; opened, or run again, it is there byte for byte and nothing is
    computed.
    """
    first, second = (Store(tmp_path / name, SharedStore(url)) for name in ("a", "b"))
    made = make(first)
    found = second.find("demo", made.path.name)
    assert found is not None
    assert found.sha256 == made.sha256
    assert second.figures(found) == {"n": 1}
    assert not found.path.exists()
    opened = second.open(found)
    assert opened.is_relative_to(tmp_path / "b")
    assert content(opened) == content(made.path)
    assert second.adopt(made).path == opened
    made.path.rename(tmp_path / "elsewhere")
    assert second.open(made) == opened, "a reference that names the other machine's folder"
    assert (
        make(Store(tmp_path / "c", SharedStore(url)), {"one": b"would be another"}).sha256
        == made.sha256
    )


def test_what_was_there_before_the_place_is_shared_when_it_is_used(
    url: str, tmp_path: Path
) -> None:
    made = make(Store(tmp_path / "a"))
    assert Store(tmp_path / "b", SharedStore(url)).find("demo", made.path.name) is None
    assert make(Store(tmp_path / "a", SharedStore(url))) == made
    assert Store(tmp_path / "b", SharedStore(url)).find("demo", made.path.name) is not None


def test_of_two_that_differ_the_first_counts(url: str, tmp_path: Path) -> None:
    """Two machines at once, with a stage that can't be repeated: both end with the same, nothing is
    mixed.
    """
    first, second = (Store(tmp_path / name, SharedStore(url)) for name in ("a", "b"))
    with second.stage("demo", **RECIPE) as stage:
        assert stage.ref is None
        made = make(first)
        (stage.out / "one").write_bytes(b"other noise")
        ended = stage.finish({"n": 2})
    assert ended.sha256 == made.sha256
    assert content(ended.path) == content(made.path)
    assert second.figures(ended) == {"n": 1}
    (aside,) = (tmp_path / "b" / "superseded" / "demo").iterdir()
    assert (aside / "one").read_bytes() == b"other noise"


@pytest.mark.parametrize("damage", ["edit", "remove", "manifest", "outside"])
def test_damage_is_refused_and_leaves_nothing(url: str, tmp_path: Path, damage: str) -> None:
    """A wrong digest, a lost file, a manifest that is none or leads out of the folder: named, and
    no stage here.
    """
    made = make(Store(tmp_path / "a", SharedStore(url)))
    fs, root = fsspec.url_to_fs(url)
    place = f"{root}/stages/demo/{made.path.name}"
    (file,) = (name for name in objects(url) if name.endswith("/two"))
    if damage == "edit":
        fs.pipe_file(file, b"secomd")
    elif damage == "remove":
        fs.rm_file(file)
    else:
        manifest = fs.cat_file(f"{place}/manifest.json")
        changed = (
            b"{}" if damage == "manifest" else manifest.replace(b"folder/two", b"../../../two")
        )
        fs.pipe_file(f"{place}/manifest.json", changed)
    refusal = {
        "manifest": of_kind("damaged-shared-manifest"),
        "outside": of_kind("file-outside-folder"),
    }.get(damage, of_kind("damaged-shared-file", saying="folder/two"))
    for _ in range(2):  # nor does a second try find what the first fetched
        with pytest.raises(StorageError, check=refusal) as refused:
            make(Store(tmp_path / "b", SharedStore(url)))
        assert f"stages/demo/{made.path.name}" in str(refused.value)
        assert not (tmp_path / "b" / "stages").exists()


def _publish(folder: str, url: str, die_at: int) -> None:
    """Finish the stage and die by SIGKILL at the n-th act on the place."""
    store, acts = Store(Path(folder), SharedStore(url)), 0
    shared: Any = store.shared
    for name in ("_put", "_create"):
        real = getattr(shared, name)

        def deadly(*arguments: Any, real: Any = real) -> None:
            nonlocal acts
            acts += 1
            if acts == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*arguments)

        setattr(shared, name, deadly)
    make(store)


def test_an_upload_that_dies_before_its_last_act_is_no_stage(url: str, tmp_path: Path) -> None:
    """At each act but after the last: not found, computed anew elsewhere; the one that died
    continues with its own.
    """
    acts = len(FILES) + 1
    for die_at in range(1, acts + 1):
        folder, place = tmp_path / str(die_at), f"{url}/{die_at}"
        died = multiprocessing.get_context("spawn").Process(
            target=_publish, args=(str(folder), place, die_at)
        )
        died.start()
        died.join(60)
        assert died.exitcode == -signal.SIGKILL
        left = objects(place)
        assert len(left) == die_at - 1
        key = Store(folder).key("demo", **RECIPE)
        assert Store(tmp_path / f"other-{die_at}", SharedStore(place)).find("demo", key) is None
        made = make(Store(folder, SharedStore(place)))
        assert len(objects(place)) == acts
        assert Store(tmp_path / f"other-{die_at}", SharedStore(place)).find("demo", key) is not None
        assert content(made.path).items() >= FILES.items()


def test_files_are_on_the_disk_before_the_manifest_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is synced before it has its name, so that a power cut leaves no manifest
    of empty files.
    """
    synced: list[int] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    place = tmp_path / "shared"
    monkeypatch.setattr(os, "fsync", noted)
    make(Store(tmp_path / "a", SharedStore(str(place))))
    assert {file.stat().st_ino for file in place.rglob("*") if file.is_file()} <= set(synced)


def _publish_much(folder: str, url: str) -> None:
    make(
        Store(Path(folder), SharedStore(url)),
        {f"part{i}": bytes([i]) * (4 << 20) for i in range(16)},
    )


def test_killed_in_the_middle_of_an_upload(url: str, tmp_path: Path) -> None:
    """SIGKILL from outside while bytes are on their way: what is there is no stage, and the next
    run completes it.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=_publish_much, args=(str(tmp_path / "a"), url)
    )
    process.start()
    deadline = time.monotonic() + 60
    while not objects(url) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.join()
    left = objects(url)
    assert left
    assert not any(name.endswith("manifest.json") for name in left), (
        "it was killed too late to show anything"
    )
    key = Store(tmp_path / "a").key("demo", **RECIPE)
    assert Store(tmp_path / "b", SharedStore(url)).find("demo", key) is None
    _publish_much(str(tmp_path / "a"), url)
    found = Store(tmp_path / "b", SharedStore(url)).find("demo", key)
    assert found is not None
    assert len(content(Store(tmp_path / "b", SharedStore(url)).open(found))) == 17


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ("s3://key:password@bucket/x", of_kind("credentials-in-url")),
        ("s3://bucket/x?secret=password", of_kind("credentials-in-url")),
        ("ftp://host/password", of_kind("store-scheme", saying="ftp")),
        ("s3://", of_kind("store-scheme")),
    ],
)
def test_wrong_urls_are_refused_without_repeating_them(wrong: str, refusal: of_kind) -> None:
    """They may hold a password."""
    with pytest.raises(InputError, check=refusal) as refused:
        SharedStore(wrong)
    assert "password" not in str(refused.value)


@pytest.mark.servers
def test_a_bucket_that_is_not_there_is_told(s3_bucket: Callable[[], str], tmp_path: Path) -> None:
    """One line; what was computed stays, and is shared once the bucket is there."""
    s3_bucket()
    missing = f"none-{uuid4().hex[:12]}"
    with pytest.raises(StorageError, check=of_kind("store-refused", saying=f"s3://{missing}/x")):
        make(Store(tmp_path, SharedStore(f"s3://{missing}/x")))
    fsspec.filesystem("s3").mkdir(missing)
    make(Store(tmp_path, SharedStore(f"s3://{missing}/x")), {"one": b"computed anew"})
    assert objects(f"s3://{missing}/x")
    assert content(make(Store(tmp_path)).path)["one"] == b"first"


@pytest.mark.servers
def test_a_server_that_is_away_is_told_before_there_is_work(
    s3_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the place and what to check, not the library's own text."""
    place = s3_bucket()
    Store(tmp_path, SharedStore(place)).check()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(
        StorageError,
        check=of_kind("store-unavailable", saying=(place, "EndpointConnectionError")),
    ):
        Store(tmp_path, SharedStore(place)).check()
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.mark.parametrize(
    ("kind", "key"), [("../demo", "0" * 32), ("demo", "../" + "0" * 29), ("demo", "")]
)
def test_a_reference_leads_nowhere_else(tmp_path: Path, kind: str, key: str) -> None:
    """References come as parameters of a flow; one that leads out of the store is refused."""
    with pytest.raises(StorageError, check=of_kind("malformed-artifact")):
        Store(tmp_path).adopt(
            ArtifactRef(kind=kind, uri=f"file:///x/{key or '-'}", sha256="0" * 64)
        )
