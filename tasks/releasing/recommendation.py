"""Which of several mechanisms should be released: one function from figures to a verdict and a sentence.

The rules, in this order; `docs/choosing.md` says why.

1. Out is what has no guarantee, what an audit contradicts, what the budget does not allow, and what nobody may release.
2. Of the rest only formal claims are recommended. An asymptotic-local one never is: if there is no formal one left, the
   answer is that nothing here should be released.
3. Among them the best mean weighted F1 wins; of those that are not worse by more than the spread allows, the smallest
   epsilon, then delta, then the better F1, then the name.
4. What it loses against the best fit without privacy is said, or that nobody measured it. So is a missing audit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mechanisms.privacy.events import GuaranteeKind, NeighbouringRelation

Verdict = Literal["fine", "look", "warning"]
AuditVerdict = Literal["contradicted", "not contradicted", "inconclusive"]
CONTRADICTED: AuditVerdict = "contradicted"


@dataclass(frozen=True)
class Figures:
    """What is known of one branch at one claim."""

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
    audit: AuditVerdict | None = None
    """None: nobody measured it."""
    lower_bound: float | None = None
    """Epsilon that an audit found it to leak at least."""
    refused: str = ""
    """Why the budget or a rule beside it would refuse it; empty: it would not, or that is not known."""

    @property
    def claim(self) -> str:
        """Kind and figures in words."""
        if self.epsilon is None:
            return "no guarantee"
        delta = "δ not quantified" if self.delta is None else f"δ {self.delta:g}"
        return f"{self.kind}, ε {self.epsilon:.4g}, {delta}, {self.relation}"


LARGE = 0.1
"""Share of the F1 without privacy from which a loss wants a look."""


@dataclass(frozen=True)
class Recommendation:
    """What is recommended, and the sentence that says so."""

    verdict: Verdict
    sentence: str
    chosen: Figures | None = None
    reference: Figures | None = None
    """The best fit without privacy, that losses are told against."""

    @property
    def loses_little(self) -> bool:
        """Whether what is recommended is known to lose no more than wants a look."""
        if self.chosen is None or self.reference is None:
            return False
        return self.reference.weighted_f1 - self.chosen.weighted_f1 <= LARGE * self.reference.weighted_f1


def recommend(branches: Sequence[Figures]) -> Recommendation:
    """The recommendation that these figures support; see the rules above. Their order does not matter."""
    reference = max((one for one in branches if one.kind == "none"), key=_best, default=None)
    allowed = [one for one in branches if one.kind == "formal" and not why_not(one)]
    if not allowed:
        return Recommendation("warning", _nothing(branches), reference=reference)
    best = max(allowed, key=_best)
    chosen = min((one for one in allowed if _as_good(one, best)), key=_cheapest)
    told = f"{loss_of(chosen, reference)}; {_measured(chosen)}"
    score = f"weighted F1 {score_of(chosen)}"
    return Recommendation(
        "fine" if chosen.audit == "not contradicted" else "look",
        f"Release {chosen.title} ({chosen.claim}): {score}, {told}.",
        chosen=chosen,
        reference=reference,
    )


def why_not(one: Figures) -> str:
    """Why a branch may not be recommended, whatever its figures; empty where it may."""
    if one.kind == "none" or one.epsilon is None:
        return "no guarantee"
    if one.audit == CONTRADICTED:
        return "contradicted by an audit"
    return one.refused or ("" if one.kind == "formal" else "asymptotic-local: estimated on these records, δ unknown")


def loss_of(one: Figures, reference: Figures | None) -> str:
    """How much worse it codes than the best fit without privacy, in words."""
    if reference is None:
        return "what it loses against a fit without privacy was not measured"
    gap = reference.weighted_f1 - one.weighted_f1
    share = f" ({abs(gap) / reference.weighted_f1:.1%})" if reference.weighted_f1 > 0 else ""
    side = "below" if gap >= 0 else "above"
    return f"{abs(gap):.3f}{share} {side} {reference.title} ({score_of(reference)})"


def score_of(one: Figures) -> str:
    """Mean and spread of the weighted F1."""
    return f"{one.weighted_f1:.3f}" + (f" ± {one.spread:.3f} over {one.seeds} seeds" if one.seeds > 1 else "")


def _nothing(branches: Sequence[Figures]) -> str:
    formal = [one for one in branches if one.kind == "formal"]
    claimed = [one for one in branches if one.kind != "none"]
    if formal:
        reasons = sorted({f"{one.title}: {why_not(one)}" for one in formal})
        return f"Nothing here should be released: {'; '.join(reasons)}."
    if not claimed:
        return "Nothing here should be released: no branch has a guarantee; compare a formal one."
    refuted = sum(one.audit == CONTRADICTED for one in claimed)
    also = f", and {refuted} of {len(claimed)} claims are contradicted by an audit" if refuted else ""
    return f"Nothing here should be released: no branch has a formal guarantee{also}; compare a formal one."


def _measured(one: Figures) -> str:
    if one.audit is None:
        return "nobody has audited it"
    bound = "" if one.lower_bound is None else f" (it leaks at least ε {one.lower_bound:.3g})"
    return f"its audit: {one.audit}{bound}"


def _best(one: Figures) -> tuple[float, float, float, str]:
    return one.weighted_f1, -(one.epsilon or 0.0), -(one.delta or 0.0), one.name


def _as_good(one: Figures, best: Figures) -> bool:
    """Not told apart by twice the root of both variances; only seeds can say so."""
    return best.weighted_f1 - one.weighted_f1 <= 2 * math.hypot(one.spread, best.spread)


def _cheapest(one: Figures) -> tuple[float, float, float, str]:
    assert one.epsilon is not None
    # what holds for a record replaced holds for one more or less too, at the same figures
    return one.epsilon, one.delta or 0.0, -one.weighted_f1, one.name
