"""Whom a partner trusts, over years: a root that names the agency's keys, and a signed list of the bundles that stand.

The roles are those of The Update Framework (TUF 1.0), the checks those of its reference library. A partner is given one
`N.root.json` by a safe way, once, and after that a folder from anywhere:

    N.root.json       which keys may do what, and how many of them it takes; each is signed by enough keys of the one
                      before and by enough of its own, so that keys are replaced without a new safe way
    targets.json      every bundle that was handed over: digest, the key that sealed it, archives, and whether it was
                      revoked, and why; signed by the role `targets`, the release keys
    snapshot.json     version of targets.json
    timestamp.json    version of snapshot.json, and until when it counts: signed often, by a key that can do no more

What the folder said last is kept in a folder of the partner's own, so that an older list is refused, and a list whose
time is over proves nothing. A bundle is sound only if the list names it: a stolen key that was replaced seals nothing.
"""

# TUF's library names its public interface in its documentation, and not where pyright looks.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.artifacts import file_digest
from storage.bundle.folder import STATEMENT, UnsoundBundle
from storage.bundle.signing import Verifier
from storage.errors import InputError
from storage.ledger.heads import parse_public_key

if TYPE_CHECKING:
    from tuf.api.metadata import TargetFile

_PLACE = "folder:///"


class Entry(BaseModel):
    """What the list says of one release."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str | None = Field(max_length=1000)
    """Public key (PEM) that sealed the bundle; None for one that a certificate signed."""
    revoked_on: str | None = Field(default=None, pattern=r"^\d{4}-\d\d-\d\d$")
    reason: str | None = Field(default=None, max_length=1000)


def release_path(release_id: str) -> str:
    """The target that stands for a bundle's content: its manifest, as `bundle_digest` hashes it."""
    return f"releases/{release_id}"


def archive_path(sha256: str) -> str:
    """The target that stands for one archive of a bundle."""
    return f"archives/{sha256}.tar.zst"


@dataclass(frozen=True)
class Trust:
    """What a partner has: a root, the folder that the agency sent, and a folder to remember in."""

    root: Path
    """`N.root.json`, had by a safe way."""
    repository: Path
    state: Path | None = None
    """None: one for this root under XDG_STATE_HOME, or ~/.local/state."""

    def listing(self) -> Listing:
        """Check the folder from the root to the list.

        Raises:
            UnsoundBundle: names the file that is not signed as it should be, older than what was seen, or out of date.
            InputError: the root or a folder cannot be used.
        """
        from tuf.api.exceptions import BadVersionNumberError, DownloadError, ExpiredMetadataError, RepositoryError
        from tuf.api.metadata import Metadata, Timestamp
        from tuf.ngclient import Updater

        try:
            pinned = self.root.read_bytes()
        except OSError as error:
            raise InputError(f"--root {self.root}: {error.strerror}") from None
        state = self.state or _default_state(pinned)
        fetcher = _fetcher(self.repository)
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                updater = Updater(str(state), _PLACE, fetcher=fetcher, bootstrap=pinned)
            except (RepositoryError, ValueError):
                raise InputError(f"--root {self.root}: no root of an agency's keys, or not signed by them") from None
            updater.refresh()
            dated = Metadata[Timestamp].from_file(str(state / "timestamp.json")).signed
            return Listing(updater, dated.version, dated.expires)
        except ExpiredMetadataError as error:
            role = re.search("root|snapshot|targets", str(error))
            name = f"{role[0] if role else 'timestamp'}.json"
            raise UnsoundBundle(name, "is out of date: ask the agency for its newest list") from None
        except DownloadError:
            raise UnsoundBundle(fetcher.last, "is not there, or larger than it may be: ask the agency") from None
        except RepositoryError as error:
            older = isinstance(error, BadVersionNumberError)
            problem = "is not the number that follows on what was seen here" if older else "is not signed as it must be"
            raise UnsoundBundle(fetcher.last, f"{problem}: ask the agency for its newest list") from None
        except OSError as error:
            raise InputError(f"--state {state}: {error.strerror}") from None


@dataclass(frozen=True)
class Listing:
    """The list of what stands, checked."""

    _updater: Any
    version: int
    expires: datetime

    def entry(self, release_id: str) -> tuple[TargetFile, Entry]:
        """What is said of a release.

        Raises:
            UnsoundBundle: nothing is, or that it was revoked.
        """
        target = self._updater.get_targetinfo(release_path(release_id))
        try:
            entry = None if target is None else Entry.model_validate(target.custom)
        except ValidationError:
            entry = None
        if target is None or entry is None:
            raise UnsoundBundle(STATEMENT, "its release is not on the agency's list")
        if entry.revoked_on is not None:
            raise UnsoundBundle(STATEMENT, f"release {release_id} was revoked on {entry.revoked_on}: {entry.reason}")
        return target, entry

    def verify(self, folder: Path, release_id: str) -> Any:
        """Check a bundle's signature by the key that the list names; return the key.

        Raises:
            UnsoundBundle: the release is not listed, revoked, or the signature is false.
            InputError: a certificate signed it.
        """
        _, entry = self.entry(release_id)
        if entry.key is None:
            raise InputError("the bundle was signed with a certificate: give its --authority and --identity, too")
        return Verifier(parse_public_key(entry.key.encode(), name="the list's key")).verify(folder)

    def check(self, release_id: str, bundle_digest: str) -> None:
        """Refuse a bundle with another content than the list has under its name.

        Raises:
            UnsoundBundle: it is another, is not listed, or was revoked.
        """
        target, _ = self.entry(release_id)
        if target.hashes.get("sha256") != bundle_digest:
            raise UnsoundBundle(STATEMENT, "the agency's list has another bundle under this release")

    def check_archive(self, archive: Path) -> None:
        """Refuse an archive of other bytes than the agency packed, before any of it is unfolded.

        Raises:
            UnsoundBundle: the list has none of this digest and size.
        """
        target = self._updater.get_targetinfo(archive_path(file_digest(archive)))
        if target is None or target.length != archive.stat().st_size:
            raise UnsoundBundle(archive.name, "is not as the agency packed it: ask for it again, or unpack it yourself")


def _default_state(root: bytes) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "autocoder" / hashlib.sha256(root).hexdigest()[:16]


def _fetcher(folder: Path) -> Any:
    """Reads the files of a folder where TUF's client would ask a server."""
    from tuf.api.exceptions import DownloadHTTPError
    from tuf.ngclient import FetcherInterface

    class Folder(FetcherInterface):
        last = "root.json"
        """What was asked for last, for messages."""

        def _fetch(self, url: str) -> Iterator[bytes]:
            name = unquote(url.removeprefix(_PLACE))
            try:
                content = (folder / name).open("rb")
            except FileNotFoundError:
                if not name.endswith(".root.json"):
                    self.last = name
                raise DownloadHTTPError("not there", 404) from None
            self.last = name
            with content:
                return iter([content.read(_LARGEST + 1)])

    return Folder()


_LARGEST = 8 << 20
"""Bytes of a file; TUF's client has lower limits of its own for each."""
