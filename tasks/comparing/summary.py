"""What a comparison found: one result a branch and seed, its claim, its ledger row, and aggregates over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef, digest
from storage.ledger import Evaluation
from tasks.branches.branch import Branch, CompareParameters
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import TRUST_MODEL, privacy_unit, unprotected_inputs
from tasks.releasing.publish import open_ledger
from tasks.running.provenance import provenance
from tasks.running.stage import Context

SMALLEST_EPSILON = 1e-4
"""Stated instead of less: at a delta near 1 epsilon 0 suffices, and a ledger's amount is above zero. A claim with a
larger epsilon holds as well."""

# Seeds of a branch share one event, and accounting for it takes seconds.
_claim_of = lru_cache(maxsize=64)(claim_of)


@dataclass(frozen=True)
class Outcome:
    """One branch at one seed."""

    branch: Branch
    seed: int
    event: Event
    fitted: ArtifactRef
    measured: ArtifactRef
    figures: dict[str, Any]
    losses: list[float]
    cost: dict[str, Any]
    """Figures of the accountants; empty where there is no formal cost."""


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


def claim(outcome: Outcome, parameters: RetrainParameters, compare: CompareParameters, facts: dict[str, Any]) -> Claim:
    """The claim that the event of an outcome supports."""
    unit, most = privacy_unit(parameters.data.ingest)
    inputs = unprotected_inputs(facts, weights=outcome.branch.round not in (None, "censored"))
    formal = outcome.branch.kind == "formal"
    made = _claim_of(
        outcome.event,
        delta=(outcome.branch.delta or compare.delta) if formal else None,
        privacy_unit=unit,
        max_records_per_unit=most,
        unprotected_inputs=(*inputs, *outcome.branch.unprotected),
    )
    if made.epsilon is not None and made.epsilon < SMALLEST_EPSILON:
        raised = {"epsilon": SMALLEST_EPSILON, "epsilon_add_remove": SMALLEST_EPSILON}
        made = made.model_copy(update=raised)
    return made


def record(
    context: Context,
    parameters: RetrainParameters,
    compare: CompareParameters,
    outcomes: Sequence[tuple[Outcome, Claim]],
    *,
    facts: dict[str, Any],
    prefect_run_id: str | None,
) -> None:
    """Write each branch's claim to the ledger, as internal: no draw leaves, nothing is charged."""
    ledger, source = open_ledger(context, parameters.release), provenance()
    for outcome, made in outcomes:
        ledger.record(
            Evaluation(
                label=f"compare: {outcome.branch.name}, seed {outcome.seed}",
                population=parameters.data.population,
                cohorts=tuple(facts["cohorts"]),
                data_fingerprint=facts["fingerprint"],
                records_rounded=facts["records"],
                event=outcome.event,
                claim=made,
                trust_model=TRUST_MODEL,
                code_commit=source.code_commit,
                code_dirty=source.code_dirty,
                lock_digest=source.lock_digest,
                parameters_digest=digest(compare.model_dump(mode="json")),
                artifact_digests={"fit": outcome.fitted.sha256, "measures": outcome.measured.sha256},
                requester=parameters.release.requester,
                prefect_run_id=prefect_run_id,
                idempotency_key=f"compare-{outcome.measured.sha256}",
                details={k: round(v, 6) for k, v in outcome.figures.items() if isinstance(v, int | float)},
            )
        )


def summarise(outcomes: Sequence[tuple[Outcome, Claim]]) -> list[BranchSummary]:
    """Means and spreads of each branch, in the order in which the branches came."""
    grouped: dict[str, list[tuple[Outcome, Claim]]] = {}
    for pair in outcomes:
        grouped.setdefault(pair[0].branch.name, []).append(pair)
    return [_summary(group) for group in grouped.values()]


def _summary(group: list[tuple[Outcome, Claim]]) -> BranchSummary:
    first, made = group[0]
    # a zero comes back from JSON as an int; a figure that one seed lacks has no mean
    names = [n for n in first.figures if all(isinstance(o.figures.get(n), int | float) for o, _ in group)]
    values = {n: [float(o.figures[n]) for o, _ in group] for n in names}
    epsilons = [c.epsilon for _, c in group if c.epsilon is not None]
    return BranchSummary(
        branch=first.branch.name,
        title=first.branch.title,
        guarantee_kind=made.guarantee_kind,
        epsilon=statistics.fmean(epsilons) if epsilons else None,
        epsilon_spread=_spread(epsilons),
        delta=made.delta,
        delta_text=made.delta_text,
        seeds=len(group),
        mean={n: statistics.fmean(v) for n, v in values.items()},
        spread={n: _spread(v) for n, v in values.items()},
        cost={n: float(v) for n, v in first.cost.items() if isinstance(v, int | float)},
        unprotected=made.unprotected_inputs,
    )


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def matched(epsilons: Sequence[float]) -> float:
    """The largest epsilon that SWAG-PPM came out with over the seeds, rounded up to a whole number."""
    return float(math.ceil(max(epsilons)))
