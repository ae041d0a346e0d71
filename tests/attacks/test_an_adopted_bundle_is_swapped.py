"""Would win: other weights in the place of those that a partner checked once and uses every day."""

import shutil
from pathlib import Path

import pytest
from refusals import of_kind
from sealed_bundle import Sealed

from storage.bundle.adoption import KEY, AdoptedBundle, Adoption
from storage.bundle.archive import open_folder
from storage.bundle.folder import UnsoundBundle
from storage.bundle.trust import RevokedRelease, Root, sign_newest, with_next_root, write_roots
from storage.errors import InputError
from storage.ledger.keys import load_private_key, new_keys

DECLARES = """
an adopted bundle codes only as it was signed, and no longer than the agency's newest roots allow
| another release of the same agency in its folder, a changed file, roots that revoke it, that are
older, gone, or another agency's
| anyone who may write the folder may replace the key in it
"""


@pytest.fixture
def adopted(sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdoptedBundle:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder, roots = tmp_path / "coder", tmp_path / "roots.json"
    sealed.copy(folder)
    assert isinstance(sealed.trust.pinned, Path)
    shutil.copyfile(sealed.trust.pinned, folder / KEY)
    _next_root(sealed, roots)
    made = AdoptedBundle(folder, Adoption(release_id=sealed.folder.name, roots=str(roots)))
    made.save()
    return made


def _next_root(
    sealed: Sealed, roots: Path, *, revoked: tuple[RevokedRelease, ...] = (), versions: int = 1
) -> None:
    signing = sealed.key
    chain: tuple[Root, ...] = (Root.first(signing.public_key()),)
    for _ in range(versions):
        chain = sign_newest(with_next_root(chain, revoked=revoked, days=9), signing)
    write_roots(roots, chain)


def _use(adopted: AdoptedBundle) -> Path:
    with open_folder(adopted.folder) as bundle:
        return bundle


def test_another_release_in_its_place(adopted: AdoptedBundle) -> None:
    """Well signed and not revoked, but not what was adopted."""
    assert _use(adopted) == adopted.bundle
    other = "0123456789abcdef"
    adopted.bundle.rename(adopted.folder / other)
    swapped = AdoptedBundle(
        adopted.folder, adopted.adoption.model_copy(update={"release_id": other})
    )
    swapped.save()
    with pytest.raises(UnsoundBundle, check=of_kind("another-release", saying="0123456789abcdef")):
        _use(swapped)


@pytest.mark.parametrize("name", ["LICENSE", "labels.json", "thresholds.json", "model.sig"])
def test_a_changed_or_missing_file(adopted: AdoptedBundle, name: str) -> None:
    path = adopted.bundle / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UnsoundBundle):
        _use(adopted)
    path.unlink()
    with pytest.raises(UnsoundBundle):
        _use(adopted)


def test_roots_that_revoke_and_then_forget(
    adopted: AdoptedBundle, sealed: Sealed, tmp_path: Path
) -> None:
    """Revoked once, it stays so: the file of before, none, and another agency's are refused."""
    roots = tmp_path / "roots.json"
    before = roots.read_bytes()
    gone = RevokedRelease(
        release_id=sealed.folder.name,
        bundle_digest="0" * 64,
        revoked_on="2026-11-01",
        reason="a wrong code list",
    )
    _next_root(sealed, roots, revoked=(gone,), versions=2)
    with pytest.raises(UnsoundBundle, check=of_kind("revoked-bundle", saying="a wrong code list")):
        _use(adopted)
    roots.write_bytes(before)
    with pytest.raises(UnsoundBundle, check=of_kind("older-roots")):
        _use(adopted)
    roots.unlink()
    with pytest.raises(InputError, check=of_kind("unreadable-file", saying="roots")):
        _use(adopted)
    foreign = load_private_key(new_keys(tmp_path / "thief")[0])
    write_roots(
        roots, sign_newest(with_next_root((Root.first(foreign.public_key()),), days=9), foreign)
    )
    with pytest.raises(UnsoundBundle, check=of_kind("roots-do-not-continue")):
        _use(adopted)
