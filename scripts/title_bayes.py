#!/usr/bin/env python
"""Tests whether a naive Bayes of code titles merits a mechanism on text, by cross-validation in the training half.

    python scripts/title_bayes.py WORKSPACE --codelist oiics201_nature.csv --out docs/rare-codes/title-bayes.json

Each narrative becomes a bag of "words": the m codes whose titles are nearest to it in direction, which is public. The
table N[c, t] of how often records of code c have title t nearby, and the class counts, are released with Gaussian noise
(a record adds m ones to one row and s to one count: sensitivity sqrt(m + s^2)). Cells below twice their noise are as
good as none; every row is smoothed by how near the titles are to each other, and the code of a narrative is

    argmax_c  log pi_c + tau sum_{t near x} log P(t | c) + lambda (score of c's own title)

Folds, features and titles are those of scripts/formal_ablation.py, so that its figures (docs/formal.md) stand beside
these. Rows without noise say what the idea could give at most. The noise of this study is seeded: nothing is released.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from formal_ablation import Study
from scipy import optimize, stats
from torch import Tensor

from mechanisms.model import metrics, prior
from mechanisms.model.seeding import generator
from storage.durable import write_atomically

COUNT_SCALE, SMOOTHING, SHARPNESS, FOLDS = 2.0, 5.0, 9.0, 2
SETTINGS = [(3, 1.0, 0.3), (3, 1.0, 0.0), (1, 1.0, 0.3), (5, 0.5, 0.3), (10, 0.5, 0.3), (1, 0.0, 1.0)]
"""(m, tau, lambda); tau 0 is titles alone, which cost nothing."""


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Noise multiplier of one Gaussian release (Balle and Wang 2018, theorem 8)."""

    def excess(log_noise: float) -> float:
        a = math.exp(-log_noise)
        spent = stats.norm.cdf(a / 2 - epsilon / a) - math.exp(epsilon) * stats.norm.cdf(-a / 2 - epsilon / a)
        return float(spent) - delta

    root: Any = optimize.brentq(excess, -5, 8)
    return math.exp(root)


class TitleBayes:
    """Scores of every training record by every title, and the table made of some of them."""

    def __init__(self, study: Study) -> None:
        unit, centre = prior.directions(study.embeddings, study.known)
        self.labels, self.codes = study.labels, study.codes
        self.scores = (study.features - centre) @ unit.T * 18.0
        self.smooth = (SHARPNESS * unit @ unit.T).softmax(1)

    def predicted(
        self, training: Tensor, held: Tensor, setting: tuple[int, float, float], noise: float, fold: int
    ) -> Tensor:
        """Codes of the held-out records, int64."""
        m, tau, share = setting
        labels, near = self.labels[training], self.scores[training].topk(m).indices
        table = torch.zeros(self.codes, self.codes)
        table.view(-1).index_add_(0, (labels[:, None] * self.codes + near).flatten(), torch.ones(near.numel()))
        std, drawn = noise * math.sqrt(m + COUNT_SCALE**2), generator(fold, "noise")
        table += std * torch.randn(table.shape, generator=drawn)
        counts = torch.bincount(labels, minlength=self.codes) + std / COUNT_SCALE * torch.randn(
            self.codes, generator=drawn
        )
        table = torch.where(table > 2 * std, table, 0.0)
        counts = torch.where(counts > std / COUNT_SCALE, counts, 3.0).clamp(min=3)
        words = (table + SMOOTHING * self.smooth) / (table.sum(1, keepdim=True) + SMOOTHING)
        likelihood = words.log().T[self.scores[held].topk(m).indices].sum(1)
        return (tau * likelihood + (counts / counts.sum()).log() + share * self.scores[held]).argmax(1)


def main() -> None:
    """Scores every setting at every epsilon and without noise; prints each as it is scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--codelist", type=Path, required=True)
    parser.add_argument("--encoder", default="packaged-minilm")
    parser.add_argument("--sentence", default="An employee suffered {}.", help="in which titles are read, too")
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    bayes = TitleBayes(Study(given.workspace, given.codelist, encoder=given.encoder, sentence=given.sentence))
    rows = []
    for epsilon in (None, 5.0, 1.0):
        noise = 0.0 if epsilon is None else gaussian_noise(epsilon, given.delta)
        for setting in SETTINGS:
            scores = []
            for fold in range(FOLDS):
                order = torch.randperm(len(bayes.labels), generator=generator(0, "fold", fold))
                held, training = order[: len(order) // 5], order[len(order) // 5 :]
                predicted = bayes.predicted(training, held, setting, noise, fold)
                scored = metrics.classification(bayes.labels[held].numpy(), predicted.numpy())
                scores.append([scored.weighted_f1, scored.macro_f1])
            weighted, macro = (round(value, 4) for value in torch.tensor(scores).mean(0).tolist())
            named = dict(zip(("nearest", "tau", "lambda"), setting, strict=True))
            rows.append({"epsilon": epsilon, "setting": named, "weighted_f1": weighted, "macro_f1": macro})
            print(f"ε {epsilon}  {named}  {weighted:.3f} / {macro:.3f}", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    head = {"delta": given.delta, "folds": FOLDS, "scored_on": "a held-out fifth of the training half"}
    write_atomically(given.out, json.dumps(head | {"tried": rows}, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
