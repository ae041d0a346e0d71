"""Invented coded tables whose true codes are known, and samples of them by the product's own
designs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.coding.estimates import Sample
from tasks.coding.strata import Stratum, stratify

BINS = ((1, 4), (5, 9), (10, 19), (20, 49), (50, 10**9))
"""Rows of the sample with a code, by human or model."""


@dataclass(frozen=True)
class Design:
    """One way to draw, and how the model errs. kind: a simple random sample, strata by code and
    score, or two codes drawn whole beside a random sample. error: mean of the codes' error rates,
    which are from half to twice it, the rarest code's the highest. scores: whether wrong codes have
    lower ones. odd: every tenth code is nearly always taken for another.
    """

    kind: Literal["simple", "strata", "sensitive"]
    size: int = 400
    error: float = 0.15
    scores: bool = True
    odd: bool = False
    rows: int = 6000
    codes: int = 60

    def population(self, rng: np.random.Generator) -> Population:
        usual = 1 / np.arange(1, self.codes + 1) ** 1.1
        usual /= usual.sum()
        true = rng.choice(self.codes, self.rows, p=usual)
        rates = np.minimum(self.error * np.linspace(0.5, 2, self.codes), 0.9)
        if self.odd:
            rates[rng.random(self.codes) < 0.1] = 0.9
        wrong, near = rng.random(self.rows) < rates[true], rng.random(self.rows) < 0.5
        neighbour = (true + 1 + rng.integers(0, 3, self.rows)) % self.codes
        taken_for = np.where(near, neighbour, rng.choice(self.codes, self.rows, p=usual))
        model = np.where(wrong, taken_for, true)
        low = (2.5, 1.5) if self.scores else (5.0, 1.0)
        scores = np.where(model == true, rng.beta(6, 1, self.rows), rng.beta(*low, self.rows))
        return Population(self, true, model, scores)


@dataclass(frozen=True)
class Population:
    design: Design
    true: NDArray[np.int64]
    model: NDArray[np.int64]
    scores: NDArray[np.float64]

    def counts(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(codes, minlength=self.design.codes)

    def strata(self) -> list[Stratum]:
        every = list(range(len(self.true)))
        if self.design.kind == "strata":
            return stratify(
                [str(code) for code in self.model],
                self.scores.tolist(),
                every,
                size=self.design.size,
            )
        chosen = (
            [self.design.codes // 3, self.design.codes // 2]
            if self.design.kind == "sensitive"
            else []
        )
        whole = np.flatnonzero(np.isin(self.model, chosen)).tolist()
        rest = sorted(set(every) - set(whole))
        return [Stratum(rest, self.design.size), *([Stratum(whole, len(whole))] if whole else [])]

    def samples(self, rng: np.random.Generator, draws: int) -> Iterator[Sample]:
        strata = self.strata()
        weights = np.concatenate([np.full(one.size, round(one.weight, 6)) for one in strata])
        for _ in range(draws):
            rows = np.concatenate([rng.choice(one.rows, one.size, replace=False) for one in strata])
            yield Sample(self.true[rows], self.model[rows], weights)


def symmetric(
    sample: Sample, y: NDArray[np.bool_], f: NDArray[np.bool_], count: int, *, added: bool
) -> tuple[float, float]:
    """The interval of before: prediction-powered by PPI++, with or without one disagreement in each
    stratum.
    """
    of_y, of_f = sample.variance(y.astype(float)), sample.variance(f.astype(float))
    of_both = (of_y + of_f - sample.variance(y.astype(float) - f)) / 2
    power = min(1.0, max(0.0, of_both / of_f)) if of_f > 0 else sample.agreement
    value = power * count + float((sample.weights * (y - power * f)).sum())
    variance = max(0.0, of_y - 2 * power * of_both + power**2 * of_f)
    if added:
        total, sizes = (
            np.bincount(sample.strata, weights=sample.weights),
            np.bincount(sample.strata),
        )
        one = (sample.corrections * total / total.sum() * (total / sizes) ** 2).sum()
        variance += float(one) * (1 + power**2)
    half, least, most = 1.959964 * variance**0.5, y.sum(), sample.weights.sum() - (~y).sum()
    return max(value - half, least), min(value + half, most)
