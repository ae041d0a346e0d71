"""A partner's trust anchors: a chain of roots that starts with the agency's public key as version
1.

A root lists the keys that sign the next root, the keys that seal bundles, and the revoked releases.
A partner receives the first key once through a secure channel, and afterwards one file from
anywhere: all roots up to the newest. Each root contains the digest of the preceding root and is
signed by enough keys of both roots. Replacing keys and revoking releases therefore use one
mechanism, and parts of different files cannot be combined.

A bundle that was sealed by a replaced key remains valid if a root lists it, so a stolen key cannot
seal new bundles once it is replaced. The partner stores the newest accepted version, so that an
older chain is refused. An expired root is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from storage.artifacts import digest
from storage.bundle.folder import STATEMENT, UnsoundBundle
from storage.durable import read_regular, write_atomically
from storage.errors import Contradiction, InputError, OutOfRange, Unknown, Unreadable
from storage.ledger.keys import is_signed, key_id, parse_public_key, public_pem, signature_of
from storage.locks import locked
from storage.paths import Workspace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

NAME = "roots.json"
"""Name of the file in messages."""
_MAX_BYTES = 8 << 20
_DAY = r"^\d{4}-\d\d-\d\d$"
Pem = str


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    release_id: str = Field(min_length=1, max_length=300)
    bundle_digest: str = Field(pattern="^[0-9a-f]{64}$")


class RevokedRelease(_Entry):
    """One release that must not be used."""

    revoked_on: str = Field(pattern=_DAY)
    reason: str = Field(min_length=1, max_length=1000)


class EarlierBundle(_Entry):
    """One bundle that a replaced key sealed while the key was valid."""

    key: Pem


class Root(BaseModel):
    """Keys and revocations. Signatures are ECDSA on P-256 over the canonical JSON without
    signatures.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    statement: Literal["autocoder root"] = "autocoder root"
    version: int = Field(ge=1, le=1_000_000)
    previous: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """Digest of the preceding root."""
    keys: tuple[Pem, ...] = Field(min_length=1, max_length=32)
    """Public keys (PEM) that sign the next root."""
    threshold: int = Field(ge=1)
    release_keys: tuple[Pem, ...] = Field(min_length=1, max_length=32)
    """Public keys (PEM) that seal bundles."""
    earlier: tuple[EarlierBundle, ...] = ()
    revoked: tuple[RevokedRelease, ...] = ()
    stated_on: str | None = Field(default=None, pattern=_DAY)
    expires_on: str | None = Field(default=None, pattern=_DAY)
    """Last day on which the root is valid; None for the first version."""
    signatures: dict[str, str] = {}
    """Base64 signatures by key id."""

    @staticmethod
    def first(key: EllipticCurvePublicKey) -> Root:
        """Version 1, in which one key signs roots and seals bundles."""
        pem = public_pem(key).decode()
        return Root(version=1, keys=(pem,), threshold=1, release_keys=(pem,))

    @property
    def digest(self) -> str:
        """SHA-256 of everything except the signatures."""
        return digest(self.model_dump(mode="json", exclude={"signatures"}))

    def signed_by(self, key: EllipticCurvePrivateKey) -> Root:
        signatures = self.signatures | {key_id(key.public_key()): signature_of(self, key)}
        return self.model_copy(update={"signatures": signatures})

    def missing(self, before: Root) -> int:
        """The number of valid signatures that the root still requires, of its own keys or of the
        preceding root's.
        """
        signers = self._signers({*self.keys, *before.keys})
        return max(0, *(root.threshold - len(signers & set(root.keys)) for root in (self, before)))

    def _signers(self, pems: Iterable[Pem]) -> set[Pem]:
        keys = {pem: parse_public_key(pem.encode(), name="a root's key") for pem in pems}
        return {
            pem
            for pem, key in keys.items()
            if is_signed(self, self.signatures.get(key_id(key), ""), key)
        }

    def sealing_keys(self, release_id: str) -> list[EllipticCurvePublicKey]:
        pems = [
            *self.release_keys,
            *(key.key for key in self.earlier if key.release_id == release_id),
        ]
        return [parse_public_key(pem.encode(), name="a root's key") for pem in dict.fromkeys(pems)]

    def check(
        self, release_id: str, bundle_digest: str, key: EllipticCurvePublicKey | None
    ) -> None:
        """Refuses a bundle that was revoked, or that a replaced key sealed and this root does not
        list.

        Without the key that sealed it, only revocations are checked.
        """
        for entry in self.revoked:
            # guard: test_a_revoked_bundle (what was revoked is believed by no one)
            if entry.release_id == release_id or entry.bundle_digest == bundle_digest:
                problem = f"release {release_id} was revoked on {entry.revoked_on}: {entry.reason}"
                raise UnsoundBundle(STATEMENT, problem, kind="revoked-bundle")
        if key is None or (pem := public_pem(key).decode()) in self.release_keys:
            return
        # guard: test_a_stolen_key_that_was_replaced
        if (
            EarlierBundle(release_id=release_id, bundle_digest=bundle_digest, key=pem)
            not in self.earlier
        ):
            raise UnsoundBundle(
                STATEMENT,
                "was signed by a replaced key, and the agency's root does not name it",
                kind="replaced-key",
            )


@dataclass(frozen=True)
class Trust:
    """A partner's files: the pinned key from the secure channel, and roots from anywhere."""

    pinned: Path | EllipticCurvePublicKey
    """The agency's public key, or its file, or a file of roots, whose last root is trusted."""
    roots: Path | None = None
    """All roots up to the newest. None uses the pinned root, and no revocation is known."""
    state: Path | None = None
    """Folder that stores the newest accepted version. None: under XDG_STATE_HOME or
    ~/.local/state.
    """

    def load(self) -> Root:
        """Follows the roots from the pinned one and returns the newest.

        Raises:
            UnsoundBundle: the chain is forged, belongs to another agency, is expired, or is older
                than the last accepted one.
        """
        pinned = self._pinned()
        newest = pinned if self.roots is None else self._follow(pinned, read_roots(self.roots))
        if newest.expires_on is not None and newest.expires_on < _today():
            raise UnsoundBundle(
                NAME,
                f"is expired since {newest.expires_on}. Ask the agency for its newest roots",
                kind="expired-roots",
            )
        return newest

    def _follow(self, pinned: Root, roots: Sequence[Root]) -> Root:
        # guard: test_a_chain_that_a_thief_began
        if len(roots) < pinned.version or roots[pinned.version - 1].digest != pinned.digest:
            raise UnsoundBundle(
                NAME,
                "does not continue the pinned root. Ask the agency for its newest roots",
                kind="roots-do-not-continue",
            )
        # guard: test_roots_that_were_forged (a root has enough signatures)
        if incomplete(roots):
            raise UnsoundBundle(
                NAME,
                "is not signed by the required keys. Ask the agency for its newest roots",
                kind="roots-not-signed",
            )
        self._remember(pinned, roots)
        return roots[-1]

    def _pinned(self) -> Root:
        if not isinstance(self.pinned, Path):
            return Root.first(self.pinned)
        content = read_regular(self.pinned, _MAX_BYTES, option="--key")
        if not content.lstrip().startswith(b"["):
            return Root.first(parse_public_key(content, name=f"--key {self.pinned}"))
        roots = read_roots(self.pinned)
        if incomplete(roots):
            raise InputError(
                f"--key {self.pinned}: its newest root is not fully signed. Pin a signed one.",
                kind="pinned-root-unsigned",
            )
        return roots[-1]

    def _remember(self, pinned: Root, roots: Sequence[Root]) -> None:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        folder = self.state or base / "autocoder" / roots[0].digest[:16]
        file = folder / "newest.json"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            last = json.loads(read_regular(file, 1000, option="--state")) if file.exists() else {}
            version, accepted = (
                int(last.get("version", pinned.version)),
                last.get("digest", pinned.digest),
            )
        except OSError as error:
            raise InputError(
                f"--state {folder}: {error.strerror}", kind="unreadable-state"
            ) from None
        except (ValueError, TypeError, AttributeError):
            raise InputError(
                f"--state {file}: is damaged. Remove it to forget which roots were accepted.",
                kind="damaged-state",
            ) from None
        # guard: test_a_revoked_bundle (no older roots after newer ones)
        if version > len(roots) or roots[version - 1].digest != accepted:
            raise UnsoundBundle(
                NAME,
                "is older than the last accepted version, or another chain",
                kind="older-roots",
            )
        if version < len(roots):
            try:
                content = {"version": len(roots), "digest": roots[-1].digest}
                write_atomically(file, json.dumps(content).encode())
            except OSError as error:
                raise InputError(
                    f"--state {folder}: {error.strerror}", kind="unwritable-state"
                ) from None


_ROOTS = TypeAdapter(tuple[Root, ...])


def read_roots(path: Path) -> tuple[Root, ...]:
    """Reads a file of roots and verifies their order, but not their signatures."""
    try:
        roots = _ROOTS.validate_json(read_regular(path, _MAX_BYTES, option="--roots"))
        linked = bool(roots) and all(
            (root.version, root.previous) == (n + 1, roots[n - 1].digest if n else None)
            for n, root in enumerate(roots)
        )
        for pem in {pem for root in roots for pem in (*root.keys, *root.release_keys)}:
            parse_public_key(pem.encode(), name=str(path))
        if any(root.threshold > len(set(root.keys)) for root in roots):
            raise ValueError("more signatures than keys")
    except (ValueError, RecursionError):
        raise Unreadable(f"--roots {path} is not a file of roots.", kind="not-roots") from None
    if not linked:
        raise UnsoundBundle(
            NAME,
            "its roots do not continue each other. Ask the agency for its newest roots",
            kind="roots-in-disorder",
        )
    return roots


def write_roots(path: Path, roots: Sequence[Root]) -> None:
    """Atomically writes a file of roots."""
    write_atomically(path, _ROOTS.dump_json(tuple(roots), indent=2) + b"\n")


def incomplete(roots: Sequence[Root]) -> int:
    """The number of signatures that the first incomplete root still requires; 0 if all are
    complete. Version 1 requires none.
    """
    return next((lacks for before, root in pairwise(roots) if (lacks := root.missing(before))), 0)


def with_next_root(
    roots: Sequence[Root],
    *,
    keys: Sequence[EllipticCurvePublicKey] = (),
    threshold: int | None = None,
    release_keys: Sequence[EllipticCurvePublicKey] = (),
    earlier: Sequence[EarlierBundle] = (),
    revoked: Sequence[RevokedRelease] = (),
    days: int,
) -> tuple[Root, ...]:
    """The roots with an unsigned next one, which takes unspecified fields from the newest. It
    replaces an incompletely signed root.
    """
    newest = roots[-1]
    signed = tuple(roots[:-1] if incomplete(roots) else roots)
    earlier_bundles = {(key.release_id, key.key): key for key in (*newest.earlier, *earlier)}
    revocations = {revocation.release_id: revocation for revocation in (*newest.revoked, *revoked)}
    pems = _pems(keys) or newest.keys
    needed = threshold or min(newest.threshold, len(pems))
    if needed > len(pems):
        raise OutOfRange(
            f"--threshold: {needed} signatures are required, but there are {len(pems)} root keys.",
            kind="too-few-root-keys",
        )
    root = Root(
        version=len(signed) + 1,
        previous=signed[-1].digest,
        keys=pems,
        threshold=needed,
        release_keys=_pems(release_keys) or newest.release_keys,
        earlier=tuple(earlier_bundles.values()),
        revoked=tuple(revocations.values()),
        stated_on=_today(),
        expires_on=(datetime.now(UTC) + timedelta(days=days)).date().isoformat(),
    )
    return (*signed, root)


def sign_newest(roots: Sequence[Root], key: EllipticCurvePrivateKey) -> tuple[Root, ...]:
    """The roots with a signature on the newest, by one of its own keys or of the preceding
    root's.
    """
    pem = public_pem(key.public_key()).decode()
    if len(roots) < 2 or pem not in {*roots[-1].keys, *roots[-2].keys}:
        raise Unknown(
            f"key {key_id(key.public_key())[:16]}… is not a root key of the newest roots.",
            kind="not-a-root-key",
        )
    return (*roots[:-1], roots[-1].signed_by(key))


@contextmanager
def lock_roots(workspace: Workspace) -> Iterator[None]:
    """Locks a workspace's roots. Two concurrent commands would otherwise both create a next root
    and fork the chain.

    A partner who accepted one of two roots with the same version would refuse every root that
    continues the other.
    """
    if not workspace.private.is_dir():
        yield
        return
    file = workspace.private / "locks" / "roots.lock"
    file.parent.mkdir(exist_ok=True)
    with locked(file):
        yield


def replace_roots(workspace: Workspace, roots: Sequence[Root]) -> None:
    """Replaces a workspace's roots, unless it has newer ones.

    Raises:
        InputError: the workspace has newer roots. With older ones, its workers would not know all
            revocations.
    """
    file = workspace.roots
    with lock_roots(workspace):
        existing = read_roots(file) if file.exists() else ()
        complete = existing[:-1] if existing and incomplete(existing) else existing
        if [root.digest for root in roots[: len(complete)]] != [root.digest for root in complete]:
            raise Contradiction(
                f"{file}: it has newer roots, or others. Sign those.", kind="newer-roots"
            )
        write_roots(file, roots)


def workspace_roots(path: Path, key: EllipticCurvePublicKey | None) -> tuple[Root, ...]:
    """A workspace's roots; version 1 with this key if it has no file yet."""
    return read_roots(path) if key is None or path.exists() else (Root.first(key),)


def _pems(keys: Sequence[Any]) -> tuple[Pem, ...]:
    return tuple(dict.fromkeys(public_pem(key).decode() for key in keys))


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
