"""A branch that is one fit: plan its noise, fit at a seed, score it on the test half."""

from __future__ import annotations

from mechanisms.mechanism import Mechanism
from storage.artifacts import ArtifactRef
from tasks.branches.branch import Branch
from tasks.branches.outcome import Outcome, Study
from tasks.fitting import fits, scores
from tasks.running.stage import Step


def run(study: Study, branch: Branch, seed: int) -> Outcome:
    """Plan, fit, score."""
    store = study.context.store
    planned = study.do(plan(study, branch))
    fitted = study.do(fit(study, branch, seed, planned=planned))
    mechanism = fits.plan_of(store.open(planned)).mechanism
    event, figures = fits.event_of(store.open(fitted)), store.figures(fitted)
    measured = score(study, branch, mechanism, seed=seed, fitted=fitted)
    return Outcome(
        branch=branch,
        seed=seed,
        mechanism=mechanism,
        event=event,
        claim=study.claim(branch, event),
        fitted=fitted,
        measured=measured,
        figures=store.figures(measured),
        losses=figures.get("losses", []),
        cost=store.figures(planned),
    )


def plan(study: Study, branch: Branch) -> Step:
    """The stage that solves a branch's noise."""
    return fits.plan(branch.name, study.mechanism(branch), study.task(branch))


def fit(study: Study, branch: Branch, seed: int, *, planned: ArtifactRef) -> Step:
    """The stage that fits a branch's plan at one seed."""
    model = branch.model(study.parameters)
    return fits.fit(branch.name, branch.mechanism, model, seed=seed, planned=planned, **study.records)


def score(study: Study, branch: Branch, mechanism: Mechanism, *, seed: int, fitted: ArtifactRef) -> ArtifactRef:
    """Scores on the test half of a fit, or of one repeatable draw of a posterior."""
    model = branch.model(study.parameters)
    predictions = study.do(fits.predict(branch.name, mechanism, model, seed=seed, fitted=fitted, **study.records))
    return study.do(scores.score(branch.name, seed=seed, predictions=predictions, **study.records))
