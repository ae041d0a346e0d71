"""What a comparison found: one result a branch and seed, its claim, its ledger row, and aggregates over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from storage.artifacts import digest
from tasks.branches.outcome import Outcome, Study
from tasks.releasing import rows


class BranchSummary(BaseModel):
    """One branch over its seeds: means, and sample standard deviations (0 for one seed)."""

    model_config = ConfigDict(frozen=True)

    branch: str
    title: str
    guarantee_kind: str
    epsilon: float | None
    epsilon_spread: float
    delta: float | None
    delta_text: str
    seeds: int
    mean: dict[str, float]
    spread: dict[str, float]
    cost: dict[str, float]
    unprotected: tuple[str, ...]


def record(study: Study, outcomes: Sequence[Outcome], *, prefect_run_id: str | None) -> None:
    """Write each branch's claim to the ledger, as internal: no draw leaves, nothing is charged."""
    for outcome in outcomes:
        rows.record(
            study.context,
            study.parameters,
            label=f"compare: {outcome.branch.name}, seed {outcome.seed}",
            dataset=study.dataset,
            refs={"fit": outcome.fitted, "measures": outcome.measured},
            details={k: v for k, v in outcome.figures.items() if isinstance(v, int | float)},
            event=outcome.event,
            claim=outcome.claim,
            key=f"compare-{outcome.measured.sha256}",
            settings=digest(study.settings.model_dump(mode="json")),
            prefect_run_id=prefect_run_id,
        )


def summarise(outcomes: Sequence[Outcome]) -> list[BranchSummary]:
    """Means and spreads of each branch, in the order in which the branches came."""
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.branch.name, []).append(outcome)
    return [_summary(group) for group in grouped.values()]


def _summary(group: list[Outcome]) -> BranchSummary:
    first, claim = group[0], group[0].claim
    # a zero comes back from JSON as an int; a figure that one seed lacks has no mean
    names = [n for n in first.figures if all(isinstance(o.figures.get(n), int | float) for o in group)]
    values = {n: [float(o.figures[n]) for o in group] for n in names}
    epsilons = [o.claim.epsilon for o in group if o.claim.epsilon is not None]
    return BranchSummary(
        branch=first.branch.name,
        title=first.branch.title,
        guarantee_kind=claim.guarantee_kind,
        epsilon=statistics.fmean(epsilons) if epsilons else None,
        epsilon_spread=_spread(epsilons),
        delta=claim.delta,
        delta_text=claim.delta_text,
        seeds=len(group),
        mean={n: statistics.fmean(v) for n, v in values.items()},
        spread={n: _spread(v) for n, v in values.items()},
        cost={n: float(v) for n, v in first.cost.items() if isinstance(v, int | float)},
        unprotected=claim.unprotected_inputs,
    )


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def matched(epsilons: Sequence[float]) -> float:
    """The largest epsilon that SWAG-PPM came out with over the seeds, rounded up to a whole number."""
    return float(math.ceil(max(epsilons)))
