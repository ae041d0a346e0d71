"""The branches of a comparison: their names, and the settings each runs with.

`dp-sgd` and the delta sweep have the paper's setting (Chew et al., section 3.2) and its calibration. Every other
gradient-descent rival has the tuned one, so that what tells them apart is the mechanism and not the care taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from mechanisms.classifier import ModelConfig
from mechanisms.dpsgd import DpSgdConfig
from mechanisms.formal_head import FormalHeadConfig
from mechanisms.private_counts import ClassWeightsConfig
from mechanisms.schedules import AutoLinearSchedule, AutoStepSchedule, ConstantSchedule, SadSchedule, Schedule
from storage.errors import InputError

Family = Literal["none", "swag", "dp-sgd", "formal-head"]

TUNED_LEARNING_RATE = 3.0
TUNED_MOMENTUM = 0.9
TUNED_SAMPLING_PROB = 0.4
TUNED_EPOCHS = 20
"""The tuned setting of a head, with SGD: found on public OSHA reports with MiniLM features. For other trainable parts
only the larger batch is taken over; their rate stays the paper's."""

TUNING = (
    "hyperparameters: found on public OSHA severe injury reports, scored on a test half of them, without account; "
    "where these are the records at hand, the tuning is not part of the epsilon and the F1 is optimistic"
)


class CompareParameters(BaseModel):
    """What all branches share."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Compare")

    target_epsilon: float | Literal["match"] = Field(default="match", title="Target epsilon")
    delta: float = Field(default=1e-4, gt=0, lt=1, title="Delta")
    seeds: int = Field(default=5, ge=1, le=100, title="Seeds")
    epochs: int = Field(default=30, ge=1, le=10_000, title="Epochs", description="Of the non-private and DP-SGD fits.")
    batch_size: int = Field(default=512, ge=1, title="Expected batch of DP-SGD in the paper's setting")
    slots: int = Field(default=1, ge=1, le=64, title="Branches at once")


@dataclass(frozen=True)
class Branch:
    """One rival."""

    name: str
    title: str
    family: Family
    tuned: bool = False
    delta: float | None = None
    """Its own delta, for the sweep; None: the comparison's."""
    schedule: Schedule = field(default_factory=ConstantSchedule)
    class_weights: ClassWeightsConfig | None = None

    @property
    def kind(self) -> str:
        """The guarantee's kind."""
        return {"none": "none", "swag": "asymptotic-local"}.get(self.family, "formal")

    @property
    def unprotected(self) -> tuple[str, ...]:
        """What its settings took from records without account."""
        return (TUNING,) if self.tuned else ()


_ALL = (
    Branch("non-private", "Non-private", "none"),
    Branch("swag-ppm", "SWAG-PPM", "swag"),
    Branch("swag-ppm-reweighted", "SWAG-PPM (reweighted)", "swag"),
    Branch("dp-sgd", "DP-SGD (paper's setting)", "dp-sgd"),
    Branch("dp-sgd-tuned", "DP-SGD (tuned)", "dp-sgd", tuned=True),
    Branch(
        "dp-sgd-class-weighted",
        "DP-SGD, private class weights",
        "dp-sgd",
        tuned=True,
        class_weights=ClassWeightsConfig(power=0.5),
    ),
    Branch("sad", "SAD-DPSGD", "dp-sgd", tuned=True, schedule=SadSchedule()),
    Branch("auto-s", "Auto-DPSGD-S", "dp-sgd", tuned=True, schedule=AutoStepSchedule()),
    Branch("auto-l", "Auto-DPSGD-L", "dp-sgd", tuned=True, schedule=AutoLinearSchedule(number_of_phases=8)),
    Branch("formal-head", "Formal head", "formal-head", tuned=True),
    Branch("dp-sgd-delta-0.001", "DP-SGD, δ 0.001", "dp-sgd", delta=0.001),
    Branch("dp-sgd-delta-0.01", "DP-SGD, δ 0.01", "dp-sgd", delta=0.01),
    Branch("dp-sgd-delta-0.1", "DP-SGD, δ 0.1", "dp-sgd", delta=0.1),
    Branch("dp-sgd-delta-0.99", "DP-SGD, δ 0.99", "dp-sgd", delta=0.99),
)
BRANCHES = {branch.name: branch for branch in _ALL}


def choose(names: str, *, model: ModelConfig) -> tuple[Branch, ...]:
    """Branches by comma-separated names, `all` for every one that the model allows.

    Raises:
        InputError: an unknown branch, or one that this model has no mechanism for.
    """
    head = model.trainable == "head" and model.pooling == "mean"
    if names == "all":
        return tuple(branch for branch in _ALL if head or branch.family != "formal-head")
    chosen = []
    for name in dict.fromkeys(part.strip() for part in names.split(",") if part.strip()):
        if name not in BRANCHES:
            raise InputError(f"--branches: no branch {name}; there are {', '.join(BRANCHES)}")
        if BRANCHES[name].family == "formal-head" and not head:
            raise InputError("--branches: formal-head needs model.trainable=head and model.pooling=mean")
        chosen.append(BRANCHES[name])
    if not chosen:
        raise InputError(f"--branches: name at least one of {', '.join(BRANCHES)}")
    return tuple(chosen)


def dp_sgd_config(
    branch: Branch, model: ModelConfig, compare: CompareParameters, *, target: float, records: int
) -> DpSgdConfig:
    """Settings of a DP-SGD branch on so many records."""
    delta = branch.delta or compare.delta
    if not branch.tuned:
        return DpSgdConfig(
            target_epsilon=target,
            delta=delta,
            epochs=compare.epochs,
            batch_size=compare.batch_size,
            calibrate_by="rdp-mironov",
        )
    head = model.trainable == "head"
    return DpSgdConfig(
        target_epsilon=target,
        delta=delta,
        optimiser="sgd" if head else "adamw",
        learning_rate=TUNED_LEARNING_RATE if head else 1e-3,
        momentum=TUNED_MOMENTUM if head else 0.0,
        epochs=min(TUNED_EPOCHS, compare.epochs) if head else compare.epochs,
        batch_size=max(1, round(TUNED_SAMPLING_PROB * records)),
        schedule=branch.schedule,
        class_weights=branch.class_weights,
    )


def formal_head_config(branch: Branch, compare: CompareParameters, *, target: float) -> FormalHeadConfig:
    """Settings of the formal head."""
    return FormalHeadConfig(target_epsilon=target, delta=branch.delta or compare.delta)
