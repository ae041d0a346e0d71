"""Signatures only by a key, and where the agency's own key comes from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from sealed_bundle import Sealed

from storage.bundle.check import check
from storage.bundle.folder import PROOF, SIGNATURE, UnsoundBundle
from storage.bundle.seal import seal, workspace_key
from storage.errors import InputError, StorageError
from storage.ledger import keys


@pytest.fixture
def folder(sealed: Sealed, tmp_path: Path) -> Path:
    """A bundle without its seal."""
    return sealed.copy(tmp_path, seal=False)


def test_a_signature_with_a_certificate(sealed: Sealed, tmp_path: Path) -> None:
    """Refused, beside the key's hint too: one way of trust, and one reading of a signature."""
    folder = sealed.copy(tmp_path)
    whole = json.loads((folder / SIGNATURE).read_text())
    chain = {"x509CertificateChain": {"certificates": [{"rawBytes": "AAAA"}]}}
    material = whole["verificationMaterial"]
    for changed in (chain, material | chain, material | {"certificate": {"rawBytes": "AAAA"}}):
        (folder / SIGNATURE).write_text(json.dumps(whole | {"verificationMaterial": changed}))
        with pytest.raises(UnsoundBundle, check=of_kind("not-a-bare-key")):
            check(folder, sealed.trust)


def test_the_published_library_verifies_a_signature(sealed: Sealed, tmp_path: Path) -> None:
    """And refuses the same folder as we do, with a byte changed: a partner needs nothing of ours to
    check it.
    """
    from model_signing import verifying

    folder = sealed.copy(tmp_path)
    library = verifying.Config().use_elliptic_key_verifier(
        public_key=sealed.home / "signing-key.pub.pem"
    )
    library.verify(folder, folder / SIGNATURE)
    (folder / "codelist.csv").write_bytes(b"code,title\n")
    with pytest.raises(ValueError, match="Hash mismatch"):
        library.verify(folder, folder / SIGNATURE)
    with pytest.raises(UnsoundBundle, check=of_kind("changed-file", file="codelist.csv")):
        check(folder, sealed.trust)


def enveloped(whole: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return whole | {"dsseEnvelope": whole["dsseEnvelope"] | changes}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda whole: whole | {"mediaType": "application/json"}, "invalid-signature"),
        (lambda whole: enveloped(whole, payloadType="text/plain"), "invalid-signature"),
        (lambda whole: enveloped(whole, signatures=[]), "damaged-signature"),
        (lambda whole: enveloped(whole, signatures=["x", "y"]), "damaged-signature"),
        (lambda whole: enveloped(whole, payload="?"), "damaged-signature"),
        (lambda whole: enveloped(whole, payload="e30="), "invalid-signature"),
        (lambda whole: [whole], "damaged-signature"),
        (lambda whole: {}, "damaged-signature"),
    ],
)
def test_a_signature_of_another_form(
    sealed: Sealed, tmp_path: Path, change: Callable[[Any], Any], kind: str
) -> None:
    folder = sealed.copy(tmp_path)
    (folder / SIGNATURE).write_text(
        json.dumps(change(json.loads((folder / SIGNATURE).read_text())))
    )
    with pytest.raises(UnsoundBundle, check=of_kind(kind, file=SIGNATURE)):
        check(folder, sealed.trust)


def test_the_workspace_has_one_key(tmp_path: Path) -> None:
    """Made once, closed to others; gone, it is not replaced in silence, since partners hold its
    public half.
    """
    private = tmp_path / "private"
    key, file = workspace_key(private, tmp_path), private / "keys" / keys.PRIVATE_NAME
    assert file.stat().st_mode & 0o777 == 0o600
    assert workspace_key(private, tmp_path).public_key() == key.public_key()
    assert (tmp_path / "signing-key.pub.pem").read_bytes() == (
        private / "keys" / keys.PUBLIC_NAME
    ).read_bytes()
    (tmp_path / "signing-key.pub.pem").unlink()
    workspace_key(private, tmp_path)
    assert (tmp_path / "signing-key.pub.pem").is_file()
    file.chmod(0o644)
    with pytest.raises(InputError, check=of_kind("key-open-to-others")):
        workspace_key(private, tmp_path)
    file.unlink()
    with pytest.raises(StorageError, check=of_kind("no-secret-key")):
        workspace_key(private, tmp_path)


class Died(BaseException):
    """As a kill, or a disk that is full: nothing of ours catches it."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["write_atomically", "sign", "verify_signature", "sync"])
def test_sealing_dies_anywhere(
    sealed: Sealed,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    when: str,
) -> None:
    """And the next run ends it: nothing is left beside the bundle's files, and the
    seal is sound.
    """
    from storage.bundle import seal as module

    real = getattr(module, step)

    def deadly(*arguments: object, **options: object) -> None:
        if when == "after":
            real(*arguments, **options)
        raise Died

    if step == "verify_signature":
        seal(folder, sealed.row, sealed.key)
    with monkeypatch.context() as patched:
        patched.setattr(module, step, deadly)
        with pytest.raises(Died):
            seal(folder, sealed.row, sealed.key)
    if (step, when) == ("sign", "before"):
        with pytest.raises(UnsoundBundle, check=of_kind("unsigned")):
            check(folder, sealed.trust)
    seal(folder, sealed.row, sealed.key)
    assert check(folder, sealed.trust).files == 20
    assert not list(folder.parent.glob(".sealing-*"))


def test_the_private_workspace_may_be_on_another_disk(
    sealed: Sealed, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in docker-compose.yml, whose bundles have a volume of their own: nothing is renamed into
    their folder.
    """
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
    seal(folder, sealed.row, sealed.key)
    assert moved
    check(folder, sealed.trust)


def test_a_row_of_another_bundle_seals_nothing(
    sealed: Sealed, folder: Path, tmp_path: Path
) -> None:
    """Content that is not what was committed gets no proof."""
    shutil.copy(folder / "LICENSE", folder / "PRIVACY.md")
    with pytest.raises(StorageError, check=of_kind("bundle-of-another-row")):
        seal(folder, sealed.row, sealed.key)
    assert not (folder / PROOF).exists()
