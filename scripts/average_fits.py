#!/usr/bin/env python
"""Averages fits without privacy of two workspaces, the strongest reference of the studies: mean log-probability.

    python scripts/average_fits.py HEAD_WORKSPACE ADAPTERS_WORKSPACE

Both are of `autocoder compare` on the same records, with a branch without privacy. Prints weighted and macro F1 on the
held-out records by seed, of each fit and of the average, and the means over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from mechanisms.model import metrics
from storage.datasets import load_split
from storage.paths import Workspace


def predictions(workspace: Workspace) -> dict[int, Tensor]:
    """Returns the log-probabilities of the held-out records by seed, of the fits without privacy."""
    found = {}
    for file in sorted((workspace.private / "stages" / "predictions").glob("*/manifest.json")):
        config = json.loads(file.read_text())["recipe"]["config"]
        if config["mechanism"]["kind"] == "non-private":
            found[config["seed"]] = load_file(file.with_name("test.safetensors"))["log_probabilities"]
    return found


def labels(workspace: Workspace) -> Tensor:
    """Returns the codes of the held-out records, of a workspace with one dataset."""
    (manifest,) = (workspace.private / "stages" / "ingest").glob("*/manifest.json")
    return torch.as_tensor(load_split(manifest.parent, "test")["label"][:])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspaces", type=Path, nargs=2)
    first, second = (Workspace(path) for path in parser.parse_args().workspaces)
    codes, heads, others = labels(first).numpy(), predictions(first), predictions(second)
    if not torch.equal(labels(first), labels(second)):
        raise SystemExit("the workspaces hold out other records. Give two of the same records and split.")
    rows: list[list[float]] = []
    for seed in sorted(heads.keys() & others.keys()):
        fits = heads[seed], others[seed], heads[seed] + others[seed]
        scores = [metrics.classification(codes, fit.argmax(-1).numpy()) for fit in fits]
        rows.append([value for one in scores for value in (one.weighted_f1, one.macro_f1)])
        print(seed, *(f"{value:.3f}" for value in rows[-1]))
    means = [f"{statistics.fmean(column):.3f} ± {statistics.stdev(column):.3f}" for column in zip(*rows, strict=True)]
    for at, name in enumerate(("first", "second", "average")):
        print(name, " / ".join(means[2 * at : 2 * at + 2]))


if __name__ == "__main__":
    main()
