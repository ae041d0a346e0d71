"""Summarises a comparison over seeds, and records its claims in the ledger."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from storage.artifacts import digest
from storage.ledger import ComparisonFit
from tasks.branches.experiment import Outcome, Study
from tasks.fitting.scores import resampled_of
from tasks.releasing import ledger_records
from tasks.releasing.recommendation import Difference, Resampled
from tasks.running.stage import Context


class BranchSummary(BaseModel, frozen=True):
    """Aggregates one branch over its seeds: means, and sample standard deviations (0 for one seed)."""

    branch: str
    title: str
    guarantee_kind: str
    mechanism: str = ""
    """Tag of its event."""
    relation: str = "add-remove"
    """Neighbours that epsilon is for."""
    epsilon_replaced: float | None = None
    """Mean epsilon of one unit's values replaced, at the same delta: for one column of different relations."""
    epsilon: float | None
    epsilon_spread: float
    delta: float | None
    delta_text: str
    seeds: int
    mean: dict[str, float]
    spread: dict[str, float]
    cost: dict[str, float]
    unprotected: tuple[str, ...]
    settings_tried: int | None = None
    from_titles: bool = False
    record_errors: dict[str, float] = {}
    """Standard errors over test records of the mean over seeds, by score."""
    paired_errors: dict[str, dict[str, float]] = {}
    """Standard errors over test records of the difference to another branch, by score and the branch's name."""

    def minus(self, other: BranchSummary, score: str = "weighted_f1") -> Difference:
        """Returns this branch's mean score minus another's, with both errors."""
        return Difference(
            gap=self.mean[score] - other.mean[score],
            of_seeds=math.hypot(self.spread[score], other.spread[score]),
            of_records=self.paired_errors.get(score, {}).get(other.branch),
        )


def record_claims(study: Study, outcomes: Sequence[Outcome], *, prefect_run_id: str | None) -> None:
    """Writes each branch's claim to the ledger as internal: nothing is released or charged."""
    for outcome in outcomes:
        ledger_records.record_evaluation(
            study.context,
            study.parameters,
            subject=ComparisonFit(branch=outcome.branch.name, seed=outcome.seed),
            dataset=study.dataset,
            refs={"fit": outcome.fitted, "measures": outcome.measured},
            details={k: v for k, v in outcome.figures.items() if isinstance(v, int | float)},
            event=outcome.event,
            claim=outcome.claim,
            key=f"compare-{outcome.measured.sha256}",
            settings=digest(study.terms.model_dump(mode="json")),
            prefect_run_id=prefect_run_id,
        )


def by_branch(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Groups outcomes by the branch's name, in the order of the branches."""
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.branch.name, []).append(outcome)
    return grouped


def resampled_scores(context: Context, outcomes: Sequence[Outcome]) -> Resampled:
    """Returns the mean over a branch's seeds of each score on resamples of the test records. Private."""
    each = [resampled_of(context, outcome.measured) for outcome in outcomes]
    return {name: np.mean([one[name] for one in each], axis=0) for name in each[0]}


def summarise(outcomes: Sequence[Outcome], context: Context | None = None) -> list[BranchSummary]:
    """Returns means, spreads and errors of each branch, in the order of the branches.

    Args:
        context: where scores on resamples of the test records lie; without it there are no errors over test records.
    """
    grouped = by_branch(outcomes)
    resampled = {} if context is None else {name: resampled_scores(context, group) for name, group in grouped.items()}
    return [_summary(group, name, resampled) for name, group in grouped.items()]


def _summary(group: list[Outcome], name: str, resampled: Mapping[str, Resampled]) -> BranchSummary:
    first, claim = group[0], group[0].claim
    # a zero comes back from JSON as an int; a figure that one seed lacks has no mean
    names = [n for n in first.figures if all(isinstance(o.figures.get(n), int | float) for o in group)]
    values = {n: [float(o.figures[n]) for o in group] for n in names}
    replaced = [o.claim.epsilon_replaced for o in group if o.claim.epsilon_replaced is not None]
    epsilons = [o.claim.epsilon for o in group if o.claim.epsilon is not None]
    return BranchSummary(
        branch=first.branch.name,
        title=first.branch.title,
        guarantee_kind=claim.guarantee_kind,
        mechanism=first.event.mechanism,
        relation=claim.neighbouring_relation,
        epsilon=statistics.fmean(epsilons) if epsilons else None,
        epsilon_replaced=statistics.fmean(replaced) if replaced else None,
        epsilon_spread=_spread(epsilons),
        delta=claim.delta,
        delta_text=claim.delta_text,
        seeds=len(group),
        mean={n: statistics.fmean(v) for n, v in values.items()},
        spread={n: _spread(v) for n, v in values.items()},
        cost={n: float(v) for n, v in first.cost.items() if isinstance(v, int | float)},
        unprotected=claim.unprotected_inputs,
        settings_tried=first.branch.settings_tried,
        from_titles=first.branch.prior == "titles",
        record_errors={score: float(np.std(of, ddof=1)) for score, of in resampled.get(name, {}).items()},
        paired_errors={
            score: {
                other: float(np.std(of - theirs[score], ddof=1)) for other, theirs in resampled.items() if other != name
            }
            for score, of in resampled.get(name, {}).items()
        },
    )


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def round_up_target(epsilons: Sequence[float]) -> float:
    """Returns the largest epsilon that SWAG-PPM claims over the seeds, rounded up to a whole number."""
    return float(math.ceil(max(epsilons)))
