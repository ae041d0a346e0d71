"""The aggregates of a comparison as Markdown with its figures: for public data sets, whose results may be shown."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from storage.durable import write_atomically
from tasks.branches.branch import CompareParameters
from tasks.comparing.report import (
    KINDS,
    Table,
    accounting_table,
    claims_table,
    delta_table,
    quartile_table,
    utility_table,
)
from tasks.comparing.summary import BranchSummary
from tasks.parameters import RetrainParameters
from tasks.running.provenance import provenance

FIGURES = ("frontier", "f1-by-size", "weights", "delta-running-maximum", "class-distribution")

SELECTION = (
    "How settings were chosen: rate, optimiser, epochs and batch of the tuned rivals (35 settings), the class weights "
    "(6), the formal head's settings (25) and the private posterior's (27) by `scripts/choose_rival_settings.py` on "
    "the training half of these OSHA reports alone, a fifth of it held out, three folds, at ε 5 ([every setting "
    "tried](results/tuning.json)); AdamW's rate of SWAG-PPM and the non-private fit likewise "
    "(`scripts/choose_head_rates.py`, 12 settings). DP-SGD in the paper's setting was not searched. None of this is in "
    "any ε. Explanations beside the ordering are conjectures that no experiment here has tested."
)
"""How the constants of `tasks.branches.branch` were found: stated wherever a head's results are."""
ORDERING = (
    "Weighted F1. A gap counts where it is more than twice the root of the two variances over seeds together; "
    "anything less is within the spread."
)

NO_SELECTION = (
    "No setting was searched for this trainable part: the tuned rivals have a larger batch and the paper's rate. "
    "Explanations beside the ordering are conjectures that no experiment here has tested."
)

_REASONS = {
    ("non-private", "swag-ppm"): "thirty epochs of AdamW go on fitting where SWAG-PPM has gone over to averaged SGD; "
    "compare their ECE",
    ("dp-sgd-class-weighted", "dp-sgd-tuned"): "a weight below 1 on every large class shrinks the sum while the noise "
    "stays, and the counts' own release is paid from the same epsilon",
}
"""Why a step of the ordering may fail, shown beside its figures where it does."""


def write(
    file: Path,
    report: str,
    summaries: Sequence[BranchSummary],
    *,
    parameters: RetrainParameters,
    settings: CompareParameters,
    target: float | None,
) -> None:
    """Write `file`, and the figures of the report to a folder of its name beside it."""
    source = provenance()
    folder = file.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name in FIGURES:
        svg = Path(report).with_name(f"{name}.svg")
        if svg.is_file():
            write_atomically(folder / f"{name}.svg", svg.read_bytes())
            pictures.append(f"![{name.replace('-', ' ')}]({folder.name}/{name}.svg)")
    model = parameters.model
    parts = [
        "# Results: mechanisms compared",
        f"Written by `autocoder compare --results`. Data: {Path(parameters.data.source).name} (public), "
        f"{model.trainable} on {Path(model.encoder).name}. Seeds {parameters.fit.seed} to "
        f"{parameters.fit.seed + settings.seeds - 1}; DP noise has no seed. Target ε "
        f"{'none' if target is None else f'{target:g}'} (`{settings.target_epsilon}`), δ {settings.delta:g}. "
        f"Machine: {os.cpu_count()} CPU cores, {platform.machine()}. Commit {source.code_commit[:12]}"
        f"{' with uncommitted changes' if source.code_dirty else ''}. Means ± sample standard deviations over seeds.",
        KINDS,
        SELECTION if model.trainable == "head" else NO_SELECTION,
        "## Does the paper's ordering hold?",
        *ordering(summaries),
        "## Table 1: privacy and utility",
        _markdown(claims_table(summaries)),
        "## Utility in full",
        _markdown(utility_table(summaries)),
        "## Table 2: by quartile of class sizes",
        _markdown(quartile_table(summaries)),
        "## Table 4: DP-SGD over δ",
        _markdown(delta_table(summaries)),
        "## Accountants",
        _markdown(accounting_table(summaries)),
        "## Not protected by any ε above",
        "\n".join(f"- {line}" for line in sorted({line for one in summaries for line in one.unprotected})),
        "## Figures",
        *pictures,
    ]
    write_atomically(file, ("\n\n".join(parts) + "\n").encode())


def ordering(summaries: Sequence[BranchSummary]) -> list[str]:
    """What the figures say to each step of the paper's ordering; told from the numbers, spread included."""
    f1 = {s.branch: (s.mean["weighted_f1"], s.spread["weighted_f1"]) for s in summaries}
    lines = []
    for higher, lower, why in (
        ("non-private", "swag-ppm", "the paper: 0.76 against 0.75"),
        ("swag-ppm-reweighted", "swag-ppm", "the paper: 0.75 both, macro 0.45 against 0.44"),
        ("swag-ppm", "dp-sgd", "the paper: 0.75 against 0.08"),
        ("swag-ppm", "dp-sgd-tuned", "a rival that the paper does not have"),
        ("swag-ppm", "formal-head", "a rival that the paper does not have"),
        ("formal-head", "dp-sgd-tuned", "rivals that the paper does not have"),
        (
            "dp-sgd-tuned",
            "dp-sgd",
            "the same mechanism, other settings, and calibrated by PLD, where the paper's conversion adds more noise",
        ),
        ("dp-sgd-delta-0.99", "dp-sgd", "the paper: 0.35 against 0.08"),
        ("dp-sgd-class-weighted", "dp-sgd-tuned", "macro F1 is what weights are for: see table 1"),
        ("sad", "auto-s", "Huang and Xie on images: SAD ahead"),
        ("sad", "dp-sgd-tuned", "Huang and Xie on images: SAD ahead"),
    ):
        if higher in f1 and lower in f1:
            gap = f1[higher][0] - f1[lower][0]
            noise = (f1[higher][1] ** 2 + f1[lower][1] ** 2) ** 0.5
            verdict = "within the spread" if abs(gap) <= 2 * noise else "holds" if gap > 0 else "**does not hold**"
            reason = f"; perhaps: {_REASONS[higher, lower]}" if gap <= 0 and (higher, lower) in _REASONS else ""
            figures = f"{f1[higher][0]:.3f} to {f1[lower][0]:.3f}"
            lines.append(f"- {higher} above {lower} ({why}): {figures}, {verdict}{reason}")
    return [ORDERING, "\n".join(lines)] if lines else []


def _markdown(table: Table) -> str:
    head, rows = table
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)
