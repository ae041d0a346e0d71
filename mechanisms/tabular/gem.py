"""GEM (Liu, Vietri and Wu 2021) over marginals with the label, and XGBoost on balanced records drawn from it.

A network maps K fixed Gaussian vectors to K product distributions over label and columns; their mixture is fitted to
noisy marginals. Every round chooses, by the exponential mechanism, the marginal of label and two columns (of one, where
there is only one) whose l1 error is the largest, measures it with Gaussian noise, and takes gradient steps on what was
measured so far. Shares of the budget rho:

    one_way_share                 every column with the label, once, before the first round
    the rest, in T equal rounds   a choice of epsilon0, at epsilon0^2/8, and a measurement of sigma, at 1/(2 sigma^2)

n is public and neighbours differ in one record: a marginal's counts then move by 2 in l1 and by sqrt 2 in l2. The
published code gives the choices 2 alpha epsilon0; here their part of a round is `choice_share`. A round offers what has
not been chosen before, and rounds end with the candidates: T is the smaller of `rounds` and their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.seeding import generator, seeded
from mechanisms.privacy import replaced
from mechanisms.privacy.events import ExponentialChoiceEvent, ReplacedComposedEvent, ReplacedGaussianEvent
from mechanisms.tabular import trees
from mechanisms.tabular.columns import Columns, features_of
from mechanisms.tabular.synthetic import Synthetic
from mechanisms.tabular.trees import Trees

L1_SENSITIVITY, L2_SENSITIVITY = 2.0, math.sqrt(2)
"""Of the counts of one marginal, one record replaced."""

Marginal = tuple[int, ...]
"""Columns that a marginal has beside the label."""


@registered
class Gem(Synthetic, frozen=True, title="GEM"):
    """Rounds, budget, network. Defaults are sizes that fit in seconds; the paper's are in its table 12."""

    kind: Literal["gem"] = "gem"
    rounds: int = Field(default=15, ge=1, le=1000, title="Rounds T")
    one_way_share: float = Field(default=0.1, gt=0, lt=1, title="Share of the one-way marginals", description="Of rho.")
    choice_share: float = Field(default=0.33, gt=0, lt=1, title="Share of the choices", description="Of a round.")
    mixtures: int = Field(default=500, ge=1, le=10_000, title="Product distributions K")
    embedding: int = Field(default=64, ge=1, le=4096, title="Width of the Gaussian vectors")
    hidden: int = Field(default=128, ge=1, le=4096, title="Width of the network")
    learning_rate: float = Field(default=1e-3, gt=0, le=1, title="Learning rate")
    steps: int = Field(default=100, ge=1, le=100_000, title="Steps a round")
    average: float = Field(default=0.9, ge=0, lt=1, title="Moving average of the network's weights")
    bins: int = Field(default=8, ge=2, le=100, title="Bins of a number")

    def plan(self, task: Task) -> Plan:
        """Solves rho for the target, and settles the number of rounds."""
        plan = super().plan(task)
        return plan.model_copy(update={"mechanism": plan.mechanism.model_copy(update={"rounds": self._rounds(task)})})

    def calibrate(self, task: Task) -> float:
        """Returns rho."""
        assert self.target_epsilon is not None
        assert self.delta is not None
        return replaced.rho_for(self.target_epsilon, delta=self.delta, records_per_unit=task.records_per_unit)

    def event(self, noise: float, task: Task) -> ReplacedComposedEvent:
        """Returns measurements and choices that cost this rho; refuses a task without a number of columns."""
        rho, columns, rounds = noise, _columns(task), self._rounds(task)
        each = rho * (1 - self.one_way_share) / rounds
        one_way = ReplacedGaussianEvent(
            what="counts of every column with the label",
            noise_multiplier=math.sqrt(columns / (2 * rho * self.one_way_share)),
            l2_sensitivity=L2_SENSITIVITY,
            releases=columns,
        )
        choices = ExponentialChoiceEvent(
            what="a marginal of the label and columns, by its l1 error in records",
            epsilon=math.sqrt(8 * each * self.choice_share),
            choices=rounds,
            utility_sensitivity=L1_SENSITIVITY,
        )
        measured = ReplacedGaussianEvent(
            what="counts of the chosen marginals",
            noise_multiplier=1 / math.sqrt(2 * each * (1 - self.choice_share)),
            l2_sensitivity=L2_SENSITIVITY,
            releases=rounds,
        )
        return ReplacedComposedEvent(events=(one_way, choices, measured))

    def _rounds(self, task: Task) -> int:
        return min(self.rounds, len(workload(_columns(task))))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Measure, choose, fit the network, draw, grow."""
        assert isinstance(plan.event, ReplacedComposedEvent)
        one_way, choices, measured = plan.event.events
        assert isinstance(one_way, ReplacedGaussianEvent)
        assert isinstance(choices, ExponentialChoiceEvent)
        assert isinstance(measured, ReplacedGaussianEvent)
        features = features_of(records.inputs)
        columns = Columns.of(run.schema, features.shape[1], bins=self.bins)

        def make(state: KeyedState) -> Trees:
            codes, blocks = columns.encode(features), _Blocks(run.classes, columns.sizes)
            exact = blocks.counts(codes, records.labels)
            with seeded(run.seed, "gem"):
                mixture = _Mixture(self, blocks)
            target, weight = torch.zeros_like(exact), torch.zeros_like(exact)

            def measure(at: Marginal, event: ReplacedGaussianEvent, purpose: str, step: int) -> None:
                rows, cols = blocks.place(at)
                own = exact[:, rows, cols]
                noise = state.stream.normal_(torch.empty(own.shape, dtype=own.dtype), purpose=purpose, step=step)
                target[:, rows, cols] = (own + event.std * noise) / len(records)
                weight[:, rows, cols] = (smallest_std / event.std) ** 2

            smallest_std = min(one_way.std, measured.std)
            for at in range(len(columns)):
                measure((at,), one_way, "one-way marginals", at)
            mixture.fit(target.float(), weight.float(), self)
            offered = workload(len(columns))
            for step in range(choices.choices):
                errors = (exact - len(records) * mixture.all_marginals().double()).abs()
                utility = torch.stack([errors[:, *blocks.place(at)].sum() for at in offered])
                noise = state.stream.gumbel(len(offered), purpose="choice", step=step)
                best = int((choices.epsilon * utility / (2 * choices.utility_sensitivity) + noise).argmax())
                measure(offered.pop(best), measured, "marginals", step)
                mixture.fit(target.float(), weight.float(), self)
            labels = self.labels(run)
            draws = generator(run.seed, "gem", "records")
            return self.grow(columns, mixture.sampled(labels, draws), labels, draws, run)

        return Fitted(fit_or_load(run.folder, trees.FILE, new_key=run.new_key, load=Trees.load, fit=make), plan.event)


def workload(columns: int) -> list[Marginal]:
    """Returns what rounds choose among: pairs of columns, each with the label; the one column, where there is one."""
    return list(combinations(range(columns), 2)) or [(0,)]


class _Blocks:
    """Every marginal of the label and up to two columns in one array [classes, S, S], S the columns' values together:
    the block of columns i < j is that of both, the diagonal of block i is that of i alone."""

    def __init__(self, classes: int, sizes: Sequence[int]) -> None:
        self.classes, self.sizes = classes, tuple(sizes)
        self._starts = [sum(self.sizes[:at]) for at in range(len(self.sizes))]

    def place(self, at: Marginal) -> tuple[Tensor, Tensor]:
        """Rows and columns of the array that hold a marginal, int64, broadcast against each other."""
        first = torch.arange(self._starts[at[0]], self._starts[at[0]] + self.sizes[at[0]])
        if len(at) == 1:
            return first, first
        second = torch.arange(self._starts[at[1]], self._starts[at[1]] + self.sizes[at[1]])
        return first[:, None], second[None, :]

    def counts(self, codes: Tensor, labels: Tensor) -> Tensor:
        """Exact counts float64 of codes int64 [n, columns]."""
        starts = torch.tensor(self._starts)
        ones = torch.zeros(len(codes), sum(self.sizes), dtype=torch.float64)
        ones.scatter_(1, codes + starts, 1.0)
        label = torch.nn.functional.one_hot(labels, self.classes).double()
        return self.products(label, ones)

    @staticmethod
    def products(label: Tensor, values: Tensor) -> Tensor:
        """Sums over rows of label x value x value: [classes, S, S] of [n, classes] and [n, S]."""
        return torch.stack([(values * label[:, [c]]).T @ values for c in range(label.shape[1])])


class _Mixture:
    """K product distributions over label and columns, out of a network on K fixed Gaussian vectors."""

    def __init__(self, config: Gem, blocks: _Blocks) -> None:
        self._blocks, self._sizes = blocks, [blocks.classes, *blocks.sizes]
        self._z = torch.randn(config.mixtures, config.embedding)
        self._network = nn.Sequential(
            nn.Linear(config.embedding, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, sum(self._sizes)),
        )
        self._optimiser = torch.optim.Adam(self._network.parameters(), lr=config.learning_rate)

    def _factors(self) -> list[Tensor]:
        """Returns each attribute's marginal, float32 [K, size]; the label first."""
        return [part.softmax(1) for part in self._network(self._z).split(self._sizes, dim=1)]

    def _marginals(self) -> Tensor:
        """Probabilities in the blocks' places; a column alone stands on its block's diagonal."""
        label, *columns = self._factors()
        values = torch.cat(columns, dim=1)
        made = self._blocks.products(label, values) / len(values)
        alone = label.T @ values / len(values)
        diagonal = torch.eye(values.shape[1])
        return made * (1 - diagonal) + alone[:, :, None] * diagonal

    def all_marginals(self) -> Tensor:
        """Float32 [classes, S, S]."""
        with torch.no_grad():
            return self._marginals()

    def fit(self, target: Tensor, weight: Tensor, config: Gem) -> None:
        """Steps on the weighted squared error of everything measured; then the moving average of their networks."""
        parameters = list(self._network.parameters())
        averaged = [p.detach().clone() for p in parameters]
        for _ in range(config.steps):
            loss = (weight * (self._marginals() - target).square()).sum()
            self._optimiser.zero_grad()
            loss.backward()
            self._optimiser.step()
            with torch.no_grad():
                for average, p in zip(averaged, parameters, strict=True):
                    average.mul_(config.average).add_(p, alpha=1 - config.average)
        with torch.no_grad():
            for average, p in zip(averaged, parameters, strict=True):
                p.copy_(average)

    def sampled(self, labels: Tensor, draws: torch.Generator) -> Tensor:
        """Codes int64 [n, columns] given labels: a product distribution by its share of the label, then each column."""
        with torch.no_grad():
            label, *columns = (factor.double() for factor in self._factors())
        which = torch.multinomial(label.T[labels], 1, generator=draws)[:, 0]
        return torch.stack([torch.multinomial(column[which], 1, generator=draws)[:, 0] for column in columns], dim=1)


def _columns(task: Task) -> int:
    if task.columns is None:
        raise MechanismError("`gem` is for tables (data.ingest.kind `table`): its marginals are of their columns")
    return task.columns
