"""Stores stage outputs privately: looked up by what they were made from, checked by what they contain.

A stage's folder is named by a key: the digest of stage name, configuration, the digests of its
inputs and the code version. A run that died finds the finished stages by their keys and a stage
that died half-way by its working folder.

    private/work/<stage>/<key>/      in progress: checkpoints and partial output; removed when finished
    private/stages/<stage>/<key>/    finished: moved here in one rename, with `manifest.json` inside

Two processes with the same key do not compute it twice: the second waits for the lock and finds the
result. With a store that machines share (storage/shared_store.py) a finished stage is written to it
too, or fetched from it; the local folder is then a copy. Two machines may compute the same stage at
once; the first to finish counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rfc8785
from pydantic import BaseModel, Field

from storage.durable import sync, write_atomically
from storage.errors import StorageError

if TYPE_CHECKING:
    from storage.shared_store import SharedStore

MANIFEST = "manifest.json"


class ArtifactRef(BaseModel, frozen=True, extra="forbid"):
    """Refers to an artifact, in place of its data: its kind, its folder and the digest of its
    manifest.
    """

    kind: str = Field(description="stage that made it")
    uri: str = Field(description="file:// URI of the folder")
    sha256: str = Field(description="digest of the manifest, which holds the digest of every file")

    @property
    def path(self) -> Path:
        """Returns the folder."""
        return Path(self.uri.removeprefix("file://"))


def digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON-able value in canonical form (RFC 8785)."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(paths: list[Path]) -> str:
    """Returns one digest of several files' names and contents, whatever their folder. Unchanged
    files are read once.

    A file counts as unchanged while its size and the time of its last change of status are the
    same. No one can set that time back, as the time of modification can be.
    """
    return _files_digest(
        tuple((path, path.stat().st_ctime_ns, path.stat().st_size) for path in paths)
    )


@lru_cache(maxsize=4)
def _files_digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    return digest({path.name: file_digest(path) for path, _, _ in files})


@dataclass
class Stage:
    """Represents a stage at work, or one already finished (`ref` is set)."""

    name: str
    key: str
    work: Path
    final: Path
    ref: ArtifactRef | None
    _recipe: dict[str, Any]
    _store: Store

    @property
    def out(self) -> Path:
        """Returns the folder for the stage's output."""
        return self.work / "out"

    def finish(self, figures: Mapping[str, Any]) -> ArtifactRef:
        """Seals the output: digests every file, writes the manifest, moves the folder into place.

        The figures are shown and logged: nothing per record or per code. They enter the digest: no
        times, no paths.
        """
        for partial in self.out.rglob("*.partial"):
            partial.unlink()
        files = {
            str(path.relative_to(self.out)): {
                "sha256": file_digest(path),
                "bytes": path.stat().st_size,
            }
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
        self.ref = self._store.reconcile(self.name, self.key)
        if self.ref is None:
            raise StorageError(
                f"stage {self.name}: {self.final} was removed during writing. Run again"
            )
        return self.ref


class Store:
    """Stores stage outputs in a private folder, and in the store that machines share, if one is
    configured.
    """

    def __init__(self, private: Path, shared: SharedStore | None = None) -> None:
        self.private = private.resolve()
        self.shared = shared
        self._verified: set[str] = set()

    def key(
        self, name: str, *, config: Mapping[str, Any], inputs: Mapping[str, str], code: str
    ) -> str:
        """Returns a stage's key, which changes with anything that could change its output."""
        return digest(
            {"stage": name, "config": dict(config), "inputs": dict(inputs), "code": code}
        )[:32]

    @property
    def has_key(self) -> bool:
        """Checks whether the workspace has a registry key: without one nothing was read from
        records yet.
        """
        from storage.ledger.records import has_registry_key  # the ledger imports this module

        return has_registry_key(self.private)

    def keyed(self, sha256: str) -> str:
        """Returns a digest of records under the workspace's registry key.

        Only this form enters stages and plans: anyone who knows all records but one could try
        candidates for it against a digest without a key, and against every digest that follows from
        it.
        """
        from storage.ledger.records import registry_key

        # guard: test_each_candidate_for_the_last_code
        return hmac.new(registry_key(self.private), sha256.encode(), hashlib.sha256).hexdigest()

    def find(self, name: str, key: str) -> ArtifactRef | None:
        """Returns the finished stage of this key, local or shared, or None. Fetches nothing: `open`
        does.
        """
        final = self._final(name, key)
        if (final / MANIFEST).is_file():
            return _ref(name, final)
        manifest = self.shared.manifest(name, key) if self.shared else None
        return None if manifest is None else _ref(name, final, manifest)

    def reconcile(self, name: str, key: str) -> ArtifactRef | None:
        """Returns the finished stage of this key after making the local and the shared store agree;
        None if in neither.

        Hold the stage's lock. Where the two differ, which takes a stage that can't be repeated bit
        for bit, the shared one counts and the local one is set aside (`private/superseded`).
        """
        final = self._final(name, key)
        local = _ref(name, final) if (final / MANIFEST).is_file() else None
        if self.shared is None:
            return local
        manifest = self.shared.manifest(name, key)
        if manifest is None:
            if local is None:
                return None
            manifest = self.shared.publish(name, key, self.open(local))
        ref = _ref(name, final, manifest)
        if local is None:
            self._fetch(self.shared, name, key, manifest)
        elif local.sha256 != ref.sha256:
            aside = self.private / "superseded" / name / f"{key}-{local.sha256[:8]}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            final.rename(aside)
            self._fetch(self.shared, name, key, manifest)
        return ref

    def _fetch(self, shared: SharedStore, name: str, key: str, manifest: bytes) -> None:
        final, fetched = self._final(name, key), self.private / "work" / name / key / "fetched"
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.mkdir(parents=True)
        shared.fetch(name, key, manifest, fetched)
        final.parent.mkdir(parents=True, exist_ok=True)
        fetched.rename(final)
        shutil.rmtree(fetched.parent, ignore_errors=True)

    def adopt(self, ref: ArtifactRef) -> ArtifactRef:
        """Returns the same artifact in this store; fetches from the shared store what another
        machine made.
        """
        key = ref.path.name
        with self.lock(f"{ref.kind}-{key}"):
            artifact = self.reconcile(ref.kind, key)
        if artifact is None or artifact.sha256 != ref.sha256:
            place = (
                self.shared.url
                if self.shared
                else f"{self.private}, and no AUTOCODER_STORAGE is set"
            )
            what = "is not" if artifact is None else "differs from the one requested"
            raise StorageError(
                f"artifact {ref.kind}/{key} {what} in {place}. Give all workers the same "
                "AUTOCODER_STORAGE "
                "or a common workspace"
            )
        return artifact

    def _final(self, name: str, key: str) -> Path:
        """Returns the folder of a finished stage. Both names may come from a flow's parameters."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) or not re.fullmatch(r"[0-9a-f]{32}", key):
            raise StorageError("artifact: its kind or key is malformed. Pass references unchanged")
        return self.private / "stages" / name / key

    @contextmanager
    def stage(
        self, name: str, *, config: Mapping[str, Any], inputs: Mapping[str, str], code: str
    ) -> Iterator[Stage]:
        """Holds the lock of one stage; the caller computes unless `ref` is set, then calls
        `finish`.

        The working folder is the one a killed run left, if any, `out` included: what is there may
        be resumed or is overwritten under the same names.
        """
        recipe = {"config": dict(config), "inputs": dict(inputs), "code": code}
        key = self.key(name, config=config, inputs=inputs, code=code)
        work = self.private / "work" / name / key
        with self.lock(f"{name}-{key}"):
            ref = self.reconcile(name, key)
            stage = Stage(
                name=name,
                key=key,
                work=work,
                final=self._final(name, key),
                ref=ref,
                _recipe=recipe,
                _store=self,
            )
            if ref is None:
                stage.out.mkdir(parents=True, exist_ok=True)
            else:
                self.open(ref)
                shutil.rmtree(
                    work, ignore_errors=True
                )  # left by a run killed right after its last rename
            yield stage

    def discard(self, ref: ArtifactRef) -> None:
        """Removes a stage that another one has taken in, here and from the store that machines
        share.
        """
        name, key = ref.kind, ref.path.name
        with self.lock(f"{name}-{key}"):
            shutil.rmtree(self._final(name, key), ignore_errors=True)
            if self.shared is not None:
                self.shared.discard(name, key)

    def check(self) -> None:
        """Refuses a shared store that does not answer or rejects the credentials, before any work."""
        if self.shared is not None:
            self.shared.manifest("check", "0" * 32)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds a lock by name: a second process waits for the first."""
        lock = self.private / "locks" / f"{name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def is_locked(self, name: str) -> bool:
        """Checks whether a process holds this lock now."""
        try:
            with (self.private / "locks" / f"{name}.lock").open() as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def open(self, ref: ArtifactRef) -> Path:
        """Returns an artifact's folder after checking every file against the manifest (once per
        process).
        """
        path = ref.path
        if self.shared is not None and not (path / MANIFEST).is_file():
            path = self.adopt(ref).path
        if ref.sha256 in self._verified:
            return path
        manifest_path = path / MANIFEST
        if not manifest_path.is_file():
            raise StorageError(f"artifact {path} is missing. Run again to compute it")
        if file_digest(manifest_path) != ref.sha256:
            raise StorageError(
                f"artifact {path}: {MANIFEST} was changed. Remove the folder and run again"
            )
        for name, entry in json.loads(manifest_path.read_bytes())["files"].items():
            file = path / name
            if (
                not file.is_file()
                or file.stat().st_size != entry["bytes"]
                or file_digest(file) != entry["sha256"]
            ):
                raise StorageError(
                    f"artifact {path}: file {name} is missing or damaged. Remove the folder and "
                    "run again"
                )
        self._verified.add(ref.sha256)
        return path

    def figures(self, ref: ArtifactRef) -> dict[str, Any]:
        """Returns the aggregate figures of a finished stage."""
        return self._manifest(ref)["figures"]

    def recipe(self, ref: ArtifactRef) -> dict[str, Any]:
        """Returns a stage's recipe: `config`, digests of `inputs` by name, and `code`."""
        return self._manifest(ref)["recipe"]

    def _manifest(self, ref: ArtifactRef) -> dict[str, Any]:
        manifest = ref.path / MANIFEST
        shared = (
            self.shared.manifest(ref.kind, ref.path.name)
            if self.shared and not manifest.is_file()
            else None
        )
        return json.loads(manifest.read_bytes() if shared is None else shared)


def _ref(name: str, folder: Path, manifest: bytes | None = None) -> ArtifactRef:
    content = (folder / MANIFEST).read_bytes() if manifest is None else manifest
    return ArtifactRef(
        kind=name, uri=f"file://{folder}", sha256=hashlib.sha256(content).hexdigest()
    )
