"""The gate: a contradicted claim is refused through the ledger, and only a counted signature lets it pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechanisms.model.classifier import ModelConfig
from mechanisms.privacy.events import Claim, SwagPpmEvent
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from storage.ledger import BudgetRefused, Decision, Evaluation, Ledger, Policy, ReleasePlan
from storage.ledger.decisions import sign
from storage.ledger.heads import load_private_key, new_keys
from tasks.fitting.candidate import Candidate
from tasks.releasing import gate
from tasks.releasing.plan import PlannedRelease

CLAIM = Claim(
    guarantee_kind="asymptotic-local",
    epsilon=4.0,
    delta_text="O(n^-1/2), not quantified",
    sensitivity=2.0,
    neighbouring_relation="add-remove",
    accountant="test",
)
EVENT = SwagPpmEvent(reweighted=False, snapshots=20, rank=20, sensitivity_draws=500, sensitivity=2.0)


def _ref(letter: str) -> ArtifactRef:
    return ArtifactRef(uri=f"file:///nowhere/{letter}", sha256=letter * 64, kind="test")


@pytest.fixture
def planned() -> PlannedRelease:
    plan = ReleasePlan(
        idempotency_key="k",
        release_label="first",
        population="injuries",
        cohorts=("2015",),
        data_fingerprint="f",
        records_rounded=100,
        event=EVENT,
        claim=CLAIM,
        requester="operator",
    )
    candidate = Candidate(
        dataset=_ref("a"),
        prepared=_ref("b"),
        fitted=_ref("c"),
        measured=_ref("d"),
        model=ModelConfig(trainable="head"),
        seed=1,
    )
    return PlannedRelease(plan=plan, candidate=candidate)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger whose policy knows the keys of an officer and of the requester."""
    keys = {name: new_keys(tmp_path / name)[1].read_text() for name in ("officer", "operator")}
    policy = Policy.parse(
        {
            "name": "test",
            "approvals": {"minimum": 0, "approvers": keys},
            "default": {"asymptotic-local": {"epsilon": 20}},
        }
    )
    return Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", policy=policy)


def _audit(ledger: Ledger, planned: PlannedRelease, bound: float) -> None:
    ledger.record(
        Evaluation(
            kind="audit",
            label="audit",
            population="injuries",
            data_fingerprint="f",
            requester="auditor",
            artifact_digests={gate.AUDITED: planned.candidate.fitted.sha256},
            details={
                "epsilon_lower_bound": bound,
                "confidence": 0.95,
                "auc": 0.75,
                "tpr_at_fpr_0.001": 0.02,
                "trials": 32,
            },
        )
    )


def _signed(ledger: Ledger, planned: PlannedRelease, folder: Path, reason: str = "memo 12") -> Decision:
    found = gate.measured(ledger, planned.candidate.fitted.sha256, planned.plan.claim)
    assert found is not None
    return sign(
        load_private_key(folder / "signing-key.pem"),
        subject="override",
        decision="approve",
        digest=planned.digest,
        terms=gate.override_terms(planned, found),
        reason=reason,
    )


def test_a_bound_below_the_claim_passes_and_is_told(ledger: Ledger, planned: PlannedRelease) -> None:
    """Nothing measured is nothing told; a smaller bound passes and stands in the release's own row."""
    assert gate.check(ledger, planned) is None
    _audit(ledger, planned, 3.9)
    told = gate.check(ledger, planned)
    assert told is not None
    assert told["verdict"] == "not contradicted"
    row = ledger.reserve(planned.plan, plan_digest=planned.digest, audit=told)
    assert "claimed ε 4, measured at least ε 3.9" in row.details["audit"]["line"]
    assert ledger.verify().ok


def test_a_contradiction_blocks_and_the_ledger_says_so(ledger: Ledger, planned: PlannedRelease) -> None:
    """A bound above the claim refuses, once recorded; a smaller one later takes nothing back; nothing is reserved."""
    _audit(ledger, planned, 4.3)
    _audit(ledger, planned, 1.0)
    for _ in range(2):
        with pytest.raises(BudgetRefused, match=r"contradicts the claim: claimed ε 4, measured at least ε 4\.3"):
            gate.check(ledger, planned)
    blocked = [row for row in ledger.rows() if row.details.get("verdict") == "blocked"]
    assert [row.label for row in blocked] == ["release blocked: contradicted by an audit"]
    assert ledger.release_of(planned.plan) is None
    assert ledger.verify().ok


def test_only_a_counted_signature_with_a_reason_overrides(
    ledger: Ledger, planned: PlannedRelease, tmp_path: Path
) -> None:
    """Not a stranger's key, the requester's, one without a reason, or one over a smaller measurement; an officer's."""
    with pytest.raises(InputError, match="nothing to override"):
        gate.override(ledger, planned, sign_anything(planned, tmp_path / "officer"))
    _audit(ledger, planned, 4.3)
    new_keys(tmp_path / "stranger")
    for who, reason, problem in (
        ("stranger", "memo", "not one of the policy's"),
        ("operator", "memo", "nobody decides on their own request"),
        ("officer", " ", "needs a reason"),
    ):
        with pytest.raises(InputError, match=problem):
            gate.override(ledger, planned, _signed(ledger, planned, tmp_path / who, reason))
    good = _signed(ledger, planned, tmp_path / "officer")
    with pytest.raises(InputError, match="signature is false"):
        gate.override(ledger, planned, good.model_copy(update={"reason": "another"}))
    with pytest.raises(BudgetRefused):
        gate.check(ledger, planned)
    gate.override(ledger, planned, good)
    told = gate.check(ledger, planned)
    assert told is not None
    assert told["line"].endswith("overridden by officer: memo 12")

    _audit(ledger, planned, 5.0)  # worse than what the officer saw
    with pytest.raises(BudgetRefused):
        gate.check(ledger, planned)
    assert ledger.verify().ok


def sign_anything(planned: PlannedRelease, folder: Path) -> Decision:
    """An officer's signature over no measurement."""
    key = load_private_key(folder / "signing-key.pem")
    return sign(key, subject="override", decision="approve", digest=planned.digest, terms={}, reason="x")


def test_a_policy_may_want_an_audit(tmp_path: Path, planned: PlannedRelease) -> None:
    """With `require_audit` an unaudited candidate is refused; without it a policy keeps its older digest."""
    plain = {"name": "test", "default": {"asymptotic-local": {"epsilon": 20}}}
    assert "require_audit" not in Policy.parse(plain).as_json()
    policy = Policy.parse(plain | {"require_audit": True})
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", policy=policy)
    with pytest.raises(BudgetRefused, match="not audited"):
        gate.check(ledger, planned)
    _audit(ledger, planned, 0.5)
    assert gate.check(ledger, planned) is not None


def test_a_claim_of_replacing_one_is_held_to_its_figure_for_removing_one() -> None:
    """What is measured is about removing a record: a bound between B and 2B refutes the one and not the other."""
    replaced = CLAIM.model_copy(update={"neighbouring_relation": "replace-one", "epsilon_add_remove": 2.0})
    assert gate.verdict(CLAIM, 3.0) == gate.verdict(replaced, 1.9) == "not contradicted"
    assert gate.verdict(CLAIM, 4.1) == gate.verdict(replaced, 3.0) == "contradicted"
