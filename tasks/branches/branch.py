"""The branches of a comparison: their names, and the settings each runs with.

`dp-sgd` and the delta sweep have the paper's setting (Chew et al., section 3.2) and its calibration. Every other
gradient-descent rival has the tuned one, so that what tells them apart is the mechanism and not the care taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mechanisms.dp_sgd import DpSgdConfig
from mechanisms.formal_head import FormalHeadConfig
from mechanisms.model.classifier import ModelConfig
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.schedules import AutoLinearSchedule, AutoStepSchedule, ConstantSchedule, SadSchedule, Schedule
from mechanisms.private_posterior import PrivatePosteriorConfig
from storage.errors import InputError
from tasks.parameters import BOUNDED_ROUNDS, RetrainParameters

Family = Literal["none", "swag", "dp-sgd", "formal-head", "private-posterior"]

TUNED_LEARNING_RATE = 10.0
TUNED_MOMENTUM = 0.9
TUNED_SAMPLING_PROB = 1.0
TUNED_EPOCHS = 20
"""The tuned setting of a head, with SGD: the best of 35 on a held-out fifth of the training half of public OSHA
reports, MiniLM features, epsilon 5 (`scripts/choose_rival_settings.py`, docs/results/tuning.json). Every record is in
every step: at a few thousand records sampling amplifies less than the average over all of them gains."""
LARGE_SAMPLING_PROB = 0.4
"""Of the tuned branches for other trainable parts, which were not searched: a larger batch, the paper's rate."""

TUNING = (
    "hyperparameters: found on the training half of public OSHA severe injury reports, without account; where these "
    "are the records at hand, the tuning is not part of the epsilon"
)


class CompareParameters(BaseModel):
    """What all branches share."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Compare")

    target_epsilon: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | Literal["match"] = Field(
        default="match",
        title="Target epsilon",
        description="Of the formal and the bounded branches; `match`: what SWAG-PPM claims at the first seed.",
    )
    delta: float = Field(default=1e-4, gt=0, lt=1, title="Delta", description="Of the formal branches.")
    seeds: int = Field(default=5, ge=1, le=100, title="Seeds", description="How often every branch is fitted.")
    epochs: int = Field(default=30, ge=1, le=10_000, title="Epochs", description="Of the non-private and DP-SGD fits.")
    batch_size: int = Field(
        default=512,
        ge=1,
        title="Expected batch of DP-SGD",
        description="In the paper's setting; the tuned branches have their own.",
    )
    slots: int = Field(
        default=1, ge=1, le=64, title="Branches at once", description="Processes; heads on mean-pooled features only."
    )


@dataclass(frozen=True)
class Branch:
    """One rival."""

    name: str
    title: str
    family: Family
    round: str | None = None
    """Of a SWAG branch: the round of the chain that it is drawn from."""
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
    def bounded(self) -> bool:
        """Whether its likelihood is bounded, so that it needs a target."""
        return self.round in BOUNDED_ROUNDS

    @property
    def unprotected(self) -> tuple[str, ...]:
        """What its settings took from records without account."""
        return (TUNING,) if self.tuned else ()


_ALL = (
    Branch("non-private", "Non-private", "none"),
    Branch("swag-ppm", "SWAG-PPM", "swag", "weighted"),
    Branch("swag-ppm-reweighted", "SWAG-PPM (reweighted)", "swag", "reweighted"),
    Branch("swag-ppm-censored", "SWAG, bounded likelihood", "swag", "censored"),
    Branch("swag-ppm-both", "SWAG-PPM, weighted and bounded", "swag", "both"),
    Branch("dp-sgd", "DP-SGD (paper's setting)", "dp-sgd"),
    Branch("dp-sgd-tuned", "DP-SGD (tuned)", "dp-sgd", tuned=True),
    Branch(
        "dp-sgd-class-weighted",
        "DP-SGD, private class weights",
        "dp-sgd",
        tuned=True,
        class_weights=ClassWeightsConfig(power=0.25, apply="before-clip"),
    ),
    Branch("sad", "SAD-DPSGD", "dp-sgd", tuned=True, schedule=SadSchedule()),
    Branch("auto-s", "Auto-DPSGD-S", "dp-sgd", tuned=True, schedule=AutoStepSchedule()),
    Branch("auto-l", "Auto-DPSGD-L", "dp-sgd", tuned=True, schedule=AutoLinearSchedule(number_of_phases=8)),
    Branch("formal-head", "Formal head", "formal-head", tuned=True),
    Branch("private-posterior", "Private posterior (Langevin)", "private-posterior", tuned=True),
    Branch("dp-sgd-delta-0.001", "DP-SGD, δ 0.001", "dp-sgd", delta=0.001),
    Branch("dp-sgd-delta-0.01", "DP-SGD, δ 0.01", "dp-sgd", delta=0.01),
    Branch("dp-sgd-delta-0.1", "DP-SGD, δ 0.1", "dp-sgd", delta=0.1),
    Branch("dp-sgd-delta-0.99", "DP-SGD, δ 0.99", "dp-sgd", delta=0.99),
)
LINEAR = ("formal-head", "private-posterior")
"""Families that know a linear layer on cached features alone."""

BRANCHES = {branch.name: branch for branch in _ALL}


def choose(names: str, *, model: ModelConfig) -> tuple[Branch, ...]:
    """Branches by comma-separated names, `all` for every one that the model allows.

    Raises:
        InputError: an unknown branch, or one that this model has no mechanism for.
    """
    head = model.trainable == "head" and model.pooling == "mean"
    if names == "all":
        return tuple(branch for branch in _ALL if head or branch.family not in LINEAR)
    chosen = []
    for name in dict.fromkeys(part.strip() for part in names.split(",") if part.strip()):
        if name not in BRANCHES:
            raise InputError(f"--branches: no branch {name}; there are {', '.join(BRANCHES)}")
        if BRANCHES[name].family in LINEAR and not head:
            raise InputError(f"--branches: {name} needs model.trainable=head and model.pooling=mean")
        chosen.append(BRANCHES[name])
    if not chosen:
        raise InputError(f"--branches: name at least one of {', '.join(BRANCHES)}")
    return tuple(chosen)


def of_round(
    parameters: RetrainParameters, branch: Branch, *, seed: int, target: float | None, records_per_unit: int
) -> RetrainParameters:
    """The retrain whose chain holds the branch's round; a bound is chosen so that a unit's epsilon is the target."""
    config = parameters.pseudo_posterior
    if branch.bounded and target is not None:
        update = {"mechanism": branch.round, "target_epsilon": target / records_per_unit}
    else:
        reweight = config.reweight if branch.round is None else branch.round == "reweighted"
        update = {"mechanism": "weighted", "target_epsilon": None, "reweight": reweight}
    fit = parameters.fit.model_copy(update={"seed": seed})
    return parameters.model_copy(update={"pseudo_posterior": config.model_copy(update=update), "fit": fit})


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
        batch_size=max(1, round((TUNED_SAMPLING_PROB if head else LARGE_SAMPLING_PROB) * records)),
        schedule=branch.schedule,
        class_weights=branch.class_weights,
    )


def linear_config(
    branch: Branch, compare: CompareParameters, *, target: float
) -> FormalHeadConfig | PrivatePosteriorConfig:
    """Settings of a family that knows a linear layer alone."""
    kind = FormalHeadConfig if branch.family == "formal-head" else PrivatePosteriorConfig
    return kind(target_epsilon=target, delta=branch.delta or compare.delta)
