"""Trees on balanced records drawn from noisy tables: a naive Bayes table, PrivBayes and GEM. Also
XGBoost and SMOTE without protection.

Post-processing turns a release into records with equally frequent classes, on which trees are
trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from xgboost import XGBClassifier

from mechanisms.model.seeding import generator, seeded
from mechanisms.privacy.events import Claim
from mechanisms.privacy.noise import SecretStream, new_key
from studies import accounting
from studies.balance import Balance, balanced
from studies.tables import Fit, Table, projected

SMALLEST = 1e-7
"""Smallest probability of a class, because a log-likelihood must be finite."""


def laplace(stream: SecretStream, count: int, *, scale: float, purpose: str, step: int) -> Tensor:
    """Draws independent Laplace variates of this scale, float64 [count], as
    differences of two exponentials.
    """
    uniform = 1 - stream.uniform(2 * count, purpose=purpose, step=step)
    return scale * (uniform[count:].log() - uniform[:count].log())


def choose(
    utility: Tensor, *, epsilon: float, sensitivity: float, stream: SecretStream, step: int
) -> int:
    """Chooses a candidate by the exponential mechanism from its utility, float64 [candidates]: the
    largest with Gumbel noise.
    """
    uniform = 1 - stream.uniform(len(utility), purpose="choice", step=step)
    gumbel = -(-uniform.log()).clamp(min=2.0**-60).log()
    return int((epsilon * utility / (2 * sensitivity) + gumbel).argmax())


def trees(
    features: Tensor, labels: Tensor, claim: Claim, *, seed: int, weights: Tensor | None = None
) -> Fit:
    """Fits XGBoost on features [n, d] and labels int64 [n], with one thread so that
    it is repeatable.
    """
    grown = XGBClassifier(random_state=seed % (1 << 31), n_jobs=1)
    # synthetic numbers are drawn in float32, as trees read them
    grown.fit(
        features.float().numpy(),
        labels.numpy(),
        sample_weight=None if weights is None else weights.numpy(),
    )

    def scores(features: Tensor) -> Tensor:
        positive = torch.from_numpy(
            grown.predict_proba(features.clamp(0, 1).float().numpy())[:, 1]
        ).double()
        both = torch.stack([1 - positive, positive], dim=1).clamp(min=SMALLEST)
        return (both / both.sum(1, keepdim=True)).log()

    return Fit(scores, claim)


@dataclass(frozen=True)
class PlainTrees:
    """XGBoost without protection: unchanged, weighted by the classes' inverse
    frequencies, after SMOTE, or both.
    """

    balance: Balance = "none"

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        resampled, weights = balanced(train, self.balance, seed=seed)
        return trees(
            resampled.features, resampled.labels, accounting.nothing(), seed=seed, weights=weights
        )


TABLE_L1 = 2.0
"""l1 sensitivity of a table of counts: a replaced record leaves one cell and enters another."""
LABEL = 0
"""Index of the label among PrivBayes' attributes; columns follow."""
Node = tuple[int, tuple[int, ...]]
"""An attribute and its parents."""


@dataclass(frozen=True)
class BayesTable:
    """A table of class by value for every column, in one Laplace release. Columns
    are independent given the class.
    """

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        spent, network = (
            epsilon * (1 - 1e-9),
            [(column, (LABEL,)) for column in range(1, len(train.columns) + 1)],
        )
        noisy = released(attributes(train), network, spent, SecretStream(new_key()))
        totals = torch.stack([table.sum(1) for table in noisy]).mean(0)
        resampled = [
            torch.where(totals[:, None] > 0, projected(table, totals), 0.0) for table in noisy
        ]
        return of_network(
            train,
            network,
            resampled,
            generator(seed, "bayes-table"),
            accounting.pure(spent),
            seed=seed,
        )


@dataclass(frozen=True)
class PrivBayes:
    """PrivBayes (Zhang et al. 2017) with the label as its root.

    Half of epsilon chooses, one after another, a column and its parents by the exponential
    mechanism with the score R(X, Pi) = 1/2 sum |P(x, pi) - P(x) P(pi)|, which has sensitivity 3/n +
    2/n^2 for replacing one record. The other half releases the counts of every column with its
    parents. A set of parents is a candidate only if its cells contain `usefulness` times the noise
    on average. Unlike in the paper, the root is not chosen, because records are drawn for a given
    label.
    """

    degree: int = 2
    structure_share: float = 0.5
    usefulness: float = 4.0

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        stream, spent = SecretStream(new_key()), epsilon * (1 - 1e-9)
        codes, sizes = attributes(train)
        for_tables = spent * (1 - self.structure_share)
        largest = len(codes) * for_tables / (self.usefulness * TABLE_L1 * len(train.columns))
        epsilon_per_choice = spent * self.structure_share / len(train.columns)
        network = choose_network(
            codes, sizes, epsilon_per_choice, stream, degree=self.degree, largest=largest
        )
        noisy = released((codes, sizes), network, for_tables, stream)
        return of_network(
            train, network, noisy, generator(seed, "privbayes"), accounting.pure(spent), seed=seed
        )


def attributes(train: Table) -> tuple[Tensor, tuple[int, ...]]:
    """Returns codes int64 [n, 1 + columns] with the label first, and the number of
    values of each.
    """
    codes = torch.cat([train.labels[:, None], train.columns.encode(train.features)], dim=1)
    return codes, (2, *train.columns.sizes)


def released(
    attributes: tuple[Tensor, Sequence[int]],
    network: Sequence[Node],
    epsilon: float,
    stream: SecretStream,
) -> list[Tensor]:
    """Returns the counts of every node with Laplace noise, which together cost epsilon."""
    scale, noisy = TABLE_L1 * len(network) / epsilon, []
    for step, node in enumerate(network):
        table = joint(*attributes, node)
        noise = laplace(stream, table.numel(), scale=scale, purpose="counts", step=step)
        noisy.append(table + noise.view_as(table))
    return noisy


def of_network(
    train: Table,
    network: Sequence[Node],
    noisy: Sequence[Tensor],
    draws: torch.Generator,
    claim: Claim,
    *,
    seed: int,
) -> Fit:
    """Fits trees on records drawn for balanced labels."""
    labels = torch.arange(len(train)) % 2
    codes = sample_network(network, noisy, (2, *train.columns.sizes), labels, draws)
    return trees(train.columns.decode(codes, draws), labels, claim, seed=seed)


def mixed(codes: Tensor, sizes: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Returns one number for the values of these columns, int64 [n]."""
    flat = torch.zeros(len(codes), dtype=torch.int64)
    for column in columns:
        flat = flat * sizes[column] + codes[:, column]
    return flat


def joint(codes: Tensor, sizes: Sequence[int], node: Node) -> Tensor:
    """Returns counts float64 [values of the parents, values of the attribute]."""
    attribute, parents = node
    cells = prod(sizes[parent] for parent in parents) * sizes[attribute]
    counts = torch.bincount(mixed(codes, sizes, (*parents, attribute)), minlength=cells)
    return counts.double().view(-1, sizes[attribute])


def score(codes: Tensor, sizes: Sequence[int], node: Node) -> float:
    """Returns R of an attribute and its parents: the distance of their joint distribution from
    independence, in [0, 1].
    """
    p = joint(codes, sizes, node) / len(codes)
    return 0.5 * float((p - p.sum(1, keepdim=True) * p.sum(0, keepdim=True)).abs().sum())


def candidates(
    sizes: Sequence[int], placed: Sequence[int], *, degree: int, largest: float
) -> list[Node]:
    """Returns the attributes not yet placed with every useful set of parents: maximal sets, with at
    most `largest` cells.
    """
    found: list[Node] = []
    for attribute in sorted(set(range(1, len(sizes))).difference(placed)):
        for count in range(min(degree, len(placed)), 0, -1):
            fitting = [
                parents
                for parents in combinations(placed, count)
                if LABEL in parents
                and sizes[attribute] * prod(sizes[p] for p in parents) <= largest
            ]
            found += [(attribute, parents) for parents in fitting]
            if fitting:
                break
        else:
            found.append((attribute, (LABEL,)))
    return found


def choose_network(
    codes: Tensor,
    sizes: Sequence[int],
    epsilon: float,
    stream: SecretStream,
    *,
    degree: int,
    largest: float,
) -> list[Node]:
    network, n = [], len(codes)
    for step in range(len(sizes) - 1):
        placed = [LABEL, *(attribute for attribute, _ in network)]
        offered = candidates(sizes, placed, degree=degree, largest=largest)
        scores = torch.tensor([score(codes, sizes, node) for node in offered], dtype=torch.float64)
        best = choose(
            scores, epsilon=epsilon, sensitivity=3 / n + 2 / n**2, stream=stream, step=step
        )
        network.append(offered[best])
    return network


def sample_network(
    network: Sequence[Node],
    noisy: Sequence[Tensor],
    sizes: Sequence[int],
    labels: Tensor,
    draws: torch.Generator,
) -> Tensor:
    """Samples codes int64 [n, columns] for these labels, attribute by attribute
    given its parents.
    """
    codes = torch.zeros(len(labels), len(sizes), dtype=torch.int64)
    codes[:, LABEL] = labels
    for (attribute, parents), table in zip(network, noisy, strict=True):
        counts = table.clamp(min=0)
        total = counts.sum(1, keepdim=True)
        counts = torch.where(
            total > 0, counts / total.clamp(min=1e-12), torch.full_like(counts, 1 / counts.shape[1])
        )
        codes[:, attribute] = torch.multinomial(
            counts[mixed(codes, sizes, parents)], 1, generator=draws
        )[:, 0]
    return codes[:, 1:]


GEM_L2 = math.sqrt(2)
"""l2 sensitivity of the counts of one marginal, for replacing one record."""
Marginal = tuple[int, ...]
"""Columns of a marginal, in addition to the label."""


@dataclass(frozen=True)
class Gem:
    """GEM (Liu, Vietri and Wu 2021) over marginals with the label.

    A network maps K fixed Gaussian vectors to K product distributions, and their mixture is fitted
    to noisy marginals. Every round chooses the marginal of the label and two columns with the
    largest l1 error, measures it with Gaussian noise, and takes gradient steps on all measurements
    so far. Of the budget rho:

        one_way_share              every column with the label, once, before the first round
        the rest, in equal rounds  a choice of epsilon0, at epsilon0^2/8, and a measurement of
        sigma, at 1/(2 sigma^2)

    The published code gives the choices 2 alpha epsilon0; here their part of a round is
    `choice_share`. The default sizes fit in seconds; the paper's are in its table 12.
    """

    rounds: int = 15
    one_way_share: float = 0.1
    choice_share: float = 0.33
    mixtures: int = 500
    embedding: int = 64
    hidden: int = 128
    learning_rate: float = 1e-3
    steps: int = 100
    average: float = 0.9

    def budget(self, rho: float, columns: int) -> tuple[float, float, float, int]:
        """Returns the noise multiplier of the one-way marginals, epsilon of a choice, noise
        multiplier of a measurement, and the number of rounds.
        """
        rounds = min(self.rounds, len(workload(columns)))
        rho_per_round = rho * (1 - self.one_way_share) / rounds
        one_way = math.sqrt(columns / (2 * rho * self.one_way_share))
        choice = math.sqrt(8 * rho_per_round * self.choice_share)
        return one_way, choice, 1 / math.sqrt(2 * rho_per_round * (1 - self.choice_share)), rounds

    def spent(self, rho: float, columns: int) -> float:
        one_way, choice, measured, rounds = self.budget(rho, columns)
        return columns / (2 * one_way**2) + rounds * choice**2 / 8 + rounds / (2 * measured**2)

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        columns, stream, n = train.columns, SecretStream(new_key()), len(train)
        rho = accounting.rho_for(epsilon, delta)
        one_way, choice, measured, rounds = self.budget(rho, len(columns))
        blocks = Blocks(columns.sizes)
        exact = blocks.counts(columns.encode(train.features), train.labels)
        with seeded(seed, "gem"):
            mixture = Mixture(self, blocks)
        target, weight = torch.zeros_like(exact), torch.zeros_like(exact)

        def measure(marginal: Marginal, multiplier: float, purpose: str, step: int) -> None:
            rows, cols = blocks.place(marginal)
            marginal_counts, std = exact[:, rows, cols], GEM_L2 * multiplier
            noise = stream.normal_(
                torch.empty(marginal_counts.shape, dtype=marginal_counts.dtype),
                purpose=purpose,
                step=step,
            )
            target[:, rows, cols] = (marginal_counts + std * noise) / n
            weight[:, rows, cols] = (min(one_way, measured) / multiplier) ** 2

        for column in range(len(columns)):
            measure((column,), one_way, "one-way marginals", column)
        mixture.fit(target.float(), weight.float(), self)
        offered = workload(len(columns))
        for step in range(rounds):
            errors = (exact - n * mixture.marginals().detach().double()).abs()
            utility = torch.stack(
                [errors[:, *blocks.place(marginal)].sum() for marginal in offered]
            )
            best = choose(utility, epsilon=choice, sensitivity=TABLE_L1, stream=stream, step=step)
            measure(offered.pop(best), measured, "marginals", step)
            mixture.fit(target.float(), weight.float(), self)
        labels, draws = torch.arange(n) % 2, generator(seed, "gem", "records")
        features = columns.decode(mixture.sampled(labels, draws), draws)
        cost = accounting.epsilon_of_rho(self.spent(rho, len(columns)), delta)
        claim = accounting.replace_one(
            cost, delta, "zero-concentrated, converted by dp-accounting's Renyi accountant"
        )
        return trees(features, labels, claim, seed=seed)


def workload(columns: int) -> list[Marginal]:
    """Returns the marginals to choose from: pairs of columns, each with the label, or the single
    column if there is only one.
    """
    return list(combinations(range(columns), 2)) or [(0,)]


class Blocks:
    """All marginals of the label and up to two columns in one array [2, S, S], where S is the
    number of values of all columns. The block of columns i < j has their joint marginal, and the
    diagonal of block i has that of column i.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._starts = [sum(self.sizes[:column]) for column in range(len(self.sizes))]

    def place(self, marginal: Marginal) -> tuple[Tensor, Tensor]:
        """Returns the array's row and column indices of a marginal, int64,
        broadcastable against each other.
        """
        spans = [torch.arange(self._starts[c], self._starts[c] + self.sizes[c]) for c in marginal]
        return (spans[0], spans[0]) if len(spans) == 1 else (spans[0][:, None], spans[1][None, :])

    def counts(self, codes: Tensor, labels: Tensor) -> Tensor:
        """Returns exact counts float64 of codes int64 [n, columns]."""
        values = torch.zeros(len(codes), sum(self.sizes), dtype=torch.float64)
        values.scatter_(1, codes + torch.tensor(self._starts), 1.0)
        return self.products(torch.nn.functional.one_hot(labels, 2).double(), values)

    @staticmethod
    def products(label: Tensor, values: Tensor) -> Tensor:
        """Returns the sums over rows of label x value x value: [2, S, S] from [n, 2] and [n, S]."""
        return torch.stack([(values * label[:, [c]]).T @ values for c in range(2)])


class Mixture:
    """K product distributions over label and columns, from a network on K fixed
    Gaussian vectors.
    """

    def __init__(self, config: Gem, blocks: Blocks) -> None:
        self._blocks, self._sizes = blocks, [2, *blocks.sizes]
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
        """Returns each attribute's marginal, float32 [K, size], the label first."""
        return [part.softmax(1) for part in self._network(self._z).split(self._sizes, dim=1)]

    def marginals(self) -> Tensor:
        """Returns probabilities in the positions of `Blocks`. A single column is on
        its block's diagonal.
        """
        label, *columns = self._factors()
        values = torch.cat(columns, dim=1)
        products = self._blocks.products(label, values) / len(values)
        alone = label.T @ values / len(values)
        diagonal = torch.eye(values.shape[1])
        return products * (1 - diagonal) + alone[:, :, None] * diagonal

    def fit(self, target: Tensor, weight: Tensor, config: Gem) -> None:
        """Takes steps on the weighted squared error of all measurements, then uses the moving
        average of their networks.
        """
        averaged = AveragedModel(self._network, multi_avg_fn=get_ema_multi_avg_fn(config.average))
        averaged.update_parameters(self._network)
        for _ in range(config.steps):
            loss = (weight * (self.marginals() - target).square()).sum()
            self._optimiser.zero_grad()
            loss.backward()
            self._optimiser.step()
            averaged.update_parameters(self._network)
        self._network.load_state_dict(averaged.module.state_dict())

    def sampled(self, labels: Tensor, draws: torch.Generator) -> Tensor:
        """Samples codes int64 [n, columns] given labels: a product distribution by its share of the
        label, then each column.
        """
        with torch.no_grad():
            label, *columns = (factor.double() for factor in self._factors())
        which = torch.multinomial(label.T[labels], 1, generator=draws)[:, 0]
        return torch.stack(
            [torch.multinomial(column[which], 1, generator=draws)[:, 0] for column in columns],
            dim=1,
        )
