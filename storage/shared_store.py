"""Stores finished stages under one URL, a folder or S3, so that workers on several machines can
share them.

  <url>/stages/<stage>/<key>/<digest of the manifest, 16 digits>/<file>
  <url>/stages/<stage>/<key>/manifest.json

The manifest is written last. Without it the stage does not exist.

The first process to write the manifest of a key determines the stage: the manifest is created and
never replaced. Later processes use it. Theirs differs only if a stage is not bit-for-bit
reproducible. An interrupted upload leaves files that no manifest references. Fetched files are
verified against the manifest.

The store contains records and posteriors, so it is as private as the workspace. Credentials come
only from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL for
servers other than Amazon's).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from storage.durable import replace_atomically, sync
from storage.errors import (
    DamagedData,
    InputError,
    NotInstalled,
    OutOfRange,
    StorageError,
    Unavailable,
)
from storage.extras import install_command

VARIABLE = "AUTOCODER_STORAGE"
_MANIFEST = "manifest.json"


class SharedStore:
    """Stages under one URL: a folder that is not accessible to others, or `s3://bucket/prefix`
    without credentials.
    """

    def __init__(self, url: str) -> None:
        scheme, place = _parsed(url)
        self._folder = scheme == "file"
        try:
            import fsspec

            # Listings are not cached, because other machines also write.
            self._fs: Any = fsspec.filesystem(
                scheme, **({"auto_mkdir": True} if self._folder else _S3_OPTIONS)
            )
        except ImportError:
            raise NotInstalled(
                f"{VARIABLE}: S3 needs the extra `s3`: {install_command('s3')}", kind="no-s3"
            ) from None
        self._root = place
        self.url = place if self._folder else f"s3://{place}"
        if self._folder:
            _require_closed(Path(place))

    def manifest(self, name: str, key: str) -> bytes | None:
        """The manifest of a finished stage; None if there is none."""
        with self._safe_errors():
            try:
                content: bytes = self._fs.cat_file(self._place(name, key, _MANIFEST))
            except FileNotFoundError:
                return None
        try:
            manifest = json.loads(content)
            valid = (manifest["kind"], manifest["key"], isinstance(manifest["files"], dict)) == (
                name,
                key,
                True,
            )
        except (ValueError, KeyError, TypeError):
            valid = False
        if not valid:
            raise DamagedData(
                f"{VARIABLE}: {self._remedy(name, key)}: {_MANIFEST} is damaged",
                kind="damaged-shared-manifest",
            )
        return content

    def publish(self, name: str, key: str, folder: Path) -> bytes:
        """Writes a finished stage, with its manifest last; returns the manifest in effect, which
        may be an earlier one.
        """
        manifest = (folder / _MANIFEST).read_bytes()
        with self._safe_errors():
            for file in json.loads(manifest)["files"]:
                self._put(folder / file, self._place(name, key, _version(manifest), file))
            self._create(self._place(name, key, _MANIFEST), manifest)
        counts = self.manifest(name, key)
        if counts is None:
            raise StorageError(
                f"{VARIABLE}: {self.url} accepts files but does not return them. "
                "Check its settings",
                kind="store-returns-nothing",
            )
        return counts

    def discard(self, name: str, key: str) -> None:
        """Removes a stage, if it exists."""
        with self._safe_errors(), suppress(FileNotFoundError):
            self._fs.rm_file(
                self._place(name, key, _MANIFEST)
            )  # first, because without it the stage does not exist
            self._fs.rm(self._place(name, key), recursive=True)

    def fetch(self, name: str, key: str, manifest: bytes, into: Path) -> None:
        """Copies a finished stage to an empty folder and verifies every file against the
        manifest.
        """
        files = json.loads(manifest)["files"]
        if any(
            PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts for file in files
        ):
            raise DamagedData(
                f"{VARIABLE}: {self._remedy(name, key)}: it names a file outside its folder",
                kind="file-outside-folder",
            )
        for file, entry in files.items():
            to = into / file
            to.parent.mkdir(parents=True, exist_ok=True)
            with self._safe_errors():
                try:
                    self._fs.get_file(self._place(name, key, _version(manifest), file), str(to))
                except FileNotFoundError:
                    to.unlink(missing_ok=True)
            if not to.is_file() or _sha256(to) != entry["sha256"]:
                raise DamagedData(
                    f"{VARIABLE}: {self._remedy(name, key)}: file {file} is missing or damaged",
                    kind="damaged-shared-file",
                )
        (into / _MANIFEST).write_bytes(manifest)

    def _place(self, *parts: str) -> str:
        return "/".join((self._root, "stages", *parts))

    def _remedy(self, name: str, key: str) -> str:
        return f"remove {self.url}/stages/{name}/{key} and run again"

    def _put(self, file: Path, to: str) -> None:
        """Atomically writes a file: S3 shows a file only once it is complete, and a folder receives
        it by rename.
        """
        if not self._folder:
            self._fs.put_file(str(file), to)
            return
        with replace_atomically(
            Path(to)
        ) as partial:  # the manifest requires that the file exists, also after a power failure
            self._fs.put_file(str(file), str(partial))

    def _create(self, to: str, content: bytes) -> None:
        """Atomically creates a small file, unless one exists. A server without conditional writes
        replaces an existing one.
        """
        try:
            if not self._folder:
                self._fs.pipe_file(to, content, mode="create")
                return
            partial = Path(f"{to}.{uuid4().hex}.partial")
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(content)
            sync(partial)
            try:
                Path(to).hardlink_to(partial)
            finally:
                partial.unlink()
        except FileExistsError:
            pass

    @contextmanager
    def _safe_errors(self) -> Iterator[None]:
        """Reports errors of a folder or a server in one line, because a library's text may contain
        anything.
        """
        try:
            yield
        except (StorageError, FileExistsError):
            raise
        except Exception as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            answered = isinstance(error, OSError) and not isinstance(
                error, ConnectionError | TimeoutError
            )
            place = f"{VARIABLE}: {self.url}: {reason}"
            if answered:
                raise StorageError(
                    f"{place}. Check that the folder or bucket exists and that the credentials in "
                    "the environment allow reading and writing, then run again",
                    kind="store-refused",
                ) from None
            raise Unavailable(
                f"{place}. Check that it answers and that the credentials in the environment "
                "allow reading and writing, then run again",
                kind="store-unavailable",
            ) from None


_S3_OPTIONS = {"use_listings_cache": False}


def _parsed(url: str) -> tuple[str, str]:
    """The scheme (`file` or `s3`) and the location. Errors do not repeat the URL, which may contain
    a password.
    """
    if "://" not in url:
        return "file", str(Path(url).expanduser().resolve())
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise OutOfRange(
            f"{VARIABLE}: the URL contains credentials. Use AWS_ACCESS_KEY_ID and so on instead",
            kind="credentials-in-url",
        )
    if parts.scheme == "file" and not parts.netloc:
        return "file", str(Path(parts.path).resolve())
    if parts.scheme == "s3" and parts.netloc:
        return "s3", f"{parts.netloc}{parts.path}".rstrip("/")
    raise OutOfRange(
        f"{VARIABLE}: expected a folder or s3://bucket/prefix, not {parts.scheme}://",
        kind="store-scheme",
    )


def _require_closed(folder: Path) -> None:
    """Creates the folder with restricted permissions, or refuses one that others can access. A
    group may share it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise StorageError(
            f"{VARIABLE}: {folder}: {error.strerror}", kind="unusable-store"
        ) from None
    if mode & 0o007:
        raise InputError(
            f"{VARIABLE}: {folder}: every user of this machine may enter it, and it "
            "contains records. Run chmod o-rwx on it (workers of several users "
            "share it through their group)",
            kind="open-to-every-user",
        )


def _version(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:16]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
