"""Would win: a bundle sealed with a key that was replaced, or revoked, in the eyes of a partner who
has not heard.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from sealed_bundle import Sealed

from storage.artifacts import digest
from storage.bundle.check import check
from storage.bundle.folder import PROOF, SIGNATURE, UnsoundBundle, content_files
from storage.bundle.proof import proof_of
from storage.bundle.registry import earlier_bundles, record_revocation, revoked_releases
from storage.bundle.signing import sign
from storage.bundle.trust import (
    Root,
    Trust,
    incomplete,
    lock_roots,
    read_roots,
    replace_roots,
    sign_newest,
    with_next_root,
    write_roots,
)
from storage.errors import InputError
from storage.ledger import Ledger
from storage.ledger.keys import PRIVATE_NAME, key_id, load_private_key, new_keys
from storage.paths import Workspace

DECLARES = """
a key that was replaced, or a release that was revoked, is refused by everyone who has the newest
roots
| a stolen release key that seals or signs a root; a thief's root, one signature of two, the same
one twice; a root edited, left out, expired, older or of another chain; two next roots at one time,
older ones put back into the workspace; pipes, devices and sparse files in the place of any file
| what a stolen key seals before a root replaces it; a partner who gets no newer roots until theirs
expire
"""

NAMES = ("anna", "ben", "carla", "release", "thief")


@dataclass
class Agency:
    """An agency with its keys, its roots, and a bundle that its first key sealed."""

    place: Path
    sealed: Sealed

    def __post_init__(self) -> None:
        self.files = {name: new_keys(self.place / name)[0] for name in NAMES} | {
            "first": self.sealed.home / "private" / "keys" / PRIVATE_NAME
        }
        self.home, self.file = self.place / "house", self.place / "roots.json"
        shutil.copytree(
            self.sealed.home, self.home, ignore=lambda _, names: {"source", "again"} & set(names)
        )
        self.bundle = self.home / "bundles" / self.sealed.folder.name
        self.ledger = Ledger.open(f"sqlite:///{self.home / 'ledger.db'}", key=self.key("first"))
        self.roots: tuple[Root, ...] = (Root.first(self.key("first").public_key()),)

    def key(self, name: str) -> Any:
        return load_private_key(self.files[name])

    def public(self, *names: str) -> list[Any]:
        return [self.key(name).public_key() for name in names]

    def root(
        self,
        *signers: str,
        keys: tuple[str, ...] = (),
        release: tuple[str, ...] = (),
        **options: Any,
    ) -> int:
        """Makes the next root as the command does and signs it; returns how many signatures are
        missing.
        """
        lasting = (
            {self.name_of(pem) for pem in self.roots[-1].release_keys}
            if not release
            else set(release)
        )
        replaced = [
            pem
            for root in self.roots
            for pem in root.release_keys
            if self.name_of(pem) not in lasting
        ]
        self.roots = with_next_root(
            self.roots,
            keys=self.public(*keys),
            release_keys=self.public(*release),
            earlier=earlier_bundles(self.ledger, self.bundle.parent, replaced),
            revoked=revoked_releases(self.ledger),
            **{"days": 30} | options,
        )
        for name in signers:
            self.roots = sign_newest(self.roots, self.key(name))
        write_roots(self.file, self.roots)
        return incomplete(self.roots)

    def name_of(self, pem: str) -> str:
        return next(
            name for name in self.files if Root.first(self.key(name).public_key()).keys == (pem,)
        )

    def partner(self, name: str = "partner") -> Trust:
        """Who was given the first key manually, and has a copy of the roots as they are now."""
        copy = self.place / name / f"roots-{len(list(self.place.glob(f'{name}/roots-*')))}.json"
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(self.file, copy)
        return Trust(self.home / "signing-key.pub.pem", copy, self.place / name / "state")


@pytest.fixture
def agency(sealed: Sealed, tmp_path: Path) -> Agency:
    """With a second root: three persons' keys sign the next ones, two of them at a time."""
    made = Agency(tmp_path, sealed)
    assert made.root("first", "anna", "ben", keys=("anna", "ben", "carla"), threshold=2) == 0
    return made


def another(agency: Agency, key: str) -> Path:
    made = agency.place / f"forged-{key}" / agency.bundle.name
    shutil.copytree(agency.bundle, made)
    (made / "LICENSE").write_text("other terms")
    files = content_files(made)
    row = replace(agency.sealed.row, bundle_digest=digest(files))
    (made / SIGNATURE).unlink()
    (made / PROOF).write_text(json.dumps(proof_of(row, files, key=agency.key(key))))
    sign(made, agency.key(key), agency.place / "signature")
    (agency.place / "signature").replace(made / SIGNATURE)
    return made


def test_keys_are_replaced_and_old_bundles_stay_sound(agency: Agency) -> None:
    """Release key and a root key, over two roots: the bundle that the first key sealed is sound,
    only by that key.
    """
    assert check(agency.bundle, agency.partner())
    assert agency.root("anna", "ben", release=("release",)) == 0
    assert agency.root("ben", "carla", keys=("ben", "carla"), threshold=2) == 0
    sound = check(agency.bundle, agency.partner())
    assert sound.root
    assert (sound.root.version, sound.release_id) == (4, agency.bundle.name)
    assert check(agency.bundle, agency.partner("a new one"))
    assert check(agency.bundle, agency.sealed.trust), "by the key itself, as before"
    newest = Trust(agency.file, agency.file, agency.place / "pinned to the newest")
    assert check(agency.bundle, newest), "who is given the newest roots manually starts there"


def test_a_stolen_key_that_was_replaced(agency: Agency) -> None:
    """Seals no new bundle and signs no root; what it sealed before is named by digest."""
    forged = another(agency, "first")
    assert check(forged, agency.partner()), (
        "while it is in force it seals: that is what the next root is for"
    )
    assert agency.root("anna", "ben", release=("release",)) == 0
    with pytest.raises(UnsoundBundle, check=of_kind("replaced-key")):
        check(forged, agency.partner())
    assert check(agency.bundle, agency.partner())
    agency.roots = sign_newest(
        with_next_root(agency.roots, keys=agency.public("thief"), threshold=1, days=9),
        agency.key("thief"),
    )
    with pytest.raises(InputError, check=of_kind("not-a-root-key")):
        sign_newest(agency.roots, agency.key("first"))


def test_a_bundle_of_a_strangers_key(agency: Agency) -> None:
    """Under the release's name, and under a name that no one has."""
    forged = another(agency, "thief")
    with pytest.raises(UnsoundBundle, check=of_kind("another-key")):
        check(forged, agency.partner())
    proof = json.loads((forged / PROOF).read_text())
    for name in ("unknown", "../../x", "", 7, None):
        proof["row"]["release_id"] = name
        (forged / PROOF).write_text(json.dumps(proof))
        with pytest.raises(UnsoundBundle):
            check(forged, agency.partner())


def test_a_revoked_bundle(agency: Agency) -> None:
    """Is unsound with the newest roots, under another id too; a partner who saw them takes no older
    ones back.
    """
    older = agency.partner()
    assert check(agency.bundle, older)
    record_revocation(agency.ledger, agency.bundle.name, reason="an error", requester="r")
    assert agency.root("anna", "ben", release=("release",)) == 0
    with pytest.raises(UnsoundBundle, check=of_kind("revoked-bundle", saying="an error")):
        check(agency.bundle, agency.partner())
    with pytest.raises(UnsoundBundle, check=of_kind("older-roots")):
        check(agency.bundle, older)
    with pytest.raises(UnsoundBundle, check=of_kind("revoked-bundle", saying="an error")):
        agency.roots[-1].check("another-name", str(agency.sealed.row.bundle_digest), None)
    assert agency.root("anna", "ben") == 0
    with pytest.raises(UnsoundBundle, check=of_kind("revoked-bundle", saying="an error")):
        check(agency.bundle, agency.partner())


def test_a_revocation_that_waits_for_signatures_is_not_lost(agency: Agency) -> None:
    """A second change restates what is pending, under the version that no one can have accepted."""
    record_revocation(agency.ledger, agency.bundle.name, reason="an error", requester="r")
    assert agency.root("anna") == 1
    assert agency.root("anna", release=("release",)) == 1
    assert agency.root("anna", "carla") == 0
    assert (len(agency.roots), len(agency.roots[-1].revoked)) == (3, 1)
    assert [agency.name_of(pem) for pem in agency.roots[-1].release_keys] == ["release"]


def test_roots_that_are_expired(agency: Agency) -> None:
    """Prove nothing; renewed, they do again."""
    assert agency.root("anna", "ben", days=0) == 0
    assert check(agency.bundle, agency.partner()), "the last day counts"
    assert agency.root("anna", "ben", days=-1) == 0
    with pytest.raises(UnsoundBundle, check=of_kind("expired-roots"), match=r"roots\.json"):
        check(agency.bundle, agency.partner())
    with pytest.raises(UnsoundBundle, check=of_kind("expired-roots"), match=r"roots\.json"):
        check(agency.bundle, Trust(agency.partner().roots or Path()))  # pinned themselves
    assert agency.root("anna", "ben") == 0
    assert check(agency.bundle, agency.partner())


def edited(at: int, **change: Any) -> Callable[[Agency], list[Any]]:

    def edit(agency: Agency) -> list[Any]:
        roots = json.loads(agency.file.read_text())
        roots[at] |= change
        return roots

    return edit


def next_by(*signers: str, **options: Any) -> Callable[[Agency], list[Any]]:

    def forge(agency: Agency) -> list[Any]:
        thief = agency.public("thief")
        roots = with_next_root(
            agency.roots, keys=thief, release_keys=thief, threshold=1, days=900, **options
        )
        newest = roots[-1]
        for name in signers:
            newest = newest.signed_by(agency.key(name))
        return [one.model_dump(mode="json") for one in (*roots[:-1], newest)]

    return forge


def twice_the_same(agency: Agency) -> list[Any]:
    roots = next_by("thief", "anna")(agency)
    of_anna = roots[-1]["signatures"][key_id(agency.key("anna").public_key())]
    roots[-1]["signatures"] |= dict.fromkeys(
        ("0" * 64, key_id(agency.key("ben").public_key())), of_anna
    )
    return roots


FORGERIES: dict[str, Callable[[Agency], Any]] = {
    "a later date": edited(1, expires_on="2999-01-01"),
    "no date": edited(1, expires_on=None),
    "a higher number": edited(1, version=99),
    "another key": edited(1, release_keys=["-"]),
    "fewer signatures": edited(1, threshold=1),
    "more signatures than keys": edited(1, threshold=9),
    "another root before": edited(1, previous="0" * 64),
    "none before": edited(1, previous=None),
    "no signatures": edited(1, signatures={}),
    "signatures that are none": edited(1, signatures={"0" * 64: "AAAA"}),
    "another first root": edited(0, threshold=1, stated_on="2026-01-01"),
    "a field more": edited(1, comment="x"),
    "a next root of nobody": next_by(),
    "a next root of its own keys": next_by("thief"),
    "a next root by one of two": next_by("thief", "anna"),
    "a next root by the first key": next_by("thief", "first"),
    "a next root by two of three without itself": next_by("anna", "ben"),
    "one signature twice": twice_the_same,
    "the first root alone": lambda agency: json.loads(agency.file.read_text())[:1],
    "the second root alone": lambda agency: json.loads(agency.file.read_text())[1:],
    "no roots": lambda _: [],
    "no list": lambda _: {},
    "text": lambda _: "roots",
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_roots_that_were_forged(agency: Agency, forge: Callable[[Agency], Any]) -> None:
    """Prove nothing, and leave the partner's memory as it was."""
    trust = agency.partner()
    assert check(agency.bundle, trust)
    agency.file.write_text(json.dumps(forge(agency)))
    with pytest.raises((UnsoundBundle, InputError)):
        check(agency.bundle, agency.partner())
    assert check(agency.bundle, trust)


def test_a_chain_that_a_thief_began(agency: Agency) -> None:
    """Is complete and signed, but by its own keys: a partner who never saw the agency's roots does
    not believe it, so it cannot hide a revocation.
    """
    record_revocation(agency.ledger, agency.bundle.name, reason="an error", requester="r")
    assert agency.root("anna", "ben") == 0
    thief = agency.key("thief")
    own = with_next_root(
        (Root.first(thief.public_key()),), release_keys=agency.public("first"), days=900
    )
    write_roots(agency.file, sign_newest(own, thief))
    assert incomplete(read_roots(agency.file)) == 0
    with pytest.raises(UnsoundBundle, check=of_kind("roots-do-not-continue")):
        check(agency.bundle, agency.partner("a new one"))


def test_a_fork_by_the_first_key_after_it_was_replaced(agency: Agency) -> None:
    """A partner who knows the second root takes no other second root, though the first key signed
    it.
    """
    trust = agency.partner()
    assert check(agency.bundle, trust)
    fork = sign_newest(with_next_root(agency.roots[:1], days=900), agency.key("first"))
    write_roots(agency.file, fork)
    with pytest.raises(UnsoundBundle, check=of_kind("older-roots")):
        check(agency.bundle, agency.partner())


@pytest.mark.parametrize("option", ["roots", "pinned"])
def test_a_file_that_would_be_read_for_ever(agency: Agency, option: str) -> None:
    """A pipe, a device and a sparse file of 24 GB are refused by their status, and a folder and no
    file are named.
    """
    place = agency.place / "odd"
    place.mkdir()
    os.mkfifo(place / "pipe")
    with (place / "sparse").open("wb") as file:
        file.truncate(24 << 30)
    for odd in (place / "pipe", place / "sparse", place, Path("/dev/zero"), place / "none"):
        trust = (
            Trust(odd, None)
            if option == "pinned"
            else Trust(agency.home / "signing-key.pub.pem", odd, place)
        )
        with pytest.raises(
            InputError, check=of_kind("unreadable-file", "not-a-small-file", saying="--")
        ):
            trust.load()


@pytest.mark.parametrize(
    "name", [SIGNATURE, PROOF, "labels.json", "0_Transformer/model.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "sparse"])
def test_a_file_of_a_bundle_that_would_be_read_for_ever(
    agency: Agency, name: str, kind: str
) -> None:
    """Refused by its status, with a key, with roots and without either; nothing of the bundle is
    read before.
    """
    file = agency.bundle / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    else:
        with file.open("wb") as opened:
            opened.truncate(24 << 30)
    for trust in (agency.sealed.trust, agency.partner(), None):
        with pytest.raises(UnsoundBundle) as refused:
            check(agency.bundle, trust, unsigned=trust is None)
        assert refused.value.file == name


def test_a_memory_that_cannot_be_written(agency: Agency) -> None:
    """Is said, and one that can is closed to others."""
    trust = agency.partner()
    assert check(agency.bundle, trust)
    assert trust.state
    assert trust.state.stat().st_mode & 0o077 == 0
    (agency.place / "file").write_text("")
    with pytest.raises(InputError, check=of_kind("unreadable-state")):
        check(agency.bundle, Trust(trust.pinned, trust.roots, agency.place / "file"))
    (trust.state / "newest.json").write_text("[]")
    with pytest.raises(InputError, check=of_kind("damaged-state")):
        check(agency.bundle, trust)


def test_two_of_three(agency: Agency) -> None:
    """A root takes two signatures, of the roots before and of its own; a thief with one root key
    adds nothing.
    """
    assert agency.root("anna", release=("thief",)) == 1
    with pytest.raises(UnsoundBundle, check=of_kind("roots-not-signed")):
        check(agency.bundle, agency.partner())
    agency.roots = sign_newest(agency.roots, agency.key("anna"))
    assert incomplete(agency.roots) == 1, "the same key twice is one"
    with pytest.raises(InputError, check=of_kind("not-a-root-key")):
        sign_newest(agency.roots, agency.key("thief"))
    agency.roots = sign_newest(agency.roots, agency.key("carla"))
    assert incomplete(agency.roots) == 0
    write_roots(agency.file, agency.roots)
    assert read_roots(agency.file) == agency.roots


def test_by_the_machines_own_key(agency: Agency, monkeypatch: pytest.MonkeyPatch) -> None:
    """AUTOCODER_SIGNING_KEY is the key that hands over and revokes, as it is the
    one that releases.
    """
    from storage.bundle.seal import sealed_by, signing_key, signing_public_key

    private = agency.home / "private"
    assert key_id(signing_public_key(private)) == sealed_by(agency.bundle)
    monkeypatch.setenv("AUTOCODER_SIGNING_KEY", str(agency.files["release"]))
    assert signing_key(None, private) == agency.files["release"]
    assert signing_key(agency.files["anna"], private) == agency.files["anna"]
    assert signing_public_key(private) == agency.key("release").public_key()


def test_two_next_roots_at_one_time(agency: Agency) -> None:
    """Two commands read the same newest root: without a lock each made a next one, and a partner
    who took one of them believed no root that followed the other.
    """
    workspace, waited = Workspace(agency.home), threading.Event()

    def other() -> None:
        with lock_roots(workspace):
            waited.set()

    with lock_roots(workspace):
        thread = threading.Thread(target=other)
        thread.start()
        assert not waited.wait(0.2)
    thread.join(10)
    assert waited.is_set()


def test_older_roots_in_the_place_of_newer_ones(agency: Agency) -> None:
    """`keys sign --home` of a file that lay about: the workspace would forget a revocation, and its
    workers with it.
    """
    workspace = Workspace(agency.home)
    older = agency.roots
    record_revocation(agency.ledger, agency.sealed.folder.name, reason="an error", requester="lead")
    assert agency.root("anna", "ben") == 0
    write_roots(workspace.roots, agency.roots)
    for others in (older, older[:1], with_next_root(older, days=9)):
        with pytest.raises(InputError, check=of_kind("newer-roots")):
            replace_roots(workspace, others)
    assert read_roots(workspace.roots) == agency.roots
    assert agency.root("anna", "ben") == 0
    replace_roots(workspace, agency.roots)
    assert read_roots(workspace.roots) == agency.roots
