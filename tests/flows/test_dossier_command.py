"""`autocoder plan export`, `approve` in the dossier and `plan import` carry a decision to another desk and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from in_process import command, invoke, write_policy
from jobs import Job

from storage.errors import InputError
from storage.ledger import Ledger, Policy
from storage.paths import Workspace
from tasks.releasing import dossier


@pytest.fixture
def desk(site: tuple[Job, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an officer who has the unpacked dossier and her key; the workspace is away."""
    job, plan = site
    said = command("plan", "export", plan, "--out", tmp_path / "dossier.zip")
    assert "speak against this release" in said
    folder = tmp_path / "desk"
    shutil.unpack_archive(tmp_path / "dossier.zip", folder)
    shutil.copytree(tmp_path / "officer", folder / "officer")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("AUTOCODER_HOME", raising=False)
    monkeypatch.delenv("AUTOCODER_LEDGER_URL", raising=False)
    job.home.rename(tmp_path / "away")
    return folder


def back(site: tuple[Job, str], tmp_path: Path) -> Path:
    """The workspace, in its place again."""
    (tmp_path / "away").rename(site[0].home)
    return site[0].home


def test_she_reads_checks_and_signs_without_the_workspace(site: tuple[Job, str], desk: Path, tmp_path: Path) -> None:
    """Page, policy and quoted answers are in the folder; the signature counts once it is back, and once."""
    assert sorted(path.name for path in (desk / "dossier").iterdir()) == sorted(
        (dossier.NAME, dossier.PLAN, dossier.POLICY, dossier.HEAD, dossier.KEY, dossier.PAGE)
    )
    shown = command("plan", "show", "dossier/plan.json")
    assert "▲ warning  What does it measurably leak?" in shown
    code, out, err = invoke("approve", "dossier/plan.json", "--key", "officer/signing-key.pem")
    assert code == 0
    quoted = [err.index(text) for text in ("Not audited", "under policy strict", "signed: digest")]
    assert quoted == sorted(quoted)
    (signed,) = (desk / "dossier").glob("approve-*.json")
    assert f"autocoder plan import {signed.name}" in out
    home = back(site, tmp_path)
    assert command("plan", "import", signed, "--home", home) == "approved by officer; 1 more needed\n"
    with pytest.raises(InputError, match="already given"):
        command("plan", "import", signed, "--home", home)
    policy = Policy.load(desk / "dossier" / dossier.POLICY)
    assert policy.digest == Ledger.open(Workspace(home).ledger_url).policy().digest


def test_a_refusal_comes_back_into_the_ledger(site: tuple[Job, str], desk: Path, tmp_path: Path) -> None:
    """By the same way."""
    key = ("--key", "officer/signing-key.pem", "--reason", "too early")
    assert command("refuse", "dossier/plan.json", *key).startswith("refused by officer: ")
    (signed,) = (desk / "dossier").glob("refuse-*.json")
    home = back(site, tmp_path)
    assert command("plan", "import", signed, "--home", home).startswith("refused by officer: ledger row")
    (row,) = (row for row in Ledger.open(Workspace(home).ledger_url).current() if row.kind == "refusal")
    assert row.reason == "officer refused: too early"


@pytest.mark.parametrize("name", [dossier.PLAN, dossier.PAGE, dossier.POLICY, dossier.HEAD, dossier.NAME])
def test_a_dossier_that_was_changed_is_not_signed(desk: Path, name: str) -> None:
    """One word of any file: the message names it, and no decision is written."""
    file = desk / "dossier" / name
    file.write_text(file.read_text().replace("strict" if name == dossier.POLICY else "a", "b", 1))
    with pytest.raises(InputError, match=rf"dossier.*({name}|is not a dossier|not as it was signed)"):
        command("approve", "dossier/plan.json", "--key", "officer/signing-key.pem")
    assert not list((desk / "dossier").glob("approve-*"))


def test_a_key_that_the_policy_does_not_name_signs_nothing(desk: Path) -> None:
    """She learns it at her desk, not by the answer to her letter."""
    write_policy(desk, "stranger", minimum=1)
    with pytest.raises(InputError, match=r"the policy does not list key .*Its approvers: director, officer"):
        command("approve", "dossier/plan.json", "--key", "stranger/signing-key.pem")


def test_a_signature_for_another_plan_is_not_taken_back(site: tuple[Job, str], desk: Path, tmp_path: Path) -> None:
    """The message says that a renewed plan needs a new dossier."""
    command("approve", "dossier/plan.json", "--key", "officer/signing-key.pem")
    (signed,) = (desk / "dossier").glob("approve-*.json")
    content = json.loads(signed.read_text()) | {"digest": "0" * 64}
    signed.write_text(json.dumps(content))
    home = back(site, tmp_path)
    with pytest.raises(InputError, match="needs a new dossier"):
        command("plan", "import", signed, "--home", home)
