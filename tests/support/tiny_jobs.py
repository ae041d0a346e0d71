"""Retrains of seconds on a tiny encoder, in the test's own process and without
Prefect around them.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from storage.demo_data import write_demo_data
from tasks.branches.experiment import Outcome, Study
from tasks.branches.plan import plan_release
from tasks.branches.released import released_branch
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
    round_name: str = "reweighted",
    target_epsilon: float | None = None,
    **pseudo_posterior: Any,
) -> RetrainParameters:
    """A head on mean-pooled features, except for `model`; epochs of fine-tuning and
    of collection.
    """
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
            "method": {
                "name": f"swag-ppm{'' if round_name == 'weighted' else '-reweighted'}",
                "target_epsilon": target_epsilon,
                "fine_tune": phase
                | {"optimiser": "adamw", "epochs": epochs[0], "length_bucketing": True},
                "collect": phase | {"optimiser": "sgd", "epochs": epochs[1]},
                "moments": {"rank": 2 if epochs[1] < 6 else epochs[1]},
                "pseudo_posterior": {"risk_draws": 5, "sensitivity_draws": 5} | pseudo_posterior,
            },
        }
    )


def with_settings(chosen: RetrainParameters, **changes: Any) -> RetrainParameters:
    """The same with other settings of its mechanism."""
    mechanism = chosen.method.mechanism.model_copy(update=changes)
    method = chosen.method.model_copy(update={"mechanism": mechanism})
    return chosen.model_copy(update={"method": method})


def workspace(home: Path, **options: Any) -> Context:
    """A workspace of a run on the CPU, made."""
    context = Context(home=str(home), device="cpu", **options)
    context.workspace.create()
    return context


@dataclass(frozen=True)
class Made:
    """The stages of a retrain: of each round, the last of which is released."""

    study: Study
    outcomes: list[Outcome]

    def of(self, name: str) -> Outcome:
        (found,) = (each for each in self.outcomes if each.mechanism.stage == name)
        return found


def fitted(context: Context, chosen: RetrainParameters) -> Made:
    """Every stage of a retrain, done or found finished."""
    branch, terms = released_branch(chosen)
    study = Study.of(context, chosen, terms, [branch], partial(run_step, context))
    return Made(study, study.experiment(branch).run_all())


def planned(context: Context, chosen: RetrainParameters, made: Made) -> PlannedRelease:
    study = replace(made.study, context=context, parameters=chosen)
    return plan_release(study, made.outcomes[-1])
