"""The gate: what audits say of a candidate, held against its claim before anything is reserved.

A lower bound above what is claimed for one record more or less contradicts the claim, and so do densities that refute
it for every delta as small as theory has it. The release is refused then, the ledger says so, and only a signed
override with a reason lets it pass: by somebody whose key the policy names, other than the requester, over the plan and
the measurement that they saw. Where perfect guesses could not have shown as much as is claimed, an audit is
inconclusive; where the policy asks for one that could, that is refused and overridden in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mechanisms.privacy.claims import of_one_record
from mechanisms.privacy.events import Claim
from storage.artifacts import digest
from storage.errors import InputError
from storage.ledger import BudgetRefused, Decision, Evaluation, Ledger, Row
from storage.ledger.content import release_terms
from storage.ledger.decisions import from_row, signer
from storage.ledger.records import SAMPLE, RecordSet, same_records
from tasks.releasing.formal_offer import way_out
from tasks.releasing.plan import PlannedRelease

USUAL_CONFIDENCE = 0.95
"""An audit at more than this bounds less: enough more, and it can contradict nothing."""
AUDITED = "audited"
"""Name, among a row's artifacts, of the fit or posterior that an audit looked at."""
CONTRADICTED, INCONCLUSIVE = "contradicted", "inconclusive"


class Evidence(BaseModel, frozen=True, extra="ignore", populate_by_name=True):
    """What one audit measured, as its row of the ledger has it; fields that older rows lack have defaults."""

    epsilon_lower_bound: float
    """For one unit more or less."""
    confidence: float
    reach: float | None = None
    """The bound that perfect guesses would have given; None in rows from before it was recorded as it is now."""
    trials: int = 0
    gradient_runs: int = 0
    auc: float
    tpr: float = Field(alias="tpr_at_fpr_0.001")
    attack: str = "loss"
    look: int = 1
    """Which audit of its claim this was, the first being 1."""
    refuted_delta_epsilon: float | None = None
    """What the three below are for: claims of at most so much."""
    refuted_delta_by_counts: float | None = None
    refuted_delta_by_densities: float | None = None
    delta_rate: float | None = None
    """n^(-1/2): densities that refute no larger delta say nothing of a claim that is asymptotic."""
    withheld: bool = False
    """Whether it, or one before it, would have refuted the claim as a first audit, and being a later one does not."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Evidence:
        """As a row's details have it; those from before looks were counted by kind took for what could be shown what
        could refute nothing.
        """
        return cls.model_validate(told if "looks" in told else {**told, "reach": None})

    def delta_refuted(self, claimed: float) -> float | None:
        """The largest delta for which this claim stays refuted; None where it names one, or was not measured."""
        told = (self.refuted_delta_by_counts, self.refuted_delta_by_densities)
        if not self._tells_deltas_of(claimed):
            return None
        return max((delta for delta in told if delta is not None), default=None)

    def _tells_deltas_of(self, claimed: float) -> bool:
        """Rows hold six decimals."""
        return self.refuted_delta_epsilon is not None and claimed <= self.refuted_delta_epsilon + 1e-6

    def verdict(self, claim: Claim, *, minimum: float = 1.0) -> str:
        """What the measurement says of the claim: nothing proves a claim, some refute it, some could not have.

        Like is held against like: bounds are for one unit more or less, and so is the number claimed for that.

        Args:
            minimum: the least share of the claim that perfect guesses must have been able to show.
        """
        claimed = of_one_record(claim)
        if claimed is None:
            return "no claim"
        by_densities = self._tells_deltas_of(claimed) and (
            (self.refuted_delta_by_densities or 0) > (self.delta_rate or 1)
        )
        if self.epsilon_lower_bound > claimed or by_densities:
            return CONTRADICTED
        return "not contradicted" if (self.reach or 0.0) > minimum * claimed else INCONCLUSIVE


def tried(audit: Evidence | Measured) -> bool:
    """Whether the mechanism was rerun, at a usual confidence: else an audit refutes next to nothing."""
    return audit.confidence <= USUAL_CONFIDENCE and bool(audit.trials or audit.gradient_runs)


class Measured(BaseModel):
    """What audits say of one candidate, in the words of a statement."""

    model_config = ConfigDict(frozen=True)

    epsilon_claimed: float | None
    epsilon_claimed_add_remove: float | None
    epsilon_lower_bound: float
    epsilon_reach: float | None
    confidence: float
    delta_refuted: float | None
    attack: str
    auc: float
    tpr_at_fpr_0001: float
    trials: int
    gradient_runs: int
    look: int
    withheld: bool
    verdict: str
    ledger_sequence: int

    @property
    def line(self) -> str:
        """Claim and measurement in one line."""
        return (
            f"claimed {_claimed(self.epsilon_claimed, self.epsilon_claimed_add_remove)}, measured at least "
            f"ε {self.epsilon_lower_bound:.3g} ({100 * self.confidence:.6g} % confidence, {self._tests}; strongest "
            f"membership test, {self.attack.replace('_', ' ')}: AUC {self.auc:.3f}, TPR {self.tpr_at_fpr_0001:.2%} at "
            f"FPR 0.1 %): {self._told}"
        )

    @property
    def _tests(self) -> str:
        several = [f"{self.trials} reruns"] if self.trials else []
        several += [f"{self.gradient_runs} fit with gradient canaries"] if self.gradient_runs else []
        again = f", audit {self.look} of this claim" if self.look > 1 else ""
        return " and ".join([*several, "one draw"]) + again

    @property
    def _told(self) -> str:
        if self.verdict == INCONCLUSIVE and self.withheld:
            return f"inconclusive: {_WITHHELD}"
        if self.verdict == INCONCLUSIVE and self.epsilon_reach is None:
            return "inconclusive: what it could have shown was not recorded then; audit again"
        if self.verdict == INCONCLUSIVE:
            return f"inconclusive: {_not_enough(self.epsilon_reach, self.epsilon_claimed_add_remove)}"
        if self.verdict == CONTRADICTED and self.delta_refuted:
            return f"contradicted for every δ up to {round_down(self.delta_refuted)}"
        return self.verdict


_WITHHELD = (
    "as a first audit it, or one before it, would have refuted the claim; a later one may not say so, nor that the "
    "claim withstood it"
)


def _not_enough(reach: float | None, claimed: float | None) -> str:
    return f"perfect guesses could have shown at most ε {reach:.3g}, the claim is {claimed:.3g}: not enough"


def _claimed(epsilon: float | None, add_remove: float | None) -> str:
    if epsilon is None:
        return "nothing"
    own = "" if add_remove in (None, epsilon) else f" (ε {add_remove:.4g} for one record more or less)"
    return f"ε {epsilon:.4g}{own}"


def round_down(share: float) -> str:
    """Three digits of a lower bound, which stays one."""
    digits = 3 - 1 - math.floor(math.log10(share))
    return f"{math.floor(share * 10**digits) / 10**digits:.{max(digits, 0)}f}"


def audits_of(ledger: Ledger, fitted: str) -> Sequence[Row]:
    """Audits of one fit or posterior, by its digest, oldest first."""
    return [row for row in _audits(ledger) if row.artifact_digests.get(AUDITED) == fitted]


def _audits(ledger: Ledger) -> Iterator[Row]:
    """Measurements; overrides and blocks are rows of the same kind without any."""
    return (row for row in ledger.rows() if row.kind == "audit" and "epsilon_lower_bound" in row.details)


def _alike(ledger: Ledger, fingerprint: str) -> set[str]:
    """Fingerprints of the same records: another order, or up to some half of them others, makes no others of them."""
    samples: dict[str, list[Any]] = {}
    for row in ledger.rows():
        if row.data_fingerprint is not None and SAMPLE in row.details:
            samples.setdefault(row.data_fingerprint, []).append(row.details[SAMPLE])
    own = samples.pop(fingerprint, [])
    alike = {
        of for of, told in samples.items() if any(same_records(one, other, share=0.5) for one in own for other in told)
    }
    return alike | {fingerprint}


def same_method(fingerprint: str | None, event: Mapping[str, Any] | None) -> str:
    """What a contradiction belongs to, beside the claim: the records, and what their event says was done to them.

    Seed, label, population, draws and what they measured are no part of it: fitted again, it is the same method.
    """
    done = {name: value for name, value in (event or {}).items() if name not in ("sensitivity", "sensitivity_draws")}
    return digest({"records": fingerprint, "method": done})


def measured(ledger: Ledger, planned: PlannedRelease) -> Measured | None:
    """What counts against a plan's claim, or else most for it; None where its candidate was never audited.

    A contradiction by another fit of the same method counts as one by the candidate's own. A smaller bound takes
    nothing back: each of them holds with its confidence, and repeated audits share one.
    """
    plan, minimum = planned.plan, ledger.policy().audit_reach
    event = plan.event.model_dump(mode="json")
    subjects = {same_method(fingerprint, event) for fingerprint in _alike(ledger, plan.data_fingerprint)}
    own = audits_of(ledger, planned.candidate.fitted.sha256)
    others = [row for row in _audits(ledger) if same_method(row.data_fingerprint, row.event) in subjects]
    told = {row.sequence: Evidence.of(row.details) for row in [*others, *own]}

    def against(rows: Sequence[Row]) -> list[int]:
        numbers = [row.sequence for row in rows]
        return [n for n in numbers if told[n].verdict(plan.claim, minimum=minimum) == CONTRADICTED]

    refuting = against(own) or against(others)
    if not refuting and not own:
        return None
    if refuting:
        number = max(refuting, key=lambda n: told[n].epsilon_lower_bound)
    else:
        best = {n: (tried(one), one.reach or 0, one.epsilon_lower_bound) for n, one in told.items()}
        number = max((row.sequence for row in own), key=best.__getitem__)
    found, claimed = told[number], of_one_record(plan.claim)
    return Measured(
        epsilon_claimed=plan.claim.epsilon,
        epsilon_claimed_add_remove=claimed,
        epsilon_lower_bound=found.epsilon_lower_bound,
        epsilon_reach=found.reach,
        confidence=found.confidence,
        delta_refuted=None if claimed is None else found.delta_refuted(claimed),
        attack=found.attack,
        auc=found.auc,
        tpr_at_fpr_0001=found.tpr,
        trials=found.trials,
        gradient_runs=found.gradient_runs,
        look=found.look,
        withheld=found.withheld,
        verdict=found.verdict(plan.claim, minimum=minimum),
        ledger_sequence=number,
    )


def check(ledger: Ledger, planned: PlannedRelease, *, records: RecordSet | None = None) -> dict[str, Any] | None:
    """Let a plan pass, or refuse it; returns what was measured, for the release's row.

    Args:
        records: what the plan is made from; a refusal says what a formal release of them may still cost.

    Raises:
        BudgetRefused: an audit contradicts the claim, or the policy wants an audit and there is none that could have
            contradicted the claim, and nobody has overridden that. Nothing was drawn or charged.
    """
    found = measured(ledger, planned)
    told = None if found is None else found.model_dump(mode="json") | {"line": found.line}
    overridden = None if found is None else _overridden(ledger, planned, found)
    if found is not None and overridden is not None:
        by, decision = overridden
        return (told or {}) | {"line": f"{found.line}; overridden by {by}: {decision.reason}", "overridden_by": by}
    if found is None or found.verdict != CONTRADICTED:
        if ledger.policy().require_audit:
            _require_audit(ledger, planned, found)
        return told
    row = _record(
        ledger,
        planned,
        label="release blocked: contradicted by an audit",
        key=f"blocked-{planned.digest}-{found.ledger_sequence}",
        details={"verdict": "blocked", "audit_row": found.ledger_sequence, "line": found.line},
    )
    raise BudgetRefused(
        f"the audit of row {found.ledger_sequence} contradicts the claim: {found.line}. Blocked (ledger row "
        f"{row.sequence}); nothing was drawn or charged. {way_out(ledger, planned, records)}"
    )


def obstacle(ledger: Ledger, planned: PlannedRelease) -> str | None:
    """What the gate would refuse a plan for now, in one sentence; nothing is recorded by asking."""
    found = measured(ledger, planned)
    if found is not None and _overridden(ledger, planned, found) is not None:
        return None
    if found is not None and found.verdict == CONTRADICTED:
        return f"the audit of row {found.ledger_sequence} contradicts the claim"
    if ledger.policy().require_audit:
        try:
            _require_audit(ledger, planned, found)
        except BudgetRefused as refused:
            return str(refused)
    return None


def _require_audit(ledger: Ledger, planned: PlannedRelease, found: Measured | None) -> None:
    """Refuse a plan whose candidate no audit put to a test that it could have failed."""
    policy = ledger.policy()
    rows = [Evidence.of(row.details) for row in audits_of(ledger, planned.candidate.fitted.sha256)]
    usual = [one for one in rows if one.confidence <= USUAL_CONFIDENCE]
    reran = [one for one in rows if tried(one)]
    if any(one.verdict(planned.plan.claim, minimum=policy.audit_reach) != INCONCLUSIVE for one in reran):
        return
    if not usual:
        why = f"was not audited at a confidence of {USUAL_CONFIDENCE:g} or less"
    elif not reran:
        why = "was audited without reruns of its mechanism (--trials 0), which refute next to nothing"
    elif any(one.withheld for one in reran):
        why = f"was audited without result: {_WITHHELD}"
    else:
        most = max(one.reach or 0.0 for one in reran)
        why = f"was audited without result: {_not_enough(most, of_one_record(planned.plan.claim))}"
    raise BudgetRefused(
        f"policy {policy.name} asks for an audit that could have contradicted the claim, and this candidate {why}. "
        f"Run `autocoder audit PLAN`{' with more --trials' if usual else ''}"
        + (
            f"; or an approver signs for audit row {found.ledger_sequence} as it is: `autocoder override`"
            if found is not None and reran
            else ""
        )
    )


def override_terms(planned: PlannedRelease, found: Measured) -> dict[str, str]:
    """What an override is signed over, beside the plan's digest: a larger bound found later makes it stale."""
    named = {"epsilon_lower_bound": f"{found.epsilon_lower_bound:.6f}", "audit_row": str(found.ledger_sequence)}
    if found.verdict != CONTRADICTED:
        named["verdict"] = found.verdict
    return release_terms(planned.plan) | named


def override(ledger: Ledger, planned: PlannedRelease, decision: Decision) -> Row:
    """Record a signed override.

    Raises:
        InputError: nothing stands in the way that a person may set aside, there is no reason, or the signature does not
            count.
    """
    found = measured(ledger, planned)
    if found is None or not _blocks(ledger, found):
        raise InputError("override: no audit contradicts this plan's claim; there is nothing to override")
    if found.verdict != CONTRADICTED and not tried(found):
        raise InputError(
            f"override: the audit of row {found.ledger_sequence} did not rerun the mechanism, or at a confidence above "
            f"{USUAL_CONFIDENCE:g}; run `autocoder audit` with --trials, then sign for what it says"
        )
    by = _signer(ledger, planned, found, decision)
    return _record(
        ledger,
        planned,
        label=f"override by {by}: {decision.reason}"[:300],
        key=f"override-{planned.digest}-{found.ledger_sequence}-{decision.key_id[:16]}",
        details={
            "verdict": "overridden",
            "audit_row": found.ledger_sequence,
            "plan_digest": planned.digest,
            "line": found.line,
            "decisions": [decision.model_dump(mode="json")],
        },
    )


def _blocks(ledger: Ledger, found: Measured) -> bool:
    """Whether a measurement stands in the way of a release until it is overridden."""
    return found.verdict == CONTRADICTED or (ledger.policy().require_audit and found.verdict == INCONCLUSIVE)


def _overridden(ledger: Ledger, planned: PlannedRelease, found: Measured) -> tuple[str, Decision] | None:
    """Who overrode this measurement of this plan; a row alone is not believed, its signature is checked again."""
    if not _blocks(ledger, found):
        return None
    for row in ledger.rows():
        if row.kind != "audit" or row.details.get("plan_digest") != planned.digest:
            continue
        for decision in from_row(row.details):
            try:
                return _signer(ledger, planned, found, decision, at=datetime.fromisoformat(row.recorded_at)), decision
            except InputError:
                continue
    return None


def _signer(
    ledger: Ledger, planned: PlannedRelease, found: Measured, decision: Decision, *, at: datetime | None = None
) -> str:
    if decision.decision != "approve" or not decision.reason.strip():
        raise InputError("override: it needs a reason")
    return signer(
        decision,
        ledger.policy().approvals,
        subject="override",
        digest=planned.digest,
        terms=override_terms(planned, found),
        requester=planned.plan.requester,
        at=at,
    )


def _record(ledger: Ledger, planned: PlannedRelease, *, label: str, key: str, details: dict[str, Any]) -> Row:
    plan = planned.plan
    return ledger.record(
        Evaluation(
            kind="audit",
            label=label,
            population=plan.population,
            cohorts=plan.cohorts,
            data_fingerprint=plan.data_fingerprint,
            event=plan.event,
            claim=plan.claim,
            code_commit=plan.code_commit,
            code_dirty=plan.code_dirty,
            requester=plan.requester,
            idempotency_key=key,
            details=details,
        )
    )
