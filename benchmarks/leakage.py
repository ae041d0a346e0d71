"""Attacks every mechanism on the same records and compares the measured epsilon with its claim.

    python benchmarks/leakage.py --data osha.csv --codelist oiics201_nature.csv --folder leakage

The models are those of `autocoder compare --profile osha-head`, with SWAG without weights added,
and the attacks are those of `autocoder audit`: repeated training on records chosen by coin tosses,
and one more run with gradient canaries if the mechanism adds noise to gradients. Claims and scores
are means over the seeds, and the attacks are made once, with the settings of the first seed. An
interrupted measurement continues in --folder. Prints one JSON object with a row per mechanism. It
takes about 20 minutes of one processor core.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flows.commands import profiles
from tasks.auditing import run as auditing
from tasks.auditing.result import BranchAudit
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import ComparisonSettings
from tasks.comparing import run as comparison
from tasks.comparing.summary import BranchSummary, summarise
from tasks.method import Method
from tasks.parameters import RetrainParameters
from tasks.running.provenance import provenance
from tasks.running.stage import Context, run_step

SWAG = {"name": "swag", "title": "SWAG without weights", "kind": "swag-ppm", "round": "base"}
"""The posterior before any weight, which is never released."""
BRANCHES = (
    "swag",
    "swag-ppm",
    "swag-ppm-reweighted",
    "non-private",
    "dp-sgd",
    "dp-sgd-tuned",
    "dp-sgd-titles",
    "prior-descent",
)
EPSILON, DELTA = 5.0, 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="OSHA's reports")
    parser.add_argument("--codelist", required=True, help="OIICS 2.01, nature")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the workspace")
    parser.add_argument("--seeds", type=int, default=5, help="fits of each mechanism (default: 5)")
    parser.add_argument("--trials", type=int, default=64, help="repeated trainings (default: 64)")
    parser.add_argument(
        "--branches", default=",".join(BRANCHES), help="mechanisms, separated by commas"
    )
    options = parser.parse_args()
    context = Context(home=str(options.folder))
    context.workspace.create()
    files = {"data.source": [options.data], "data.codelist": options.codelist}
    parameters = profiles.parameters("osha-head", ["data.ingest.label_space=observed"], files)
    terms = ComparisonSettings(target_epsilon=EPSILON, delta=DELTA, branches=(SWAG,))
    settings = AuditParameters(trials=options.trials)
    rows = []
    for name in options.branches.split(","):
        branch = terms.all_branches[name]
        row = measure(context, parameters, terms, settings, branch, seeds=options.seeds)
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), file=sys.stderr, flush=True)
    figures = {
        "commit": provenance().code_commit[:8],
        "seeds": options.seeds,
        "trials": options.trials,
        "confidence": settings.confidence,
        "delta": DELTA,
        "rows": rows,
    }
    print(json.dumps(figures, indent=1, ensure_ascii=False))


def measure(
    context: Context,
    parameters: RetrainParameters,
    terms: ComparisonSettings,
    settings: AuditParameters,
    branch: Method,
    *,
    seeds: int,
) -> dict[str, Any]:
    """Fits a mechanism at every seed, attacks it, and returns its row."""
    run = partial(run_step, context)
    (group,) = comparison.run(context, parameters, terms, [branch], seeds=seeds, run_step=run)
    (scores,) = summarise([group], context)
    audited = auditing.run(
        context, parameters, terms, settings, [branch], run_step=run, seeds=seeds
    )
    return _figures(scores, audited.branches)


def _figures(scores: BranchSummary, audits: Sequence[BranchAudit]) -> dict[str, Any]:
    measured = audits[0].figures
    claims = [audit.epsilon_add_remove for audit in audits if audit.epsilon_add_remove is not None]
    claimed = [audit.epsilon for audit in audits if audit.epsilon is not None]
    return {
        "branch": scores.branch,
        "title": scores.title,
        "guarantee": scores.guarantee_kind,
        "claimed": _mean(claims),
        "claimed_of_paper": _mean(claimed) if scores.guarantee_kind != "formal" else None,
        "measured": _rounded_down(measured.epsilon_lower_bound),
        "of_any": _optional(measured.epsilon_of_any),
        "reach": _rounded_down(measured.reach),
        "checks": {name: round(value, 4) for name, value in measured.checks.items()},
        "faults": list(measured.faults),
        "verdicts": [audit.verdict for audit in audits],
        "exceeded_at": sum(measured.epsilon_lower_bound > claim for claim in claims),
        "weighted_f1": round(scores.mean["weighted_f1"], 4),
        "macro_f1": round(scores.mean["macro_f1"], 4),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 4) if values else None


def _rounded_down(bound: float) -> float:
    return math.floor(bound * 100) / 100


def _optional(bound: float | None) -> float | None:
    return None if bound is None else _rounded_down(bound)


if __name__ == "__main__":
    main()
