"""The newest release is the ledger's answer, not that of the folders' times."""

import json
import os
import shutil
from pathlib import Path

import pytest
from refusals import of_kind
from sealed_bundle import plan

from storage.bundle.folder import PROOF, STATEMENT
from storage.bundle.registry import record_revocation
from storage.bundle.seal import release_key
from storage.bundle.trust import RevokedRelease, Root, with_next_root, write_roots
from storage.errors import InputError, StorageError
from storage.ledger import Ledger
from storage.ledger.keys import load_private_key, new_keys
from storage.paths import Workspace
from tasks.coding.coder import CLOSED, describe_release, newest_bundle


def release(home: Path, key: str, *, committed: bool = True) -> str:
    """Records a release and makes the folder of its bundle, with a proof if it is committed."""
    ledger = Ledger.open(Workspace(home).create().ledger_url, key=release_key(Workspace(home)))
    row = ledger.reserve(plan(key))
    row = ledger.mark_drawn(str(row.release_id), draw_digest="d" * 64)
    folder = Workspace(home).bundles / str(row.release_id)
    folder.mkdir(parents=True)
    if committed:
        row = ledger.commit(str(row.release_id), bundle_digest="b" * 64)
        (folder / PROOF).write_text(
            json.dumps({"row": {"sequence": row.sequence, "committed_on": "2026-11-24"}})
        )
    return folder.name


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A workspace with two committed releases, the older one with the newer folder, and one that is
    only drawn.
    """
    home = tmp_path / "home"
    first, second = release(home, "first"), release(home, "second")
    release(home, "third", committed=False)
    os.utime(home / "bundles" / second, (1, 1))
    assert newest_bundle(home).name == second != first
    return home


@pytest.mark.parametrize("with_ledger", [True, False])
def test_a_copy_answers_alike(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_ledger: bool
) -> None:
    """With new times of all folders, also where the ledger cannot be read."""
    before = newest_bundle(home).name
    copy = tmp_path / "copy"
    shutil.copytree(home, copy, copy_function=shutil.copy)
    for at, folder in enumerate(
        sorted((copy / "bundles").iterdir(), key=lambda path: path.name == before)
    ):
        os.utime(folder, (1000 - at, 1000 - at))
    if not with_ledger:
        monkeypatch.setenv(CLOSED, "1")
    assert newest_bundle(copy) == copy / "bundles" / before


def test_a_revoked_release_makes_way(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ledger, and by the roots where the ledger cannot be read; if all are revoked, the
    newest answers.
    """
    workspace, second = Workspace(home), newest_bundle(home).name
    ledger = Ledger.open(workspace.ledger_url, key=release_key(workspace))
    record_revocation(ledger, second, reason="an error", requester="lead")
    first = newest_bundle(home).name
    assert first != second
    entry = RevokedRelease(
        release_id=second, bundle_digest="b" * 64, revoked_on="2026-11-24", reason="an error"
    )
    key = load_private_key(new_keys(home / "key")[0])
    write_roots(
        workspace.roots, with_next_root((Root.first(key.public_key()),), revoked=(entry,), days=9)
    )
    with monkeypatch.context() as patched:
        patched.setenv(CLOSED, "1")
        assert newest_bundle(home).name == first
    record_revocation(ledger, first, reason="an error", requester="lead")
    assert newest_bundle(home).name == second


def test_a_workspace_without_a_committed_bundle(tmp_path: Path) -> None:
    """Says which commands make one."""
    with pytest.raises(StorageError, check=of_kind("no-committed-bundle")):
        newest_bundle(tmp_path)
    release(tmp_path, "first", committed=False)
    with pytest.raises(StorageError, check=of_kind("no-committed-bundle")):
        newest_bundle(tmp_path)


def test_a_release_is_named_in_one_line(tmp_path: Path) -> None:
    """An epsilon is rounded up; a line break in a name is not one in the line."""
    statement = {
        "release_id": "6e44f246",
        "population": "de\nmo",
        "guarantee_kind": "formal",
        "epsilon": "4.999998",
    }
    (tmp_path / STATEMENT).write_text(json.dumps(statement))
    assert describe_release(tmp_path) == "model 6e44f246 (de mo, formal ε 5)"
    (tmp_path / PROOF).write_text(json.dumps({"row": {"committed_on": "2026-11-24"}}))
    assert describe_release(tmp_path) == "model 6e44f246 (de mo, formal ε 5, made 2026-11-24)"
    (tmp_path / STATEMENT).write_text(json.dumps(statement | {"epsilon": "5.001"}))
    assert "ε 5.01," in describe_release(tmp_path)
    (tmp_path / STATEMENT).write_text(json.dumps(statement | {"epsilon": "five"}))
    with pytest.raises(InputError, check=of_kind("damaged-bundle")):
        describe_release(tmp_path)
    (tmp_path / STATEMENT).write_text('{"release_id": "tiny"}')
    (tmp_path / PROOF).unlink()
    assert describe_release(tmp_path) == "model tiny"
