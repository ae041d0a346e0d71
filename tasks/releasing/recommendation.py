"""Recommends one of several mechanisms for release: one function from figures to a verdict and a sentence.

The rules, in this order; `docs/choosing.md` says why.

1. Branches without a guarantee, contradicted by an audit, over the budget, or not releasable are out.
2. Of the rest only formal claims are recommended, never an asymptotic-local one. Without a formal claim left, the
   answer is that nothing should be released.
3. Among them the best mean weighted F1 wins; of those that are not worse by more than the errors of seeds and of test
   records allow (`Difference`), the smallest epsilon of one record replaced, to a hundredth of it, then delta, then
   the better F1.
4. The sentence states the loss against the best fit without privacy, or that it was not measured, and a missing audit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import BaseModel

from mechanisms.privacy.events import GuaranteeKind, NeighbouringRelation
from tasks.releasing.evidence import CONTRADICTED, NOT_CONTRADICTED

Verdict = Literal["fine", "investigate", "warning"]
Resampled = Mapping[str, np.ndarray]
"""A branch's mean over seeds of each score, by its name, on resamples of the test records that all branches share."""


class Difference(BaseModel, frozen=True):
    """Holds the mean score of one branch minus another's.

    A conclusion needs more than twice both errors: fits with another seed move it, and so do other test records.
    """

    gap: float
    of_seeds: float
    """Root of both variances over seeds; 0 for one seed each."""
    of_records: float | None = None
    """Standard error over test records, paired; None where the branches were not scored on the same ones."""

    @property
    def conclusive(self) -> bool:
        """Checks whether the difference exceeds twice both errors."""
        return abs(self.gap) > 2 * max(self.of_seeds, self.of_records or 0.0)

    @property
    def reading(self) -> str:
        """Returns which is ahead, or that neither is."""
        return ("ahead" if self.gap > 0 else "behind") if self.conclusive else "within the error"

    @property
    def errors(self) -> str:
        """Returns both errors in words."""
        records = "" if self.of_records is None else f"test records {self.of_records:.3f}, "
        return f"{records}seeds {self.of_seeds:.3f}"


@dataclass(frozen=True)
class Figures:
    """Holds the figures of one branch at one claim."""

    name: str
    title: str
    kind: GuaranteeKind
    weighted_f1: float
    """Mean over seeds, on held-out records."""
    macro_f1: float | None = None
    spread: float = 0.0
    """Sample standard deviation of the weighted F1 over seeds; 0 for one seed."""
    seeds: int = 1
    epsilon: float | None = None
    delta: float | None = None
    relation: NeighbouringRelation = "add-remove"
    audit: str | None = None
    """Its audit's verdict (`evidence.py`); None: not measured."""
    lower_bound: float | None = None
    """The lower bound of its audit on epsilon."""
    refused: str = ""
    """Why the budget or another rule would refuse it; empty if none would, or if not checked."""
    mechanism: str = ""
    """Tag of its event."""
    trainable: str = ""
    """The part of the model that trained; empty where that is not recorded."""
    epsilon_replaced: float | None = None
    """The epsilon of one unit's values replaced, at the same delta; None where nothing finite is known or it was not
    computed."""
    resampled: Resampled = field(default_factory=dict, compare=False, repr=False)
    """Scores on resamples of the test records; empty where there are none."""

    def minus(self, other: Figures) -> Difference:
        """Returns the difference in weighted F1 with its errors."""
        mine, theirs = self.resampled.get("weighted_f1"), other.resampled.get("weighted_f1")
        return Difference(
            gap=self.weighted_f1 - other.weighted_f1,
            of_seeds=math.hypot(self.spread, other.spread),
            of_records=None if mine is None or theirs is None else float(np.std(mine - theirs, ddof=1)),
        )

    @property
    def claim(self) -> str:
        """Returns kind and figures in words."""
        if self.epsilon is None:
            return "no guarantee"
        delta = "δ not quantified" if self.delta is None else f"δ {self.delta:g}"
        return f"{self.kind}, ε {self.epsilon:.4g}, {delta}, {self.relation}"


LARGE = 0.1
"""Share of the F1 without privacy from which a loss calls for review."""


@dataclass(frozen=True)
class Recommendation:
    """Holds the recommended branch, and the sentence that says so."""

    verdict: Verdict
    sentence: str
    chosen: Figures | None = None
    reference: Figures | None = None
    """The best fit without privacy, that losses are measured against."""

    @property
    def loses_little(self) -> bool:
        """Checks whether the recommended branch loses at most the share that calls for review."""
        if self.chosen is None or self.reference is None:
            return False
        return self.reference.weighted_f1 - self.chosen.weighted_f1 <= LARGE * self.reference.weighted_f1


def recommend(branches: Sequence[Figures]) -> Recommendation:
    """Returns the recommendation that these figures support, by the rules above. Their order does not matter."""
    reference = max((one for one in branches if one.kind == "none"), key=_best, default=None)
    allowed = [one for one in branches if one.kind == "formal" and not exclusion_reason(one)]
    if not allowed:
        return Recommendation("warning", _nothing(branches), reference=reference)
    best = max(allowed, key=_best)
    as_good = [one for one in allowed if _as_good(one, best)]
    smallest = min(_replaced(one) for one in as_good)
    chosen = min((one for one in as_good if _replaced(one) <= _SAME * smallest), key=_preference)
    reasons = f"{describe_loss(chosen, reference)}; {_measured(chosen)}"
    score = f"weighted F1 {describe_score(chosen)}"
    return Recommendation(
        "fine" if chosen.audit == NOT_CONTRADICTED else "investigate",
        f"Release {chosen.title} ({chosen.claim}): {score}, {reasons}.",
        chosen=chosen,
        reference=reference,
    )


def exclusion_reason(one: Figures) -> str:
    """Returns why a branch may not be recommended; empty where it may."""
    if one.kind == "none" or one.epsilon is None:
        return "no guarantee"
    if one.audit == CONTRADICTED:
        return "contradicted by an audit"
    return one.refused or ("" if one.kind == "formal" else "asymptotic-local: estimated on these records, δ unknown")


def describe_loss(one: Figures, reference: Figures | None) -> str:
    """Describes the loss against the best fit without privacy."""
    if reference is None:
        return "its loss against a fit without privacy was not measured"
    apart = one.minus(reference)
    shares = [f"{abs(apart.gap) / reference.weighted_f1:.1%}"] if reference.weighted_f1 > 0 else []
    if apart.of_records is not None:
        shares.append(f"standard error over test records {apart.of_records:.3f}")
        shares += ["no conclusion"] * (not apart.conclusive)
    share = f" ({'; '.join(shares)})" if shares else ""
    side = "below" if apart.gap <= 0 else "above"
    lacking = "" if reference.trainable == "full" else f", {_MISSING_REFERENCES.get(reference.trainable, _OTHERS)}"
    return f"{abs(apart.gap):.3f}{share} {side} {reference.title} ({describe_score(reference)}{lacking})"


_OTHERS = "the best that was compared; adapters or a whole encoder may do better"
_MISSING_REFERENCES = {
    "head": "a head; adapters or a whole encoder without privacy were not compared",
    "lora": "with adapters; a whole encoder without privacy was not compared",
}
"""Fits without privacy that may do better than the reference, by the part that the reference trained."""


def describe_score(one: Figures) -> str:
    """Returns mean and spread of the weighted F1."""
    return f"{one.weighted_f1:.3f}" + (f" ± {one.spread:.3f} over {one.seeds} seeds" if one.seeds > 1 else "")


def _nothing(branches: Sequence[Figures]) -> str:
    formal = [one for one in branches if one.kind == "formal"]
    claimed = [one for one in branches if one.kind != "none"]
    if formal:
        reasons = sorted({f"{one.title}: {exclusion_reason(one)}" for one in formal})
        return f"Nothing here should be released: {'; '.join(reasons)}."
    if not claimed:
        return "Nothing here should be released: no branch has a guarantee; compare a formal one."
    refuted = sum(one.audit == CONTRADICTED for one in claimed)
    also = f", and {refuted} of {len(claimed)} claims are contradicted by an audit" if refuted else ""
    return f"Nothing here should be released: no branch has a formal guarantee{also}; compare a formal one."


def _measured(one: Figures) -> str:
    if one.audit is None:
        return "it was not audited"
    bound = "" if one.lower_bound is None else f" (it leaks at least ε {one.lower_bound:.3g})"
    return f"its audit: {one.audit}{bound}"


def _best(one: Figures) -> tuple[float, float, float, str]:
    return one.weighted_f1, -(one.epsilon or 0.0), -(one.delta or 0.0), one.name


def _as_good(one: Figures, best: Figures) -> bool:
    """Checks that no conclusion says that the best is ahead; the others never exceed it."""
    return not best.minus(one).conclusive


_SAME = 1.01
"""Epsilons within a hundredth are the same: noise is solved for a target to half a percent, and never above it."""


def _replaced(one: Figures) -> float:
    """Returns epsilon for one record replaced; where it was not computed, that of one removed and one added."""
    assert one.epsilon is not None
    return one.epsilon_replaced or (one.epsilon if one.relation == "replace-one" else 2 * one.epsilon)


def _preference(one: Figures) -> tuple[float, float, float, str]:
    return one.delta or 0.0, -one.weighted_f1, _replaced(one), one.name
