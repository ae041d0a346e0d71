"""Searches the settings that meet a target epsilon. Each fit is recorded as tuning; finished fits are reused."""

from __future__ import annotations

from mechanisms.model import checkpoint
from mechanisms.posterior.rounds import RoundName
from mechanisms.posterior.target import search
from mechanisms.privacy.events import Claim
from storage.artifacts import ArtifactRef
from storage.ledger import SearchFit
from tasks.branches.experiment import Do
from tasks.branches.swag_chain import Chain, run_chain
from tasks.parameters import RetrainParameters
from tasks.releasing import ledger_records
from tasks.releasing.claims import claim_at
from tasks.running import progress
from tasks.running.stage import Context


def needs_search(parameters: RetrainParameters) -> bool:
    """Checks whether a target epsilon leaves c and k to be searched."""
    config = parameters.pseudo_posterior
    return config.target_epsilon is not None and config.mechanism == "weighted"


def meet_target(
    context: Context, parameters: RetrainParameters, do: Do, *, prefect_run_id: str | None
) -> RetrainParameters:
    """Returns parameters whose c and k meet the target of mechanism `weighted`; others are returned unchanged.

    Fit by fit it runs the chain, and a retrain with these parameters reuses the fits.

    Raises:
        MechanismError: the target was not met.
    """
    config = parameters.pseudo_posterior
    if config.target_epsilon is None or not needs_search(parameters):
        return parameters

    def delta(c: float, k: float | None) -> float:
        update = {"c": c, "g": 0.0, "k": config.k if k is None else k, "reweight": k is not None}
        changed = parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=update)})
        output, name = run_chain(changed, do, rounds=changed.rounds), changed.rounds[-1]
        claimed = _record(context, changed, output, name, prefect_run_id=prefect_run_id)
        chosen = {"c": c} if k is None else {"c": c, "k": k}
        shown = {"epsilon": claimed.epsilon, "target": config.target_epsilon}
        progress.finished("search", chosen | shown, reused=False, seconds=0.0)
        return float(context.store.figures(_need(output.measured[name]))["sensitivity"])

    first = run_chain(parameters, do, rounds=("base",))
    risk = checkpoint.load(context.store.open(_need(first.measured["base"])) / "weights.safetensors")[0]["risk"]
    event, unweighted = first.claim(context.store, parameters, "base")
    solution = search(
        epsilon=config.target_epsilon,
        epsilon_at=lambda sensitivity: claim_at(sensitivity, event, unweighted).epsilon or 0.0,
        risk=risk,
        fit_weighted=lambda c: delta(c, None),
        fit_reweighted=delta if config.reweight else None,
    )
    chosen = {"c": solution.c, "g": 0.0, "k": config.k if solution.k is None else solution.k}
    return parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=chosen)})


def _record(
    context: Context, parameters: RetrainParameters, output: Chain, name: RoundName, *, prefect_run_id: str | None
) -> Claim:
    """Writes the claim of a fit to the ledger and returns it."""
    config = parameters.pseudo_posterior
    event, claimed = output.claim(context.store, parameters, name)
    settings = {"c": config.c} | ({"k": config.k} if name == "reweighted" else {})
    ledger_records.record_evaluation(
        context,
        parameters,
        subject=SearchFit(target_epsilon=config.target_epsilon or 0.0, round=name),
        dataset=_need(output.dataset),
        refs={"posterior": _need(output.posteriors[name]), "sensitivity": _need(output.measured[name])},
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
