"""Signatures by X.509 certificates, and where the house's own key comes from."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from certificates import NOW, Authority
from sealed_bundle import Sealed

from storage.bundle.check import check
from storage.bundle.folder import PROOF, SIGNATURE, UnsoundBundle
from storage.bundle.seal import seal, workspace_signer
from storage.bundle.signing import Signer, Verifier
from storage.errors import InputError, StorageError
from storage.ledger import heads


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A private key."""
    return heads.new_keys(tmp_path / "agency")[0]


@pytest.fixture
def folder(sealed: Sealed, tmp_path: Path) -> Path:
    """A bundle without its seal."""
    return sealed.copy(tmp_path, seal=False)


def test_a_certificate_signs(sealed: Sealed, folder: Path, key: Path, tmp_path: Path) -> None:
    """Its authority's word is enough; another authority's is not, and a bare key says how to verify it instead."""
    trusted, other = Authority.new(tmp_path / "ca"), Authority.new(tmp_path / "other")
    certificate = trusted.issue(key, until=NOW + timedelta(days=30))
    signer = Signer(key, certificate, (trusted.file,))
    seal(folder, sealed.row, signer)
    sound = check(folder, Verifier(authorities=(trusted.file,), identity="CN=agency"))
    assert sound.signed_by == signer.key_id
    before = (folder / SIGNATURE).read_bytes()
    seal(folder, sealed.row, signer)
    assert (folder / SIGNATURE).read_bytes() == before, "sealing again changes nothing"
    with pytest.raises(UnsoundBundle, match="not trusted") as refused:
        check(folder, Verifier(authorities=(other.file,), identity="CN=agency"))
    assert refused.value.file == SIGNATURE
    with pytest.raises(UnsoundBundle, match="--authority"):
        check(folder, sealed.verifier)
    with pytest.raises(UnsoundBundle, match="--key"):
        check(sealed.folder, Verifier(authorities=(trusted.file,), identity="CN=agency"))


def test_an_expired_certificate(
    sealed: Sealed, folder: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither signs nor verifies, whenever the bundle was signed; nor does one of the future."""
    from storage.bundle import signing

    trusted = Authority.new(tmp_path / "ca")
    expired = trusted.issue(key, until=NOW - timedelta(days=2))
    future = trusted.issue(key, since=NOW + timedelta(days=2), until=NOW + timedelta(days=9))
    for certificate, problem in ((expired, "expired on"), (future, "not valid before")):
        signer = Signer(key, certificate, (trusted.file,))
        with pytest.raises(UnsoundBundle, match=problem):
            signer.check()
        with monkeypatch.context() as patched:
            patched.setattr(signing, "_check_dates", lambda certificate: None)
            seal(folder, sealed.row, signer)
            check(
                folder, Verifier(authorities=(trusted.file,), identity="CN=agency")
            )  # the library itself lets it pass
        with pytest.raises(UnsoundBundle, match=problem) as refused:
            check(folder, Verifier(authorities=(trusted.file,), identity="CN=agency"))
        assert refused.value.file == SIGNATURE


def test_a_certificate_of_another_key(key: Path, tmp_path: Path) -> None:
    """Told before anything is drawn."""
    trusted = Authority.new(tmp_path / "ca")
    other = heads.new_keys(tmp_path / "other")[0]
    certificate = trusted.issue(other, until=NOW + timedelta(days=3))
    with pytest.raises(InputError, match="of another key"):
        Signer(key, certificate, (trusted.file,)).check()


def test_the_workspace_has_one_key(tmp_path: Path) -> None:
    """Made once, closed to others; gone, it is not replaced in silence, since partners hold its public half."""
    private = tmp_path / "private"
    signer = workspace_signer(private, tmp_path)
    assert signer.key.stat().st_mode & 0o777 == 0o600
    assert workspace_signer(private, tmp_path).key_id == signer.key_id
    assert (tmp_path / "signing-key.pub.pem").read_bytes() == (private / "keys" / heads.PUBLIC_NAME).read_bytes()
    (tmp_path / "signing-key.pub.pem").unlink()
    workspace_signer(private, tmp_path)
    assert (tmp_path / "signing-key.pub.pem").is_file()
    signer.key.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        Signer(signer.key).check()
    signer.key.unlink()
    with pytest.raises(StorageError, match="is gone"):
        workspace_signer(private, tmp_path)


class Died(BaseException):
    """As a kill: nothing of ours catches it."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["write_atomically", "Signer.sign", "Signer.verifies", "sync"])
def test_sealing_dies_anywhere(
    sealed: Sealed, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    """And the next run ends it: nothing is left beside the bundle's files, and the seal is sound."""
    from storage.bundle import seal as module

    owner = module
    for part in step.split(".")[:-1]:
        owner = getattr(owner, part)
    name = step.split(".")[-1]
    real = getattr(owner, name)

    def deadly(*arguments: object, **options: object) -> None:
        if when == "after":
            real(*arguments, **options)
        raise Died

    if step == "Signer.verifies":
        seal(folder, sealed.row, sealed.signer)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, deadly)
        with pytest.raises(Died):
            seal(folder, sealed.row, sealed.signer)
    seal(folder, sealed.row, sealed.signer)
    assert check(folder, sealed.verifier).files == 21
    assert not list(folder.parent.glob(".sealing-*"))


def test_the_private_workspace_may_be_on_another_disk(
    sealed: Sealed, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in docker-compose.yml, whose bundles have a volume of their own: nothing is renamed into their folder."""
    import os

    real = os.rename

    def within(source: str | Path, target: str | Path) -> None:
        assert Path(source).parents[1] == folder.parent or Path(source).parent == folder.parent
        real(source, target)

    moved = []

    def replace(self: Path, target: Path) -> Path:
        moved.append(self)
        within(self, target)
        return target

    monkeypatch.setattr(Path, "replace", replace)
    seal(folder, sealed.row, sealed.signer)
    assert moved
    check(folder, sealed.verifier)


def test_a_full_disk_while_sealing(
    sealed: Sealed, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle keeps its content; with space again it is sealed."""
    import errno

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Signer, "sign", full)
        with pytest.raises(OSError, match="No space"):
            seal(folder, sealed.row, sealed.signer)
    with pytest.raises(UnsoundBundle, match="not signed"):
        check(folder, sealed.verifier)
    seal(folder, sealed.row, sealed.signer)
    check(folder, sealed.verifier)


def test_a_row_of_another_bundle_seals_nothing(sealed: Sealed, folder: Path, tmp_path: Path) -> None:
    """Content that is not what was committed gets no proof."""
    shutil.copy(folder / "LICENSE", folder / "PRIVACY.md")
    with pytest.raises(StorageError, match="does not bear out"):
        seal(folder, sealed.row, sealed.signer)
    assert not (folder / PROOF).exists()
