"""Would win: a release on one signature taken for two, for another plan, or of someone who no
longer may.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from ledger_sites import Site
from refusals import of_kind
from releases import make_plan, release_key
from test_a_refuted_claim_is_released import audit, plan

from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Ledger, Policy, chain
from storage.ledger.content import policy_terms, release_terms
from storage.ledger.decisions import Decision, sign
from storage.ledger.entries import Overridden
from storage.ledger.keys import public_pem
from tasks.releasing import gate
from tasks.releasing.case import ReleaseCase
from tasks.releasing.plan import PlannedRelease

DECLARES = """
one signature is one person's, for one plan, while they may sign
| one key under two names, spelt otherwise; the same decision twice, with another reason, under
another's key id; of another plan, an override, a refusal; overrides of an approver since dropped,
unsigned rows; one that goes stale between its check and its row
| an officer's stolen key, until the policy drops it
"""

ANNA, BEN = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
DIGEST = "d" * 64


def pem(key: Any) -> str:
    return public_pem(key.public_key()).decode()


def compressed(key: Any) -> str:
    point = key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )
    again = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    return public_pem(again).decode().replace("\n", "\r\n") + "\n\n"


def policy(approvers: dict[str, str], minimum: int = 2, **more: Any) -> Policy:
    told: dict[str, Any] = {"name": "p", "approvals": {"minimum": minimum, "approvers": approvers}}
    return Policy.parse(told | {"default": {"asymptotic-local": {"epsilon": 20}}} | more)


def approved(key: Any, of: Any, digest: str = DIGEST, reason: str = "") -> Decision:
    return sign(
        key,
        subject="release",
        decision="approve",
        digest=digest,
        terms=release_terms(of),
        reason=reason,
    )


def test_one_key_under_two_names() -> None:
    """As it is, or spelt otherwise: one person stays one."""
    for other in (pem(ANNA), compressed(ANNA), pem(ANNA) + "\n"):
        with pytest.raises(InputError, check=of_kind("policy-field", saying="same key")):
            policy({"Anna": pem(ANNA), "Anne": other})


def test_one_signature_for_two(site: Site) -> None:
    """The same one twice, two of one key with other reasons, a second under another's key id, one
    of another plan.
    """
    ledger = site.open(policy({"Anna": pem(ANNA), "Ben": pem(BEN)}))
    asked, other = make_plan("a"), make_plan("b", release_label="other")
    one = approved(ANNA, asked)
    forged = one.model_copy(update={"key_id": approved(BEN, asked).key_id})
    for second in (
        *(one, approved(ANNA, asked, reason="again"), forged, approved(BEN, other)),
        approved(BEN, asked, digest="e" * 64),
        sign(
            BEN, subject="override", decision="approve", digest=DIGEST, terms=release_terms(asked)
        ),
    ):
        with pytest.raises(InputError):
            ledger.reserve(asked, plan_digest=DIGEST, decisions=[one, second])
    assert not ledger.releases()
    assert (
        ledger.reserve(asked, plan_digest=DIGEST, decisions=[one, approved(BEN, asked)]).state
        == "reserved"
    )


def overridden(ledger: Ledger, of: PlannedRelease, key: Any) -> Decision:
    found = ReleaseCase.of(of, ledger).measurement
    assert found is not None
    terms = gate.override_terms(ReleaseCase.of(of, ledger), found)
    return sign(
        key, subject="override", decision="approve", digest=of.digest, terms=terms, reason="memo 12"
    )


def test_an_override_of_somebody_who_no_longer_may(site: Site) -> None:
    """Signed and recorded while Anna was an approver: once the policy drops her, it lets nothing
    pass any more.
    """
    ledger = site.open(policy({"Anna": pem(ANNA), "Ben": pem(BEN)}, 0))
    audit(ledger, plan(), 4.3)
    gate.override(ReleaseCase.of(plan(), ledger), overridden(ledger, plan(), ANNA))
    assert gate.check(ReleaseCase.of(plan(), ledger)) is not None
    without = policy({"Ben": pem(BEN)}, 0)
    site.open().change_policy(without, requester="lead", reason="Anna left")
    with pytest.raises(BudgetRefused, check=of_kind("blocked")):
        gate.check(ReleaseCase.of(plan(), site.open()))


def test_an_override_for_another_plan_or_none(site: Site) -> None:
    """Another fit, another label, an approval, a refusal; nor a row that says `overridden` and
    holds no signature.
    """
    ledger = site.open(policy({"Anna": pem(ANNA), "Ben": pem(BEN)}, 0))
    for fitted in ("c", "9"):
        audit(ledger, plan(fitted), 4.3)
    for other in (plan("9"), plan(release_label="second")):
        with pytest.raises(InputError, check=of_kind("stale-decision")):
            gate.override(ReleaseCase.of(plan(), ledger), overridden(ledger, other, ANNA))
    good = overridden(ledger, plan(), ANNA)
    for changed in ({"decision": "refuse"}, {"subject": "release"}, {"signature": ""}):
        with pytest.raises(InputError):
            gate.override(ReleaseCase.of(plan(), ledger), good.model_copy(update=changed))
    for changed in ({"signature": ""}, {"key_id": "0" * 64}):
        forged = good.model_copy(update=changed)
        row = {"audit_row": 1, "line": "l", "by": "Anna", "requester": "operator"}
        ledger.note(Overridden(plan_digest=plan().digest, decision=forged, **row))
        with pytest.raises(BudgetRefused, check=of_kind("blocked")):
            gate.check(ReleaseCase.of(plan(), ledger))


def test_a_signature_on_a_policy_is_good_once(sqlite_site: Site) -> None:
    """Strict, lax for one emergency, strict again: the old signature puts the lax one in force
    nowhere and never more. Nor does it for another requester or reason, in another ledger, or after
    the policy in force was put in force anew.
    """
    strict, lax = policy({"Anna": pem(ANNA)}, 1), policy({"Anna": pem(ANNA)}, 1, name="lax")
    ledger = sqlite_site.open(strict)
    ledger.put_in_force(requester="lead")

    def signed(of: Policy, requester: str = "lead", reason: str = "emergency") -> Decision:
        terms = policy_terms(
            of.name, ledger.state().policy_mark, requester=requester, reason=reason
        )
        return sign(ANNA, subject="policy", decision="approve", digest=of.digest, terms=terms)

    taken = signed(lax)
    for requester, reason in (("operator", "emergency"), ("lead", "back again")):
        with pytest.raises(InputError, check=of_kind("stale-decision")):
            ledger.change_policy(lax, requester=requester, reason=reason, decisions=[taken])
    ledger.change_policy(lax, requester="lead", reason="emergency", decisions=[taken])
    ledger.change_policy(
        strict, requester="lead", reason="over", decisions=[signed(strict, reason="over")]
    )
    with pytest.raises(InputError, check=of_kind("stale-decision")):
        ledger.change_policy(lax, requester="lead", reason="emergency", decisions=[taken])
    assert ledger.policy() == strict
    assert ledger.verify().ok


def test_a_signature_on_a_policy_in_another_ledger(sqlite_site: Site, tmp_path: Path) -> None:
    """Two ledgers under the same policy: what was signed for one is not for the other."""
    strict, lax = policy({"Anna": pem(ANNA)}, 1), policy({"Anna": pem(ANNA)}, 1, name="lax")
    ledger, other = (
        sqlite_site.open(strict),
        Ledger.open(f"sqlite:///{tmp_path / 'other.db'}", policy=strict, key=release_key()),
    )
    for one in (ledger, other):
        one.put_in_force(requester="lead")
    terms = policy_terms(lax.name, ledger.state().policy_mark, requester="lead", reason="emergency")
    taken = sign(ANNA, subject="policy", decision="approve", digest=lax.digest, terms=terms)
    with pytest.raises(InputError, check=of_kind("stale-decision")):
        other.change_policy(lax, requester="lead", reason="emergency", decisions=[taken])


@pytest.mark.parametrize(
    "name",
    ["no", "on", "yes", "off", "true", "null", "010", "1_000", "0x10", "0b11", "1.0", "2024-01-02"],
)
def test_a_population_whose_name_yaml_reads_otherwise(tmp_path: Path, name: str) -> None:
    """Its cap of 0.1 would not be used, and the default's 9 would. In quotes it is the name; a year
    needs none.
    """
    text = "name: p\ndefault: {asymptotic-local: {epsilon: 9}}\npopulations:\n"
    file = tmp_path / "policy.yaml"
    file.write_text(f"{text}  {name}: {{asymptotic-local: {{epsilon: 0.1}}}}\n")
    with pytest.raises(InputError, check=of_kind("policy-not-yaml", saying="string in YAML")):
        Policy.load(file)
    file.write_text(
        f"{text}  '{name}': {{asymptotic-local: {{epsilon: 0.1}}}}\n  2024: {{asymptotic-local: "
        f"{{epsilon: 1}}}}\n"
    )
    assert set(Policy.load(file).populations) == {name, "2024"}


def test_a_policy_that_is_too_deep_or_too_long(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    for text, kind in (
        ("a: " + "[" * 1000 + "]" * 1000, "policy-not-yaml"),
        ("# " + "x" * (1 << 20), "not-a-small-file"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, check=of_kind(kind, saying="policy file")):
            Policy.load(file)


@pytest.mark.parametrize(
    ("moved", "cause"),
    [(timedelta(days=15), "15 days ago"), (-timedelta(days=1), "in the future")],
    ids=["goes stale", "a clock set back"],
)
def test_a_signature_stale_before_its_row(
    sqlite_site: Site, monkeypatch: pytest.MonkeyPatch, moved: timedelta, cause: str
) -> None:
    """Good as it is checked, and not at the time that the row has: the row was recorded, and no
    verification of the ledger could ever pass again.
    """
    rule = {"minimum": 1, "approvers": {"Anna": pem(ANNA)}, "valid_days": 14}
    caps = {"default": {"asymptotic-local": {"epsilon": 20}}}
    ledger = sqlite_site.open(Policy.parse({"name": "p", "approvals": rule} | caps))
    ledger.put_in_force(requester="lead")
    asked, other = make_plan("a"), Policy.parse({"name": "q", "approvals": rule} | caps)
    refusal = sign(
        ANNA,
        subject="release",
        decision="refuse",
        digest=DIGEST,
        terms=release_terms(asked),
        reason="no",
    )
    terms = policy_terms("q", ledger.state().policy_mark, requester="lead", reason="more")
    change = sign(ANNA, subject="policy", decision="approve", digest=other.digest, terms=terms)
    good = approved(ANNA, asked)
    with monkeypatch.context() as late:
        late.setattr(
            chain, "now", lambda: (datetime.now(UTC) + moved).isoformat(timespec="microseconds")
        )
        for attempt in (
            lambda: ledger.reserve(asked, plan_digest=DIGEST, decisions=[good]),
            lambda: ledger.refuse(asked, refusal),
            lambda: ledger.change_policy(
                other, requester="lead", reason="more", decisions=[change]
            ),
        ):
            with pytest.raises(StorageError, check=of_kind("unsound-row", saying=cause)):
                attempt()
    assert ledger.reserve(asked, plan_digest=DIGEST, decisions=[good]).state == "reserved"
    assert ledger.verify().ok
