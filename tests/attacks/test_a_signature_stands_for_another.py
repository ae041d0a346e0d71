"""Would win: a release on one signature taken for two, for another plan, or of somebody who no longer may."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from ledger_sites import Site, make_plan
from test_a_refuted_claim_is_released import audit, plan

from storage.errors import InputError
from storage.ledger import BudgetRefused, Ledger, Policy
from storage.ledger.content import release_terms
from storage.ledger.decisions import Decision, sign
from storage.ledger.heads import public_pem
from tasks.releasing import gate
from tasks.releasing.plan import PlannedRelease

ANNA, BEN = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
DIGEST = "d" * 64


def pem(key: Any) -> str:
    return public_pem(key.public_key()).decode()


def compressed(key: Any) -> str:
    """The same key in its other spelling."""
    point = key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)
    again = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    return public_pem(again).decode().replace("\n", "\r\n") + "\n\n"


def policy(approvers: dict[str, str], minimum: int = 2, **more: Any) -> Policy:
    told = {"name": "p", "approvals": {"minimum": minimum, "approvers": approvers}}
    return Policy.parse(told | {"default": {"asymptotic-local": {"epsilon": 20}}} | more)


def approved(key: Any, of: Any, digest: str = DIGEST, reason: str = "") -> Decision:
    return sign(key, subject="release", decision="approve", digest=digest, terms=release_terms(of), reason=reason)


def test_one_key_under_two_names() -> None:
    """As it is, or spelt otherwise: one person stays one."""
    for other in (pem(ANNA), compressed(ANNA), pem(ANNA) + "\n"):
        with pytest.raises(InputError, match="same key"):
            policy({"Anna": pem(ANNA), "Anne": other})


def test_one_signature_for_two(site: Site) -> None:
    """The same one twice, two of one key with other reasons, a second under another's key id, one of another plan."""
    ledger = site.open(policy({"Anna": pem(ANNA), "Ben": pem(BEN)}))
    asked, other = make_plan("a"), make_plan("b", release_label="other")
    one = approved(ANNA, asked)
    forged = one.model_copy(update={"key_id": approved(BEN, asked).key_id})
    for second in (
        one,
        approved(ANNA, asked, reason="again"),
        forged,
        approved(BEN, other),
        approved(BEN, asked, digest="e" * 64),
        sign(BEN, subject="override", decision="approve", digest=DIGEST, terms=release_terms(asked)),
    ):
        with pytest.raises(InputError):
            ledger.reserve(asked, plan_digest=DIGEST, decisions=[one, second])
    assert not [row for row in ledger.rows() if row.kind == "release"]
    assert ledger.reserve(asked, plan_digest=DIGEST, decisions=[one, approved(BEN, asked)]).state == "reserved"


def overridden(ledger: Ledger, of: PlannedRelease, key: Any) -> Decision:
    """A signature over what stands in the plan's way."""
    found = gate.measured(ledger, of)
    assert found is not None
    terms = gate.override_terms(of, found)
    return sign(key, subject="override", decision="approve", digest=of.digest, terms=terms, reason="memo 12")


def test_an_override_of_somebody_who_no_longer_may(site: Site) -> None:
    """Signed and recorded while Anna was an approver: once the policy drops her, it lets nothing pass any more."""
    ledger = site.open(policy({"Anna": pem(ANNA), "Ben": pem(BEN)}, 0))
    audit(ledger, plan(), 4.3)
    gate.override(ledger, plan(), overridden(ledger, plan(), ANNA))
    assert gate.check(ledger, plan()) is not None
    without = policy({"Ben": pem(BEN)}, 0)
    site.open().change_policy(without, requester="lead", reason="Anna left")
    with pytest.raises(BudgetRefused, match="contradicts the claim"):
        gate.check(site.open(), plan())


def test_an_override_for_another_plan_or_none(site: Site) -> None:
    """Another fit, another label, an approval, a refusal; nor a row that says `overridden` and holds no signature."""
    ledger = site.open(policy({"Anna": pem(ANNA), "Ben": pem(BEN)}, 0))
    for fitted in ("c", "9"):
        audit(ledger, plan(fitted), 4.3)
    for other in (plan("9"), plan(release_label="second")):
        with pytest.raises(InputError, match="stale, or for something else"):
            gate.override(ledger, plan(), overridden(ledger, other, ANNA))
    good = overridden(ledger, plan(), ANNA)
    for changed in ({"decision": "refuse"}, {"subject": "release"}, {"signature": ""}):
        with pytest.raises(InputError):
            gate.override(ledger, plan(), good.model_copy(update=changed))
    row = {"verdict": "overridden", "plan_digest": plan().digest, "decisions": []}
    unsigned = good.model_copy(update={"signature": ""}).model_dump(mode="json")
    for decisions in ([], [unsigned]):
        gate._record(
            ledger, plan(), label="override", key=f"forged {decisions}"[:200], details=row | {"decisions": decisions}
        )
        with pytest.raises(BudgetRefused, match="contradicts the claim"):
            gate.check(ledger, plan())
