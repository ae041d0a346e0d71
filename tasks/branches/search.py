"""Searches the scale c that meet a target epsilon. Each fit is recorded as tuning; finished fits
are reused.
"""

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


def meet_target(context: Context, parameters: RetrainParameters, do: Do) -> RetrainParameters:
    """Returns parameters whose c meets their target epsilon; parameters without a target as they
    are.
    """
    config = parameters.pseudo_posterior
    target = config.target_epsilon
    if target is None:
        return parameters

    def delta(c: float) -> float:
        changed = _with_cut(parameters, c)
        output, name = run_chain(changed, do, rounds=changed.rounds), changed.rounds[-1]
        event, claimed = output.claim(context.store, changed, name)
        ledger_records.record_evaluation(
            context,
            changed,
            subject=SearchFit(target_epsilon=target, round=name),
            dataset=output.dataset,
            refs={"posterior": output.posteriors[name], "sensitivity": output.measured[name]},
            details={"c": c},
            event=event,
            claim=claimed,
            prefect_run_id=context.run.id,
        )
        progress.finished(
            "search",
            {"c": c, "epsilon": claimed.epsilon, "target": target},
            reused=False,
            seconds=0.0,
        )
        return float(context.store.figures(output.measured[name])["sensitivity"])

    first = run_chain(parameters, do, rounds=("base",))
    risk = checkpoint.load(context.store.open(first.measured["base"]) / "weights.safetensors")[0][
        "risk"
    ]
    event, unweighted = first.claim(context.store, parameters, "base")
    goal = target / (
        claim_at(1.0, event, unweighted).epsilon or 0.0
    )  # an epsilon is proportional to its Delta
    return _with_cut(parameters, search(goal, risk=risk, fit=delta))


def _with_cut(parameters: RetrainParameters, c: float) -> RetrainParameters:
    config = parameters.pseudo_posterior.model_copy(update={"c": c, "g": 0.0})
    return parameters.model_copy(update={"pseudo_posterior": config})
