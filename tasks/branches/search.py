"""Searches the settings that meet a target epsilon. Each fit is recorded as tuning; finished fits are reused."""

from __future__ import annotations

from mechanisms.model import checkpoint
from mechanisms.posterior.target import search
from storage.ledger import SearchFit
from tasks.branches.experiment import Do
from tasks.branches.swag_chain import run_chain
from tasks.parameters import RetrainParameters
from tasks.releasing import ledger_records
from tasks.releasing.claims import claim_at
from tasks.running import progress
from tasks.running.stage import Context


def meet_target(
    context: Context, parameters: RetrainParameters, do: Do, *, prefect_run_id: str | None
) -> RetrainParameters:
    """Returns parameters whose c and k meet the target of mechanism `weighted`; others are returned unchanged.

    Fit by fit it runs the chain, and a retrain with these parameters reuses the fits.

    Raises:
        MechanismError: the target was not met.
    """
    config = parameters.pseudo_posterior
    target = config.target_epsilon
    if target is None or not parameters.needs_search:
        return parameters

    def delta(c: float, k: float | None) -> float:
        update = {"c": c, "g": 0.0, "k": config.k if k is None else k, "reweight": k is not None}
        changed = parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=update)})
        output, name = run_chain(changed, do, rounds=changed.rounds), changed.rounds[-1]
        event, claimed = output.claim(context.store, changed, name)
        chosen = {"c": c} if k is None else {"c": c, "k": k}
        ledger_records.record_evaluation(
            context,
            changed,
            subject=SearchFit(target_epsilon=target, round=name),
            dataset=output.dataset,
            refs={"posterior": output.posteriors[name], "sensitivity": output.measured[name]},
            details=chosen,
            event=event,
            claim=claimed,
            prefect_run_id=prefect_run_id,
        )
        shown = {"epsilon": claimed.epsilon, "target": target}
        progress.finished("search", chosen | shown, reused=False, seconds=0.0)
        return float(context.store.figures(output.measured[name])["sensitivity"])

    first = run_chain(parameters, do, rounds=("base",))
    risk = checkpoint.load(context.store.open(first.measured["base"]) / "weights.safetensors")[0]["risk"]
    event, unweighted = first.claim(context.store, parameters, "base")
    solution = search(
        epsilon=target,
        epsilon_at=lambda sensitivity: claim_at(sensitivity, event, unweighted).epsilon or 0.0,
        risk=risk,
        fit_weighted=lambda c: delta(c, None),
        fit_reweighted=delta if config.reweight else None,
    )
    chosen = {"c": solution.c, "g": 0.0, "k": config.k if solution.k is None else solution.k}
    return parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=chosen)})
