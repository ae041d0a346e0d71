"""Retrains of seconds on a tiny encoder, in the test's own process and without Prefect around them."""

from functools import partial
from pathlib import Path
from typing import Any

from storage.demo_data import write_demo_data
from tasks.branches.swag_chain import Chain, run_chain
from tasks.parameters import RetrainParameters
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context, run_step


def demo(folder: Path, records: int = 240, **changes: Any) -> dict[str, Any]:
    """Synthetic narratives with their code list, as the data of a retrain."""
    written = write_demo_data(folder, records=records, seed=3)
    return {"source": str(written.csv), "codelist": str(written.codelist), "ingest": {}} | changes


def retrain(
    data: dict[str, Any],
    encoder: Path,
    *,
    model: dict[str, Any] | None = None,
    epochs: tuple[int, int] = (1, 3),
    rate: float = 0.01,
    **pseudo_posterior: Any,
) -> RetrainParameters:
    """A head on mean-pooled features, except for `model`; epochs of fine-tuning and of collection."""
    phase = {"batch_size": 8, "learning_rate": rate}
    head = {
        "encoder": str(encoder),
        "trainable": "head",
        "pooling": "mean",
        "max_length": 32,
        "lora_rank": 2,
    }
    return RetrainParameters.model_validate(
        {
            "data": data,
            "model": head | (model or {}),
            "fit": {
                "adamw": phase
                | {"optimiser": "adamw", "epochs": epochs[0], "length_bucketing": True},
                "sgd": phase | {"optimiser": "sgd", "epochs": epochs[1]},
                "swag": {"rank": 2 if epochs[1] < 6 else epochs[1]},
            },
            "pseudo_posterior": {"risk_draws": 5, "sensitivity_draws": 5} | pseudo_posterior,
        }
    )


def workspace(home: Path, **options: Any) -> Context:
    """A workspace of a run on the CPU, made."""
    context = Context(home=str(home), device="cpu", **options)
    context.workspace.create()
    return context


def fitted(context: Context, chosen: RetrainParameters) -> Chain:
    """Every stage of a retrain, done or found finished."""
    return run_chain(chosen, partial(run_step, context))


def planned(context: Context, chosen: RetrainParameters, made: Chain) -> PlannedRelease:
    last = chosen.rounds[-1]
    refs: Any = {"dataset": made.dataset, "prepared": made.prepared, "prefect_run_id": None}
    refs |= {"posterior": made.posteriors[last], "measured": made.measured[last]}
    return PlannedRelease.of_posterior(context, chosen, **refs)
