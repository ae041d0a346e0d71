"""Roots, as an agency and a partner type them: another release key, persons who sign roots, a
revocation.
"""

import json
import shutil
from pathlib import Path

import pytest
from in_process import command, invoke
from refusals import of_kind
from sealed_bundle import Sealed

from storage.errors import InputError
from storage.ledger.keys import new_keys


def test_from_the_first_key_to_a_revocation_under_another(
    sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sound by the first key before and after it was replaced; once revoked it is not, and that is
    exit code 1.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keys = {name: new_keys(tmp_path / name) for name in ("anna", "ben", "release")}
    home, outbox, roots = tmp_path / "house", tmp_path / "outbox", tmp_path / "roots.json"
    shutil.copytree(sealed.home, home, ignore=shutil.ignore_patterns("source", "again"))
    first, release = home / "signing-key.pub.pem", str(sealed.row.release_id)
    here = ("--home", home, "--out", roots)
    persons = ("--root-key", keys["anna"][1], "--root-key", keys["ben"][1], "--threshold", "2")
    own = home / "private" / "keys" / "signing-key.pem"
    assert "root 2 in " in (made := command("keys", "root", *persons, "--key", own, *here))
    assert "2 more signatures needed" in made
    assert "1 more signatures needed" in command("keys", "sign", roots, "--key", keys["anna"][0])
    assert "and valid" in command("keys", "sign", roots, "--key", keys["ben"][0], "--home", home)
    command("handover", release, "--to", "Partner", "--out", outbox, "--home", home)
    archive = outbox / f"{release}.tar.zst"

    def verify(bundle: Path = archive, *more: str) -> tuple[int, str, str]:
        trusted = ("--key", first, "--roots", roots)
        return invoke("verify", bundle, *trusted, "--no-golden", *more)

    code, out, _ = verify()
    assert code == 0
    assert "by root 2 (valid until " in out
    command("keys", "root", "--release-key", keys["release"][1], *here)
    for name in ("anna", "ben"):
        command("keys", "sign", roots, "--key", keys[name][0], "--home", home)
    told = json.loads(verify(sealed.folder, "--json")[1])
    assert (told["root_version"], told["revocation_checked"], told["sound"]) == (3, True, True)

    code, out, err = invoke("revoke", release, "--reason", "an error", *here)
    assert (code, "is not a root key" in err, "it needs 2 more signatures" in out) == (
        0,
        True,
        True,
    )
    assert "Send them" in out
    code, _, err = verify()
    assert (code, "not signed by the required keys" in err) == (1, True)
    for name in ("anna", "ben"):
        command("keys", "sign", roots, "--key", keys[name][0], "--home", home)
    for bundle in (archive, sealed.folder):
        code, _, err = verify(bundle)
        assert (code, "was revoked on" in err, "an error" in err) == (1, True, True)


def test_without_roots_it_says_what_was_not_checked(sealed: Sealed) -> None:
    """The line and the JSON: revocation was not."""
    given = ("verify", sealed.folder, "--key", sealed.home / "signing-key.pub.pem", "--no-golden")
    assert "not checked: revocation (use --roots)" in invoke(*given)[1]
    assert json.loads(invoke(*given, "--json")[1])["revocation_checked"] is False


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (
            ("--roots", "HERE/roots.json"),
            of_kind("roots-without-key"),
        ),
        (
            ("--key", "KEY", "--roots", "HERE/none"),
            of_kind("unreadable-file", saying="--roots"),
        ),
        (
            ("--key", "HERE/none"),
            of_kind("unreadable-file", saying="--key"),
        ),
    ],
)
def test_roots_that_are_half_given(
    sealed: Sealed, tmp_path: Path, options: tuple[str, ...], refusal: of_kind
) -> None:
    """Named by their option, before the bundle is looked at."""
    places = {"HERE": str(tmp_path), "KEY": str(sealed.home / "signing-key.pub.pem")}
    words = list(options)
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    with pytest.raises(InputError, check=refusal):
        invoke("verify", sealed.folder, *words)


def test_roots_that_cannot_be(sealed: Sealed, tmp_path: Path) -> None:
    """More signatures than keys, a stranger's key, no file: refused, and nothing is written."""
    home, roots = tmp_path / "house", tmp_path / "roots.json"
    shutil.copytree(sealed.home, home, ignore=shutil.ignore_patterns("source", "again"))
    stranger = new_keys(tmp_path / "x")[0]
    with pytest.raises(InputError, check=of_kind("too-few-root-keys"), match=r"\b2\b"):
        invoke("keys", "root", "--threshold", "2", "--home", home, "--out", roots)
    with pytest.raises(InputError, check=of_kind("not-a-root-key")):
        invoke("keys", "root", "--key", stranger, "--home", home, "--out", roots)
    with pytest.raises(InputError, check=of_kind("unreadable-file", saying="--roots")):
        invoke("keys", "sign", roots, "--key", stranger)
    assert not roots.exists()
