"""Accounts for a private learner on data with an oversampled minority class, as printed and
corrected.

Rosenblatt et al., "Differential Privacy Under Class Imbalance" (2024), proposition 2 (copies) and
theorem 3 (SMOTE). One record reaches the learner as a group of rows, and the claim is the group's
privacy. `printed_smote` has the paper's formula, for comparison only. `group` and `smote` have
provable ones:

- **Copies.** An (epsilon, delta) learner is (m epsilon, delta (e^{m epsilon} - 1)/(e^epsilon - 1))
  for a group of m rows (Dwork and Roth 2014, theorem 2.2 and its proof); the printed delta m is too
  small. m is a public number of copies: taken as ceil(N/n_1), it would itself change with a record.
- **SMOTE**, R synthetic rows a base record, R public, each base's randomness its own (the paper's
  `t mod n` shifts every later base by one). A record that joins the minority brings 1 row, is the
  base of R, and enters the lists of at most l others, each of whose R rows may be *replaced*: one
  row less and one more. Under add/remove,

      m = 1 + R + 2 l R.

  The paper leaves out the base's own rows and the second half of each replacement, and its
  statement drops k, which l holds.
- **SMOTE with a delta.** A replaced list has one entry that is new, so that a row of it changes
  with probability 1/k, independently: at most Y ~ Binomial(l R, 1/k) replacements. With y the
  smallest number for which P(Y > y) <= tail, the whole is (epsilon m_y, tail + ...) for m_y = 1 + R
  + 2 y: outside that event, the probability of any output is bounded by 1, which costs the tail
  once. (The paper multiplies its tail by e^{epsilon l R}, so that its delta exceeds 1 at gamma 0;
  its epsilon' has a 1/k too many.)
- **Neighbours.** l <= k K(d): of the records that have x among their k nearest, take the farthest,
  and those within 60 degrees of it, of which there are fewer than k nearer to it than x; repeat;
  those taken are pairwise 60 degrees apart. That needs distinct points: records equal to x are as
  near to each other as to x, and may all list it, so ties among equal records have to be broken by
  a cyclic order, which adds at most k. K(d) is the kissing number, of which upper bounds are known;
  2^{0.4042 d} of the paper is asymptotic and below it. l <= n_1 too, where a public bound on n_1 is
  at hand.

All of it is for neighbours that add or remove one record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import MinMaxScaler

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import ClassifierModel, Records, Run, Task
from mechanisms.model import classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.class_counts import ClassWeightsConfig
from studies import results
from studies.imbalance import suite
from studies.options import Data, Out, Seeds, Sets, names
from studies.results import Row
from studies.tables import frame_of

K, TAIL, DELTA = 5, 1e-6, 1e-5
EPSILONS = (1.0, 5.0)

KISSING_UPPER_BOUNDS = (
    *(
        2,
        6,
        12,
        24,
        44,
        78,
        134,
        240,
        364,
        554,
        870,
        1357,
        2069,
        3183,
        4866,
        7355,
        11_072,
        16_572,
        24_812,
        36_764,
    ),
    *(54_584, 82_340, 124_416, 196_560),
)
"""For dimensions 1 to 24. Mittelmann and Vallentin 2010, table 1 (semidefinite programming; exact
in dimensions 1 to 4, 8 and 24: Schütte and van der Waerden 1953, Musin 2008, Odlyzko and Sloane
1979, Levenshtein 1979). Later papers lower a few slightly; these are still upper bounds.
"""


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) for neighbours that add or remove one record, and the number `rows` of the
    learner's input rows that depend on it.
    """

    rows: float
    epsilon: float
    delta: float


def kissing_upper_bound(dimension: int) -> float:
    """Returns an upper bound on the number of unit spheres that can touch one in this dimension.

    It is from a table up to 24. Beyond it, it is by area: caps of 30 degrees around the touching
    points do not overlap, and each has the share I_{1/4}((d - 1)/2, 1/2) / 2 of the sphere.
    """
    if dimension <= len(KISSING_UPPER_BOUNDS):
        return KISSING_UPPER_BOUNDS[dimension - 1]
    share = special.betainc((dimension - 1) / 2, 0.5, 0.25) / 2
    return math.floor(1 / share) if share else math.inf


def most_neighbours_of(dimension: int, k: int, *, minority_at_most: float = math.inf) -> float:
    """Returns l: how many of distinct records can have one record among their k nearest.

    Args:
        minority_at_most: public bound on the number of minority records; the number itself is
            private.
    """
    return min(k * kissing_upper_bound(dimension), minority_at_most)


def group(epsilon: float, delta: float, rows: float) -> Guarantee:
    """Returns the guarantee of an (epsilon, delta) learner for a group of this number of rows
    (Dwork and Roth 2014, theorem 2.2).
    """
    if delta == 0:
        return Guarantee(rows, rows * epsilon, 0.0)
    log_factor = (
        rows * epsilon + math.log(-math.expm1(-rows * epsilon)) - math.log(math.expm1(epsilon))
    )
    together = math.inf if math.log(delta) + log_factor > 0 else delta * math.exp(log_factor)
    return Guarantee(rows, rows * epsilon, min(1.0, together))


def smote(epsilon: float, delta: float, *, neighbours: float, rounds: int) -> Guarantee:
    """Returns the guarantee of SMOTE with R `rounds` rows per base, whatever its randomness: at
    most l `neighbours` lists change.
    """
    return group(epsilon, delta, 1 + rounds + 2 * neighbours * rounds)


def smote_with_tail(
    epsilon: float, delta: float, *, neighbours: int, rounds: int, k: int, tail: float
) -> Guarantee:
    """Returns the same guarantee except for an event of probability `tail`, in which more rows
    change than are paid for.
    """
    replaced = float(stats.binom.isf(tail, neighbours * rounds, 1 / k))
    paid = group(epsilon, delta, 1 + rounds + 2 * replaced)
    return Guarantee(paid.rows, paid.epsilon, min(1.0, paid.delta + tail))


def printed_smote(epsilon: float, *, dimension: int, rounds: int) -> Guarantee:
    """Returns theorem 3's pure bound as printed: without k, and with 2^(0.4042 d),
    which is below the kissing number.
    """
    rows = 2 ** (0.4042 * dimension) * rounds + 1
    return Guarantee(rows, epsilon * rows, 0.0)


def neighbours(points: np.ndarray, k: int) -> np.ndarray:
    """Returns the indices of the k nearest other points of every point, int64 [n, k]."""
    return NearestNeighbors(n_neighbors=k).fit(points).kneighbors()[1]


def interpolated(
    points: np.ndarray, ids: np.ndarray, lists: np.ndarray, *, rounds: int, seed: int
) -> np.ndarray:
    """Returns rows between a record and one of its neighbours, [n, rounds, d] (Chawla et al. 2002).

    A base's randomness depends only on its id, and the number of rounds is public, so no other
    record affects it.
    """
    rows = np.empty((len(points), rounds, points.shape[1]))
    for place, record in enumerate(ids):
        rng = np.random.default_rng([seed, int(record)])
        slots, share = rng.integers(0, lists.shape[1], rounds), rng.random((rounds, 1))
        chosen = points[lists[place, slots]]
        rows[place] = points[place] + share * (chosen - points[place])
    return rows


def descend(
    x: np.ndarray,
    y: np.ndarray,
    *,
    epsilon: float,
    seed: int,
    rows: float = 1,
    weighted: bool = False,
) -> ClassifierModel:
    """Fits a linear head with the product's full-batch DP-SGD.

    Every row is in every step, so the whole is one Gaussian mechanism. Its noise does not depend on
    the number of rows, and for a group of m it is m times the noise for one.

    Args:
        rows: number of input rows that depend on one record, by which the noise is multiplied.
    """
    weights = (
        ClassWeightsConfig(noise_multiplier=20 / epsilon, smallest_count=20) if weighted else None
    )
    mechanism = DpSgd(
        optimiser="sgd",
        learning_rate=1.0,
        momentum=0.9,
        epochs=40,
        sampling_prob=1.0,
        class_weights=weights,
    )
    plan = mechanism.plan(Task(records=len(y), classes=2, target_epsilon=epsilon, delta=DELTA))
    plan = plan.model_copy(update={"noise": rows * plan.noise})

    def untrained() -> classifier.Classifier:
        return classifier.build(
            ModelConfig(pooling="none"), num_labels=2, seed=seed, width=x.shape[1]
        )

    records = Records(FeatureInputs(torch.from_numpy(x).float()), torch.from_numpy(y).long())
    model = plan.fit(records, Run(classes=2, seed=seed, classifier=untrained)).model
    assert isinstance(model, ClassifierModel)
    return model


def held_out(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    epsilon: float | None,
    rounds: int,
    rows: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labels of a held-out fifth, and their log-odds by logistic regression after
    `rounds` of SMOTE.

    Args:
        epsilon: epsilon for one record, or None for scikit-learn's fit without noise.
        rows: number of the learner's input rows that depend on one record.
    """
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=seed
    )
    x, y = features[train], labels[train]
    if rounds:
        minority = x[y == 1]
        more = interpolated(
            minority,
            np.flatnonzero(y == 1),
            neighbours(minority, min(K, len(minority) - 1)),
            rounds=rounds,
            seed=seed,
        )
        more = more.reshape(-1, x.shape[1])
        x, y = np.concatenate([x, more]), np.concatenate([y, np.ones(len(more), dtype=y.dtype)])
    if epsilon is None:
        scores = (
            LogisticRegression(C=100, max_iter=2000).fit(x, y).decision_function(features[test])
        )
    else:
        model = descend(x, y, epsilon=epsilon, seed=seed, rows=rows)
        both = model.log_probabilities(FeatureInputs(torch.from_numpy(features[test]).float()))
        scores = (both[:, 1] - both[:, 0]).numpy()
    return labels[test], scores


def auc(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    epsilon: float | None,
    rounds: int,
    rows: float,
    seed: int,
) -> float:
    """Returns the AUC on a held-out fifth; see `held_out`."""
    truth, scores = held_out(features, labels, epsilon=epsilon, rounds=rounds, rows=rows, seed=seed)
    return float(roc_auc_score(truth, scores))


def study(features: np.ndarray, labels: np.ndarray, *, seeds: int) -> Row:
    """Returns a set's shape, its largest in-degree, the cost of SMOTE, and AUC with and without it.

    Args:
        features: float64 [n, d], scaled by the file's own range, because the records are public and
            the study is not protected.
    """
    minority, dimension = features[labels == 1], features.shape[1]
    rounds = max(1, round((len(labels) - 2 * len(minority)) / len(minority)))
    bound = int(most_neighbours_of(dimension, K, minority_at_most=len(minority)))
    paid = smote(1.0, 0.0, neighbours=bound, rounds=rounds).rows
    variants: dict[str, tuple[float | None, int, float]] = {
        "non-private": (None, 0, 1),
        "non-private, SMOTE": (None, rounds, 1),
        **{f"ε {epsilon:g}": (epsilon, 0, 1) for epsilon in EPSILONS},
        **{f"ε {epsilon:g}, SMOTE": (epsilon, rounds, paid) for epsilon in EPSILONS},
        **{
            f"ε {epsilon:g} claimed, SMOTE not paid for": (epsilon, rounds, 1)
            for epsilon in EPSILONS
        },
    }
    scores = {
        what: [
            auc(features, labels, epsilon=e, rounds=r, rows=m, seed=seed) for seed in range(seeds)
        ]
        for what, (e, r, m) in variants.items()
    }
    return {
        "minority": len(minority),
        "equal_to_another": len(minority) - len(np.unique(minority, axis=0)),
        "features": dimension,
        "rounds": rounds,
        "in_degree": int(
            np.bincount(neighbours(minority, K).ravel(), minlength=len(minority)).max()
        ),
        "neighbours": bound,
        "printed_rows": printed_smote(1.0, dimension=dimension, rounds=rounds).rows,
        "rows": paid,
        "rows_with_tail": smote_with_tail(
            1.0, 0.0, neighbours=bound, rounds=rounds, k=K, tail=TAIL
        ).rows,
        **{what: results.figure(values) for what, values in scores.items()},
    }


def draw(file: Path) -> None:
    dimensions = range(1, 41)
    rows = {
        f"corrected, k = {k}": [
            smote(1, 0, neighbours=int(most_neighbours_of(d, k)), rounds=10) for d in dimensions
        ]
        for k in (1, 5, 10)
    }
    rows["as printed, every k"] = [printed_smote(1, dimension=d, rounds=10) for d in dimensions]
    lines = {name: (dimensions, [[cost.rows] for cost in costs]) for name, costs in rows.items()}
    title = "Rows of the learner's input that one record decides (R = 10)"
    results.plot(
        file, lines, title=title, x="features d", y="rows m: ε is m times the learner's", log="y"
    )


def run(data: Data, out: Out, sets: Sets = "all", seeds: Seeds = 5) -> Path:
    """The cost of SMOTE before a private learner (2024, proposition 2, theorem 3, table 2).

    Example: python -m studies oversampling --data imblearn --sets ecoli --out results
    """
    chosen = names(sets, suite()["sets"], "--sets")
    frames = {name: frame_of(data / f"{name}.csv") for name in chosen}

    def measure(cell: Mapping[str, Any]) -> Row:
        frame = frames[cell["set"]]
        scaled = MinMaxScaler().fit_transform(frame.drop(columns="label"))
        return study(scaled, frame["label"].to_numpy(), seeds=seeds)

    results.fill(out / "oversampling.csv", [{"set": name} for name in chosen], measure)
    draw(out / "oversampling.svg")
    return out / "oversampling.csv"
