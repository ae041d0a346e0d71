"""Bags of logistic regressions by objective perturbation, which vote (Rosenblatt et al. 2025, section 4.1).

| bags         | a record is in           | cost of all bags                                                        |
|--------------|--------------------------|-------------------------------------------------------------------------|
| `subsamples` | any number, once in each | the smaller of basic and advanced composition                           |
| `disjoint`   | one                      | one bag's: a record that is replaced stays in its bag                   |
| `stratified` | one of its class         | one bag's, for neighbours that keep the label: else others change bags  |

Subsamples are drawn without replacement, since a record that a bootstrap holds k times costs a bag up to k times as
much. A bag of `share` 0.632 has as many different records as a bootstrap on average. Below 2 ln(1/delta) bags advanced
composition costs more than basic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Aimed, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import checkpoint
from mechanisms.model.inputs import Inputs
from mechanisms.model.seeding import generator
from mechanisms.privacy import replaced
from mechanisms.privacy.events import BaggedEvent
from mechanisms.privacy.noise import SecretStream
from mechanisms.privacy.numerics import safe_root
from mechanisms.tabular.columns import Columns, OfTables, TableModel, features_of
from mechanisms.tabular.linear import UnitLinear
from mechanisms.tabular.objective_perturbation import ObjectivePerturbation, perturbed

FILE = "bags.safetensors"


@dataclass(frozen=True)
class Vote:
    """Coefficients float64 [bags, problems, d + 1]."""

    coefficients: Tensor
    columns: Columns
    vote: Literal["soft", "hard"]

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        """Float64 [n, classes]: mean probabilities, or shares of the votes with one vote spread evenly."""
        each = torch.stack([UnitLinear(own, self.columns).log_probabilities(inputs) for own in self.coefficients])
        if self.vote == "soft":
            return each.logsumexp(0).log_softmax(-1)
        bags, _, classes = each.shape
        votes = torch.nn.functional.one_hot(each.argmax(-1), classes).sum(0).double()
        return ((votes + 1 / classes) / (bags + 1)).log()

    def save(self, folder: Path) -> None:
        """One file."""
        meta = {"widths": self.columns.widths, "bins": self.columns.bins, "vote": self.vote}
        checkpoint.save(folder / FILE, {"coefficients": self.coefficients}, meta)

    @classmethod
    def load(cls, folder: Path) -> Vote:
        """Read what `save` wrote."""
        tensors, meta = checkpoint.load(folder / FILE)
        return cls(tensors["coefficients"].clone(), Columns(tuple(meta["widths"]), meta["bins"]), meta["vote"])


@registered
class Bagging(OfTables, Aimed, frozen=True, title="Bagging"):
    """Bags, votes, and what is fitted to each."""

    leaves: ClassVar[type[TableModel]] = Vote
    kind: Literal["bagging"] = "bagging"
    bags: int = Field(default=10, ge=2, le=1000, title="Bags")
    split: Literal["subsamples", "disjoint", "stratified"] = Field(default="disjoint", title="How bags are filled")
    share: float = Field(default=0.632, gt=0, le=1, title="Share of the records", description="In a subsample.")
    vote: Literal["soft", "hard"] = Field(default="soft", title="Vote", description="Mean probability, or majority.")
    regularisation: float = Field(default=0.01, gt=0, le=1e3, allow_inf_nan=False, title="Lambda of each bag")

    def calibrate(self, task: Task) -> float:
        """Returns the epsilon of one bag at which all together meet the target."""
        assert self.target_epsilon is not None
        m, delta = task.records_per_unit, self.delta or task.delta
        target = self.target_epsilon * (1 - 1e-6)

        def excess(log_epsilon: float) -> float:
            one = math.exp(log_epsilon)
            basic = self.bags * one
            left = delta / (m * math.exp(min(700.0, (m - 1) * basic)))
            return m * replaced.composed(one, self.bags, delta=left) - target

        each = target / m
        if self.split == "subsamples":
            each = math.exp(safe_root(excess, math.log(target / (m * self.bags)) - 1e-9, math.log(each), xtol=1e-9))
        return each * (1 - 1e-9)

    def event(self, noise: float, task: Task) -> BaggedEvent:
        """Returns bags of this epsilon each; refuses bags of fewer than two records."""
        size = self._size(task.records, task.classes)
        if size < 2:
            raise MechanismError(f"bags: {self.bags} of {task.records} records leave {size} for each; take fewer bags")
        return BaggedEvent(
            bags=self.bags,
            overlap="any" if self.split == "subsamples" else "none",
            by_class=self.split == "stratified",
            event=ObjectivePerturbation(regularisation=self.regularisation).event(
                noise, task.model_copy(update={"records": size})
            ),
        )

    def _size(self, records: int, classes: int) -> int:
        """Records of a bag, whatever their labels."""
        if self.split == "subsamples":
            return round(self.share * records)
        return records // self.bags - (classes - 1 if self.split == "stratified" else 0)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Fill the bags with the run's seed, which privacy does not rest on; fit each."""
        event = plan.event
        assert isinstance(event, BaggedEvent)
        features = features_of(records.inputs)
        columns = Columns.of(run.schema, features.shape[1], bins=1)

        def make(state: KeyedState) -> Vote:
            x, draws, fitted = columns.unit(features), generator(run.seed, "bagging"), []
            size = self._size(len(records), run.classes)
            for number, bag in enumerate(filled(records.labels, self.bags, self.split, size, draws)):
                own = SecretStream(_key(state.stream, number))
                fitted.append(perturbed(event.event, x[bag], records.labels[bag], run.classes, own))
            return Vote(torch.stack(fitted), columns, self.vote)

        return Fitted(
            fit_or_load(run.folder, FILE, new_key=run.new_key, load=Vote.load, fit=make), event, {"bags": event.bags}
        )


def filled(labels: Tensor, bags: int, split: str, size: int, draws: torch.Generator) -> list[Tensor]:
    """Indices int64 of each bag, at most `size`."""
    n = len(labels)
    if split == "subsamples":
        return [torch.randperm(n, generator=draws)[:size] for _ in range(bags)]
    order = torch.randperm(n, generator=draws)
    if split == "disjoint":
        return [order[bag::bags][:size] for bag in range(bags)]
    by_class = [order[labels[order] == label] for label in labels.unique().tolist()]
    # the smallest class first, so that what a bag has above its size is of the largest
    by_class.sort(key=len)
    return [torch.cat([own[: len(own) // bags * bags][bag::bags] for own in by_class])[:size] for bag in range(bags)]


def _key(stream: SecretStream, bag: int) -> bytes:
    """A key of each bag's own, out of the fit's: 32 bytes of its stream."""
    words = stream.uniform(32, purpose="key of a bag", step=bag)
    return bytes((words * 256).long().tolist())
