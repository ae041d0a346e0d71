"""The private store of stage outputs: found again by what they were made from, checked by what they contain.

A stage's folder is named by a key: the digest of stage name, configuration, the digests of its inputs and the code
version. A run that died finds the finished stages by their keys and a stage that died half-way by its working folder.

    private/work/<stage>/<key>/      in progress: checkpoints and partial output; removed when finished
    private/stages/<stage>/<key>/    finished: moved here in one rename, with `manifest.json` inside

Two processes with the same key do not compute it twice: the second waits for the lock and finds the result. With a
place that machines share (storage/shared.py) a finished stage is written there too, and one that is there is fetched;
the folder here is then a copy. Two machines may compute the same stage at once; the first to finish counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785
from pydantic import BaseModel, Field

from storage.durable import sync, write_atomically
from storage.errors import StorageError
from storage.shared import Shared

MANIFEST = "manifest.json"


class ArtifactRef(BaseModel, frozen=True, extra="forbid"):
    """What tasks pass instead of data: where an artifact lies, the digest of its manifest and what kind it is."""

    kind: str = Field(description="stage that made it")
    uri: str = Field(description="file:// URI of the folder")
    sha256: str = Field(description="digest of the manifest, which holds the digest of every file")

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.uri.removeprefix("file://"))


def digest(value: Any) -> str:
    """SHA-256 of a JSON-able value in canonical form (RFC 8785)."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(paths: list[Path]) -> str:
    """One digest of several files' names and contents, whatever folder they lie in."""
    return digest({path.name: file_digest(path) for path in paths})


@dataclass
class Stage:
    """A stage at work, or finished already (`ref` is set)."""

    name: str
    key: str
    work: Path
    final: Path
    ref: ArtifactRef | None
    _recipe: dict[str, Any]
    _store: Store

    @property
    def out(self) -> Path:
        """Where the stage writes what is to be kept."""
        return self.work / "out"

    def finish(self, figures: Mapping[str, Any]) -> ArtifactRef:
        """Seal the output: digest every file, write the manifest, move the folder into place.

        Args:
            figures: aggregate figures of the stage, JSON-able; they are shown and logged, so nothing per record or
                per code belongs here. They are part of the digest: no times, no paths.
        """
        for partial in self.out.rglob("*.partial"):
            partial.unlink()
        files = {
            str(path.relative_to(self.out)): {"sha256": file_digest(path), "bytes": path.stat().st_size}
            for path in sorted(self.out.rglob("*"))
            if path.is_file()
        }
        manifest = {
            "kind": self.name,
            "key": self.key,
            "recipe": self._recipe,
            "figures": dict(figures),
            "files": files,
        }
        write_atomically(self.out / MANIFEST, rfc8785.dumps(manifest))
        for path in self.out.rglob("*"):
            sync(path)
        sync(self.out)
        self.final.parent.mkdir(parents=True, exist_ok=True)
        self.out.rename(self.final)
        sync(self.final.parent)
        shutil.rmtree(self.work, ignore_errors=True)
        self.ref = self._store.finished(self.name, self.key)
        if self.ref is None:
            raise StorageError(f"stage {self.name}: {self.final} was removed while it was written; run again")
        return self.ref


class Store:
    """Stage outputs under one private folder, and under the place that machines share, where there is one."""

    def __init__(self, private: Path, shared: Shared | None = None) -> None:
        self.private = private.resolve()
        self.shared = shared
        self._verified: set[str] = set()

    def key(self, name: str, *, config: Mapping[str, Any], inputs: Mapping[str, str], code: str) -> str:
        """The key of a stage: changes with anything that could change its output."""
        return digest({"stage": name, "config": dict(config), "inputs": dict(inputs), "code": code})[:32]

    def find(self, name: str, key: str) -> ArtifactRef | None:
        """The finished stage of this key, here or in the shared place, or None. Fetches nothing: `open` does."""
        final = self._final(name, key)
        if (final / MANIFEST).is_file():
            return _ref(name, final)
        there = self.shared.manifest(name, key) if self.shared else None
        return None if there is None else _ref(name, final, there)

    def finished(self, name: str, key: str) -> ArtifactRef | None:
        """The finished stage of this key, here and in the shared place alike; None where it is in neither.

        Hold the stage's lock. Where the two differ, which takes a stage that can't be repeated bit for bit, the shared
        one counts and ours is set aside (`private/superseded`).
        """
        final = self._final(name, key)
        here = _ref(name, final) if (final / MANIFEST).is_file() else None
        if self.shared is None:
            return here
        there = self.shared.manifest(name, key)
        if there is None:
            if here is None:
                return None
            there = self.shared.publish(name, key, self.open(here))
        ref = _ref(name, final, there)
        if here is None:
            self._fetch(self.shared, name, key, there)
        elif here.sha256 != ref.sha256:
            aside = self.private / "superseded" / name / f"{key}-{here.sha256[:8]}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            final.rename(aside)
            self._fetch(self.shared, name, key, there)
        return ref

    def _fetch(self, shared: Shared, name: str, key: str, manifest: bytes) -> None:
        final, fetched = self._final(name, key), self.private / "work" / name / key / "fetched"
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.mkdir(parents=True)
        shared.fetch(name, key, manifest, fetched)
        final.parent.mkdir(parents=True, exist_ok=True)
        fetched.rename(final)
        shutil.rmtree(fetched.parent, ignore_errors=True)

    def adopt(self, ref: ArtifactRef) -> ArtifactRef:
        """The same artifact in this store: what another machine made is fetched from the shared place.

        Raises:
            StorageError: it is in neither, or differs; says what to set.
        """
        key = ref.path.name
        with self.locked(f"{ref.kind}-{key}"):
            artifact = self.finished(ref.kind, key)
        if artifact is None or artifact.sha256 != ref.sha256:
            place = self.shared.url if self.shared else f"{self.private}, and no AUTOCODER_STORAGE is set"
            what = "is not" if artifact is None else "differs from the one asked for"
            raise StorageError(
                f"artifact {ref.kind}/{key} {what} in {place}; give all workers the same AUTOCODER_STORAGE, "
                "or a workspace that they all see"
            )
        return artifact

    def _final(self, name: str, key: str) -> Path:
        """Folder of a finished stage. Both names may come from a flow's parameters."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) or not re.fullmatch(r"[0-9a-f]{32}", key):
            raise StorageError("artifact: its kind or key is malformed; pass references as they were given")
        return self.private / "stages" / name / key

    @contextmanager
    def stage(self, name: str, *, config: Mapping[str, Any], inputs: Mapping[str, str], code: str) -> Iterator[Stage]:
        """Hold the lock of one stage; the caller computes unless `ref` is set, then calls `finish`.

        The working folder is the one a killed run left, if any, `out` included: what lies there may be resumed or
        is overwritten under the same names.

        Raises:
            StorageError: a finished stage is damaged, or the disk is full.
        """
        recipe = {"config": dict(config), "inputs": dict(inputs), "code": code}
        key = self.key(name, config=config, inputs=inputs, code=code)
        work = self.private / "work" / name / key
        with self.locked(f"{name}-{key}"):
            ref = self.finished(name, key)
            stage = Stage(
                name=name, key=key, work=work, final=self._final(name, key), ref=ref, _recipe=recipe, _store=self
            )
            if ref is None:
                stage.out.mkdir(parents=True, exist_ok=True)
            else:
                self.open(ref)
                shutil.rmtree(work, ignore_errors=True)  # left by a run killed right after its last rename
            yield stage

    def check(self) -> None:
        """Refuse a shared place that does not answer, or that the credentials do not open, before there is work.

        Raises:
            StorageError: says what it answered.
        """
        if self.shared is not None:
            self.shared.manifest("check", "0" * 32)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold a lock by name: a second process waits for the first."""
        lock = self.private / "locks" / f"{name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def open(self, ref: ArtifactRef) -> Path:
        """The folder of an artifact, after checking every file against the manifest (once a process).

        Raises:
            StorageError: a file is missing or differs; names it.
        """
        path = ref.path
        if self.shared is not None and not (path / MANIFEST).is_file():
            path = self.adopt(ref).path
        if ref.sha256 in self._verified:
            return path
        manifest_path = path / MANIFEST
        if not manifest_path.is_file():
            raise StorageError(f"artifact {path} is gone; run again to compute it anew")
        if file_digest(manifest_path) != ref.sha256:
            raise StorageError(f"artifact {path}: {MANIFEST} was changed; remove the folder and run again")
        for name, entry in json.loads(manifest_path.read_bytes())["files"].items():
            file = path / name
            if not file.is_file() or file.stat().st_size != entry["bytes"] or file_digest(file) != entry["sha256"]:
                raise StorageError(
                    f"artifact {path}: file {name} is missing or damaged; remove the folder and run again"
                )
        self._verified.add(ref.sha256)
        return path

    def figures(self, ref: ArtifactRef) -> dict[str, Any]:
        """The aggregate figures a stage finished with."""
        return self._manifest(ref)["figures"]

    def recipe(self, ref: ArtifactRef) -> dict[str, Any]:
        """What a stage was asked: `config`, and digests of `inputs` by name."""
        return self._manifest(ref)["recipe"]

    def _manifest(self, ref: ArtifactRef) -> dict[str, Any]:
        manifest = ref.path / MANIFEST
        there = self.shared.manifest(ref.kind, ref.path.name) if self.shared and not manifest.is_file() else None
        return json.loads(manifest.read_bytes() if there is None else there)


def _ref(name: str, folder: Path, manifest: bytes | None = None) -> ArtifactRef:
    content = (folder / MANIFEST).read_bytes() if manifest is None else manifest
    return ArtifactRef(kind=name, uri=f"file://{folder}", sha256=hashlib.sha256(content).hexdigest())
