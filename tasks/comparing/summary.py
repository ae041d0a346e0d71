"""Summarises a comparison over seeds and resamples of the held-out records, and records
its claims in the ledger.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from mechanisms.privacy.events import GuaranteeKind, NeighbouringRelation
from storage.artifacts import digest
from storage.ledger import ComparisonFit, SearchFit, Sensitivity, Subject
from tasks.branches.experiment import Outcome, Study
from tasks.comparing.run import Group
from tasks.fitting.scores import resampled_of
from tasks.releasing import ledger_records
from tasks.running.stage import Context

SCORES = ("weighted_f1", "macro_f1")


class Difference(BaseModel, frozen=True):
    """Difference of a branch's mean score from another branch's, with its standard errors over
    seeds and, paired, over held-out records.
    """

    gap: float
    of_seeds: float
    of_records: float

    @property
    def conclusive(self) -> bool:
        return abs(self.gap) > 2 * max(self.of_seeds, self.of_records)


class BranchSummary(BaseModel, frozen=True):
    """One branch at one target over its seeds: means and sample standard deviations
    (0 for one seed).
    """

    branch: str
    title: str
    guarantee_kind: GuaranteeKind
    relation: NeighbouringRelation
    """Neighbouring relation of epsilon."""
    epsilon: float | None
    """Largest claim among the seeds."""
    epsilon_replaced: float | None
    """Epsilon if one unit's values are replaced, which is comparable between all branches."""
    delta: float | None
    seeds: int
    settings_tried: int | None
    """Number of settings that the branch's own were chosen from."""
    from_titles: bool
    unprotected: tuple[str, ...]
    seconds: float | None
    """Seconds of one seed's stages, excluding stages that all branches share. None if some ran
    outside this workspace.
    """
    mean: dict[str, float]
    spread: dict[str, float]
    record_errors: dict[str, float]
    """Standard errors over held-out records of the mean over seeds, by score."""
    difference: dict[str, Difference]
    """Difference from the first branch of the table, by score; empty for the first branch."""


def record_claims(
    study: Study, outcomes: Sequence[Outcome], *, earlier: Sequence[Outcome] = ()
) -> None:
    """Records each branch's claim in the ledger as internal. Nothing is released or charged.

    Args:
        earlier: scored fits that an outcome continues.
    """
    for outcome in (*earlier, *outcomes):
        _record_search(study, outcome)
        subject: Subject = ComparisonFit(branch=outcome.branch.name, seed=outcome.seed)
        if outcome in earlier:
            subject = Sensitivity(round=outcome.mechanism.stage)
        ledger_records.record_evaluation(
            study.context,
            study.parameters,
            subject=subject,
            dataset=study.dataset,
            refs={"fit": outcome.fitted, "measures": outcome.measured},
            details={k: v for k, v in outcome.figures.items() if v is not None},
            event=outcome.event,
            claim=outcome.claim,
            key=f"compare-{outcome.measured.sha256}",
            settings=digest(study.terms.model_dump(mode="json")),
            prefect_run_id=study.context.run.id,
        )


def _record_search(study: Study, outcome: Outcome) -> None:
    """Writes a row for each fit of a search, because the search tuned the mechanism
    on these records.
    """
    search = outcome.search
    if search is None:
        return
    for trial in search.trials:
        values = " ".join(f"{name}={value!r}" for name, value in trial.settings.items())
        ledger_records.record_evaluation(
            study.context,
            study.parameters,
            subject=SearchFit(target_epsilon=search.target_epsilon, round=outcome.mechanism.stage),
            dataset=study.dataset,
            refs={"fit" if trial.kept else "search": outcome.fitted},
            details=trial.settings,
            event=trial.event,
            claim=study.experiment(outcome.branch, outcome.seed).claim(trial.event, search),
            key=f"search-{outcome.fitted.sha256} {values}",
            prefect_run_id=study.context.run.id,
        )


def summarise(groups: Sequence[Group], context: Context) -> list[BranchSummary]:
    """Summarises every group. Differences are from the first branch without
    privacy, or else from the first branch.
    """
    resampled = [_resampled(context, group.outcomes) for group in groups]
    kinds = [group.outcomes[0].claim.guarantee_kind for group in groups]
    first = kinds.index("none") if "none" in kinds else 0
    reference = groups[first], resampled[first]
    return [
        _summary(group, scores, reference) for group, scores in zip(groups, resampled, strict=True)
    ]


Resampled = Mapping[str, np.ndarray]
"""A branch's mean of each score over its seeds, float64 [resamples], on resamples
that all branches share.
"""


def _resampled(context: Context, outcomes: Sequence[Outcome]) -> Resampled:
    by_seed = [resampled_of(context, outcome.measured) for outcome in outcomes]
    return {name: np.mean([scores[name] for scores in by_seed], axis=0) for name in SCORES}


def _summary(
    group: Group, resampled: Resampled, reference: tuple[Group, Resampled]
) -> BranchSummary:
    first, claims, base = (
        group.outcomes[0],
        [outcome.claim for outcome in group.outcomes],
        reference[1],
    )
    mean, spread = _over_seeds(group.outcomes)
    base_mean, base_spread = _over_seeds(reference[0].outcomes)
    return BranchSummary(
        branch=first.branch.name,
        title=first.branch.shown,
        guarantee_kind=first.claim.guarantee_kind,
        relation=first.claim.neighbouring_relation,
        epsilon=max((claim.epsilon for claim in claims if claim.epsilon is not None), default=None),
        epsilon_replaced=max(
            (c.epsilon_replaced for c in claims if c.epsilon_replaced is not None), default=None
        ),
        delta=first.claim.delta,
        seeds=len(group.outcomes),
        settings_tried=first.branch.settings_tried,
        from_titles=first.branch.prior == "titles",
        unprotected=first.claim.unprotected_inputs,
        seconds=None if group.seconds is None else group.seconds / len(group.outcomes),
        mean=mean,
        spread=spread,
        record_errors={score: float(np.std(resampled[score], ddof=1)) for score in SCORES},
        difference={}
        if group is reference[0]
        else {
            score: Difference(
                gap=mean[score] - base_mean[score],
                of_seeds=math.hypot(spread[score], base_spread[score]),
                of_records=float(np.std(resampled[score] - base[score], ddof=1)),
            )
            for score in SCORES
        },
    )


def _over_seeds(outcomes: Sequence[Outcome]) -> tuple[dict[str, float], dict[str, float]]:
    # JSON reads a zero back as an int; a figure missing at one seed has no mean
    mean: dict[str, float] = {}
    spread: dict[str, float] = {}
    for name in outcomes[0].figures:
        of_seeds = [outcome.figures.get(name) for outcome in outcomes]
        known = [float(value) for value in of_seeds if value is not None]
        if len(known) == len(of_seeds):
            mean[name] = statistics.fmean(known)
            spread[name] = statistics.stdev(known) if len(known) > 1 else 0.0
    return mean, spread
