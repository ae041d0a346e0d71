"""Would win: a signature for what the officer did not see: a false ε, a synthetic ledger, a file
that never ends.
"""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import invoke
from refusals import of_kind
from releases import make_candidate, make_event, make_plan, release_key

from flows.commands.ledger_options import home_of_plan
from mechanisms.errors import MechanismError
from mechanisms.privacy.claims import claim_of
from storage.artifacts import digest
from storage.bundle.trust import read_roots
from storage.errors import InputError, StorageError
from storage.ledger import Ledger, Policy, checkpoints, keys
from storage.ledger.report import read_export
from tasks.releasing import approval
from tasks.releasing.claims import CHOSEN, key_of
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.selection import Selection

DECLARES = """
an officer's desk believes its own copy of the agency's key
| a plan with a smaller ε, another key, method or selection; a plan that was not audited, signed
where there is no ledger; a ledger whose releases another key
signed; another key given later; pipes and devices as key, plan, policy or roots
| a ledger without any release, which no key signed yet
"""


def planned() -> PlannedRelease:
    """A plan whose claim, key and digests follow from its event, method and candidate."""
    event, method, candidate, selection = (
        make_event(),
        {"fit": {"seed": 1}},
        make_candidate(),
        Selection(fits=3, compared=True),
    )
    claim = claim_of(
        event,
        delta=None,
        privacy_unit="record",
        max_records_per_unit=1,
        unprotected_inputs=("n", *selection.lines),
    )
    plan = make_plan(
        key_of(method, "f" * 64, "label"),
        claim=claim,
        event=event,
        parameters_digest=digest(method),
        artifact_digests=candidate.artifact_digests,
    )
    return PlannedRelease(plan=plan, candidate=candidate, method=method, selection=selection)


EDITS: dict[str, Callable[[PlannedRelease], dict[str, Any]]] = {
    "claim.epsilon": lambda p: {
        "plan": p.plan.model_copy(
            update={"claim": p.plan.claim.model_copy(update={"epsilon": 0.1})}
        )
    },
    "claim.unprotected_inputs": lambda p: {
        "plan": p.plan.model_copy(
            update={"claim": p.plan.claim.model_copy(update={"unprotected_inputs": ("n", CHOSEN)})}
        )
    },
    "parameters_digest": lambda p: {"method": {"fit": {"seed": 2}}},
    "idempotency_key": lambda p: {"plan": p.plan.model_copy(update={"idempotency_key": "0" * 64})},
    "artifact_digests": lambda p: {"candidate": make_candidate(fitted=p.candidate.dataset)},
}


@pytest.mark.parametrize("name", EDITS)
def test_a_plan_that_says_less(name: str) -> None:
    """Without its artifacts, on a machine of the officer's own."""
    planned().require_consistent()
    with pytest.raises(MechanismError, check=of_kind("plan-differs", saying=name)):
        planned().model_copy(update=EDITS[name](planned())).require_consistent()


def test_a_ledger_of_the_operators_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its releases are signed by a key that is not the agency's; the pinned key is not replaced by
    another.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", key=release_key())
    ledger.reserve(make_plan("k"))
    _, stranger = keys.new_keys(tmp_path / "stranger")
    own = tmp_path / "own.pem"
    own.write_bytes(keys.public_pem(release_key().public_key()))
    assert approval.pinned_key(None) is None
    pinned = approval.pinned_key(own)
    assert pinned is not None
    assert approval.pinned_key(None) == pinned
    approval.require_agency_ledger(ledger, pinned)
    with pytest.raises(InputError, check=of_kind("another-pinned-key")):
        approval.pinned_key(stranger)
    pinned.write_bytes(stranger.read_bytes())
    with pytest.raises(StorageError, check=of_kind("ledger-of-another-key")):
        approval.require_agency_ledger(ledger, pinned)


def test_a_ledger_in_which_no_release_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty ledger, one with the agency's policy, and one with a release that the chain does not
    carry: none of them shows whose it is. The officer says that there was none yet.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own = tmp_path / "own.pem"
    own.write_bytes(keys.public_pem(release_key().public_key()))
    pinned = approval.pinned_key(own)
    assert pinned is not None
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", key=release_key())

    def refused() -> None:
        with pytest.raises(StorageError, check=of_kind("unproven-ledger")):
            approval.require_agency_ledger(ledger, pinned)
        approval.require_agency_ledger(ledger, pinned, first=True)

    refused()
    ledger.put_in_force(requester="operator")
    refused()
    ledger.reserve(make_plan("k"))
    approval.require_agency_ledger(ledger, pinned)
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        changed = database.execute(
            "UPDATE ledger_row SET body = replace(body, '\"injuries\"', '\"i\"') "
            "WHERE json_extract(body, '$.entry.kind') = 'reserved'"
        )
        assert changed.rowcount == 1
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", key=release_key())
    with pytest.raises(StorageError):
        approval.require_agency_ledger(ledger, pinned)


@pytest.mark.parametrize("way", [[], ["--print"], ["--post"], ["--refuse", "--reason", "late"]])
def test_a_plan_is_signed_where_there_is_no_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: list[str]
) -> None:
    """A plan that was not audited, from an empty folder: neither budget nor audit can be read."""
    key, _ = keys.new_keys(tmp_path / "officer")
    file = tmp_path / "plan.json"
    file.write_text(planned().model_dump_json())
    words = ["approve", str(file), "--home", str(tmp_path / "empty"), "--key", str(key), "--yes"]
    with pytest.raises(StorageError, check=of_kind("workspace-without-ledger")):
        invoke(*words, *way)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "empty").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "read",
    [
        *(
            PlannedRelease.load,
            Policy.load,
            keys.load_private_key,
            keys.load_public_key,
            read_roots,
        ),
        *(checkpoints.read_checkpoint, read_export, lambda file: home_of_plan(file, None)),
    ],
)
def test_a_file_that_never_ends(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """A pipe that no one writes into, and a device: refused at once."""
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, check=of_kind("not-a-small-file")):
            read(file)
