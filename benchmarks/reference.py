"""Measures the strongest reference without privacy: the average of heads and of an encoder with
adapters in all its layers.

    python benchmarks/reference.py --data osha.csv --codelist oiics201_nature.csv --mpnet \\
        --folder reference

The models are fitted by `autocoder compare` on the records that `osha-formal` trains on, once per
seed, in workspaces of their own in --folder: the head alone, adapters with a head, and with --mpnet
the head of the larger encoder. An interrupted measurement continues there. The log-probabilities of
the models are averaged. Prints one JSON object with the weighted and macro F1 of the held-out
records, each as mean and standard deviation over the seeds. It takes about an hour on two processor
cores, and with --mpnet half an hour more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from workspaces import compare, held_out_labels, held_out_scores, mean_and_deviation

from mechanisms.model import metrics

ADAPTERS = Path(__file__).parent.parent / "docs" / "studies" / "formal" / "reference.yaml"
FORMAL = ["--profile", "osha-formal"]
MODELS = {"head": FORMAL, "adapters": ["--profile", str(ADAPTERS)]}
MPNET = {"head of mpnet": [*FORMAL, "--set", "model.encoder=packaged-mpnet"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="OSHA's reports")
    parser.add_argument("--codelist", required=True, help="OIICS 2.01, nature")
    parser.add_argument("--mpnet", action="store_true", help="also a head on the encoder mpnet")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the workspaces")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    options = ["--branches", "non-private-titles", "--epsilon", "5", "--delta", "1e-5"]
    options += [
        "--data",
        arguments.data,
        "--codelist",
        arguments.codelist,
        "--seeds",
        str(arguments.seeds),
    ]
    models = MODELS | MPNET if arguments.mpnet else MODELS
    scores: dict[str, dict[int, Tensor]] = {}
    commit = ""
    for model, profile in models.items():
        home = _home(arguments.folder, model)
        result = compare(home, *profile, *options)
        report = json.loads((Path(result["folder"]) / "results.json").read_text(encoding="utf-8"))
        commit = report["code"]["commit"][:8]
        fits = held_out_scores(home, ["non-private"])
        scores[model] = {fit.seed: values for fit, values in fits.items()}
    labels = held_out_labels(_home(arguments.folder, "head"))
    if any(
        not np.array_equal(labels, held_out_labels(_home(arguments.folder, model)))
        for model in models
    ):
        sys.exit("The workspaces contain different records. Use an empty --folder.")
    seeds = sorted(set.intersection(*({*of_seed} for of_seed in scores.values())))
    averages = [["head", "adapters"], [*models]] if arguments.mpnet else [[*models]]
    alone = [[model] for model in models]
    rows = [_row(members, scores, seeds, labels) for members in [*alone, *averages]]
    figures = {"commit": commit, "seeds": len(seeds), "test": len(labels), "rows": rows}
    print(json.dumps(figures, indent=1))


def _home(folder: Path, model: str) -> Path:
    return folder / model.replace(" ", "-")


def _row(
    members: Sequence[str],
    scores: dict[str, dict[int, Tensor]],
    seeds: Sequence[int],
    labels: np.ndarray,
) -> dict[str, Any]:
    """Returns the scores of the average of these models."""
    sums = [torch.stack([scores[model][seed] for model in members]).sum(0) for seed in seeds]
    measured = [metrics.classification(labels, total.argmax(-1).numpy()) for total in sums]
    return {
        "models": list(members),
        "weighted_f1": mean_and_deviation([total.weighted_f1 for total in measured]),
        "macro_f1": mean_and_deviation([total.macro_f1 for total in measured]),
    }


if __name__ == "__main__":
    main()
