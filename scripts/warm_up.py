#!/usr/bin/env python
"""Two Gaussians, where everything is known in closed form: docs/imbalance/warm-up.md and its pictures.

    python scripts/warm_up.py --out docs/imbalance/warm-up.md

Rosenblatt et al. 2024, appendix C.2 (one feature, table 10, proposition 12) and D.2 (two features, figure 4).
`Mixture` has the figures as they follow, `printed` as the paper has them; tests/examples/test_warm_up.py holds both
against Monte Carlo. Records are drawn from fixed seeds; the noise of private fits has none, so that their boundaries
move within their spread.
"""

from __future__ import annotations

import argparse
import io
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oversampling import neighbours, smote
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from torch import nn

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import ClassifierModel, Plan, Records, Run, Task
from mechanisms.model import classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.class_counts import ClassWeightsConfig
from storage.durable import write_atomically
from tasks.pages.render import Table, notes_beside, render
from tasks.running.provenance import provenance

EPSILONS, DELTA, DRAWS = (0.1, 0.5, 1.0, 5.0), 1e-5, 8
RECORDS, SHARE, MEANS, SPREAD = 1000, 0.1, ((0.0, 0.0), (4.0, 4.0)), 2.0


@dataclass(frozen=True)
class Mixture:
    """X | y ~ N(mu_y, sigma^2), r = P(y = 0)/P(y = 1), Delta = (mu_1 - mu_0)/sigma, and the threshold
    theta = gamma mu_1 + (1 - gamma) mu_0 above which a record is called positive."""

    r: float
    delta: float

    def metrics(self, gamma: float, *, noise_variance: float = 0.0) -> dict[str, float]:
        """Recall, precision, balanced accuracy, F1 and accuracy, expected over a threshold with normal error.

        Args:
            noise_variance: of the threshold, in units of sigma^2; it widens what a record is compared with. (Of
            rates: the
                precision and F1 are those of the expected rates.)
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
        """Table 10: recall above 1, precision with 1 + r for r, F1 of equal classes."""
        hit, false = float(norm.cdf((1 - gamma) * self.delta)), float(norm.sf(gamma * self.delta))
        return {
            "recall": (1 + self.r) * hit,
            "precision": hit / (hit + (1 + self.r) * false),
            "balanced accuracy": (hit + 1 - false) / 2,
            "F1": hit / (hit + false / 2),
        }

    @property
    def bayes(self) -> float:
        """Gamma of the fewest errors: 1/2 + ln(r)/Delta^2. The midpoint is that of equal classes alone."""
        return 0.5 + math.log(self.r) / self.delta**2

    def threshold_variance(self, majority: int, *, radius: float, epsilon: float) -> float:
        """Returns the variance of the mean of two private class means (proposition 12), in units of sigma^2.

        (1/4) (1/n_0 + 1/n_1 + s_0^2 + s_1^2) with s_b = (2 R/n_b) sqrt(2 ln(1.25/delta))/epsilon. The printed one
        leaves the quarter in front of the data and takes it out of the noise.

        Args:
            radius: R, to which records are cut, in units of sigma; it should cut none.
        """
        return self._variance(majority, 2 * radius**2, epsilon)

    def printed_variance(self, majority: int, *, radius: float, epsilon: float) -> float:
        """Equation (2), read as it stands: half of a normal with this variance times four."""
        return self._variance(majority, 0.5 * radius**2, epsilon)

    def _variance(self, majority: int, noise: float, epsilon: float) -> float:
        spent = math.log(1.25 / DELTA) / epsilon**2
        return (1 + self.r) / (4 * majority) + noise * spent * (1 + self.r**2) / majority**2


def monte_carlo(mixture: Mixture, gamma: float, *, records: int, seed: int) -> dict[str, float]:
    """The same figures counted on records, labels drawn by prevalence."""
    rng = np.random.default_rng(seed)
    labels = rng.random(records) < 1 / (1 + mixture.r)
    called = rng.standard_normal(records) + mixture.delta * labels >= gamma * mixture.delta
    hit, false = int((called & labels).sum()), int((called & ~labels).sum())
    positive, negative = int(labels.sum()), int((~labels).sum())
    return {
        "recall": hit / positive,
        "precision": hit / (hit + false) if hit + false else math.nan,
        "balanced accuracy": (hit / positive + 1 - false / negative) / 2,
        "F1": 2 * hit / (hit + false + positive),
        "accuracy": (hit + negative - false) / records,
    }


def private_thresholds(
    mixture: Mixture, majority: int, *, radius: float, epsilon: float, runs: int, seed: int
) -> np.ndarray:
    """Errors of the private midpoint, in units of sigma, [runs]."""
    rng = np.random.default_rng(seed)
    errors = np.zeros(runs)
    for mean, count in ((0.0, majority), (mixture.delta, round(majority / mixture.r))):
        values = np.clip(rng.standard_normal((runs, count)) + mean, -radius, radius).mean(1)
        std = 2 * radius / count * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon
        errors += (values + std * rng.standard_normal(runs) - mean) / 2
    return errors


# two features


def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The paper's records of figure 4: [n, 2], and labels."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(RECORDS) < SHARE).astype(int)
    return np.array(MEANS)[labels] + SPREAD * rng.standard_normal((RECORDS, 2)), labels


def scaled(points: np.ndarray) -> np.ndarray:
    """By public numbers, the middle between the means and twice the spread."""
    return (points - 2.0) / 4.0


@cache
def _planned(epsilon: float, weighted: bool) -> Plan:
    weights = ClassWeightsConfig(noise_multiplier=20 / epsilon, smallest_count=20) if weighted else None
    mechanism = DpSgd(
        optimiser="sgd", learning_rate=1.0, momentum=0.9, epochs=40, sampling_prob=1.0, class_weights=weights
    )
    return mechanism.plan(Task(records=RECORDS, classes=2, target_epsilon=epsilon, delta=DELTA))


def private_line(points: np.ndarray, labels: np.ndarray, *, epsilon: float, weighted: bool, seed: int) -> np.ndarray:
    """(w_1, w_2, b) of a DP fit on scaled points: positive where w x + b > 0."""
    model = ModelConfig(pooling="none")
    run = Run(
        classes=2, seed=seed, classifier=lambda: classifier.build(model, num_labels=2, seed=seed, width=points.shape[1])
    )
    records = Records(FeatureInputs(torch.from_numpy(scaled(points)).float()), torch.from_numpy(labels).long())
    fitted = _planned(epsilon, weighted).fit(records, run).model
    assert isinstance(fitted, ClassifierModel)
    head = fitted.classifier.part
    assert isinstance(head, nn.Linear)
    weight, bias = head.weight.detach(), head.bias.detach()
    return torch.cat([weight[1] - weight[0], (bias[1] - bias[0])[None]]).numpy()


def line(points: np.ndarray, labels: np.ndarray, **options: Any) -> np.ndarray:
    """The same of scikit-learn's logistic regression, without noise."""
    fitted = LogisticRegression(C=100, **options).fit(scaled(points), labels)
    return np.concatenate([fitted.coef_[0], fitted.intercept_])


def balanced_accuracy(line: np.ndarray) -> float:
    """Returns the balanced accuracy of a line, exactly: each class is normal along its normal vector."""
    w, norm_w = line[:2] / 4.0, float(np.linalg.norm(line[:2]) / 4.0)
    rates = [
        float(norm.cdf((w @ (np.array(mean) - 2.0) + line[2]) / (SPREAD * norm_w))) if norm_w else 0.5 for mean in MEANS
    ]
    return (1 - rates[0] + rates[1]) / 2


def panels() -> list[tuple[str, list[np.ndarray]]]:
    """Title and lines of every picture."""
    points, labels = drawn()
    minority = points[labels == 1]
    rounds = round(1 / SHARE) - 2
    more = smote(minority, np.arange(len(minority)), neighbours(minority, 5), rounds=rounds, seed=0).reshape(-1, 2)

    def with_more(extra: np.ndarray) -> np.ndarray:
        return line(np.concatenate([points, extra]), np.concatenate([labels, np.ones(len(extra), dtype=int)]))

    shown = [
        ("non-private", [line(points, labels)]),
        ("class weights", [line(points, labels, class_weight="balanced")]),
        ("minority copied", [with_more(np.repeat(minority, rounds, axis=0))]),
        ("SMOTE", [with_more(more)]),
    ]
    for weighted in (False, True):
        for epsilon in EPSILONS:
            fits = [private_line(points, labels, epsilon=epsilon, weighted=weighted, seed=s) for s in range(DRAWS)]
            shown.append((f"ε {epsilon:g}{', private weights' if weighted else ''}", fits))
    return shown


def picture(shown: list[tuple[str, list[np.ndarray]]]) -> bytes:
    """A PNG of all panels: records, two standard deviations of each class, and the lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points, labels = drawn()
    figure = Figure(figsize=(9.6, 7.2), layout="constrained", dpi=70)
    FigureCanvasAgg(figure)
    grid = np.linspace(-8, 12, 161)
    x, y = np.meshgrid(grid, grid)
    angles = np.linspace(0, 2 * np.pi, 90)
    for at, (title, lines) in enumerate(shown):
        axes = figure.add_subplot(3, 4, at + 1)
        for fit in lines:
            height = fit[0] * scaled(x) + fit[1] * scaled(y) + fit[2]
            if len(lines) == 1:
                axes.contourf(x, y, height > 0, levels=[-0.5, 0.5, 1.5], colors=["#0072B2", "#E69F00"], alpha=0.25)
            axes.contour(x, y, height, levels=[0], colors="black", linewidths=0.8)
        for label, colour in ((0, "#0072B2"), (1, "#E69F00")):
            axes.plot(*points[labels == label].T, ".", color=colour, markersize=1.5)
            mean = MEANS[label]
            axes.plot(mean[0] + 2 * SPREAD * np.cos(angles), mean[1] + 2 * SPREAD * np.sin(angles), ":", color="black")
        score = np.mean([balanced_accuracy(fit) for fit in lines])
        axes.set_title(f"{title}: {score:.3f}", fontsize=9)
        axes.set_xlim(-8, 12)
        axes.set_ylim(-8, 12)
        axes.tick_params(labelsize=6)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


# the page


def _shown(value: float) -> str:
    return "none called" if math.isnan(value) else f"{value:.4f}"


def _formulas() -> Table:
    mixture = Mixture(r=9.0, delta=2.0)
    rows = []
    weights = {0.5: "½, midpoint", mixture.bayes: "½ + ln r/Δ², fewest errors", 0.25: "¼", 10.0: "1 + r"}
    for gamma, what in weights.items():
        closed, counted = mixture.metrics(gamma), monte_carlo(mixture, gamma, records=4_000_000, seed=1)
        printed = mixture.printed(gamma)
        cells = [
            f"{closed[name]:.4f} · {_shown(counted[name])} · "
            + (f"**{printed[name]:.4f}**" if name in printed else "–")
            for name in closed
        ]
        rows.append([what, *cells])
    return ["γ", *Mixture(1, 1).metrics(0.5)], rows


def _thresholds() -> Table:
    rows = []
    for r in (1, 9, 30):
        for epsilon in (0.5, 1.0, 5.0):
            mixture, majority, radius = Mixture(r=r, delta=2.0), 900, 8.0
            errors = private_thresholds(mixture, majority, radius=radius, epsilon=epsilon, runs=4000, seed=2)
            closed = mixture.threshold_variance(majority, radius=radius, epsilon=epsilon)
            printed = mixture.printed_variance(majority, radius=radius, epsilon=epsilon)
            spread = [f"{math.sqrt(v):.4f}" for v in (closed, float(errors.var()), printed)]
            recall = mixture.metrics(0.5, noise_variance=closed)["recall"]
            rows.append([str(r), f"{epsilon:g}", spread[0], spread[1], f"**{spread[2]}**", f"{recall:.4f}"])
    head = ["r", "ε a mean", "std of θ̂/σ, closed form", "counted (4,000 runs)", "as printed", "expected recall"]
    return head, rows


def _lines(shown: list[tuple[str, list[np.ndarray]]]) -> Table:
    rows = []
    for title, lines in shown:
        scores = [balanced_accuracy(fit) for fit in lines]
        spread = f" ± {np.std(scores, ddof=1):.3f}" if len(scores) > 1 else ""
        wrong = "" if len(lines) == 1 else f"{sum(s < 0.5 for s in scores)} of {len(scores)}"
        rows.append([title, f"{np.mean(scores):.3f}{spread}", wrong])
    return ["fit", "balanced accuracy, exact for the mixture", "worse than chance"], rows


def main() -> None:
    """Writes the page and its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    shown = panels()
    write_atomically(given.out.with_suffix(".png"), picture(shown))
    text = render(
        "warm-up.md",
        formulas=_formulas(),
        thresholds=_thresholds(),
        lines=_lines(shown),
        draws=DRAWS,
        delta=DELTA,
        picture=f"{given.out.stem}.png",
        source=provenance(),
        notes=notes_beside(given.out),
    )
    write_atomically(given.out, text.encode())


if __name__ == "__main__":
    main()
