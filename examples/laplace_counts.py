"""Defines a mechanism with pure epsilon: naive Bayes on word counts with Laplace noise. See
docs/how-to/add-a-mechanism.md.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field

from mechanisms.descent.keyed_state import FILE, KeyedState
from mechanisms.mechanism import CalibratedMechanism, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import checkpoint
from mechanisms.model.classifier import build
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, Inputs
from mechanisms.privacy.claims import ProtectedUnit, claim_of, claims
from mechanisms.privacy.events import Claim, Event


class LaplaceReleaseEvent(Event, frozen=True):
    mechanism: Literal["laplace-release"] = "laplace-release"
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)  # scale of the noise / sensitivity
    l1_sensitivity: float = Field(gt=0, allow_inf_nan=False)


@claims(LaplaceReleaseEvent)
def _claim(event: LaplaceReleaseEvent, *, delta: float | None, unit: ProtectedUnit) -> Claim:
    return Claim(
        guarantee_kind="formal",
        epsilon=unit["max_records_per_unit"] / event.noise_multiplier,
        delta=0.0,
        delta_text="0: the densities differ by at most a factor of e^epsilon everywhere",
        neighbouring_relation="add-remove",
        accountant="Laplace mechanism (Dwork, McSherry, Nissim and Smith 2006)",
        assumptions=(
            "sums are of integers, and the noise is rounded without error",
            "the noise comes from a secret AES-256 stream, which is assumed to look random",
        ),
        **unit,
    )


def _counts(inputs: Inputs) -> torch.Tensor:
    assert isinstance(inputs, FeatureInputs)
    return inputs.features.double().clamp(min=0)


@dataclass(frozen=True)
class NaiveBayes:
    weights: torch.Tensor  # float64 [classes, words + 1]: log shares of words, log share of class

    def log_probabilities(self, inputs: Inputs) -> torch.Tensor:
        return (_counts(inputs) @ self.weights[:, :-1].T + self.weights[:, -1]).log_softmax(-1)

    def save(self, folder: Path) -> None:
        checkpoint.save(folder / FILE, {"weights": self.weights}, {})


@registered
class LaplaceCounts(CalibratedMechanism, frozen=True):
    kind: Literal["laplace-counts"] = "laplace-counts"
    reads: ClassVar[frozenset[str]] = frozenset({"features", "head-features"})

    def calibrate(self, task: Task) -> float:
        assert self.target_epsilon is not None
        return task.records_per_unit / self.target_epsilon

    def event(self, noise: float, task: Task) -> LaplaceReleaseEvent:
        # a record adds shares of words with a sum <= 1, and a count, to one row
        return LaplaceReleaseEvent(noise_multiplier=noise, l1_sensitivity=2)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        assert isinstance(plan.event, LaplaceReleaseEvent)
        state = KeyedState(run.folder, run.new_key)
        if state.is_finished:
            return Fitted(NaiveBayes(state.tensors["weights"]), plan.event)
        shares = torch.nn.functional.normalize(_counts(records.inputs), p=1, dim=1)
        vectors = torch.nn.functional.pad(shares, (0, 1), value=1.0).mul(2**30 - 1).trunc()
        table = torch.zeros(run.classes, vectors.shape[1]).double()
        table.index_add_(0, records.labels, vectors)
        scale = Fraction(plan.event.noise_multiplier) * Fraction(plan.event.l1_sensitivity) * 2**30
        state.stream.add_rounded_laplace_(table, scale=scale, purpose="table", step=0)
        table = table.clamp(min=2**30)  # post-processing: a share is positive
        words = table[:, :-1] / table[:, :-1].sum(1, keepdim=True)
        model = NaiveBayes(torch.cat([words, table[:, -1:]], 1).log())
        state.finish(weights=model.weights)
        return Fitted(model, plan.event)

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> NaiveBayes:
        return NaiveBayes(checkpoint.load(folder / FILE)[0]["weights"])


def main() -> None:
    """Plans for epsilon 2 per record, fits on synthetic word counts, prints accuracy and claim."""
    labels = torch.arange(600) % 3
    rates = 0.5 + 2 * torch.eye(3, 12)
    training, test = (FeatureInputs(torch.poisson(rates[labels])) for _ in range(2))
    run = Run(
        classes=3,
        seed=0,
        classifier=lambda: build(ModelConfig(pooling="none"), num_labels=3, seed=0, width=12),
    )
    plan = LaplaceCounts(target_epsilon=2.0).plan(Task(records=600, classes=3))
    fit = plan.fit(Records(training, labels), run)
    claim = claim_of(
        fit.event, delta=None, privacy_unit="record", max_records_per_unit=1, unprotected_inputs=()
    )
    right = fit.model.log_probabilities(test).argmax(1) == labels
    print(f"accuracy {right.double().mean():.3f}\n{claim}")


if __name__ == "__main__":
    main()
