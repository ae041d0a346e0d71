"""PrivBayes (Zhang et al. 2017) and XGBoost on balanced records drawn from its network.

The label is the root. Half of epsilon chooses, one after another, a column and its parents among the label and the
columns before it, by the exponential mechanism with the paper's score

    R(X, Pi) = 1/2 sum |P(x, pi) - P(x) P(pi)|,      sensitivity 3/n + 2/n^2 for one record replaced,

the other half releases the count of every column with its parents, Laplace noise of scale 2 columns/epsilon a cell. Of
sets of parents only those are candidates whose cells hold `usefulness` times the noise on average (their theta-
usefulness; n, sizes and epsilon are public), and the label alone where none does. A class is drawn first, each as often
as the others; so no table of the label is needed.

Against the paper: the root is the label and not chosen, since records are drawn for a given label.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.seeding import generator
from mechanisms.privacy.events import ExponentialChoiceEvent, LaplaceReleaseEvent, ReplacedComposedEvent
from mechanisms.privacy.noise import SecretStream
from mechanisms.tabular import trees
from mechanisms.tabular.columns import Columns, features_of
from mechanisms.tabular.synthetic import Synthetic
from mechanisms.tabular.trees import Trees

LABEL = 0
"""Place of the label among the attributes; columns follow."""
L1_SENSITIVITY = 2.0

Node = tuple[int, tuple[int, ...]]
"""An attribute and its parents."""


@registered
class PrivBayes(Synthetic, frozen=True, title="PrivBayes"):
    """Degree, bins, split of epsilon."""

    kind: Literal["privbayes"] = "privbayes"
    degree: int = Field(default=2, ge=1, le=4, title="Most parents")
    structure_share: float = Field(default=0.5, gt=0, lt=1, title="Share of the structure", description="Of epsilon.")
    usefulness: float = Field(default=4.0, gt=0, le=1e3, title="Usefulness theta")
    bins: int = Field(default=8, ge=2, le=100, title="Bins of a number")

    def calibrate(self, task: Task) -> float:
        """Returns the epsilon of a record."""
        assert self.target_epsilon is not None
        return self.target_epsilon / task.records_per_unit * (1 - 1e-9)

    def event(self, noise: float, task: Task) -> ReplacedComposedEvent:
        """Returns choices and tables that cost a record this epsilon; refuses a task without a number of columns."""
        if task.columns is None:
            raise MechanismError("`privbayes` is for tables (data.ingest.kind `table`): it chooses among their columns")
        n = task.records
        choices = ExponentialChoiceEvent(
            what="a column and its parents",
            epsilon=noise * self.structure_share / task.columns,
            choices=task.columns,
            utility_sensitivity=3 / n + 2 / n**2,
        )
        release = LaplaceReleaseEvent(
            what="counts of every column with its parents, divided by the number of columns",
            noise_multiplier=1 / (noise * (1 - self.structure_share)),
            l1_sensitivity=L1_SENSITIVITY,
        )
        return ReplacedComposedEvent(events=(choices, release))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Choose, release, draw, grow."""
        assert isinstance(plan.event, ReplacedComposedEvent)
        choices, release = plan.event.events
        assert isinstance(choices, ExponentialChoiceEvent)
        assert isinstance(release, LaplaceReleaseEvent)
        features = features_of(records.inputs)
        columns = Columns.of(run.schema, features.shape[1], bins=self.bins)

        def make(state: KeyedState) -> Trees:
            codes = torch.cat([records.labels[:, None], columns.encode(features)], dim=1)
            sizes = (run.classes, *columns.sizes)
            scale = release.noise_multiplier * release.l1_sensitivity * len(columns)
            largest = plan.records / (self.usefulness * scale)
            network = chosen(codes, sizes, choices, state.stream, degree=self.degree, largest=largest)
            counts = [
                joint(codes, sizes, node)
                + state.stream.laplace(
                    sizes[node[0]] * prod(sizes[p] for p in node[1]), scale=scale, purpose="counts", step=step
                ).view(-1, sizes[node[0]])
                for step, node in enumerate(network)
            ]
            labels = self.labels(run)
            draws = generator(run.seed, "privbayes")
            return self.grow(columns, sampled(network, counts, sizes, labels, draws), labels, draws, run)

        return Fitted(fit_or_load(run.folder, trees.FILE, new_key=run.new_key, load=Trees.load, fit=make), plan.event)


def joint(codes: Tensor, sizes: Sequence[int], node: Node) -> Tensor:
    """Counts float64 [values of the parents, values of the attribute]."""
    attribute, parents = node
    flat = torch.zeros(len(codes), dtype=torch.int64)
    for parent in parents:
        flat = flat * sizes[parent] + codes[:, parent]
    rows = prod(sizes[parent] for parent in parents)
    flat = flat * sizes[attribute] + codes[:, attribute]
    return torch.bincount(flat, minlength=rows * sizes[attribute]).double().view(rows, sizes[attribute])


def score(codes: Tensor, sizes: Sequence[int], node: Node) -> float:
    """R of an attribute and its parents: how far their joint distribution is from independence, in [0, 1]."""
    p = joint(codes, sizes, node) / len(codes)
    return 0.5 * float((p - p.sum(1, keepdim=True) * p.sum(0, keepdim=True)).abs().sum())


def candidates(sizes: Sequence[int], placed: Sequence[int], *, degree: int, largest: float) -> list[Node]:
    """Attributes not yet placed with every useful set of parents: maximal ones, of at most `largest` cells."""
    made: list[Node] = []
    for attribute in range(1, len(sizes)):
        if attribute in placed:
            continue
        for count in range(min(degree, len(placed)), 0, -1):
            fitting = [
                parents
                for parents in combinations(placed, count)
                if LABEL in parents and sizes[attribute] * prod(sizes[p] for p in parents) <= largest
            ]
            made += [(attribute, parents) for parents in fitting]
            if fitting:
                break
        else:
            made.append((attribute, (LABEL,)))
    return made


def chosen(
    codes: Tensor,
    sizes: Sequence[int],
    choices: ExponentialChoiceEvent,
    stream: SecretStream,
    *,
    degree: int,
    largest: float,
) -> list[Node]:
    """The network, in the order in which it is drawn from."""
    placed, network = [LABEL], []
    for step in range(choices.choices):
        offered = candidates(sizes, placed, degree=degree, largest=largest)
        scores = torch.tensor([score(codes, sizes, node) for node in offered], dtype=torch.float64)
        noise = stream.gumbel(len(offered), purpose="choice", step=step)
        best = int((choices.epsilon * scores / (2 * choices.utility_sensitivity) + noise).argmax())
        network.append(offered[best])
        placed.append(offered[best][0])
    return network


def sampled(
    network: Sequence[Node],
    counts: Sequence[Tensor],
    sizes: Sequence[int],
    labels: Tensor,
    draws: torch.Generator,
) -> Tensor:
    """Codes int64 [n, columns] for these labels, attribute by attribute given its parents."""
    codes = torch.zeros(len(labels), len(sizes), dtype=torch.int64)
    codes[:, LABEL] = labels
    for (attribute, parents), noisy in zip(network, counts, strict=True):
        given = noisy.clamp(min=0)
        total = given.sum(1, keepdim=True)
        given = torch.where(total > 0, given / total.clamp(min=1e-12), torch.full_like(given, 1 / given.shape[1]))
        row = torch.zeros(len(labels), dtype=torch.int64)
        for parent in parents:
            row = row * sizes[parent] + codes[:, parent]
        codes[:, attribute] = torch.multinomial(given[row], 1, generator=draws)[:, 0]
    return codes[:, 1:]
