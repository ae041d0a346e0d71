"""Signed approvals and refusals: only a good, fresh, first signature of a key that the policy names
counts.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from ledger_sites import append_past
from refusals import of_kind
from releases import release_key

from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Decision, Ledger, Policy
from storage.ledger.content import policy_terms, release_terms
from storage.ledger.decisions import Answer, sign
from storage.ledger.keys import public_pem, signature_of

KEYS = {
    name: ec.generate_private_key(ec.SECP256R1())
    for name in ("officer", "director", "operator", "stranger")
}
DIGEST = "d" * 64


def make_policy(minimum: int = 1, **rule) -> Policy:
    approvers = {
        name: public_pem(KEYS[name].public_key()).decode()
        for name in ("officer", "director", "operator")
    }
    return Policy.parse(
        {
            "name": "strict",
            "approvals": {"minimum": minimum, "approvers": approvers, **rule},
            "default": {"asymptotic-local": {"epsilon": 100}},
        }
    )


def decide(
    who: str, planned, *, digest: str = DIGEST, decision: Answer = "approve", reason: str = ""
) -> Decision:
    return sign(
        KEYS[who],
        subject="release",
        decision=decision,
        digest=digest,
        terms=release_terms(planned),
        reason=reason,
    )


def reserve(ledger, planned, *decisions: Decision):
    return ledger.reserve(planned, plan_digest=DIGEST, decisions=decisions)


def test_enough_signatures_release_and_stay_in_the_row(site, plan):
    """Two approvals, their signers' names, keys and signatures in every row of the release; the
    chain verifies.
    """
    ledger, planned = site.open(make_policy(2)), plan()
    given = (decide("officer", planned), decide("director", planned))
    row = reserve(ledger, planned, *given)
    assert row.reserved.approvals == ("officer", "director")
    drawn = ledger.mark_drawn(row.release_id, draw_digest="e" * 64, plan_digest=DIGEST)
    assert drawn.reserved.decisions == given
    assert drawn.plan_digest == DIGEST
    assert ledger.verify().ok


def test_a_name_that_somebody_types_approves_nothing(sqlite_site, plan):
    """Without a signature the release is refused, and nothing is charged."""
    ledger = sqlite_site.open(make_policy())
    with pytest.raises(
        BudgetRefused, check=of_kind("approvals-missing", saying="1 signed approval")
    ):
        ledger.reserve(plan(), plan_digest=DIGEST)
    assert not ledger.budget()[0].account.epsilon
    with pytest.raises(ValueError, match="approvals"):
        plan(approvals=("officer",))


def forged(decision: Decision) -> Decision:
    """Another reason under the old signature."""
    return decision.model_copy(update={"reason": "approved by all"})


def signed_on(moment: datetime, planned) -> Decision:
    """A decision whose signature covers another time."""
    plain = decide("officer", planned).model_copy(update={"signed_at": moment.isoformat()})
    return plain.model_copy(update={"signature": signature_of(plain, KEYS["officer"])})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: [decide("stranger", p)], of_kind("not-an-approver")),
        (lambda p: [forged(decide("officer", p))], of_kind("invalid-approval")),
        (
            lambda p: [decide("officer", p).model_copy(update={"signature": "AAAA"})],
            of_kind("invalid-approval"),
        ),
        (lambda p: [decide("officer", p, digest="e" * 64)], of_kind("stale-decision")),
        (
            lambda p: [decide("officer", p.model_copy(update={"release_label": "other"}))],
            of_kind("stale-decision"),
        ),
        (
            lambda p: [signed_on(datetime.now(UTC) - timedelta(days=15), p)],
            of_kind("expired-approval", saying="15"),
        ),
        (
            lambda p: [signed_on(datetime.now(UTC) + timedelta(days=1), p)],
            of_kind("future-approval"),
        ),
        (lambda p: [decide("officer", p), decide("officer", p)], of_kind("repeated-approval")),
        (lambda p: [decide("operator", p)], of_kind("own-request")),
        (
            lambda p: [decide("officer", p, decision="refuse", reason="no")],
            of_kind("approval-refused", saying="officer"),
        ),
    ],
    ids=[
        "unknown key",
        "forged",
        "no signature",
        "another plan",
        "other terms",
        "old",
        "future",
        "twice",
        "requester",
        "refusal",
    ],
)
def test_a_signature_that_does_not_count_is_refused(sqlite_site, plan, make, said):
    """Whatever is wrong with one, nothing is reserved, even where it would not be needed."""
    planned = plan()
    ledger = sqlite_site.open(make_policy(1, valid_days=14))
    with pytest.raises(InputError, check=said):
        reserve(ledger, planned, *make(planned))
    with pytest.raises(InputError, check=said):
        reserve(ledger, planned, decide("director", planned), *make(planned))
    assert ledger.find(planned.idempotency_key) is None
    assert (
        reserve(ledger, planned, signed_on(datetime.now(UTC) - timedelta(days=13), planned)).state
        == "reserved"
    )


def test_a_refusal_is_recorded_and_holds(site, plan):
    """Who and why; approvals of the same plan come too late, under another digest too: another
    label asks again.
    """
    ledger, planned = site.open(make_policy()), plan()
    row = ledger.refuse(
        planned, decide("director", planned, decision="refuse", reason="no code list")
    )
    assert row.title == "director refused: no code list"
    assert ledger.refuse(planned, decide("officer", planned, decision="refuse", reason="x")) == row
    with pytest.raises(
        BudgetRefused, check=of_kind("refused-earlier", saying=("director", "no code list"))
    ):
        reserve(ledger, planned, decide("officer", planned))
    with pytest.raises(BudgetRefused, check=of_kind("refused-earlier", saying="director")):
        ledger.reserve(
            planned, plan_digest="e" * 64, decisions=(decide("officer", planned, digest="e" * 64),)
        )
    again = plan("again")
    ledger.reserve(
        again, plan_digest="c" * 64, decisions=(decide("officer", again, digest="c" * 64),)
    )
    with pytest.raises(InputError, check=of_kind("refused-too-late")):
        ledger.refuse(again, decide("director", again, digest="f" * 64, decision="refuse"))
    assert ledger.verify().ok


def test_only_an_approver_can_refuse_and_an_approval_is_no_refusal(sqlite_site, plan):
    """Otherwise anyone could stop a release for ever."""
    ledger, planned = sqlite_site.open(make_policy()), plan()
    with pytest.raises(InputError, check=of_kind("not-an-approver")):
        ledger.refuse(planned, decide("stranger", planned, decision="refuse"))
    with pytest.raises(InputError, check=of_kind("approval-as-refusal")):
        ledger.refuse(planned, decide("officer", planned))
    assert ledger.rows() == []


def test_a_policy_change_needs_signatures_under_the_policy_in_force(sqlite_site):
    """Otherwise loosening the rule would be the way around it."""
    loose = Policy.parse({"name": "loose", "default": {"asymptotic-local": {"epsilon": 100}}})
    ledger = sqlite_site.open(make_policy())
    ledger.change_policy(make_policy(), requester="operator", reason="start")
    with pytest.raises(
        BudgetRefused, check=of_kind("approvals-missing", saying="1 signed approval")
    ):
        ledger.change_policy(loose, requester="operator", reason="wider")

    def signed(who: str, policy: Policy) -> Decision:
        terms = policy_terms(
            policy.name, ledger.state().policy_mark, requester="operator", reason="wider"
        )
        return sign(
            KEYS[who], subject="policy", decision="approve", digest=policy.digest, terms=terms
        )

    with pytest.raises(InputError, check=of_kind("own-request")):
        ledger.change_policy(
            loose, requester="operator", reason="wider", decisions=[signed("operator", loose)]
        )
    with pytest.raises(InputError, check=of_kind("stale-decision")):
        ledger.change_policy(
            loose,
            requester="operator",
            reason="wider",
            decisions=[signed("officer", make_policy())],
        )
    row = ledger.change_policy(
        loose, requester="operator", reason="wider", decisions=[signed("officer", loose)]
    )
    assert row.entry.approvals == ("officer",)
    assert ledger.policy() == loose
    assert ledger.verify().ok


FORGED: dict[str, dict[str, Any]] = {
    "signature": {"approvals": ("officer",), "decisions": "forged"},
    "names": {"approvals": ("officer", "director"), "decisions": "good"},
    "none": {"approvals": (), "decisions": "none"},
    "after a refusal": {"approvals": ("officer",), "decisions": "good"},
}


@pytest.mark.parametrize("change", FORGED)
def test_a_row_that_no_officer_signed_is_named_charged_and_never_drawn(
    sqlite_site, tmp_path, plan, change
):
    """Someone who holds the releasing worker's key, but no officer's."""
    planned, good = plan(), decide("officer", plan())
    elsewhere = Ledger.open(
        f"sqlite:///{tmp_path / 'other.db'}", policy=make_policy(), key=release_key()
    )
    row = reserve(elsewhere, planned, good)
    ledger = sqlite_site.open(make_policy())
    ledger.put_in_force(requester="operator")
    if change == "after a refusal":
        ledger.refuse(planned, decide("director", planned, decision="refuse", reason="no"))
    decisions = {"forged": [forged(good)], "good": [good], "none": []}[FORGED[change]["decisions"]]
    names = FORGED[change]["approvals"]
    entry = row.reserved.model_copy(update={"approvals": names, "decisions": tuple(decisions)})
    written = append_past(ledger, entry, key=release_key())
    report = ledger.verify()
    assert [bad.sequence for bad in report.bad] == [written]
    assert [line.account.epsilon for line in ledger.budget() if line.used] == [row.epsilon]
    with pytest.raises(StorageError, check=of_kind("unfounded-release")):
        ledger.mark_drawn(row.release_id, draw_digest="d", plan_digest=row.plan_digest)
    ledger.reserve(
        plan("x"), plan_digest="e" * 64, decisions=(decide("officer", plan("x"), digest="e" * 64),)
    )


def test_the_token_is_one_line_and_reads_back(plan):
    """What is pasted, with blanks or line breaks that a mail program adds; anything else is
    refused.
    """
    decision = decide("officer", plan())
    assert "\n" not in decision.token
    assert Decision.read(f" {decision.token[:80]}\n{decision.token[80:]} ") == decision
    assert Decision.read(decision.model_dump_json()) == decision
    for text in (
        "",
        "officer",
        "B. Officer approves",
        decision.token[:-8],
        "{}",
        '{"a":' * 100_000,
    ):
        with pytest.raises(InputError, check=of_kind("not-a-decision")):
            Decision.read(text)
