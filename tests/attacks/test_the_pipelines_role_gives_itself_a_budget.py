"""Would win: a release that no one signed and the unchanged worker draws; an account reset; a
stopped ledger.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from ledger_sites import Site, append_past
from refusals import of_kind
from releases import another, make_claim, make_plan, release_key
from sqlalchemy import exc

from mechanisms.privacy.events import DpSgdEvent
from storage.errors import StorageError
from storage.ledger import BudgetRefused, Evaluation, Ledger, Policy, chain
from storage.ledger.content import release_terms
from storage.ledger.decisions import Decision, sign
from storage.ledger.entries import (
    Begun,
    Burned,
    Drawn,
    HandedOver,
    PolicySet,
    Refused,
    ReleaseEntry,
    Reserved,
    Revoked,
)
from storage.ledger.keys import public_pem

DECLARES = """
Training, upkeep and metrics give no release away
| raw inserts and changes; rows of every kind by the role of training; reservations signed by nobody
or by a key of their own, over the cap, of a negative loss, drawn and committed; policies, refusals
and revocations that nobody signed; bodies that cannot be read; by the worker's own key events whose
steps, noise or delta give a budget back
| a SQLite file's writer can add rows, which `verify` names and which have no effect
"""

OFFICER, STRANGER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))


def policy(*, listed: bool = True, minimum: int = 0, name: str = "p", epsilon: int = 5) -> Policy:
    """A cap of 5, this worker's key, and as many approvals as said."""
    rule = {"minimum": minimum, "approvers": {"Officer": public_pem(OFFICER.public_key()).decode()}}
    keys = {"worker": public_pem(release_key().public_key()).decode()} if listed else {}
    caps = {"default": {"asymptotic-local": {"epsilon": epsilon}}}
    return Policy.parse({"name": name, "approvals": rule, "release_keys": keys} | caps)


def evaluation() -> Evaluation:
    return Evaluation(label="e", population="injuries", data_fingerprint="f", requester="operator")


def bodies(site: Site) -> list[dict[str, Any]]:
    return [
        json.loads(body) for (body,) in site.rows("SELECT body FROM ledger_row ORDER BY sequence")
    ]


def spent(ledger: Ledger) -> dict[str, Any]:
    return {line.account.cohort: line.account.epsilon for line in ledger.budget() if line.used}


@pytest.mark.postgres
def test_rows_and_totals_are_not_changed(postgres_site: Site) -> None:
    """Neither role changes a row, a set or a measurement, or the lock's function."""
    site = postgres_site
    site.open().reserve(make_plan())
    for url in (site.url, site.training_url):
        role = Site(url, site.owner_url, url)
        for statement in (
            "UPDATE ledger_row SET hash = hash",
            "UPDATE record_set SET sequence = sequence",
            "UPDATE measurement SET kind = kind",
            "DELETE FROM ledger_row",
            "SELECT * FROM ledger_row FOR UPDATE",
            "ALTER FUNCTION ledger_lock() SECURITY INVOKER",
        ):
            with pytest.raises(exc.DBAPIError, match=r"permission denied|must be owner"):
                role.sql(statement)


@pytest.mark.postgres
def test_training_adds_measurements_alone(postgres_site: Site) -> None:
    """Neither a row of the chain, of any kind, nor a set of records; by SQL or by the program."""
    site = postgres_site
    site.open().reserve(make_plan())
    training = Ledger.open(site.training_url)
    trained = Site(site.training_url, site.owner_url, site.training_url)
    for statement in (
        "INSERT INTO ledger_row SELECT 3, 'x', body FROM ledger_row LIMIT 1",
        "COPY record_set FROM STDIN",
        "INSERT INTO record_set VALUES (2, 'x')",
        "INSERT INTO measurement OVERRIDING SYSTEM VALUE VALUES (1, 'now', 'audit', 'key', '{}')",
    ):
        with pytest.raises(exc.DBAPIError, match="permission denied"):
            trained.sql(statement)
    for step in (
        lambda: training.reserve(make_plan("k")),
        lambda: training.note(Begun(requester="operator")),
        lambda: training.change_policy(policy(), requester="operator", reason="mine"),
    ):
        with pytest.raises(StorageError, check=of_kind("role-may-not")):
            step()
    assert training.record(evaluation()).evaluation.kind == "evaluation"
    assert [row["entry"]["kind"] for row in bodies(site)] == ["policy", "reserved"]


FORGED: dict[str, dict[str, Any]] = {
    "within the cap": {},
    "400 over a cap of 5": {"epsilon": 400.0},
    "an account reset": {"epsilon": -4.0},
}


@pytest.mark.parametrize("signer", [None, STRANGER], ids=["nobody", "a stranger"])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_reservation_without_the_workers_key(
    site: Site, forged: dict[str, Any], signer: Any
) -> None:
    """It has no effect: nothing is charged, put back or drawn. `verify` names it, and while it is
    there nothing is reserved.
    """
    ledger = site.open(policy(minimum=1))
    ledger.put_in_force(requester="operator")
    decision = sign(STRANGER, subject="release", decision="approve", digest="d" * 64, terms={})
    claim = make_claim().model_copy(update=forged)
    entry = Reserved(
        release_id="f" * 16,
        plan=make_plan("k").model_copy(update={"claim": claim}),
        policy_digest=ledger.policy().digest,
        plan_digest="d" * 64,
        decisions=(decision,),
        approvals=("Officer",),
    )
    written = append_past(ledger, entry, key=signer)
    assert spent(ledger) == {}
    with pytest.raises(StorageError, check=of_kind("unknown-release")):
        ledger.mark_drawn("f" * 16, draw_digest="e", plan_digest="d" * 64)
    assert ledger.find(make_plan("k").idempotency_key) is None
    terms = release_terms(make_plan("k"))
    signed = sign(OFFICER, subject="release", decision="approve", digest="d" * 64, terms=terms)
    with pytest.raises(StorageError, check=of_kind("stopped-ledger", saying=f"row {written}")):
        ledger.reserve(make_plan("k"), plan_digest="d" * 64, decisions=[signed])
    assert spent(ledger) == {}
    assert [(bad.sequence, bad.void) for bad in ledger.verify().bad] == [(written, True)]


def test_a_worker_whose_key_the_policy_does_not_list(sqlite_site: Site) -> None:
    """It is told before anything is rehearsed, and a row of its own has no effect."""
    sqlite_site.open(policy()).put_in_force(requester="operator")
    other = Ledger.open(sqlite_site.url, key=STRANGER)
    with pytest.raises(BudgetRefused, check=of_kind("not-a-release-key")):
        other.require_signer()
    with pytest.raises(BudgetRefused, check=of_kind("unsound-row", saying="signed by a key")):
        other.reserve(make_plan("x"))
    sqlite_site.open().require_signer()


def test_a_stranger_after_the_first_key(site: Site) -> None:
    """Where the policy lists no key, the one that signed first is the ledger's: a stranger neither
    takes a plan's place, nor closes an account, nor revokes.
    """
    own = site.open(policy(listed=False, epsilon=20))
    row = own.reserve(make_plan("x"))
    own.mark_drawn(str(row.release_id), draw_digest="e")
    own.commit(str(row.release_id), bundle_digest="b")
    other = Ledger.open(site.url, key=STRANGER)
    with pytest.raises(BudgetRefused, check=of_kind("unsound-row", saying="not the first")):
        other.reserve(make_plan("y"))
    with pytest.raises(BudgetRefused):
        other.require_signer()
    append_past(own, revoked(row.release_id), key=STRANGER)
    assert own.revocation(str(row.release_id)) is None
    assert spent(own) == {"2023": 4}
    assert [bad.void for bad in own.verify().bad] == [True]


@pytest.mark.parametrize("listed", [True, False])
def test_a_draw_and_a_bundle_of_a_stranger(site: Site, listed: bool) -> None:
    """Rows that go on from a good reservation, by another key: the release stays reserved, and
    nothing is drawn or bundled while they are there.
    """
    ledger = site.open(policy(listed=listed))
    row = ledger.reserve(make_plan("x"))
    for entry in (
        Drawn(release_id=row.release_id, draw_digest="a"),
        Burned(release_id=row.release_id, reason="stopped"),
    ):
        append_past(ledger, entry, key=STRANGER)
    assert ledger.release(str(row.release_id)).state == "reserved"
    with pytest.raises(StorageError, check=of_kind("stopped-ledger", saying="row 3")):
        ledger.mark_drawn(str(row.release_id), draw_digest="e")
    assert [bad.void for bad in ledger.verify().bad] == [True, True]


def revoked(release_id: str) -> Revoked:
    return Revoked(release_id=release_id, requester="x", reason="x", bundle_digest="b")


UNSIGNED: dict[str, Callable[[Ledger], dict[str, Any]]] = {
    "a policy": lambda ledger: PolicySet(
        policy=policy(name="open", epsilon=1000),
        requester="operator",
        reason="more",
        approvals=("Officer",),
    ).as_json(),
    "a refusal": lambda ledger: Refused(
        decision=_unsigned("refuse", release_terms(make_plan("k"))),
        by="Officer",
        requester="operator",
    ).as_json(),
    "a field to come": lambda ledger: (
        Begun(requester="operator").as_json() | {"state": "committed"}
    ),
}


def _unsigned(decision: Any, terms: dict[str, str]) -> Decision:
    return sign(STRANGER, subject="release", decision=decision, digest="d" * 64, terms=terms)


@pytest.mark.parametrize("forged", UNSIGNED.values(), ids=UNSIGNED)
def test_rows_nobody_signed_change_and_stop_nothing(
    site: Site, forged: Callable[[Ledger], dict[str, Any]]
) -> None:
    """Policy, budget and releases stay as they were, the next plan is reserved, and each is named
    once.
    """
    ledger = site.open(policy(minimum=1, epsilon=20))
    terms = release_terms(make_plan("first"))
    first = sign(OFFICER, subject="release", decision="approve", digest="d" * 64, terms=terms)
    row = ledger.reserve(make_plan("first"), plan_digest="d" * 64, decisions=[first])
    before = ledger.policy()
    content = forged(ledger)
    written = append_past(ledger, content)
    assert (ledger.policy(), spent(ledger), ledger.revocation(str(row.release_id))) == (
        before,
        {"2023": 4},
        None,
    )
    signed = sign(
        OFFICER,
        subject="release",
        decision="approve",
        digest="d" * 64,
        terms=release_terms(make_plan("k")),
    )
    ledger.reserve(make_plan("k"), plan_digest="d" * 64, decisions=[signed])
    again = append_past(ledger, content)
    assert [(bad.sequence, bad.void) for bad in ledger.verify().bad] == [
        (written, True),
        (again, True),
    ]


SIGNED: dict[str, Callable[[str], ReleaseEntry]] = {
    "drawn": lambda release_id: Drawn(release_id=release_id, draw_digest="a"),
    "handed over": lambda release_id: HandedOver(
        release_id=release_id,
        requester="x",
        partner="x",
        bundle_digest="b",
        archive_sha256="a" * 64,
        archive_bytes=1,
    ),
    "revoked": revoked,
}


@pytest.mark.parametrize("entry", SIGNED.values(), ids=SIGNED)
def test_a_void_row_of_a_signed_kind_stops_what_follows(
    site: Site, entry: Callable[[str], ReleaseEntry]
) -> None:
    """Only a releasing worker writes such a row. If it has no effect, what was spent is not known:
    nothing is reserved or drawn.
    """
    ledger = site.open(policy(listed=False))
    row = ledger.reserve(make_plan("first"))
    written = append_past(ledger, entry(row.release_id))
    assert (spent(ledger), ledger.revocation(str(row.release_id))) == ({"2023": 4}, None)
    for step in (
        lambda: ledger.reserve(make_plan("k")),
        lambda: ledger.require_drawable(str(row.release_id)),
        lambda: ledger.mark_drawn(str(row.release_id), draw_digest="e"),
    ):
        with pytest.raises(StorageError, check=of_kind("stopped-ledger", saying=f"row {written}")):
            step()
    assert [(bad.sequence, bad.void) for bad in ledger.verify().bad] == [(written, True)]


@pytest.mark.parametrize(
    "extra",
    ['"x":' + "[" * 3000 + "]" * 3000, '"x":' + "9" * 6000, '"x":1,"x":2'],
    ids=["nested", "long", "twice"],
)
def test_a_body_that_cannot_be_read(site: Site, extra: str) -> None:
    """Nested too deep, a number too long, a name twice, with a fitting hash: no one knows what kind
    of row it is, so nothing is reserved.
    """
    ledger = site.open(policy())
    ledger.put_in_force(requester="operator")
    row = bodies(site)[-1] | {"sequence": 2, "previous_hash": ledger.head()[1]}
    text = chain.canonical(row)[:-1] + "," + extra + "}"
    quoted = text.replace("'", "''").replace("%", "%%")
    site.sql(f"INSERT INTO ledger_row VALUES (2, '{chain.digest(text)}', '{quoted}')")
    with pytest.raises(StorageError, check=of_kind("stopped-ledger", saying="row 2")):
        ledger.reserve(make_plan("k"))
    assert [(bad.sequence, bad.void) for bad in ledger.verify().bad] == [(2, True)]


def descent(steps: int, noise: float, prob: float = 1.0) -> dict[str, Any]:
    segment = {"steps": steps, "noise_multiplier": noise, "l2_clip_norm": 1.0}
    return {
        "event": {
            "mechanism": "dp-sgd",
            "sampling": "poisson",
            "sampling_prob": prob,
            "segments": [segment],
        }
    }


GIVEN_BACK: dict[str, dict[str, Any]] = {
    "steps taken back": descent(-1000, 4.0),
    "samples taken back": descent(-1000, 1.1, 0.02),
    "no noise": descent(10, 0.0),
    "noise of another sign": descent(1, -4.0, 0.02),
    "a negative delta": {"delta": -0.0001},
    "a delta of one": {"delta": 1.0},
    "nothing at all": {"event": {"mechanism": "composed", "events": []}},
}


@pytest.mark.parametrize(
    "first", [descent(10, 8.0), descent(10, 1.1, 0.02)], ids=["gaussian", "sampled"]
)
@pytest.mark.parametrize("given", GIVEN_BACK.values(), ids=GIVEN_BACK)
def test_an_event_that_gives_a_budget_back(
    site: Site, given: dict[str, Any], first: dict[str, Any]
) -> None:
    """By anyone who holds the releasing worker's key: no sum falls, by whichever rule the account
    adds up.
    """
    ledger = site.open(
        Policy.parse({"name": "p", "default": {"formal": {"epsilon": 8, "delta": "0.01"}}})
    )
    event = DpSgdEvent.model_validate(first["event"])
    row = ledger.reserve(
        make_plan("a", kind="formal", claim={"epsilon": 2.0, "delta": 1e-6}, event=event)
    )
    before = next(line.account.spent for line in ledger.budget() if line.used)
    assert (before.mu_squared is None) != (before.sampled is None)
    claim = {"epsilon": 0.01} | {k: v for k, v in given.items() if k == "delta"}
    entry: dict[str, Any] = another(row, claim=claim).as_json()
    if "event" in given:
        entry["plan"]["event"] = given["event"]
    append_past(ledger, entry, key=release_key())
    after = next(line.account.spent for line in ledger.budget() if line.used)
    assert (after.epsilon >= before.epsilon, after.delta >= before.delta) == (True, True)
    assert (
        after.mu_squared is None
        or before.mu_squared is None
        or after.mu_squared >= before.mu_squared
    )
    assert (
        after.sampled is None
        or before.sampled is None
        or after.sampled.steps >= before.sampled.steps
    )
