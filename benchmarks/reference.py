"""Measures the strongest reference without privacy that we have: adapters in all layers of the
encoder, averaged with the head alone.

    python benchmarks/reference.py --data osha.csv --codelist oiics201_nature.csv --folder reference

Both models are fitted by `autocoder compare` on the records that `osha-formal` trains on, once for
each seed, in a workspace of their own in --folder. An interrupted measurement continues there. The
average is that of the log-probabilities. Prints one JSON object with the weighted and macro F1 of
the held-out records, each as its mean and standard deviation over the seeds. It takes about an hour
on two processor cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from workspaces import compare, held_out_labels, held_out_scores, mean_and_deviation

from mechanisms.model import metrics

ADAPTERS = Path(__file__).parent.parent / "docs" / "studies" / "formal" / "reference.yaml"
PROFILES = {"head": "osha-formal", "adapters": str(ADAPTERS)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="OSHA's reports")
    parser.add_argument("--codelist", required=True, help="OIICS 2.01, nature")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the workspaces")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    options = ["--branches", "non-private-titles", "--epsilon", "5", "--delta", "1e-5"]
    options += ["--data", given.data, "--codelist", given.codelist, "--seeds", str(given.seeds)]
    scores: dict[str, dict[int, Tensor]] = {}
    for model, profile in PROFILES.items():
        home = given.folder / model
        compare(home, "--profile", profile, *options)
        fits = held_out_scores(home, ["non-private"])
        scores[model] = {fit.seed: values for fit, values in fits.items()}
    labels = held_out_labels(given.folder / "head")
    if not np.array_equal(labels, held_out_labels(given.folder / "adapters")):
        sys.exit("The two workspaces hold out different records. Use an empty --folder.")
    seeds = sorted(scores["head"].keys() & scores["adapters"].keys())
    rows = [
        _row(model, [of_seed[seed] for seed in seeds], labels) for model, of_seed in scores.items()
    ]
    sums = [scores["head"][seed] + scores["adapters"][seed] for seed in seeds]
    rows.append(_row("average of both", sums, labels))
    print(json.dumps({"seeds": len(seeds), "test": len(labels), "rows": rows}, indent=2))


def _row(model: str, scores: Sequence[Tensor], labels: np.ndarray) -> dict[str, Any]:
    measured = [metrics.classification(labels, one.argmax(-1).numpy()) for one in scores]
    return {
        "model": model,
        "weighted_f1": mean_and_deviation([one.weighted_f1 for one in measured]),
        "macro_f1": mean_and_deviation([one.macro_f1 for one in measured]),
    }


if __name__ == "__main__":
    main()
