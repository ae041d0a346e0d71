"""Computes the published accuracy, docs/studies/formal/accuracy-*.json, one data set at a time.

    python benchmarks/accuracy.py --osha osha.csv --codelist oiics201_nature.csv --folder osha
    python benchmarks/accuracy.py --neiss neiss.csv --folder neiss

Every comparison runs with `autocoder compare` in a workspace of its own in --folder, where an
interrupted one continues. Comparisons without data are skipped. Prints one JSON object.
The scores are weighted and macro F1 of the held-out records, as means over the seeds: macro_f1 is
over the codes that occur among the scored records, and macro_f1_scikit_default also counts codes
that were only predicted. of_seeds contains the standard deviations of both over the seeds,
of_records their standard errors over resampled records, and less_dp_sgd the difference from DP-SGD
of the same head with its standard error over the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import f1_score
from torch import Tensor
from workspaces import Fit, compare, held_out_labels, held_out_scores, mean_and_deviation

from mechanisms.model import metrics

KINDS = ("prior-descent", "dp-sgd", "non-private")
FROM_TITLES = "prior-descent,dp-sgd-titles,non-private-titles"
NO_LIST = "prior-descent,non-private"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--osha", help="OSHA's reports")
    parser.add_argument("--codelist", help="OIICS 2.01, nature: needed with --osha")
    parser.add_argument("--neiss", help="injuries by fireworks, NEISS")
    parser.add_argument("--soc", help="ONS's index of job titles, SOC 2010")
    parser.add_argument("--soc-titles", help="titles of SOC 2010's unit groups: needed with --soc")
    parser.add_argument(
        "--mpnet", action="store_true", help="with --osha: the encoder mpnet instead of MiniLM"
    )
    parser.add_argument("--folder", type=Path, required=True, help="folder of the workspaces")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    asked = {name: words for name, words in _comparisons(options).items() if None not in words}
    if not asked:
        parser.error("specify at least one data set with the files that it needs")
    figures = {
        name: _measure(options.folder / name.replace(" ", "-"), words, seeds=options.seeds)
        for name, words in asked.items()
    }
    print(json.dumps({"delta": 1e-5, "figures": figures}, indent=1, ensure_ascii=False))


def _comparisons(given: argparse.Namespace) -> dict[str, list[Any]]:
    """Returns the arguments of each comparison by name; None stands for a missing file."""
    osha = ["--profile", "osha-formal", "--data", given.osha, "--codelist", given.codelist]
    neiss = ["--profile", "formal", "--data", given.neiss, "--text", "Narrative"]
    neiss += ["--population", "neiss", "--label"]
    soc = ["--profile", "formal", "--data", given.soc, "--text", "title", "--label", "code"]
    soc += ["--population", "soc-2010"]
    codes_are_names = ["--set", "data.ingest.codes_are_names=true"]
    titles, no_list = ["--branches", FROM_TITLES], ["--branches", NO_LIST]
    comparisons = {
        "OSHA nature": [*osha, *titles],
        "NEISS diagnosis": [*neiss, "Diagnosis", *codes_are_names, *titles],
        "NEISS body part": [*neiss, "Body_Part", *codes_are_names, *titles],
        "SOC 2010, titles": [*soc, "--codelist", given.soc_titles, *titles],
        "NEISS diagnosis, no list": [*neiss, "Diagnosis", *no_list],
        "NEISS body part, no list": [*neiss, "Body_Part", *no_list],
        "SOC 2010, no list": [*soc, *no_list],
    }
    if given.mpnet:
        mpnet = ["--set", "model.encoder=packaged-mpnet", "--branches"]
        comparisons["OSHA nature, mpnet"] = [*osha, *mpnet, "prior-descent,non-private-titles"]
        del comparisons["OSHA nature"]
    return comparisons


def _measure(home: Path, words: Sequence[str], *, seeds: int) -> dict[str, Any]:
    targets = ["--epsilon", "5", "--epsilons", "0.5,1", "--delta", "1e-5", "--seeds", str(seeds)]
    result = compare(home, *words, *targets)
    report = json.loads((Path(result["folder"]) / "results.json").read_text(encoding="utf-8"))
    labels, scores = held_out_labels(home), held_out_scores(home, KINDS)
    settings = {(fit.kind, fit.epsilon) for fit in scores}
    rows = [
        _row(kind, epsilon, scores, labels, _summary_of(report["branches"], kind, epsilon))
        for kind, epsilon in sorted(settings, key=str)
    ]
    return {
        "commit": report["code"]["commit"][:8],
        "train": report["records"]["train"],
        "test": len(labels),
        "codes_in_test": len(np.unique(labels)),
        "codes_in_train": report["records"]["codes_observed"],
        "rows": rows,
    }


def _summary_of(
    branches: Sequence[dict[str, Any]], kind: str, epsilon: float | None
) -> dict[str, Any]:
    """Returns the summary of this mechanism's branch with a claim that meets the target."""
    (found,) = (
        branch
        for branch in branches
        if branch["branch"].startswith(kind)
        and (epsilon is None or math.isclose(branch["epsilon"], epsilon, rel_tol=0.01))
    )
    return found


def _row(
    kind: str,
    epsilon: float | None,
    scores: dict[Fit, Tensor],
    labels: np.ndarray,
    summary: dict[str, Any],
) -> dict[str, Any]:
    scores_of_kind, rival = (_by_seed(scores, name, epsilon, labels) for name in (kind, "dp-sgd"))
    means = [
        mean_and_deviation(scores_of_kind[score])
        for score in ("weighted_f1", "macro_f1", "default")
    ]
    row: dict[str, Any] = {
        "mechanism": "dp-sgd-titles" if kind == "dp-sgd" else kind,
        "epsilon": epsilon,
        "seeds": len(scores_of_kind["macro_f1"]),
        "weighted_f1": means[0][0],
        "macro_f1": means[1][0],
        "macro_f1_scikit_default": means[2][0],
        "of_seeds": [means[0][1], means[1][1]],
        "of_records": [
            round(summary["record_errors"][score], 4) for score in ("weighted_f1", "macro_f1")
        ],
    }
    if kind == "prior-descent" and rival["macro_f1"]:
        row["less_dp_sgd"] = {
            score: _difference(scores_of_kind[score], rival[score])
            for score in ("weighted_f1", "macro_f1")
        }
    return row


def _by_seed(
    scores: dict[Fit, Tensor], kind: str, epsilon: float | None, labels: np.ndarray
) -> dict[str, list[float]]:
    """Returns the scores of one mechanism at one target in the order of the seeds."""
    fits = sorted((f for f in scores if (f.kind, f.epsilon) == (kind, epsilon)), key=_seed_of)
    predicted = [scores[fit].argmax(-1).numpy() for fit in fits]
    measured = [metrics.classification(labels, codes) for codes in predicted]
    with warnings.catch_warnings():  # a code that is never predicted counts as zero
        warnings.simplefilter("ignore")
        default = [float(f1_score(labels, codes, average="macro")) for codes in predicted]
    return {
        "weighted_f1": [score.weighted_f1 for score in measured],
        "macro_f1": [score.macro_f1 for score in measured],
        "default": default,
    }


def _seed_of(fit: Fit) -> int:
    return fit.seed


def _difference(own: Sequence[float], rival: Sequence[float]) -> list[float]:
    """Returns the mean difference of paired seeds and its standard error."""
    differences = [a - b for a, b in zip(own, rival, strict=True)]
    mean, deviation = mean_and_deviation(differences)
    return [mean, round(deviation / math.sqrt(len(differences)), 4)]


if __name__ == "__main__":
    main()
