"""The agency's side of `trust`: roots made and signed by several people, the list written and dated anew."""

# TUF's library names its public interface in its documentation, and not where pyright looks.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.bundle.trust import Entry, archive_path, release_path
from storage.durable import write_atomically
from storage.errors import InputError
from storage.ledger.heads import key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

LISTING = ("snapshot", "timestamp")
"""Roles of the keys that date the list."""


@dataclass(frozen=True)
class Listed:
    """One release for the list."""

    digest: str
    """SHA-256 of its content's manifest, as in the ledger."""
    length: int
    """Bytes of that manifest."""
    entry: Entry
    archives: Mapping[str, int]
    """Bytes by SHA-256."""


def new_root(
    folder: Path,
    *,
    keys: Mapping[str, Sequence[EllipticCurvePublicKey]],
    thresholds: Mapping[str, int],
    days: int,
) -> Path:
    """Write the next root, unsigned; roles that are not named stay as the one before has them.

    Args:
        keys: public keys of the roles `root`, `targets`, `snapshot` and `timestamp`.
        thresholds: how many of them it takes.
        days: how long the root counts.

    Raises:
        InputError: a role has no or too few keys, or the newest root is not signed yet.
    """
    from securesystemslib.signer import SSlibKey
    from tuf.api.metadata import Metadata, Role, Root

    before = _roots(folder)
    if before and _missing(before):
        raise InputError(f"{folder}: {before[-1].signed.version}.root.json lacks signatures; sign it, or remove it")
    roles: dict[str, Role] = dict(before[-1].signed.roles) if before else {}
    known = dict(before[-1].signed.keys) if before else {}
    for role in ("root", "targets", *LISTING):
        if role in keys:
            made = [SSlibKey.from_crypto(key, keyid=key_id(key)) for key in keys[role]]
            known |= {key.keyid: key for key in made}
            roles[role] = Role(list(dict.fromkeys(key.keyid for key in made)), 1)
        if role not in roles:
            raise InputError(f"the first root needs a key for each role; `{role}` has none")
        needed = thresholds.get(role, roles[role].threshold)
        if not 1 <= needed <= len(roles[role].keyids):
            raise InputError(f"role `{role}` has {len(roles[role].keyids)} keys and asks for {needed} of them")
        roles[role] = Role(roles[role].keyids, needed)
    used = {name for role in roles.values() for name in role.keyids}
    root = Root(
        version=before[-1].signed.version + 1 if before else 1,
        expires=_in(days),
        keys={name: key for name, key in known.items() if name in used},
        roles=roles,
        consistent_snapshot=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    return _write(folder, f"{root.version}.root.json", Metadata(root))


def sign_root(folder: Path, key: EllipticCurvePrivateKey) -> int:
    """Add a signature to the newest root; return how many are missing still.

    Raises:
        InputError: there is none, or the key is neither this root's nor that of the one before.
    """
    roots = _roots(folder)
    if not roots:
        raise InputError(f"{folder}: no root; make one with `autocoder keys root`")
    known = {name for root in roots[-2:] for name in root.signed.roles["root"].keyids}
    if key_id(key.public_key()) not in known:
        raise InputError(f"key {key_id(key.public_key())[:16]}… is of no root; `keys root --root` names those that are")
    roots[-1].sign(_signer(key), append=True)
    _write(folder, f"{roots[-1].signed.version}.root.json", roots[-1])
    return _missing(roots)


def publish(
    folder: Path,
    releases: Mapping[str, Listed],
    *,
    release_keys: Sequence[EllipticCurvePrivateKey],
    list_keys: Sequence[EllipticCurvePrivateKey],
    days: int,
) -> int:
    """Write the list of what was handed over and revoked, and date it; return its version.

    Raises:
        InputError: the newest root is not signed, or does not give these keys their role.
    """
    from tuf.api.metadata import Metadata, TargetFile, Targets

    root = _standing(folder)
    targets = Targets(version=_version(folder, "targets") + 1, expires=_in(_TARGETS_DAYS))
    for release_id, listed in sorted(releases.items()):
        path = release_path(release_id)
        custom = {"custom": listed.entry.model_dump()}
        targets.targets[path] = TargetFile(listed.length, {"sha256": listed.digest}, path, custom)
        for sha256, size in listed.archives.items():
            targets.targets[archive_path(sha256)] = TargetFile(size, {"sha256": sha256}, archive_path(sha256))
    _write(folder, "targets.json", _signed(Metadata(targets), root, "targets", release_keys))
    return refresh(folder, list_keys=list_keys, days=days)


def refresh(folder: Path, *, list_keys: Sequence[EllipticCurvePrivateKey], days: int) -> int:
    """Date the list anew, as it stands; return its version.

    Raises:
        InputError: there is no list, or the newest root does not give these keys the role.
    """
    from tuf.api.metadata import Metadata, MetaFile, Snapshot, Timestamp

    root, content = _standing(folder), _version(folder, "targets")
    if not content:
        raise InputError(f"{folder}: no list; write one with `autocoder keys publish`")
    number = max(_version(folder, name) for name in LISTING) + 1
    snapshot = Snapshot(version=number, expires=_in(days), meta={"targets.json": MetaFile(content)})
    timestamp = Timestamp(version=number, expires=_in(days), snapshot_meta=MetaFile(number))
    _write(folder, "snapshot.json", _signed(Metadata(snapshot), root, "snapshot", list_keys))
    _write(folder, "timestamp.json", _signed(Metadata(timestamp), root, "timestamp", list_keys))
    return number


_TARGETS_DAYS = 400
"""The list's content counts for longer than its date, which is what expires first."""


def known_keys(folder: Path) -> dict[str, str]:
    """Public keys (PEM) by their id: of all roots, so also those that were replaced."""
    return {name: key.keyval["public"] for root in _roots(folder) for name, key in root.signed.keys.items()}


def _roots(folder: Path) -> list[Any]:
    from tuf.api.exceptions import RepositoryError
    from tuf.api.metadata import Metadata, Root

    roots: list[Any] = []
    while (file := folder / f"{len(roots) + 1}.root.json").is_file():
        try:
            root = Metadata[Root].from_file(str(file))
        except (RepositoryError, OSError):
            raise InputError(f"{file}: no root") from None
        if root.signed.type != "root" or root.signed.version != len(roots) + 1:
            raise InputError(f"{file}: no root of this number")
        roots.append(root)
    return roots


def _missing(roots: Sequence[Any]) -> int:
    """Signatures that the newest root lacks, of its own role or of the one before."""
    newest, before = roots[-1], roots[-2].signed if len(roots) > 1 else None
    result = newest.signed.get_root_verification_result(before, newest.signed_bytes, newest.signatures)
    return max(result.first.missing, result.second.missing)


def _standing(folder: Path) -> Any:
    roots = _roots(folder)
    if not roots or _missing(roots):
        raise InputError(f"{folder}: no root, or its newest lacks signatures (`autocoder keys root`, `keys sign`)")
    return roots[-1].signed


def _signed(metadata: Any, root: Any, role: str, keys: Sequence[EllipticCurvePrivateKey]) -> Any:
    from tuf.api.exceptions import UnsignedMetadataError

    for key in keys:
        metadata.sign(_signer(key), append=True)
    try:
        root.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
    except UnsignedMetadataError:
        needed, given = root.roles[role].threshold, ", ".join(key_id(key.public_key())[:16] for key in keys)
        raise InputError(f"role `{role}` asks for {needed} of its keys in the newest root; given: {given}") from None
    return metadata


def _signer(key: EllipticCurvePrivateKey) -> Any:
    from securesystemslib.signer import CryptoSigner, SSlibKey

    return CryptoSigner(key, SSlibKey.from_crypto(key.public_key(), keyid=key_id(key.public_key())))


def _version(folder: Path, role: str) -> int:
    from tuf.api.exceptions import RepositoryError
    from tuf.api.metadata import Metadata

    file = folder / f"{role}.json"
    if not file.is_file():
        return 0
    try:
        return int(Metadata.from_file(str(file)).signed.version)
    except RepositoryError:
        raise InputError(f"{file}: damaged; restore it, since partners refuse a lower number") from None


def _write(folder: Path, name: str, metadata: Any) -> Path:
    write_atomically(folder / name, metadata.to_bytes())
    return folder / name


def _in(days: int) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
