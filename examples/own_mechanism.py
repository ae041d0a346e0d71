"""Defines a mechanism in one file: class means of directions, with noise. See
docs/how-to/add-a-mechanism.md.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, Literal

import torch

from mechanisms.descent.keyed_state import FILE, KeyedState
from mechanisms.mechanism import CalibratedMechanism, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import checkpoint
from mechanisms.model.classifier import build
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, Inputs
from mechanisms.privacy import claims
from mechanisms.privacy.events import GaussianReleaseEvent


def _directions(inputs: Inputs) -> torch.Tensor:
    assert isinstance(inputs, FeatureInputs)
    return torch.nn.functional.normalize(inputs.features.double(), dim=1)


@dataclass(frozen=True)
class NearestMean:
    means: torch.Tensor  # float64 [classes, width], from noisy sums and noisy counts

    def log_probabilities(self, inputs: Inputs) -> torch.Tensor:
        return (-5 * torch.cdist(_directions(inputs), self.means).square()).log_softmax(-1)

    def save(self, folder: Path) -> None:
        checkpoint.save(folder / FILE, {"means": self.means}, {})


@registered
class OutputPerturbation(CalibratedMechanism, frozen=True):
    kind: Literal["output-perturbation"] = "output-perturbation"
    reads: ClassVar[frozenset[str]] = frozenset({"features", "head-features"})

    def event(self, noise: float, task: Task) -> GaussianReleaseEvent:
        # a record adds a vector of norm <= 1 and a count to one row
        return GaussianReleaseEvent(
            what="sums and counts", noise_multiplier=noise, l2_sensitivity=2**0.5, exact=True
        )

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        assert isinstance(plan.event, GaussianReleaseEvent)
        state = KeyedState(run.folder, run.new_key)
        if state.is_finished:
            return Fitted(NearestMean(state.tensors["means"]), plan.event)
        # integers in units of 2^-30, cut towards zero, so that sums are exact and noise is rounded
        # without error
        vectors = (
            torch.nn.functional.pad(_directions(records.inputs), (0, 1), value=1.0)
            .mul(2**30 - 1)
            .trunc()
        )
        table = (
            torch.zeros(run.classes, vectors.shape[1])
            .double()
            .index_add_(0, records.labels, vectors)
        )
        std = Fraction(plan.event.noise_multiplier) * Fraction(plan.event.l2_sensitivity) * 2**30
        state.stream.add_rounded_normal_(table, std=std, purpose="table", step=0)
        model = NearestMean(table[:, :-1] / table[:, -1:].clamp(min=2**30))
        state.finish(means=model.means)
        return Fitted(model, plan.event)

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> NearestMean:
        return NearestMean(checkpoint.load(folder / FILE)[0]["means"])


def main() -> None:
    """Plans for epsilon 2 per record, fits on synthetic records, prints accuracy and claim."""
    labels = torch.arange(600) % 3
    training, test = (
        FeatureInputs(2 * torch.eye(3, 8)[labels] + torch.randn(600, 8)) for _ in range(2)
    )
    run = Run(
        classes=3,
        seed=0,
        classifier=lambda: build(ModelConfig(pooling="none"), num_labels=3, seed=0, width=8),
    )
    plan = OutputPerturbation(target_epsilon=2.0, delta=1e-5).plan(Task(records=600, classes=3))
    fit = plan.fit(Records(training, labels), run)
    claim = claims.claim_of(
        fit.event, delta=1e-5, privacy_unit="record", max_records_per_unit=1, unprotected_inputs=()
    )
    right = fit.model.log_probabilities(test).argmax(1) == labels
    print(f"accuracy {right.double().mean():.3f}\n{claim.model_dump_json(indent=2)}")


if __name__ == "__main__":
    main()
