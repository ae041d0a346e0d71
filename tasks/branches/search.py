"""From a target epsilon to settings: fits of the chain, each recorded as tuning; finished ones are reused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from mechanisms.model import checkpoint
from mechanisms.posterior.target import search
from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef
from tasks.parameters import RetrainParameters
from tasks.releasing import rows
from tasks.releasing.claims import claim, claim_at, swag_event
from tasks.running import progress
from tasks.running.stage import Context


class Fitted(Protocol):
    """What the chain of some parameters made."""

    @property
    def dataset(self) -> ArtifactRef | None:
        """The records."""
        ...

    @property
    def posteriors(self) -> Mapping[str, ArtifactRef | None]:
        """By round."""
        ...

    @property
    def measured(self) -> Mapping[str, ArtifactRef | None]:
        """By round."""
        ...


def searches(parameters: RetrainParameters) -> bool:
    """Whether a target epsilon leaves c and k to be found."""
    config = parameters.pseudo_posterior
    return config.target_epsilon is not None and config.mechanism == "weighted"


def settle(
    context: Context,
    parameters: RetrainParameters,
    fit: Callable[[RetrainParameters, tuple[str, ...]], Fitted],
    *,
    prefect_run_id: str | None,
) -> RetrainParameters:
    """Parameters whose c and k meet the target of mechanism `weighted`; others come back as they are.

    Args:
        fit: the chain of these parameters, as far as these rounds.

    Raises:
        MechanismError: the target was not met.
    """
    config = parameters.pseudo_posterior
    if config.target_epsilon is None or not searches(parameters):
        return parameters

    def delta(c: float, k: float | None) -> float:
        update = {"c": c, "g": 0.0, "k": config.k if k is None else k, "reweight": k is not None}
        changed = parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=update)})
        made, name = fit(changed, changed.rounds), changed.rounds[-1]
        claimed = _record(context, changed, made, name, prefect_run_id=prefect_run_id)
        chosen = {"c": c} if k is None else {"c": c, "k": k}
        shown = {"epsilon": claimed.epsilon, "target": config.target_epsilon}
        progress.finished("search", chosen | shown, reused=False, seconds=0.0)
        return float(context.store.figures(_need(made.measured[name]))["sensitivity"])

    first = fit(parameters, ("base",))
    risk = checkpoint.load(context.store.open(_need(first.measured["base"])) / "weights.safetensors")[0]["risk"]
    event, unweighted = _claim(context, parameters, first, "base")
    found = search(
        epsilon=config.target_epsilon,
        epsilon_at=lambda sensitivity: claim_at(sensitivity, event, unweighted).epsilon or 0.0,
        risk=risk,
        fit_weighted=lambda c: delta(c, None),
        fit_reweighted=delta if config.reweight else None,
    )
    chosen = {"c": found.c, "g": 0.0, "k": config.k if found.k is None else found.k}
    return parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=chosen)})


def _claim(context: Context, parameters: RetrainParameters, made: Fitted, name: str) -> tuple[Event, Claim]:
    """What was done in a round, and what it claims."""
    moments, figures = (context.store.figures(_need(refs[name])) for refs in (made.posteriors, made.measured))
    event = swag_event(parameters, name, snapshots=moments["snapshots"], rank=moments["rank"], figures=figures)
    return event, claim(parameters, event, context.store.figures(_need(made.dataset)))


def _record(
    context: Context, parameters: RetrainParameters, made: Fitted, name: str, *, prefect_run_id: str | None
) -> Claim:
    """Write the claim of a fit to the ledger; return it."""
    config = parameters.pseudo_posterior
    event, claimed = _claim(context, parameters, made, name)
    settings = {"c": config.c} | ({"k": config.k} if name == "reweighted" else {})
    rows.record(
        context,
        parameters,
        label=f"tuning for epsilon {config.target_epsilon:g}: {name}",
        dataset=_need(made.dataset),
        refs={"posterior": _need(made.posteriors[name]), "sensitivity": _need(made.measured[name])},
        details=settings,
        event=event,
        claim=claimed,
        prefect_run_id=prefect_run_id,
    )
    return claimed


def _need(ref: ArtifactRef | None) -> ArtifactRef:
    if ref is None:
        raise RuntimeError("a stage left no output")
    return ref
