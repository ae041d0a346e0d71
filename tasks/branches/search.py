"""From a target epsilon to settings: fits of the chain, each recorded as tuning; finished ones are reused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from mechanisms.model import checkpoint
from mechanisms.posterior.target import search
from storage.artifacts import ArtifactRef
from tasks.parameters import RetrainParameters
from tasks.releasing import rows
from tasks.releasing.claims import claim, privacy_unit, swag_event
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
    _, unit = privacy_unit(parameters.data.ingest)

    def delta(c: float, k: float | None) -> float:
        update = {"c": c, "g": 0.0, "k": config.k if k is None else k, "reweight": k is not None}
        changed = parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=update)})
        made, name = fit(changed, changed.rounds), changed.rounds[-1]
        _record(context, changed, made, name, prefect_run_id=prefect_run_id)
        found = float(context.store.figures(_need(made.measured[name]))["sensitivity"])
        chosen = {"c": c} if k is None else {"c": c, "k": k}
        told = {"epsilon": 2 * unit * found, "target": config.target_epsilon}
        progress.finished("search", chosen | told, reused=False, seconds=0.0)
        return found

    first = fit(parameters, ("base",))
    risk = checkpoint.load(context.store.open(_need(first.measured["base"])) / "weights.safetensors")[0]["risk"]
    found = search(
        epsilon=config.target_epsilon / unit,
        risk=risk,
        fit_weighted=lambda c: delta(c, None),
        fit_reweighted=delta if config.reweight else None,
    )
    chosen = {"c": found.c, "g": 0.0, "k": config.k if found.k is None else found.k}
    return parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=chosen)})


def _record(
    context: Context, parameters: RetrainParameters, made: Fitted, name: str, *, prefect_run_id: str | None
) -> None:
    store, config = context.store, parameters.pseudo_posterior
    dataset, posterior, measured = _need(made.dataset), _need(made.posteriors[name]), _need(made.measured[name])
    moments = store.figures(posterior)
    event = swag_event(
        parameters, name, snapshots=moments["snapshots"], rank=moments["rank"], figures=store.figures(measured)
    )
    settings = {"c": config.c} | ({"k": config.k} if name == "reweighted" else {})
    rows.record(
        context,
        parameters,
        label=f"tuning for epsilon {config.target_epsilon:g}: {name}",
        dataset=dataset,
        refs={"posterior": posterior, "sensitivity": measured},
        details=settings,
        event=event,
        claim=claim(parameters, event, store.figures(dataset)),
        prefect_run_id=prefect_run_id,
    )


def _need(ref: ArtifactRef | None) -> ArtifactRef:
    if ref is None:
        raise RuntimeError("a stage left no output")
    return ref
