#!/usr/bin/env python
"""SWAG against the posterior itself, on one likelihood: what docs/posterior.md says, as JSON.

    python scripts/compare_posteriors.py WORKSPACE --out docs/results/posterior.json --work FOLDER

WORKSPACE is one in which a comparison with profile `osha-head` has prepared features. Both are of the likelihood
without weights, on the training half; F1 is on the test half. Finished parts are saved in `--work`, not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from studies import f1, prepared
from torch import Tensor

from mechanisms.audit import trials
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model import checkpoint, classifier
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.linear_head import from_flat, with_bias
from mechanisms.model.seeding import generator
from mechanisms.posterior import hmc, swag
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.convergence import Diagnostics
from mechanisms.posterior.gibbs import SoftmaxPosterior
from mechanisms.posterior.hmc import SamplerConfig
from mechanisms.swag_ppm import SwagPpm
from storage.datasets import load_codes
from storage.durable import write_atomically

MODEL = ModelConfig(encoder="packaged-minilm", trainable="head", pooling="mean")
SCORED = 40
"""Draws whose F1 is taken."""


class Study:
    """Holds the records, and scores draws."""

    def __init__(self, workspace: Path, work: Path, *, draws: int, prior_std: float) -> None:
        self.features, self.labels = {}, {}
        for half in ("train", "test"):
            features, self.labels[half] = prepared(workspace, half)
            self.features[half] = with_bias(features)
        self.classes = len(load_codes(next((workspace / "private" / "stages" / "ingest").iterdir())))
        self.work, self.draws, self.prior_std = work, draws, prior_std
        work.mkdir(parents=True, exist_ok=True)

    def untrained(self) -> Classifier:
        """The head that both start from."""
        return classifier.build(MODEL, num_labels=self.classes, seed=0)

    def f1(self, theta: Tensor) -> tuple[float, float]:
        """Weighted and macro F1 on the test half, theta [classes, width + 1]."""
        return f1(self.labels["test"], (self.features["test"] @ theta.T).argmax(1))

    def exact(self) -> dict[str, Tensor]:
        """ell [S, n] of draws that the diagnostics bear out, some draws, their mean and each parameter's variance."""
        file = self.work / "exact.safetensors"
        if file.exists():
            return checkpoint.load(file)[0]
        start = from_flat(self.untrained().flat.clone(), classes=self.classes)
        target = SoftmaxPosterior(self.features["train"], self.labels["train"], start, self.prior_std)
        total, square, some = torch.zeros_like(start).double(), torch.zeros_like(start).double(), list[Tensor]()
        began = time.process_time()
        diagnostics: list[Diagnostics] = []

        def seen(theta: Tensor) -> None:
            total.add_(theta.double().sum(0))
            square.add_(theta.double().square().sum(0))
            if len(some) < SCORED:
                some.extend(theta)

        def satisfied(drawn: hmc.Draws) -> bool:
            diagnostics.append(Diagnostics.of(drawn, drawn.ell.abs().amax(2).double().numpy()))
            print(diagnostics[-1], f"{time.process_time() - began:.0f} s of one core", flush=True)
            return not diagnostics[-1].failures

        drawn = hmc.sample(
            target, start, SamplerConfig(), draws=self.draws, purpose="study", on_draw=seen, satisfied=satisfied
        )
        diagnostics[-1].refuse()
        mean = total / drawn.count
        tensors = {
            "ell": drawn.ell.flatten(0, 1),
            "some": torch.stack(some),
            "mean": mean.float(),
            "variance": (square / drawn.count - mean.square()).float(),
        }
        values = diagnostics[-1].figures | {"seconds": time.process_time() - began, "draws": float(drawn.count)}
        tensors["figures"] = torch.tensor([values[name] for name in FIGURES], dtype=torch.float64)
        checkpoint.save(file, tensors, {})
        return tensors

    def swag_posterior(self) -> swag.Posterior:
        """SWAG of the same records, with the profile's phases."""
        folder = self.work / "swag"
        if not (folder / "base" / "moments.safetensors").exists():
            mechanism = SwagPpm(
                round="base",
                fine_tune=OptimiserPhase(optimiser="adamw", learning_rate=0.003, epochs=10, batch_size=8),
                collect=OptimiserPhase(optimiser="sgd", learning_rate=0.01, epochs=20, batch_size=8),
                pseudo_posterior=PseudoPosteriorConfig(risk_draws=1),
            )
            records = Records(FeatureInputs(self.features["train"][:, :-1].contiguous()), self.labels["train"])
            plan = mechanism.plan(Task(records=len(records), classes=self.classes))
            plan.fit(records, Run(classes=self.classes, seed=0, classifier=self.untrained, folder=folder))
        return swag.load(folder / "base")

    def swag_draws(self, post: swag.Posterior, scale: float, draws: int) -> tuple[Tensor, Tensor]:
        """(ell [draws, n], theta [SCORED, classes, width + 1]) at this standard deviation scale."""
        wide, ell, some = replace(post, std_scale=scale), list[Tensor](), list[Tensor]()
        for number in range(draws):
            flat = swag.sample(wide, normal=swag.seeded_normal(generator(0, "study", "draw", number)))
            theta = from_flat(flat, classes=self.classes)
            ell.append(trials.log_likelihood(theta[None], self.features["train"], self.labels["train"])[0][0])
            if number < SCORED:
                some.append(theta)
        return torch.stack(ell), torch.stack(some)


FIGURES = ("r_hat", "ess_bulk", "ess_tail", "acceptance", "energy_error", "seconds", "draws")


def report(study: Study, ell: Tensor, some: Tensor, mean: Tensor, exact: Tensor) -> dict[str, Any]:
    """Aggregates of one posterior's draws, held against the exact ones."""
    scores = torch.tensor([study.f1(theta) for theta in some[:SCORED]])
    low, high = ell.double().quantile(torch.tensor([0.05, 0.95], dtype=torch.float64), dim=0)
    inside = ((exact >= low) & (exact <= high)).double().mean(0)
    return {
        "weighted_f1": scores[:, 0].mean().item(),
        "weighted_f1_std": scores[:, 0].std().item(),
        "macro_f1": scores[:, 1].mean().item(),
        "macro_f1_std": scores[:, 1].std().item(),
        "mean_weighted_f1": study.f1(mean)[0],
        "mean_macro_f1": study.f1(mean)[1],
        "delta": float(ell.abs().max()),
        "delta_median_of_draws": float(ell.abs().amax(1).median()),
        "coverage_90": float(inside.mean()),
        "std_of_ell": float((ell.std(0) / exact.std(0)).median()),
        "mean_ell": float(ell.mean()),
        "draws": len(ell),
    }


def main() -> None:
    """Fits both, and writes what their draws say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="private folder for what is finished")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--prior-std", type=float, default=1.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(given.workspace, given.work, draws=given.draws, prior_std=given.prior_std)
    post = study.swag_posterior()
    sampled = study.exact()
    exact = sampled["ell"]
    # the diagonal part has half of the variance, the deviations' the other half
    variance = post.diag_std.square() / 2 + torch.stack(post.deviations).square().sum(0) / (2 * (post.rank - 1))
    matched = math.sqrt(float(sampled["variance"].mean() / variance.mean()))
    mean = from_flat(post.mean, classes=study.classes)
    content: dict[str, Any] = {
        "records": len(study.labels["train"]),
        "classes": study.classes,
        "prior_std": given.prior_std,
        "scored_draws": SCORED,
        "sampler": dict(zip(FIGURES, sampled["figures"].tolist(), strict=True)),
        "exact": report(study, exact, sampled["some"], sampled["mean"], exact),
        "matched_scale": matched,
        "swag": {},
    }
    for scale in (1.0, 3.0, 10.0, 30.0, matched):
        ell, some = study.swag_draws(post, scale, min(given.draws, 200))
        content["swag"][f"{scale:.4g}"] = report(study, ell, some, mean, exact)
        print(scale, content["swag"][f"{scale:.4g}"], flush=True)
    write_atomically(given.out, json.dumps(content, indent=1).encode() + b"\n")
    print(json.dumps(content["exact"]), flush=True)


if __name__ == "__main__":
    main()
