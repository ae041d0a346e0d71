"""Audits as Markdown with figures: for public data sets, whose results may be shown."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.durable import write_atomically
from tasks.auditing.findings import (
    NATURAL,
    bound_of,
    changed_groups,
    findings,
    gained,
    grouped,
    reruns,
    spread,
    verdict,
)
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import CompareParameters
from tasks.pages.html import svg
from tasks.parameters import RetrainParameters
from tasks.running.provenance import provenance

READING = (
    "How to read it. A **lower bound** says what cannot be true at the stated confidence: (ε, δ) with a smaller ε is "
    "refuted. That a bound is small proves nothing; another attack may find more. Bounds are for neighbours by adding "
    "or removing one record, at the claim's δ for formal claims and at δ = 0 for the others. The test half is the "
    "held-out share; no released model was trained on it. `swag` is the chain's first posterior, without weights: it "
    "is never released, and its ε is what its own sensitivity would claim."
)
HEADINGS = {
    "pairs": "candidate: trained or not, pairs of a code",
    "in-distribution": "reruns: every record by a coin",
    "mislabelled": "reruns: wrong code",
    "rare-token": "reruns: words nobody uses",
    "near-duplicate": "reruns: second report of a case",
    "alpha-mover": "reruns: one that moves others' α",
    "alpha-mover, over trials": "the same, Clopper-Pearson over reruns",
}
SHORT = {
    "pairs": "candidate, pairs",
    NATURAL: "reruns, natural",
    "mislabelled": "reruns, wrong code",
    "rare-token": "reruns, rare words",
    "near-duplicate": "reruns, second report",
    "alpha-mover": "reruns, α mover",
    "alpha-mover, over trials": "reruns, α mover",
}
"""Tests by name, as the table of claims names them."""
_CURVES = 9
"""Curves that one figure can tell apart by colour."""
_SEEN_FIRST = ("swag", "swag-ppm", "swag-ppm-reweighted", "swag-ppm-censored", "swag-ppm-both", "non-private",
               "dp-sgd-tuned", "formal-head", "private-posterior")  # fmt: skip
"""Branches whose curves are drawn where there are more than that."""


def write(
    file: Path,
    runs: Mapping[str, Sequence[Any]],
    *,
    parameters: RetrainParameters,
    settings: AuditParameters,
    compare: CompareParameters,
    target: float | None,
) -> None:
    """Write `file`, and the ROC figure to a folder of its name beside it.

    Args:
        runs: audits by what was changed against the parameters; the first, under an empty name, changed nothing.
    """
    source, model = provenance(), parameters.model
    folder = file.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    main = runs[""]
    write_atomically(folder / "roc.svg", roc_figure(_drawn(main)))
    seeds = sorted({one.seed for one in main})
    parts = [
        "# The truth of the claim: what is measured beside every ε",
        f"Written by `autocoder audit --results`. Data: {Path(parameters.data.source).name} (public), "
        f"{model.trainable} on {Path(model.encoder).name}. Candidates at seeds {', '.join(map(str, seeds))}; "
        f"{settings.trials} reruns of each mechanism, {settings.trial_draws} draws in each for risks and Δ (the "
        f"candidate itself: {parameters.pseudo_posterior.risk_draws}), {settings.canaries} canaries a family, "
        f"confidence {100 * settings.confidence:.6g} %. "
        f"Target ε of the rivals {'none' if target is None else f'{target:g}'} (`{compare.target_epsilon}`), "
        f"δ {compare.delta:g}. Machine: {os.cpu_count()} CPU cores, "
        f"{platform.machine()}. Commit {source.code_commit[:12]}"
        f"{' with uncommitted changes' if source.code_dirty else ''}. Means ± sample standard deviations over seeds.",
        READING,
        "## What the figures say",
        "\n".join(f"- {line}" for line in findings(runs)),
        "## Claim and measurement",
        "Every ε below the fourth column is refuted for the candidate's claim, by the test named after it; a claim "
        "below it is contradicted. The sixth column is the strongest test without crafted records: what reruns on "
        "natural records measured (first seed) and, in braces, the most that one of those reruns would have claimed "
        "for itself. It counts, and then is the fourth column, only where it lies above those braces.",
        _table(
            ("branch", "guarantee", "ε claimed", "ε refuted below", "by", "natural reruns measured {claimed}",
             "verdict", "AUC of the loss", "TPR at FPR 0.1 %", "weighted F1", "macro F1"),
            (_claim_row(group) for group in grouped(main)),
        ),
        "## Where the bounds come from",
        "Each at the confidence that lets all of them hold together; first seed; right of all guesses in brackets. A "
        "dash: no reruns. In braces what the reruns measured would themselves have claimed at most: SWAG-PPM's claim "
        "depends on the records, canaries raise it, and a bound counts against a claim only above these too.",
        _table(
            ("branch", *HEADINGS.values()),
            (_bounds_row(group[0]) for group in grouped(main)),
        ),
        "## Stronger tests, and memorisation",
        "Likelihood ratios use the reruns as reference models. Exposure is in bits, at most "
        f"{_exposure_cap(main)}; 1.4 is chance. Wrong codes: share that a draw predicts, of those trained on and not.",
        _table(
            ("branch", "AUC, offline LiRA", "AUC, online LiRA", "TPR at 0.1 %, online LiRA", "exposure planted",
             "exposure not planted", "wrong codes learnt", "wrong codes by chance", "over-fit gap (nats)"),
            (_memory_row(group) for group in grouped(main)),
        ),
        *_varied(runs),
        "## ROC",
        f"![ROC in log-log]({folder.name}/roc.svg)",
    ]  # fmt: skip
    write_atomically(file, ("\n\n".join(parts) + "\n").encode())


def _varied(runs: Mapping[str, Sequence[Any]]) -> list[str]:
    """Table of what was changed, against the unchanged branches that changes were made to."""
    changes = list(changed_groups(runs))
    if not changes:
        return []
    head = ("changed", "branch", "ε claimed", "natural reruns measured {claimed}", "ε refuted below", "verdict",
            "AUC of the loss", "AUC, online LiRA", "weighted F1", "change of F1", "macro F1")  # fmt: skip
    touched = {group[0].branch for _, group, _ in changes}
    unchanged = [("", group, group) for group in grouped(runs[""]) if group[0].branch in touched]
    return [
        "## What settings do",
        f"Candidates at {_count(changes[0][1])}, {reruns(changes[0][1])} reruns under each setting. More reruns allow "
        "larger bounds: compare rows of as many. The change of F1 is a mean over the seeds that both have.",
        _table(head, (_change_row(*change) for change in [*unchanged, *changes])),
    ]


def _count(group: Sequence[Any]) -> str:
    return f"{len(group)} seed{'s' if len(group) > 1 else ''}"


def _change_row(name: str, group: Sequence[Any], before: Sequence[Any] | None) -> tuple[str, ...]:
    first = group[0]
    gain = "–" if before is None else f"{gained(group, before):+.3f}"
    return (
        f"`{name}`" if name else f"nothing ({reruns(group)} reruns)",
        first.title,
        _values(group, "epsilon"),
        _natural(first),
        _values(group, "epsilon_lower_bound"),
        verdict(group),
        _values(group, "auc", 3),
        _figure(group, "online_lira_auc"),
        _values(group, "weighted_f1", 3),
        gain if name else "",
        _values(group, "macro_f1", 3),
    )


def _natural(one: Any) -> str:
    bound = bound_of(one, NATURAL)
    return "–" if bound is None else f"{bound['epsilon']:.2f}{_own(bound)}"


def _claim_row(group: Sequence[Any]) -> tuple[str, ...]:
    first = group[0]
    sources = sorted({SHORT[one.figures["from"]] for one in group if one.epsilon_lower_bound > 0})
    return (
        first.title,
        first.guarantee_kind,
        _values(group, "epsilon"),
        _values(group, "epsilon_lower_bound"),
        ", ".join(sources) or "–",
        _natural(first),
        verdict(group),
        _values(group, "auc", 3),
        _values(group, "tpr_at_fpr_0001", 4),
        _values(group, "weighted_f1", 3),
        _values(group, "macro_f1", 3),
    )


def _bounds_row(one: Any) -> tuple[str, ...]:
    found = {bound["name"]: bound for bound in one.figures["bounds"]}
    cells = [
        f"{found[name]['epsilon']:.2f} ({found[name]['correct']}/{found[name]['guesses']}){_own(found[name])}"
        if name in found
        else "–"
        for name in HEADINGS
    ]
    return (one.title, *cells)


def _own(bound: Mapping[str, Any]) -> str:
    claimed = bound.get("claimed_in_trials")
    return "" if claimed is None else f" {{{claimed:.2f}}}"


def _memory_row(group: Sequence[Any]) -> tuple[str, ...]:
    names = (
        "offline_lira_auc", "online_lira_auc", "online_lira_tpr_at_fpr_0.001", "exposure_planted",
        "exposure_not_planted", "wrong_code_agreement_trained", "wrong_code_agreement_not_trained", "fit_gap",
    )  # fmt: skip
    return (group[0].title, *(_figure(group, name) for name in names))


def _figure(group: Sequence[Any], name: str) -> str:
    values = [one.figures[name] for one in group if one.figures.get(name) is not None]
    return f"{statistics.fmean(values):.3f}" if values else "–"


def _values(group: Sequence[Any], name: str, digits: int = 2) -> str:
    values = [getattr(one, name) for one in group]
    return "–" if None in values else spread(values, digits)


def _exposure_cap(audited: Sequence[Any]) -> str:
    caps = [one.figures["exposure_largest_possible"] for one in audited if "exposure_largest_possible" in one.figures]
    return f"{caps[0]:.1f}" if caps else "–"


def _drawn(audited: Sequence[Any]) -> list[Any]:
    """First seed of each branch, as many as colours tell apart."""
    firsts = [group[0] for group in grouped(audited)]
    return firsts if len(firsts) <= _CURVES else [one for one in firsts if one.branch in _SEEN_FIRST]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def roc_figure(audited: Sequence[Any]) -> bytes:
    """SVG: ROC of each branch in log-log, the loss dashed and the likelihood ratio solid; grey is guessing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([1e-4, 1], [1e-4, 1], color="0.6", linewidth=1)
    for number, one in enumerate(audited):
        curves = json.loads((Path(one.curves) / "curves.json").read_text())
        colour = f"C{number}"
        if "online_lira" in curves:
            axes.plot(curves["online_lira"]["fpr"], curves["online_lira"]["tpr"], color=colour, label=one.title)
            axes.plot(curves["loss"]["fpr"], curves["loss"]["tpr"], color=colour, linestyle="--", linewidth=0.8)
        else:
            axes.plot(curves["loss"]["fpr"], curves["loss"]["tpr"], color=colour, label=one.title)
    axes.set(xscale="log", yscale="log", xlim=(3e-4, 1), ylim=(3e-4, 1))
    axes.set_xlabel("share of held-out records taken for trained ones (FPR)")
    axes.set_ylabel("share of trained records recognised (TPR)")
    axes.set_title("Who was trained on? Likelihood ratio, and loss alone (dashed)", fontsize=10)
    axes.legend(fontsize=7, loc="lower right")
    return svg(figure).encode()
