"""Two Gaussians under imbalance, for which everything is known in closed form (Rosenblatt et al.
2024, appendices C.2 and D.2: table 10, proposition 12, figure 4).

`Mixture` has the figures as derived, `printed` has the paper's. Tests compare both with Monte
Carlo. Records are drawn from fixed seeds; the noise of private fits has none.
Monte Carlo. Records are drawn from fixed seeds; the noise of private fits has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import norm
from sklearn import metrics
from sklearn.linear_model import LogisticRegression

from studies import results
from studies.options import Out
from studies.oversampling import DELTA, descend, interpolated, neighbours

EPSILONS, DRAWS = (0.1, 0.5, 1.0, 5.0), 8
RECORDS, SHARE, MEANS, SPREAD = 1000, 0.1, ((0.0, 0.0), (4.0, 4.0)), 2.0


@dataclass(frozen=True)
class Mixture:
    """X | y ~ N(mu_y, sigma^2), r = P(y = 0)/P(y = 1), Delta = (mu_1 - mu_0)/sigma, and the
    threshold theta = gamma mu_1 + (1 - gamma) mu_0 above which a record is called positive.
    """

    r: float
    delta: float

    def metrics(self, gamma: float, *, noise_variance: float = 0.0) -> dict[str, float]:
        """Returns recall, precision, balanced accuracy, F1 and accuracy, expected over a threshold
        with normal error.

        Args:
            noise_variance: variance of the threshold in units of sigma^2. Precision and F1 are
                those of the expected rates.
        """
        width = math.sqrt(1 + noise_variance)
        hit = float(norm.cdf((1 - gamma) * self.delta / width))
        false = float(norm.sf(gamma * self.delta / width))
        return {
            "recall": hit,
            "precision": hit / (hit + self.r * false),
            "balanced accuracy": (hit + 1 - false) / 2,
            "F1": 2 * hit / (2 * hit + self.r * false + 1 - hit),
            "accuracy": (hit + self.r * (1 - false)) / (1 + self.r),
        }

    def printed(self, gamma: float) -> dict[str, float]:
        hit, false = float(norm.cdf((1 - gamma) * self.delta)), float(norm.sf(gamma * self.delta))
        return {
            "recall": (1 + self.r) * hit,
            "precision": hit / (hit + (1 + self.r) * false),
            "balanced accuracy": (hit + 1 - false) / 2,
            "F1": hit / (hit + false / 2),
        }

    @property
    def bayes(self) -> float:
        """Gamma with the fewest errors: 1/2 + ln(r)/Delta^2. The midpoint is
        optimal only for equal classes.
        """
        return 0.5 + math.log(self.r) / self.delta**2

    def threshold_variance(
        self, majority: int, *, radius: float, epsilon: float, printed: bool = False
    ) -> float:
        """Returns the variance of the mean of two private class means (proposition 12), in units of
        sigma^2.

        (1/4) (1/n_0 + 1/n_1 + s_0^2 + s_1^2) with s_b = (2 R/n_b) sqrt(2 ln(1.25/delta))/epsilon.
        The printed formula omits the quarter before the data terms and takes it out of the noise
        terms.

        Args:
            radius: R, the clipping radius of records in units of sigma; it should clip none.
        """
        noise = (0.5 if printed else 2) * radius**2 * math.log(1.25 / DELTA) / epsilon**2
        return (1 + self.r) / (4 * majority) + noise * (1 + self.r**2) / majority**2


def monte_carlo(mixture: Mixture, gamma: float, *, records: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.random(records) < 1 / (1 + mixture.r)
    called = rng.standard_normal(records) + mixture.delta * labels >= gamma * mixture.delta
    nothing: Any = np.nan
    return {
        "recall": metrics.recall_score(labels, called),
        "precision": metrics.precision_score(labels, called, zero_division=nothing),
        "balanced accuracy": metrics.balanced_accuracy_score(labels, called),
        "F1": metrics.f1_score(labels, called),
        "accuracy": metrics.accuracy_score(labels, called),
    }


def private_thresholds(
    mixture: Mixture, majority: int, *, radius: float, epsilon: float, runs: int, seed: int
) -> np.ndarray:
    """Returns the errors of the private midpoint, in units of sigma, [runs]."""
    rng = np.random.default_rng(seed)
    errors = np.zeros(runs)
    for mean, count in ((0.0, majority), (mixture.delta, round(majority / mixture.r))):
        values = np.clip(rng.standard_normal((runs, count)) + mean, -radius, radius).mean(1)
        std = 2 * radius / count * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon
        errors += (values + std * rng.standard_normal(runs) - mean) / 2
    return errors


def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns the paper's records of figure 4, scaled: [n, 2], and labels."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(RECORDS) < SHARE).astype(int)
    points = np.array(MEANS)[labels] + SPREAD * rng.standard_normal((RECORDS, 2))
    return (points - 2.0) / 4.0, labels


def private_line(
    points: np.ndarray, labels: np.ndarray, *, epsilon: float, weighted: bool, seed: int
) -> np.ndarray:
    model = descend(points, labels, epsilon=epsilon, seed=seed, weighted=weighted)
    weight, bias = (values.detach().numpy() for values in model.classifier.part.parameters())
    return np.append(weight[1] - weight[0], bias[1] - bias[0])


def line(points: np.ndarray, labels: np.ndarray, **options: Any) -> np.ndarray:
    fitted = LogisticRegression(C=100, **options).fit(points, labels)
    return np.concatenate([fitted.coef_[0], fitted.intercept_])


def balanced_accuracy(line: np.ndarray) -> float:
    """Returns the exact balanced accuracy of a line: each class is normal along the
    line's normal vector.
    """
    w, norm_w = line[:2] / 4.0, float(np.linalg.norm(line[:2]) / 4.0)
    rates = [
        float(norm.cdf((w @ (np.array(mean) - 2.0) + line[2]) / (SPREAD * norm_w)))
        if norm_w
        else 0.5
        for mean in MEANS
    ]
    return (1 - rates[0] + rates[1]) / 2


def fits(draws: int = DRAWS) -> dict[str, list[np.ndarray]]:
    points, labels = drawn()
    minority = points[labels == 1]
    rounds = round(1 / SHARE) - 2
    lists = neighbours(minority, 5)
    more = interpolated(minority, np.arange(len(minority)), lists, rounds=rounds, seed=0).reshape(
        -1, 2
    )

    def with_more(extra: np.ndarray) -> np.ndarray:
        return line(
            np.concatenate([points, extra]),
            np.concatenate([labels, np.ones(len(extra), dtype=int)]),
        )

    found = {
        "non-private": [line(points, labels)],
        "class weights": [line(points, labels, class_weight="balanced")],
        "minority copied": [with_more(np.repeat(minority, rounds, axis=0))],
        "SMOTE": [with_more(more)],
    }
    for weighted in (False, True):
        for epsilon in EPSILONS:
            name = f"ε {epsilon:g}{', private weights' if weighted else ''}"
            found[name] = [
                private_line(points, labels, epsilon=epsilon, weighted=weighted, seed=seed)
                for seed in range(draws)
            ]
    return found


def formulas(records: int = 4_000_000) -> list[results.Row]:
    """Returns each figure in closed form, by simulation, and as printed in table
    10, at four thresholds.
    """
    mixture = Mixture(r=9.0, delta=2.0)
    gammas = {0.5: "midpoint", mixture.bayes: "fewest errors", 0.25: "a quarter", 10.0: "1 + r"}
    rows = []
    for gamma, what in gammas.items():
        closed, printed = mixture.metrics(gamma), mixture.printed(gamma)
        counted = monte_carlo(mixture, gamma, records=records, seed=1)
        for name, value in closed.items():
            row = {
                "gamma": gamma,
                "what": what,
                "figure": name,
                "closed_form": value,
                "counted": counted[name],
            }
            rows.append(row | {"printed": printed.get(name)})
    return rows


def thresholds(runs: int = 4000) -> list[results.Row]:
    """Returns the standard deviation of the private midpoint in closed form, by
    simulation, and as printed.
    """
    rows = []
    for r in (1, 9, 30):
        for epsilon in (0.5, 1.0, 5.0):
            mixture, majority, radius = Mixture(r=r, delta=2.0), 900, 8.0
            errors = private_thresholds(
                mixture, majority, radius=radius, epsilon=epsilon, runs=runs, seed=2
            )
            closed = mixture.threshold_variance(majority, radius=radius, epsilon=epsilon)
            printed = mixture.threshold_variance(
                majority, radius=radius, epsilon=epsilon, printed=True
            )
            row = {
                "r": r,
                "epsilon": epsilon,
                "closed_form": math.sqrt(closed),
                "counted": float(errors.std()),
            }
            recall = mixture.metrics(0.5, noise_variance=closed)["recall"]
            rows.append(row | {"printed": math.sqrt(printed), "expected_recall": recall})
    return rows


def run(
    out: Out, draws: Annotated[int, typer.Option(help="fits per private line")] = DRAWS
) -> Path:
    """Two Gaussians in closed form (2024, table 10, proposition 12, figure 4).

    Example: python -m studies mixture --out results
    """
    results.tell("1/3 the formulas, simulated with 4,000,000 records each")
    results.save(out / "mixture-formulas.csv", formulas())
    results.tell("2/3 the private thresholds, 4,000 draws each")
    results.save(out / "mixture-thresholds.csv", thresholds())
    results.tell(f"3/3 {2 * len(EPSILONS) * draws} private lines; about 20 s in all")
    scores = {
        name: [balanced_accuracy(fit) for fit in lines] for name, lines in fits(draws).items()
    }
    rows: list[results.Row] = [
        {"fit": name, "draw": number, "balanced_accuracy": score}
        for name, line_scores in scores.items()
        for number, score in enumerate(line_scores)
    ]
    results.save(out / "mixture.csv", rows)
    drawn = {
        title: (EPSILONS, [scores[f"ε {epsilon:g}{suffix}"] for epsilon in EPSILONS])
        for title, suffix in (
            ("DP descent", ""),
            ("DP descent, private class weights", ", private weights"),
        )
    }
    drawn |= {
        name: (EPSILONS, [scores[name]] * len(EPSILONS))
        for name in ("non-private", "class weights")
    }
    title = "A line between two Gaussians, a tenth positive (mean ± two standard errors)"
    results.plot(
        out / "mixture.svg", drawn, title=title, x="ε", y="balanced accuracy, exact for the mixture"
    )
    return out / "mixture.csv"
