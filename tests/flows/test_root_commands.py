"""Keys in roles, as an agency and a partner type them: roots, the list, another key, a revocation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from in_process import command, invoke
from sealed_bundle import Sealed

from storage.errors import InputError
from storage.ledger.heads import new_keys


def test_from_the_first_root_to_a_revocation_under_another_key(sealed: Sealed, tmp_path: Path) -> None:
    """Sound by the first root before and after the release key was replaced; revoked with the new key, it is not, and
    that is exit code 1 with the reason, where a bare key's partner gets 2.
    """
    keys = {name: new_keys(tmp_path / name) for name in ("anna", "ben", "release", "dates")}
    home, trust, outbox = tmp_path / "house", tmp_path / "trust", tmp_path / "outbox"
    shutil.copytree(sealed.home, home, ignore=shutil.ignore_patterns("source", "again"))
    own, release = home / "signing-key.pub.pem", str(sealed.row.release_id)
    secret = home / "private" / "keys" / "signing-key.pem"
    roots = ("--root-key", keys["anna"][1], "--root-key", keys["ben"][1], "--threshold", "2")
    said = command("keys", "root", trust, *roots, "--release-key", own, "--list-key", keys["dates"][1])
    assert "1.root.json: not signed yet" in said
    assert "1 more needed" in command("keys", "sign", trust, "--key", keys["anna"][0])
    assert "in force" in command("keys", "sign", trust, "--key", keys["ben"][0])
    given = shutil.copy(trust / "1.root.json", tmp_path / "1.root.json")

    command("handover", release, "--to", "Partner", "--out", outbox, "--home", home)
    archive = outbox / f"{release}.tar.zst"

    def publish(key: Path) -> str:
        dates = ("--list-key", keys["dates"][0])
        return command("keys", "publish", trust, "--home", home, "--release-key", key, *dates)

    def verify(bundle: Path = archive, *more: str | Path) -> tuple[int, str, str]:
        place = ("--root", given, "--repository", trust, "--state", tmp_path / "state")
        return invoke("verify", bundle, *place, "--no-golden", *more)

    assert "list 1 with 1 releases (0 revoked)" in publish(secret)
    code, out, _ = verify()
    assert code == 0
    assert "on the agency's list 1 (good until " in out
    assert "list 2, good for 90 days" in command(
        "keys", "refresh", trust, "--list-key", keys["dates"][0], "--days", "90"
    )

    command("keys", "root", trust, "--release-key", keys["release"][1])
    for name in ("anna", "ben"):
        command("keys", "sign", trust, "--key", keys[name][0])
    assert "list 3 " in publish(keys["release"][0])
    told = json.loads(verify(sealed.folder, "--json")[1])
    assert (told["agency_list"], told["revocation_checked"], told["sound"]) == (3, True, True)

    listed = tmp_path / "revocations.json"
    taken = ("revoke", release, "--reason", "an error", "--out", listed, "--home", home)
    code, _, err = invoke(*taken, "--key", keys["release"][0])
    assert (code, "another one signs the list" in err) == (0, True)
    with pytest.raises(InputError, match="not signed with the key that signed the bundle"):
        invoke("verify", archive, "--key", own, "--revocations", listed, "--no-golden")
    publish(keys["release"][0])
    for bundle in (archive, sealed.folder):
        code, _, err = verify(bundle)
        assert code == 1
        assert "was revoked on" in err
        assert "an error" in err


def test_without_a_root_it_says_what_was_not_checked(sealed: Sealed) -> None:
    """The line and the JSON: revocation was not."""
    given = ("verify", sealed.folder, "--key", sealed.home / "signing-key.pub.pem", "--no-golden")
    assert "revocation not checked" in invoke(*given)[1]
    assert json.loads(invoke(*given, "--json")[1])["revocation_checked"] is False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--root", "HERE/1.root.json"), "go together"),
        (("--repository", "HERE"), "go together"),
        (("--root", "HERE/none", "--repository", "HERE"), "--root"),
        (("--root", "HERE/1.root.json", "--repository", "HERE/none"), "no folder"),
        (("--state", "HERE", "--allow-unsigned"), "--state"),
    ],
)
def test_roots_that_are_half_given(sealed: Sealed, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """Named by their option, before the bundle is looked at."""
    with pytest.raises(InputError, match=said):
        invoke("verify", sealed.folder, *(word.replace("HERE", str(tmp_path)) for word in options))


def test_keys_that_have_no_such_role(sealed: Sealed, tmp_path: Path) -> None:
    """A first root without a role, more signatures than keys, a stranger's key: refused, and nothing is written."""
    own = sealed.home / "signing-key.pub.pem"
    trust = tmp_path / "trust"
    for options, said in (
        (("--root-key", own), "`targets` has none"),
        (("--root-key", own, "--release-key", own, "--list-key", own, "--threshold", "2"), "asks for 2"),
    ):
        with pytest.raises(InputError, match=said):
            invoke("keys", "root", trust, *options)
    assert not trust.exists()
    with pytest.raises(InputError, match="no root"):
        invoke("keys", "sign", trust, "--key", new_keys(tmp_path / "x")[0])
