"""Private store of stage outputs, which are looked up by their inputs and verified by their
content.

The folder of a stage is named by a key: the digest of stage name, configuration, input digests and
code version. An interrupted run finds finished stages by their keys, and an interrupted stage by
its working folder.

  private/work/<stage>/<key>/      in progress: checkpoints and partial output
  private/stages/<stage>/<key>/    finished: moved here in one rename, with `manifest.json` inside

Two processes with the same key do not compute it twice: the second waits for the lock and finds the
result. With a store shared by several machines (storage/shared_store.py), finished stages are also
written to it and fetched from it, and the local folder is a copy. Two machines may compute the same
stage at the same time. The first one to finish determines the result.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import rfc8785
from pydantic import BaseModel, Field

from storage.durable import copy_regular, sync, write_atomically
from storage.errors import Changed, DamagedData, StorageError
from storage.locks import is_locked, locked

if TYPE_CHECKING:
    from storage.json_values import Config, Figures
    from storage.shared_store import SharedStore

MANIFEST = "manifest.json"


class ArtifactRef(BaseModel, frozen=True, extra="forbid"):
    """A reference to an artifact: its kind, its folder, and the digest of its manifest."""

    kind: str = Field(description="stage that made it")
    uri: str = Field(description="file:// URI of the folder")
    sha256: str = Field(description="digest of the manifest, which holds the digest of every file")

    @property
    def path(self) -> Path:
        """The artifact's folder."""
        return Path(self.uri.removeprefix("file://"))


def digest(value: Any) -> str:
    """SHA-256 of a JSON-serialisable value in canonical form (RFC 8785)."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(paths: list[Path]) -> str:
    """One digest of the names and contents of several files, in any folder. Unchanged files are
    read once.
    """
    return digest({path.name: digest_once(path) for path in paths})


def digest_once(path: Path) -> str:
    """SHA-256 of a file that this process reads again only if it has changed.

    Every part of a stage opens the stage's inputs. Without this, a file would be read once per
    part, which takes time in proportion to the square of the number of records.

    A file counts as unchanged if its inode, its size and its status-change time are the same.
    Unlike the modification time, the status-change time cannot be set back. It has the resolution
    of the kernel's clock, so a file that changed within the last second is always read.
    """
    state = path.stat()
    if time.time_ns() - state.st_ctime_ns < _RECENT_NS:
        return file_digest(path)
    return _digest_of_unchanged(path, state.st_ino, state.st_ctime_ns, state.st_size)


_RECENT_NS = 1_000_000_000


@lru_cache(maxsize=1024)
def _digest_of_unchanged(path: Path, inode: int, changed_ns: int, size: int) -> str:
    return file_digest(path)


class Recipe(TypedDict):
    """Everything on which the output of a stage depends."""

    config: dict[str, Any]
    inputs: dict[str, str]
    """Digests of the input artifacts, by name."""
    code: str


class FileEntry(TypedDict):
    sha256: str
    bytes: int


class Manifest(TypedDict):
    """The content of a finished stage's manifest."""

    kind: str
    key: str
    recipe: Recipe
    figures: dict[str, Any]
    files: dict[str, FileEntry]


@dataclass
class Stage:
    """A stage in progress, or a finished one (`ref` is set)."""

    name: str
    key: str
    work: Path
    final: Path
    ref: ArtifactRef | None
    _recipe: Recipe
    _store: Store

    @property
    def out(self) -> Path:
        """The folder for the stage's output."""
        return self.work / "out"

    def finish(self, figures: Figures) -> ArtifactRef:
        """Seals the output: digests every file, writes the manifest, and moves the folder into
        place.

        Args:
            figures: shown and logged, so they must contain nothing per record or per code. They are
                part of the digest, so they must contain no times and no paths.
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
        manifest: dict[str, Any] = {
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
            raise Changed(
                f"stage {self.name}: {self.final} was removed during writing. Run again",
                kind="stage-removed",
            )
        return self.ref


class Store:
    """Stage outputs in a private folder and, if configured, in a store shared by several
    machines.
    """

    def __init__(self, private: Path, shared: SharedStore | None = None) -> None:
        self.private = private.resolve()
        self.shared = shared

    def key(self, name: str, *, config: Config, inputs: Mapping[str, str], code: str) -> str:
        """A stage's key, which changes with everything that could change its output."""
        return digest(
            {"stage": name, "config": dict(config), "inputs": dict(inputs), "code": code}
        )[:32]

    @property
    def has_key(self) -> bool:
        """Whether the workspace has a registry key. Without one, no records have been read yet."""
        from storage.ledger.records import has_registry_key  # the ledger imports this module

        return has_registry_key(self.private)

    def keyed(self, sha256: str) -> str:
        """A digest of records, keyed with the workspace's registry key.

        Only this form enters stages and plans. With an unkeyed digest, or any digest computed from
        it, an attacker who knew all records but one could test candidates for the last one.
        """
        from storage.ledger.records import registry_key

        # guard: test_each_candidate_for_the_last_code
        return hmac.new(registry_key(self.private), sha256.encode(), hashlib.sha256).hexdigest()

    def find(self, name: str, key: str) -> ArtifactRef | None:
        """The finished stage with this key, local or shared, or None. Does not fetch it; `open`
        does.
        """
        final = self._final(name, key)
        if (final / MANIFEST).is_file():
            return _ref(name, final)
        manifest = self.shared.manifest(name, key) if self.shared else None
        return None if manifest is None else _ref(name, final, manifest)

    def reconcile(self, name: str, key: str) -> ArtifactRef | None:
        """The finished stage with this key, after making the local and the shared store agree; None
        if neither has it.

        Call this while holding the stage's lock. If the stores differ, which is possible only for a
        stage that is not bit-for-bit reproducible, the shared one is kept and the local one is
        moved to `private/superseded`.
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
        """The same artifact in this store, fetched from the shared store if another machine
        computed it.
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
            raise DamagedData(
                f"artifact {ref.kind}/{key} {what} in {place}. Set the same "
                "AUTOCODER_STORAGE on all workers, or use a common workspace",
                kind="artifact-not-shared",
            )
        return artifact

    def _final(self, name: str, key: str) -> Path:
        """The folder of a finished stage. Both names may come from a flow's parameters, so they are
        validated.
        """
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) or not re.fullmatch(r"[0-9a-f]{32}", key):
            raise StorageError(
                "artifact: its kind or key is malformed. Pass references unchanged",
                kind="malformed-artifact",
            )
        return self.private / "stages" / name / key

    @contextmanager
    def stage(
        self, name: str, *, config: Config, inputs: Mapping[str, str], code: str
    ) -> Iterator[Stage]:
        """Holds the lock of one stage. The caller computes it unless `ref` is set, and then calls
        `finish`.

        The working folder, including `out`, is that of an interrupted run if there was one. Its
        files may be resumed or overwritten.
        """
        recipe: Recipe = {"config": dict(config), "inputs": dict(inputs), "code": code}
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
                )  # left by a run that was killed right after its last rename
            yield stage

    def discard(self, ref: ArtifactRef) -> None:
        """Removes a stage whose content another stage now includes, here and from the shared
        store.
        """
        name, key = ref.kind, ref.path.name
        with self.lock(f"{name}-{key}"):
            shutil.rmtree(self._final(name, key), ignore_errors=True)
            if self.shared is not None:
                self.shared.discard(name, key)

    def check(self) -> None:
        """Refuses a shared store that does not respond or rejects the credentials, before any
        work.
        """
        if self.shared is not None:
            self.shared.manifest("check", "0" * 32)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds a lock by name. A second process waits for the first."""
        lock = self.private / "locks" / f"{name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock):
            yield

    def is_locked(self, name: str) -> bool:
        """Whether a process currently holds this lock."""
        return is_locked(self.private / "locks" / f"{name}.lock")

    def open(self, ref: ArtifactRef) -> Path:
        """An artifact's folder, after comparing every file with the manifest. A process reads a
        file again only if it has changed.

        Anyone with write access to the store may change a file afterwards. A release must use what
        was signed, so it opens artifacts in a `CopiedStore`.
        """
        path = ref.path
        if self.shared is not None and not (path / MANIFEST).is_file():
            path = self.adopt(ref).path
        for name, entry in self._manifest(ref)["files"].items():
            file = path / name
            if (
                not file.is_file()
                or file.stat().st_size != entry["bytes"]
                or digest_once(file) != entry["sha256"]
            ):
                raise _damaged(path, name)
        return path

    def local(self, ref: ArtifactRef) -> ArtifactRef:
        """An artifact in this store, fetched from the shared one if necessary. Refuses artifacts of
        another workspace.
        """
        # guard: test_a_plan_carried_into_another_workspace
        if not ref.path.resolve().is_relative_to(self.private):
            if self.shared is None:
                raise StorageError(
                    f"release plan: its artifact {ref.kind} is in another workspace than "
                    f"{self.private.parent}. Release it there, where the ledger charges its "
                    "records",
                    kind="artifact-of-another-workspace",
                )
            return self.adopt(ref)
        return ref

    def figures(self, ref: ArtifactRef) -> dict[str, Any]:
        """The aggregate figures of a finished stage."""
        return self._manifest(ref)["figures"]

    def recipe(self, ref: ArtifactRef) -> Recipe:
        return self._manifest(ref)["recipe"]

    def recipe_of_digest(self, kind: str, sha256: str | None) -> Recipe | None:
        """The recipe of the stage whose manifest has this digest; None if there is none."""
        for file in (self.private / "stages" / kind).glob(f"*/{MANIFEST}"):
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() == sha256:
                return json.loads(content)["recipe"]
        return None

    def manifest(self, ref: ArtifactRef) -> bytes:
        """The bytes of an artifact's manifest, read once and compared with its digest."""
        file, content = ref.path / MANIFEST, None
        if file.is_file():
            content = file.read_bytes()
        elif self.shared is not None:
            content = self.shared.manifest(ref.kind, ref.path.name)
        if content is None:
            raise DamagedData(
                f"artifact {ref.path} is missing. Run again to compute it", kind="no-artifact"
            )
        # guard: test_a_manifest_with_other_figures
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise DamagedData(
                f"artifact {ref.path}: {MANIFEST} was changed. Remove the folder and run again",
                kind="changed-manifest",
            )
        return content

    def _manifest(self, ref: ArtifactRef) -> Manifest:
        return json.loads(self.manifest(ref))


class CopiedStore(Store):
    """Copies artifacts to a folder of this process before they are used. Each file is read once, so
    the bytes that are compared with the manifest are the bytes that are parsed later.

    Args:
        source: a store to which others may write.
        folder: an empty folder that no other user can access (`own_folder`).
        named: digests of artifacts that may be found by their key. A step that finds any other
            stage by its key computes it again, because nobody signed that stage.
    """

    def __init__(self, source: Store, folder: Path, named: Collection[str] = ()) -> None:
        super().__init__(folder)
        self.source = source
        self._named = frozenset(named)

    @property
    def has_key(self) -> bool:
        return self.source.has_key

    def keyed(self, sha256: str) -> str:
        return self.source.keyed(sha256)

    def local(self, ref: ArtifactRef) -> ArtifactRef:
        return self.source.local(ref)

    def recipe_of_digest(self, kind: str, sha256: str | None) -> Recipe | None:
        return self.source.recipe_of_digest(kind, sha256)

    def manifest(self, ref: ArtifactRef) -> bytes:
        return self.source.manifest(ref)

    def find(self, name: str, key: str) -> ArtifactRef | None:
        computed = super().find(name, key)
        if computed is not None:
            return computed
        found = self.source.find(name, key)
        # guard: test_a_cached_stage_that_nobody_signed
        if found is None or found.sha256 not in self._named:
            return None
        return found

    def open(self, ref: ArtifactRef) -> Path:
        """This process's folder with an artifact's files, which are copied by the first call."""
        final = self._final(ref.kind, ref.path.name)
        if not final.is_dir():
            self._copy(ref, final)
        if file_digest(final / MANIFEST) != ref.sha256:
            raise StorageError(
                f"artifact {ref.kind}/{ref.path.name} is named by two digests",
                kind="artifact-of-two-digests",
            )
        # guard: test_weights_that_carry_a_narrative (copy)
        return final

    def _copy(self, ref: ArtifactRef, final: Path) -> None:
        manifest = self.source.manifest(ref)
        if self.source.shared is not None and not (ref.path / MANIFEST).is_file():
            ref = self.source.adopt(ref)
        partial = self.private / "work" / ref.kind / final.name
        shutil.rmtree(partial, ignore_errors=True)
        for name, entry in json.loads(manifest)["files"].items():
            # guard: test_weights_that_carry_a_narrative (digest)
            if copy_regular(ref.path / name, partial / name, entry["bytes"]) != entry["sha256"]:
                raise _damaged(ref.path, name)
        partial.mkdir(parents=True, exist_ok=True)
        (partial / MANIFEST).write_bytes(manifest)
        final.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(final)


def _damaged(folder: Path, name: str) -> StorageError:
    return DamagedData(
        f"artifact {folder}: file {name} is missing or damaged. Remove the folder and run again",
        kind="damaged-artifact",
    )


def _ref(name: str, folder: Path, manifest: bytes | None = None) -> ArtifactRef:
    content = (folder / MANIFEST).read_bytes() if manifest is None else manifest
    return ArtifactRef(
        kind=name, uri=f"file://{folder}", sha256=hashlib.sha256(content).hexdigest()
    )
