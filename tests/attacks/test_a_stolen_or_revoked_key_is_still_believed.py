"""Would win: a bundle sealed with a key that was replaced, or revoked, in the eyes of a partner who has not heard."""

# TUF's library names its public interface in its documentation, and not where pyright looks.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sealed_bundle import Sealed

from storage.bundle.archive import pack
from storage.bundle.check import check
from storage.bundle.folder import PROOF, SIGNATURE, UnsoundBundle, content_files
from storage.bundle.proof import proof_of
from storage.bundle.registry import hand_over, listed, record_revocation
from storage.bundle.roles import known_keys, new_root, publish, refresh, sign_root
from storage.bundle.signing import Signer, Verifier
from storage.bundle.trust import Trust
from storage.errors import InputError
from storage.ledger import Ledger
from storage.ledger.heads import load_private_key, new_keys

NAMES = ("anna", "ben", "carla", "release", "dates", "thief")


@dataclass
class Agency:
    """An agency with its keys, its folder for partners, and a bundle that it handed over."""

    place: Path
    sealed: Sealed

    def __post_init__(self) -> None:
        self.files = {name: new_keys(self.place / name)[0] for name in NAMES}
        self.files["first"] = self.sealed.signer.key
        self.folder, self.outbox = self.place / "trust", self.place / "outbox"
        self.home = self.place / "house"
        shutil.copytree(self.sealed.home, self.home, ignore=lambda _, names: {"source", "again"} & set(names))
        self.bundle = self.home / "bundles" / self.sealed.folder.name
        self.ledger = Ledger.open(f"sqlite:///{self.home / 'ledger.db'}")

    def key(self, name: str) -> Any:
        """A private key."""
        return load_private_key(self.files[name])

    def public(self, *names: str) -> list[Any]:
        """Public keys."""
        return [self.key(name).public_key() for name in names]

    def root(self, *signers: str, days: int = 100, thresholds: dict[str, int] | None = None, **roles: Any) -> int:
        """The next root, signed; how many signatures are missing."""
        new_root(
            self.folder,
            keys={role: self.public(*names) for role, names in roles.items()},
            thresholds=thresholds or {},
            days=days,
        )
        return [sign_root(self.folder, self.key(name)) for name in signers][-1]

    def begin(self) -> None:
        """Two of three root keys; bundles so far are the workspace's own key's; dates have a key of their own."""
        roles = {"root": ("anna", "ben", "carla"), "targets": ("first",), "snapshot": ("dates",)}
        missing = self.root("anna", "ben", thresholds={"root": 2}, **roles, timestamp=("dates",))
        assert missing == 0

    def hand_over(self) -> Path:
        """An archive for a partner."""
        given, to = self.sealed.row, self.outbox
        return hand_over(self.ledger, given, self.bundle, to, partner="Partner", requester="r")[0]

    def list(self, key: str = "first", *, days: int = 30) -> int:
        """What stands, signed and dated."""
        releases = listed(self.ledger, self.bundle.parent, known_keys(self.folder))
        return publish(self.folder, releases, release_keys=[self.key(key)], list_keys=[self.key("dates")], days=days)

    def partner(self, name: str = "partner") -> Trust:
        """Who was given the first root by hand, and has a copy of the folder as it is now."""
        copy = self.place / name / f"copy-{len(list(self.place.glob(f'{name}/copy-*')))}"
        shutil.copytree(self.folder, copy)
        pinned = self.place / name / "root.json"
        if not pinned.exists():
            shutil.copy(self.folder / "1.root.json", pinned)
        return Trust(pinned, copy, self.place / name / "state")

    def sound(self, trust: Trust, bundle: Path | None = None) -> Any:
        """What a partner finds."""
        return check(bundle or self.bundle, None, listing=trust.listing())


@pytest.fixture
def agency(sealed: Sealed, tmp_path: Path) -> Agency:
    """With a root, one handover, and the list."""
    made = Agency(tmp_path, sealed)
    made.begin()
    made.hand_over()
    made.list()
    return made


def another(agency: Agency, key: str) -> Path:
    """The same release with another content, sealed whole by some key."""
    made = agency.place / f"forged-{key}" / agency.bundle.name
    shutil.copytree(agency.bundle, made)
    (made / "LICENSE").write_text("other terms")
    files = content_files(made)
    from storage.artifacts import digest

    row = agency.sealed.row.model_copy(update={"bundle_digest": digest(files)})
    (made / SIGNATURE).unlink()
    (made / PROOF).write_text(json.dumps(proof_of(row, files, key=agency.key(key))))
    Signer(agency.files[key]).sign(made, agency.place / "signature")
    (agency.place / "signature").replace(made / SIGNATURE)
    return made


def test_keys_are_replaced_and_what_stands_stands(agency: Agency) -> None:
    """Release key, a root key and the date key, over two roots: the old bundle is sound, by the first root alone."""
    assert agency.sound(agency.partner()).listed == 1
    agency.root("anna", "ben", targets=("release",))
    agency.root("ben", "carla", root=("ben", "carla"), thresholds={"root": 2})
    agency.list("release")
    sound = agency.sound(agency.partner())
    assert (sound.listed, sound.release_id) == (2, agency.bundle.name)
    assert agency.sound(agency.partner("a new one")).listed == 2
    assert check(agency.bundle, agency.sealed.verifier).listed is None, "by the key itself, as before"


def test_a_stolen_key_that_was_replaced(agency: Agency) -> None:
    """Seals no new bundle, lists none, and dates nothing; while it is in force it lists none without the date key."""
    forged = another(agency, "first")
    assert check(forged, agency.sealed.verifier), "by the bare key it is sound: that is what roots are for"
    with pytest.raises(UnsoundBundle, match="another bundle under this release"):
        agency.sound(agency.partner(), forged)
    agency.root("anna", "ben", targets=("release",))
    with pytest.raises(InputError, match="`targets` asks for 1"):
        agency.list("first")
    agency.list("release")
    with pytest.raises(UnsoundBundle, match="another bundle"):
        agency.sound(agency.partner(), forged)


def test_a_bundle_of_a_strangers_key(agency: Agency) -> None:
    """Under a known name, and under a name that is not on the list."""
    forged = another(agency, "thief")
    with pytest.raises(UnsoundBundle, match="another key"):
        agency.sound(agency.partner(), forged)
    proof = json.loads((forged / PROOF).read_text())
    for name in ("unknown", "../../x", "", "releases/" + agency.bundle.name):
        proof["row"]["release_id"] = name
        (forged / PROOF).write_text(json.dumps(proof))
        with pytest.raises(UnsoundBundle, match="not on the agency's list"):
            agency.sound(agency.partner(), forged)


def test_a_revoked_bundle(agency: Agency) -> None:
    """Is unsound with the newest list, with no list, with the list before, and when the list's time is over."""
    kept = agency.partner("who kept the old list")
    assert agency.sound(kept)
    seen = agency.partner()
    assert agency.sound(seen)
    agency.root("anna", "ben", targets=("release",))
    record_revocation(agency.ledger, agency.bundle.name, reason="an error", requester="r")
    agency.list("release")
    with pytest.raises(UnsoundBundle, match=r"revoked on .*: an error"):
        agency.sound(agency.partner())
    with pytest.raises(UnsoundBundle, match=r"timestamp.json: is not the number that follows"):
        agency.sound(Trust(seen.root, seen.repository, seen.state))
    shutil.rmtree(agency.bundle)
    agency.list("release")
    with pytest.raises(UnsoundBundle, match="an error"):
        agency.sound(agency.partner(), agency.sealed.folder)


def late(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """The clock of the checking library, so many days on."""
    from tuf.ngclient._internal import trusted_metadata_set as checks

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr(checks.datetime, "datetime", Later)


@pytest.mark.parametrize(("days", "file"), [(31, "timestamp.json"), (101, "root.json")])
def test_a_list_or_a_root_whose_time_is_over(
    agency: Agency, monkeypatch: pytest.MonkeyPatch, days: int, file: str
) -> None:
    """Proves nothing; dated anew by the date key alone, it does again."""
    trust = agency.partner()
    assert agency.sound(trust)
    with monkeypatch.context() as patch:
        late(patch, days)
        with pytest.raises(UnsoundBundle, match=f"^bundle: {file}: is out of date"):
            agency.sound(trust)
    refresh(agency.folder, list_keys=[agency.key("dates")], days=90)
    with monkeypatch.context() as patch:
        late(patch, 60)
        assert agency.sound(agency.partner()).listed == 2


def edited(name: str, change: Callable[[Any], None]) -> Callable[[Agency, Path], None]:
    """A file of the folder with its content changed, its signatures kept."""

    def edit(_: Agency, folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content["signed"])
        (folder / name).write_text(json.dumps(content))

    return edit


def resigned(role: str, key: str) -> Callable[[Agency, Path], None]:
    """A list made and signed with a key of another role."""

    def forge(agency: Agency, folder: Path) -> None:
        from tuf.api.metadata import Metadata

        from storage.bundle.roles import _signer

        metadata: Any = Metadata.from_file(str(folder / f"{role}.json"))
        metadata.signed.version += 1
        metadata.signed.expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3000)
        metadata.sign(_signer(agency.key(key)))
        metadata.to_file(str(folder / f"{role}.json"))

    return forge


def thiefs_root(*signers: str) -> Callable[[Agency, Path], None]:
    """A next root that gives all roles to a thief."""

    def forge(agency: Agency, folder: Path) -> None:
        new_root(
            folder,
            keys=dict.fromkeys(("root", "targets", "snapshot", "timestamp"), agency.public("thief")),
            thresholds={"root": 1},
            days=100,
        )
        for name in signers:
            sign_root(folder, agency.key(name))

    return forge


def removed(name: str) -> Callable[[Agency, Path], None]:
    """A folder that lacks a file."""
    return lambda _, folder: (folder / name).unlink()


def written(name: str, content: bytes) -> Callable[[Agency, Path], None]:
    """A file of other bytes."""

    def write(_: Agency, folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


FORGERIES = {
    "a later date": edited("timestamp.json", lambda signed: signed.update(expires="2999-01-01T00:00:00Z")),
    "a higher number": edited("timestamp.json", lambda signed: signed.update(version=99)),
    "a release taken out": edited("targets.json", lambda signed: signed["targets"].clear()),
    "a release put in": edited("targets.json", lambda signed: signed["targets"].update(x=1)),
    "another snapshot": edited("snapshot.json", lambda signed: signed.update(version=2)),
    "a root edited": edited("1.root.json", lambda signed: signed.update(expires="2999-01-01T00:00:00Z")),
    "dates by the release key": resigned("timestamp", "first"),
    "dates by a thief": resigned("timestamp", "thief"),
    "a list by the date key": resigned("targets", "dates"),
    "a list by a root key": resigned("targets", "anna"),
    "a root of nobody": thiefs_root(),
    "a root of its own keys": thiefs_root("thief"),
    "a root by one of two": thiefs_root("thief", "anna"),
    "no dates": removed("timestamp.json"),
    "no snapshot": removed("snapshot.json"),
    "no list": removed("targets.json"),
    "dates that are none": written("timestamp.json", b"{}"),
    "a list of another kind": written("targets.json", b"[]"),
    "no text": written("snapshot.json", b"\xff" * 10),
    "too large": written("timestamp.json", b" " * 100_000),
    "nested without end": written("timestamp.json", b"[" * 10_000),
    "a root that is none": written("2.root.json", b"{}"),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_folder_that_was_forged(agency: Agency, forge: Callable[[Agency, Path], None]) -> None:
    """Proves nothing, whoever signed it but the role that may; the root that a partner has is the one it was given."""
    trust = agency.partner()
    forge(agency, trust.repository)
    if trust.repository.joinpath("1.root.json").read_bytes() != trust.root.read_bytes():
        assert agency.sound(trust), "the copy of what the partner has by hand is not asked"
        shutil.copy(trust.repository / "1.root.json", trust.root)
        with pytest.raises(InputError, match="--root"):
            agency.sound(Trust(trust.root, trust.repository, agency.place / "fresh"))
        return
    with pytest.raises(UnsoundBundle):
        agency.sound(trust)


def test_two_of_three(agency: Agency) -> None:
    """A root takes two signatures, of the roots before and of its own; a thief with one root key adds nothing."""
    assert agency.root("anna", targets=("thief",)) == 1
    with pytest.raises(InputError, match="lacks signatures"):
        agency.list("thief")
    with pytest.raises(UnsoundBundle):
        agency.sound(agency.partner())
    assert sign_root(agency.folder, agency.key("anna")) == 1, "the same key twice is one"
    with pytest.raises(InputError, match="of no root"):
        sign_root(agency.folder, agency.key("thief"))
    assert sign_root(agency.folder, agency.key("carla")) == 0


def test_an_archive_before_it_is_unpacked(agency: Agency, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other bytes than were handed over are refused though the bundle in them is sound, and nothing is unfolded."""
    from storage.bundle import archive

    given = agency.outbox / f"{agency.bundle.name}.tar.zst"
    listing = agency.partner().listing()
    listing.check_archive(given)
    monkeypatch.setattr(archive, "_LEVEL", 3)
    repacked = pack(agency.bundle, agency.place / given.name)
    assert repacked.read_bytes() != given.read_bytes()
    whole = given.read_bytes()
    for content in (repacked.read_bytes(), whole + b"\0", whole[:-1], b"", bytes([whole[0] ^ 1]) + whole[1:]):
        repacked.write_bytes(content)
        with pytest.raises(UnsoundBundle, match="not as the agency packed it"):
            listing.check_archive(repacked)


def test_what_is_remembered_is_not_lost_by_a_bad_try(agency: Agency) -> None:
    """A forged folder leaves the partner's memory as it was; a memory that cannot be written is said."""
    trust = agency.partner()
    assert agency.sound(trust)
    bad = agency.partner()
    FORGERIES["a root of its own keys"](agency, bad.repository)
    with pytest.raises(UnsoundBundle):
        agency.sound(bad)
    assert agency.sound(trust)
    (agency.place / "file").write_text("")
    with pytest.raises(InputError, match="--state"):
        agency.sound(Trust(trust.root, trust.repository, agency.place / "file"))
    assert trust.state
    assert trust.state.stat().st_mode & 0o077 == 0


def test_by_the_machines_own_key(agency: Agency, monkeypatch: pytest.MonkeyPatch) -> None:
    """AUTOCODER_SIGNING_KEY is the key that hands over and revokes, as it is the one that releases."""
    from storage.bundle.seal import own_public_key, sealed_by, signing_key
    from storage.ledger.heads import key_id

    private = agency.home / "private"
    assert key_id(own_public_key(private)) == sealed_by(agency.bundle)
    monkeypatch.setenv("AUTOCODER_SIGNING_KEY", str(agency.files["release"]))
    assert signing_key(None, private) == agency.files["release"]
    assert signing_key(agency.files["anna"], private) == agency.files["anna"]
    assert own_public_key(private) == agency.key("release").public_key()
    assert Verifier(agency.key("first").public_key()).verify(agency.bundle)
