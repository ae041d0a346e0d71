"""Reads the audits of a candidate from the ledger, and compares them with its claim.

A lower bound above the claim for adding or removing one record contradicts the claim, and so does a
failed check of the noisy sums. An audit is inconclusive if perfect guesses could not have shown the
claimed epsilon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Literal, cast

from pydantic import BaseModel, Field, ValidationError

from mechanisms.privacy.claims import of_one_record
from mechanisms.privacy.events import Claim, Event
from mechanisms.privacy.numerics import epsilon_text, lower_text, upper_text
from storage.artifacts import digest
from storage.ledger import Evaluated
from storage.ledger.composition import EventJson
from storage.ledger.models import Sample
from storage.ledger.records import same_records

USUAL_CONFIDENCE = 0.95
"""Confidence above which an audit is weaker than usual. At a high enough confidence it cannot
contradict anything.
"""
AUDITED_ARTIFACT = "audited"
"""Name of an audited fit or posterior among a row's artifacts."""
CONTRADICTED, NOT_CONTRADICTED, INCONCLUSIVE = "contradicted", "not contradicted", "inconclusive"


Fault = Literal["noise", "repeated noise", "sensitivity", "sampling"]
"""Faults that checks of the noisy sums look for (`mechanisms.audit.gradient_canaries.Check`)."""


class Evidence(BaseModel, frozen=True, extra="ignore"):
    """The result of one audit, from its row of the ledger. Missing fields have defaults."""

    epsilon_lower_bound: float
    """Lower bound on epsilon for adding or removing one unit."""
    confidence: float
    reach: float = Field(exclude=True)
    """The bound that perfect guesses would have given."""
    trials: int = Field(default=0, ge=0)
    gradient_runs: int = Field(default=0, ge=0)
    noise_at_most: float | None = None
    """The multiple of the stated noise above which noise was excluded, if the bound
    comes from that.
    """
    epsilon_of_any: float | None = None
    """The bound without the assumption that the noise is Gaussian."""
    faults: tuple[Fault, ...] = ()
    """Failed checks of the noisy sums: the event did not run as stated."""

    @classmethod
    def of(cls, figures: Mapping[str, object]) -> Evidence:
        return cls.model_validate(figures)

    @classmethod
    def found_in(cls, row: Evaluated) -> Evidence | None:
        """Returns the result of an audit, or None if the row has none or it cannot be read."""
        if row.evaluation.kind != "audit":
            return None
        try:
            return cls.of(row.evaluation.details)
        except ValidationError:
            return None

    @property
    def shown(self) -> Evidence:
        """The figures as shown to readers: bounds on epsilon are rounded down to three digits, and
        the bound on noise is rounded up. Further digits are never shown, because whoever measured
        could hide information in them.
        """
        noise, any_ = self.noise_at_most, self.epsilon_of_any
        rounded = {
            "epsilon_lower_bound": _digits(self.epsilon_lower_bound, ROUND_FLOOR),
            "confidence": _digits(self.confidence, ROUND_FLOOR, digits=4),
            "reach": _digits(self.reach, ROUND_FLOOR),
            "trials": int(_digits(self.trials, ROUND_FLOOR)),
            "gradient_runs": int(_digits(self.gradient_runs, ROUND_FLOOR)),
            "noise_at_most": None if noise is None else _digits(noise, ROUND_CEILING),
            "epsilon_of_any": None if any_ is None else _digits(any_, ROUND_FLOOR),
        }
        return self.model_copy(update=rounded)

    def judge(self, claim: Claim, *, minimum: float = 1.0) -> str:
        """Returns the verdict on a claim. An audit that could not have contradicted the claim is
        inconclusive.

        Both bounds are per unit added or removed.

        Args:
            minimum: the smallest share of the claim that perfect guesses must have been able to
                show.
        """
        claimed = of_one_record(claim)
        if claimed is None:
            return "no claim"
        if self.epsilon_lower_bound > claimed or self.faults:
            return CONTRADICTED
        return NOT_CONTRADICTED if self.reach > minimum * claimed else INCONCLUSIVE


def _digits(value: float, rounding: str, *, digits: int = 3) -> float:
    exact = Decimal(repr(value))
    if not exact:
        return 0.0
    place = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return float(exact.quantize(place, rounding=rounding))


def has_reruns(audit: Evidence) -> bool:
    """Whether an audit reran the mechanism at a usual confidence. Without reruns it
    can contradict almost no claim.
    """
    # guard: test_an_audit_that_could_not_have_failed_opens_nothing
    return audit.confidence <= USUAL_CONFIDENCE and bool(audit.trials or audit.gradient_runs)


class Measurement(Evidence):
    """The strongest audit result of one candidate, as the statement prints it."""

    epsilon_claimed: float | None
    epsilon_claimed_add_remove: float | None
    epsilon_reach: float
    verdict: str
    ledger_sequence: int

    @property
    def line(self) -> str:
        tests = [f"{self.trials} training runs"] * bool(self.trials)
        tests += ["a training run with gradient canaries"] * bool(self.gradient_runs)
        outcome = (
            f"{self.verdict}: not as stated: {', '.join(self.faults)}"
            if self.faults
            else self.verdict
        )
        if self.verdict == NOT_CONTRADICTED:
            blind = describe_blind_range(self.epsilon_reach, self.epsilon_claimed_add_remove)
            outcome = f"{NOT_CONTRADICTED}; {blind}"
        if self.verdict == INCONCLUSIVE:
            reach = describe_reach(self.epsilon_reach, self.epsilon_claimed_add_remove)
            outcome = f"inconclusive: {reach}"
        return (
            f"claimed {_claimed(self.epsilon_claimed, self.epsilon_claimed_add_remove)}, measured "
            f"{describe_bound(self.epsilon_lower_bound, self.noise_at_most, self.epsilon_of_any)} "
            f"({100 * self.confidence:.6g}% confidence, {' and '.join(tests) or 'no tests'}): "
            f"{outcome}"
        )


def describe_reach(reach: float, claimed: float | None) -> str:
    """Describes the most that an inconclusive audit could have shown."""
    return f"{_most_shown(reach)}, too little for a claim of {epsilon_text(claimed or 0.0)}"


def describe_blind_range(reach: float, claimed: float | None) -> str:
    """Describes which true epsilons above the claim may escape an audit that contradicts nothing.

    A policy may accept an audit whose reach is below the claim.
    """
    if claimed is None or reach <= claimed:
        return f"{_most_shown(reach)}, which does not exceed the claim"
    return (
        f"{_most_shown(reach)}, so a true ε between {epsilon_text(claimed)} and "
        f"{epsilon_text(reach)} may go unnoticed"
    )


def _most_shown(reach: float) -> str:
    return (
        f"even if every guess had been right, it could have shown at most ε {epsilon_text(reach)}"
    )


def describe_bound(
    epsilon: float, noise_at_most: float | None, epsilon_of_any: float | None
) -> str:
    """Describes a lower bound. A bound on the noise implies a bound on epsilon only if the noise is
    Gaussian, so both are named.
    """
    if noise_at_most is None or epsilon_of_any is None:
        return f"at least ε {lower_text(epsilon)}"
    return (
        f"noise of at most {upper_text(noise_at_most, 3)} times the stated noise, which means at "
        f"least ε {lower_text(epsilon)} for Gaussian noise, and at least ε "
        f"{lower_text(epsilon_of_any)} whatever the noise is"
    )


def _claimed(epsilon: float | None, add_remove: float | None) -> str:
    if epsilon is None:
        return "nothing"
    suffix = (
        ""
        if add_remove in (None, epsilon)
        else f" (ε {epsilon_text(add_remove or 0.0)} for one record more or less)"
    )
    return f"ε {epsilon_text(epsilon)}{suffix}"


def audits_of(measurements: Sequence[Evaluated], fitted: str) -> Sequence[Evaluated]:
    """Returns the audits of one fit or posterior, by its digest, in the given order."""
    return [
        row
        for row in _audits(measurements)
        if row.evaluation.artifact_digests.get(AUDITED_ARTIFACT) == fitted
    ]


def _audits(measurements: Sequence[Evaluated]) -> Iterator[Evaluated]:
    return (row for row in measurements if Evidence.found_in(row) is not None)


def _overlapping(measurements: Sequence[Evaluated], fingerprint: str) -> set[str]:
    samples: dict[str, list[Sample]] = {}
    for row in measurements:
        measured = row.evaluation
        if measured.sample is not None:
            samples.setdefault(measured.data_fingerprint, []).append(measured.sample)
    target = samples.pop(fingerprint, [])
    overlapping = {
        name
        for name, marks in samples.items()
        if any(same_records(first, second, share=0.5) for first in target for second in marks)
    }
    # guard: test_records_that_are_the_same_under_another_fingerprint
    return overlapping | {fingerprint}


def method_identity(fingerprint: str | None, event: EventJson | None) -> str:
    """Returns the digest to which a contradiction applies: the records, and the mechanism as its
    event describes it.

    Seed, label, population, draws and their measurements are not part of it, so a repeated fit is
    the same method.
    """
    done = {
        name: value
        for name, value in (event or {}).items()
        if name not in ("sensitivity", "sensitivity_draws")
    }
    return digest({"records": fingerprint, "method": done})


def _strength(evidence: Evidence) -> tuple[bool, float, float]:
    """Sort key for audits that contradict nothing: how much they could have shown."""
    return has_reruns(evidence), evidence.reach, evidence.epsilon_lower_bound


def measurement_of(
    measurements: Sequence[Evaluated],
    *,
    fitted: str,
    fingerprint: str,
    event: Event,
    claim: Claim,
    minimum: float,
) -> Measurement | None:
    """Returns the audit with the strongest evidence against a claim, or else the best one for it.
    None if there is no audit.

    A contradiction by another fit of the same method counts as one by the candidate itself. A
    smaller bound never invalidates a larger one, because each holds with its own confidence.

    Args:
        measurements: the ledger's measurements, oldest first.
        fitted: digest of the fit or posterior.
        fingerprint: fingerprint of its records.
        minimum: the smallest share of the claim that perfect guesses must have been able to show
            (the policy's `audit_reach`).
    """
    # audits rerun only the training
    event_json = cast("EventJson", event.of_training.model_dump(mode="json"))
    subjects = {method_identity(row, event_json) for row in _overlapping(measurements, fingerprint)}
    candidate_rows = audits_of(measurements, fitted)
    other_rows = [
        row
        for row in _audits(measurements)
        if method_identity(row.evaluation.data_fingerprint, row.event) in subjects
    ]
    evidence = {
        row.sequence: Evidence.of(row.evaluation.details) for row in [*other_rows, *candidate_rows]
    }

    def against(rows: Sequence[Evaluated]) -> list[int]:
        return [
            row.sequence
            for row in rows
            if evidence[row.sequence].judge(claim, minimum=minimum) == CONTRADICTED
        ]

    # guard: test_another_fit_of_the_method_is_blocked_too
    refuting = against(candidate_rows) or against(other_rows)
    if refuting:
        number = max(refuting, key=lambda n: evidence[n].epsilon_lower_bound)
    elif candidate_rows:
        sequences = [row.sequence for row in candidate_rows]
        number = max(sequences, key=lambda n: _strength(evidence[n]))
    else:
        return None
    strongest, shown = evidence[number], evidence[number].shown
    return Measurement(
        epsilon_claimed=claim.epsilon,
        epsilon_claimed_add_remove=of_one_record(claim),
        epsilon_reach=shown.reach,
        verdict=strongest.judge(claim, minimum=minimum),
        ledger_sequence=number,
        **dict(shown),
    )
