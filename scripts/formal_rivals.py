#!/usr/bin/env python
"""Scores formal linear heads that did not become mechanisms, next to prior descent, on the same folds.

    python scripts/formal_rivals.py WORKSPACE --codelist oiics201_nature.csv --out docs/formal/rivals.json

WORKSPACE and folds are those of `scripts/formal_ablation.py`; the test half is never read. Each rival is flattered: its
best setting of a small grid is shown, chosen on the very fold, and objective perturbation gets the mean and the counts
for nothing. What still loses has lost. Noise is of torch's generator: nothing here is released.

    least squares   X'X and X'Y once (Vu and Slavkovic 2009; "sufficient statistics perturbation"), ridge towards titles
    newton          steps on the rows in coordinates whitened by the noisy X'X, which bounds the Hessian (Boehning 1992)
    objective       a random linear term in the sum of the losses (Chaudhuri et al. 2011; Kifer et al. 2012)
    bagging         disjoint parts, a head each without privacy, cut to a ball around the titles, noise on their mean

**Objective perturbation with many classes.** The proofs are for losses whose Hessian has rank one. Here, with F's ridge
lambda, a record's Hessian (diag p - pp') (x) zz' has trace at most R^2, so the Jacobian's part of the privacy loss is
at most R^2/lambda; and with noise B ~ N(0, s^2) and gradient (p - e_y) (x) z, |z| <= R, its Gaussian part is at most

    (R/s) (max_k g_k - g_y) + (R/s)^2,    g = B z/(s |z|) ~ N(0, I),

for p is a distribution, whatever the noise makes of it, and |p - e_y|^2 <= 2. The noise s is solved so that the sum
exceeds epsilon with probability delta at most (by simulation of g, and a normal tail beyond it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from formal_ablation import DESCENT, Study, arguments
from scipy.optimize import brentq
from scipy.stats import norm
from studies import HELD_OUT, f1, fold_of, tried, write
from torch import Tensor

from mechanisms.model.linear_head import linear_head

MEAN, COUNTS = 0.03, 0.05
RADIUS = 4.0
Scored = tuple[float, float]


def gdp_of(epsilon: float, delta: float) -> float:
    """Mu of the Gaussian mechanism that is exactly (epsilon, delta) (Balle and Wang 2018)."""

    def excess(mu: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - delta

    root: Any = brentq(excess, 1e-3, 50)
    return float(root)


class Fold:
    """Centred features and the log prior as a formal fit has them, and what is scored."""

    def __init__(self, study: Study, *, epsilon: float, delta: float, fold: int) -> None:
        held, training = fold_of(study.labels, fold)
        self.epsilon, self.delta, self.mu = epsilon, delta, gdp_of(epsilon, delta)
        features, self.labels, self.codes = study.features[training], study.labels[training], study.codes
        cut = features * (RADIUS / features.norm(dim=1, keepdim=True)).clamp(max=1)
        mean = (cut.sum(0) + torch.randn(cut.shape[1]) * RADIUS / (self.mu * math.sqrt(MEAN))) / len(training)
        deviation = 1 / (self.mu * math.sqrt(COUNTS))
        counts = torch.bincount(self.labels, minlength=self.codes) + torch.randn(self.codes) * deviation
        counts = torch.where(counts > deviation, counts, 3.0).clamp(min=3.0)
        self.log_prior = (counts / counts.sum()).log()
        self.z = features - mean
        self.z *= (RADIUS / self.z.norm(dim=1, keepdim=True)).clamp(max=1)
        self.start = linear_head(study.untrained({})).weight.detach().clone()
        self._held, self._truth = study.features[held] - mean, study.labels[held]

    @property
    def rest(self) -> float:
        """Mu of what is left."""
        return self.mu * math.sqrt(1 - MEAN - COUNTS)

    def scored(self, rows: Tensor, bias: Tensor | None = None) -> Scored:
        """Weighted and macro F1 of a head [codes, width] on the held-out fifth."""
        return f1(self._truth, (self._held @ rows.T + (self.log_prior if bias is None else bias)).argmax(1))

    def second_moments(self, share: float) -> Tensor:
        """Noisy sum of zz' at a share of rho, positive semidefinite."""
        noise = torch.randn(self.z.shape[1], self.z.shape[1]) * RADIUS**2 / (self.mu * math.sqrt(share))
        values, vectors = torch.linalg.eigh(self.z.T @ self.z + (noise.triu() + noise.triu(1).T))
        return (vectors * values.clamp(min=0)) @ vectors.T

    def residual(self, rows: Tensor, bias: Tensor) -> Tensor:
        """Softmax minus the given code [records, codes]."""
        out = torch.addmm(bias, self.z, rows.T).log_softmax(1).clamp(min=-60).exp()
        out[torch.arange(len(out)), self.labels] -= 1
        return out


def least_squares(fold: Fold) -> Iterable[tuple[dict[str, float], Scored]]:
    """X'X at a quarter of what is left, X'Y at the rest."""
    left = 1 - MEAN - COUNTS
    moments = fold.second_moments(left / 4)
    sums = torch.zeros(fold.codes, fold.z.shape[1]).index_add_(0, fold.labels, fold.z)
    sums += torch.randn_like(sums) * RADIUS / (fold.mu * math.sqrt(left * 3 / 4))
    eye = torch.eye(len(moments))
    for ridge in (30.0, 300.0, 3000.0):
        for pull in (0.0, 0.01, 0.03):
            rows = torch.linalg.solve(moments + ridge * eye, (sums + ridge * pull * fold.start).T).T
            for scale in (3.0, 10.0, 30.0):
                yield {"ridge": ridge, "pull": pull, "scale": scale}, fold.scored(scale * rows)


def newton(fold: Fold) -> Iterable[tuple[dict[str, float], Scored]]:
    """Descent from titles in coordinates whitened by a power of the noisy second moments (5 % of rho)."""
    values, vectors = torch.linalg.eigh(fold.second_moments(0.05) / len(fold.z))
    mu = fold.mu * math.sqrt(1 - MEAN - COUNTS - 0.05)
    z = fold.z
    for power in (0.25, 0.5):
        for steps in (20, 60):
            scale = (values + 0.1 * values.mean()) ** -power
            scale = scale / (values @ scale.square() / values.sum()).sqrt()  # the same length in the mean
            there, back = (vectors * scale) @ vectors.T, (vectors / scale) @ vectors.T
            fold.z = z @ there
            for noise in (0.3, 0.5):
                rows, bias = _descent(fold, fold.start @ back, mu=mu, steps=steps, noise=noise)
                yield {"power": power, "steps": steps, "noise": noise}, fold.scored(rows @ there, bias)
    fold.z = z


def _descent(fold: Fold, rows: Tensor, *, mu: float, steps: int, noise: float) -> tuple[Tensor, Tensor]:
    sigma, momentum = math.sqrt(steps) / mu, 0.9
    reach = math.sqrt(sum(((1 - momentum**left) / (1 - momentum)) ** 2 for left in range(1, steps + 1)))
    rate = noise / (sigma * reach)
    here = torch.cat([rows, fold.log_prior[:, None]], 1)
    velocity = torch.zeros_like(here)
    with_bias = torch.cat([fold.z, torch.ones(len(fold.z), 1)], 1)
    for _ in range(steps):
        residual = fold.residual(here[:, :-1], here[:, -1])
        norms = residual.norm(dim=1) * with_bias.norm(dim=1)
        gradient = (residual / norms.clamp(min=1)[:, None]).T @ with_bias
        velocity = momentum * velocity + gradient + torch.randn_like(gradient) * sigma
        here = here - rate * velocity
    return here[:, :-1], here[:, -1]


def objective(fold: Fold) -> Iterable[tuple[dict[str, float], Scored]]:
    """The minimiser itself; the log prior stays as it is."""
    for ridge in (3.0, 10.0, 30.0, 100.0):
        left = fold.epsilon - RADIUS**2 / ridge
        if left <= 0:
            continue
        deviation = RADIUS / _share(left, fold.delta, fold.codes)
        random = torch.randn_like(fold.start) * deviation
        yield {"ridge": ridge, "deviation": round(deviation, 2)}, fold.scored(_minimiser(fold, ridge, random))


def _share(epsilon: float, delta: float, codes: int) -> float:
    """R/s for which (R/s) (max_k g_k - g_y) + (R/s)^2 exceeds epsilon with probability delta."""
    drawn = torch.cat([(g := torch.randn(10_000, codes)).amax(1) - g[:, 0] for _ in range(20)])
    quantile = float(drawn.mean() + drawn.std() * norm.isf(delta))  # nearly normal: -g_y's part is
    return (-quantile + math.sqrt(quantile**2 + 4 * epsilon)) / 2


def _minimiser(fold: Fold, ridge: float, random: Tensor | float, own: Tensor | None = None) -> Tensor:
    rows = fold.start.clone().requires_grad_()
    z, labels = (fold.z, fold.labels) if own is None else (fold.z[own], fold.labels[own])
    descent = torch.optim.LBFGS([rows], max_iter=40, history_size=8, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        descent.zero_grad()
        value = torch.nn.functional.cross_entropy(torch.addmm(fold.log_prior, z, rows.T), labels, reduction="sum")
        value = value + ridge / 2 * (rows - fold.start).square().sum() + (rows * random).sum()
        value.backward()
        return value

    descent.step(loss)
    return rows.detach()


def bagging(fold: Fold) -> Iterable[tuple[dict[str, float], Scored]]:
    """One record is in one part: the mean of the heads moves by at most 2 radius / parts."""
    for parts in (4, 16):
        heads = [
            _minimiser(fold, 3.0, 0.0, torch.arange(part, len(fold.z), parts)) - fold.start for part in range(parts)
        ]
        for radius in (1.0, 3.0, 10.0):
            cut = [head * min(1.0, radius / float(head.norm())) for head in heads]
            noise = torch.randn_like(fold.start) * 2 * radius / (parts * fold.rest)
            yield {"parts": parts, "radius": radius}, fold.scored(fold.start + torch.stack(cut).mean(0) + noise)


RIVALS: Mapping[str, Callable[[Fold], Iterable[tuple[dict[str, float], Scored]]]] = {
    "least squares": least_squares,
    "newton": newton,
    "objective": objective,
    "bagging": bagging,
}


def main() -> None:
    """Scores every rival's best setting, and the mechanism, at every epsilon."""
    given = arguments(__doc__, epsilons=[1.0, 5.0], delta=1e-5, folds=2).parse_args()
    study = Study(given.workspace, given.codelist, encoder=given.encoder, sentence=given.sentence)
    head = {"delta": given.delta, "folds": given.folds, "scored_on": HELD_OUT}
    done = tried(given.out)
    for epsilon in given.epsilons:
        for name in ("prior-descent", *RIVALS):
            if any(row["rival"] == name and row["epsilon"] == epsilon for row in done):
                continue
            best: list[Scored] = []
            settings: list[Mapping[str, Any]] = []
            for fold in range(given.folds):
                if name == "prior-descent":
                    each = [(dict[str, float](), study.score(DESCENT, epsilon=epsilon, delta=given.delta, fold=fold))]
                else:
                    each = list(RIVALS[name](Fold(study, epsilon=epsilon, delta=given.delta, fold=fold)))
                setting, scores = max(each, key=lambda entry: sum(entry[1]))
                best.append(scores)
                settings.append(setting)
            weighted, macro = (round(value, 4) for value in torch.tensor(best).mean(0).tolist())
            done.append(
                {"rival": name, "epsilon": epsilon, "weighted_f1": weighted, "macro_f1": macro, "settings": settings}
            )
            write(given.out, head, done)
            print(f"{name:16} ε {epsilon:<4} {weighted:.3f} / {macro:.3f}  {settings}", flush=True)


if __name__ == "__main__":
    main()
