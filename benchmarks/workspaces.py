"""Comparisons that benchmarks make with `autocoder compare`, and their predictions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.datasets import load_split
from storage.paths import Workspace
from tasks.fitting.fits import predictions


@dataclass(frozen=True)
class Fit:
    """A fitted model of a comparison."""

    kind: str
    """Kind of its mechanism, such as `prior-descent`."""
    epsilon: float | None
    """Its target, or None if it has none."""
    seed: int


def compare(home: Path, *options: str) -> dict[str, Any]:
    """Runs or resumes `autocoder compare` in a workspace, and returns its results.
    Progress goes to stderr.
    """
    autocoder = Path(sys.executable).with_name("autocoder")
    command = [str(autocoder), "compare", "--home", str(home), "--json", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def held_out_labels(home: Path) -> np.ndarray:
    """Returns the codes of the held-out records, int64 [n], in a workspace with one data set."""
    (manifest,) = (Workspace(home).private / "stages" / "ingest").glob("*/manifest.json")
    return np.asarray(load_split(manifest.parent, "test")["label"][:], dtype=np.int64)


def held_out_scores(home: Path, kinds: Sequence[str]) -> dict[Fit, Tensor]:
    """Returns the log-probabilities float32 [n, codes] of the held-out records by fit."""
    found = {}
    for manifest in (Workspace(home).private / "stages" / "predictions").glob("*/manifest.json"):
        recipe = json.loads(manifest.read_text())["recipe"]["config"]
        mechanism = recipe["mechanism"]
        if mechanism["kind"] in kinds:
            fit = Fit(mechanism["kind"], mechanism.get("target_epsilon"), recipe["seed"])
            found[fit] = predictions(manifest.parent, "test").log_probabilities.features
    return found


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the sample standard deviation, which is 0 for one value."""
    numbers = torch.tensor(values, dtype=torch.float64)
    deviation = float(numbers.std()) if len(values) > 1 else 0.0
    return round(float(numbers.mean()), 4), round(deviation, 4)
