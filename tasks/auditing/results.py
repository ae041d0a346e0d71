"""Audits as Markdown with figures, outside the workspace: of records that are public."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.durable import write_atomically
from tasks.auditing.audited import Audited
from tasks.auditing.findings import (
    LIKELIHOOD_RATIO,
    NATURAL,
    bound_of,
    change_of_f1,
    changed_groups,
    figure,
    findings,
    grouped,
    reruns,
    spread,
    verdict,
)
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import CompareParameters
from tasks.comparing import published
from tasks.pages.render import Table, notes_beside, render
from tasks.pages.svg import svg
from tasks.parameters import RetrainParameters
from tasks.running.provenance import provenance

TESTS = {
    "pairs": ("candidate: trained or not, pairs of a code", "candidate, pairs"),
    NATURAL: ("reruns: every record by a coin", "reruns, natural"),
    "mislabelled": ("reruns: wrong code", "reruns, wrong code"),
    "rare-token": ("reruns: words nobody uses", "reruns, rare words"),
    "near-duplicate": ("reruns: second report of a case", "reruns, second report"),
    "alpha-mover": ("reruns: one that moves others' α", "reruns, α mover"),
    "alpha-mover, over trials": ("the same, Clopper-Pearson over reruns", "reruns, α mover"),
    "gradients": ("white box: gradient canaries", "gradient canaries"),
}
"""Each test's heading, and its name in the table of claims."""
_CURVES = 9
"""Curves that one figure can tell apart by colour."""
_MISSING = "–"


def write(
    file: Path,
    runs: Mapping[str, Sequence[Audited]],
    *,
    parameters: RetrainParameters,
    settings: AuditParameters,
    compare: CompareParameters,
    target: float | None,
    refused: Mapping[str, str] | None = None,
) -> None:
    """Write `file`, and the ROC figure to a folder of its name beside it.

    What a person adds stands in a file beside it (`truth.notes.md` for `truth.md`), which the page ends with.

    Args:
        runs: audits by what was changed against the parameters; the first, under an empty name, changed nothing.
        refused: branches without a candidate, by title, and why.
    """
    folder = file.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "roc.svg", roc_figure(_curves(runs[""])))
    text = page(
        runs,
        parameters=parameters,
        settings=settings,
        compare=compare,
        target=target,
        refused=refused,
        roc=f"{folder.name}/roc.svg",
        notes=notes_beside(file),
    )
    write_atomically(file, text.encode())


def page(
    runs: Mapping[str, Sequence[Audited]],
    *,
    parameters: RetrainParameters,
    settings: AuditParameters,
    compare: CompareParameters,
    target: float | None,
    roc: str,
    notes: str,
    refused: Mapping[str, str] | None = None,
) -> str:
    """The page; `roc` is the address of its figure."""
    unchanged = runs[""]
    effects = [effect for source in published.beside(parameters.data) for effect in source.effects]
    changes = [group for _, group, _ in changed_groups(runs)]
    return render(
        "truth.md",
        parameters=parameters,
        settings=settings,
        compare=compare,
        target=target,
        source=provenance(),
        file=Path(parameters.data.source).name,
        encoder=Path(parameters.model.encoder).name,
        machine=f"{os.cpu_count()} CPU cores, {platform.machine()}",
        seeds=sorted({audit.seed for audit in unchanged}),
        findings=findings(runs, effects) + [f"{name}: not audited, {why}." for name, why in (refused or {}).items()],
        claims=claims_table(unchanged),
        bounds=bounds_table(unchanged),
        deltas=deltas_table(unchanged),
        largest_exposure=next(
            (f"{value:.1f}" for audit in unchanged if (value := audit.figures.get("exposure_largest_possible"))),
            _MISSING,
        ),
        memorisation=memorisation_table(unchanged),
        changed=changes[0] if changes else None,
        changed_reruns=reruns(changes[0]) if changes else 0,
        changes=changes_table(runs),
        roc=roc,
        notes=notes,
    )


def claims_table(audits: Sequence[Audited]) -> Table:
    """Claim and measurement, a row a branch."""
    head = ["branch", "guarantee", "ε claimed", "ε claimed, one record more or less", "ε refuted below", "by"]
    head += ["perfect guesses", "natural reruns measured {claimed}", "verdict", "strongest membership test", "its AUC"]
    head += ["its TPR at FPR 0.1 %", "weighted F1", "macro F1"]
    rows = []
    for group in grouped(audits):
        tests = sorted({TESTS[audit.figures["from"]][1] for audit in group if audit.epsilon_lower_bound > 0})
        row = [group[0].title, group[0].guarantee_kind, _values(group, "epsilon"), _values(group, "epsilon_add_remove")]
        row += [_values(group, "epsilon_lower_bound"), ", ".join(tests) or _MISSING, _values(group, "reach")]
        row += [
            _natural(group[0]),
            verdict(group),
            ", ".join(sorted({audit.attack.replace("_", " ") for audit in group})),
        ]
        row += [_values(group, "auc", 3), _values(group, "tpr_at_fpr_0001", 4)]
        rows.append([*row, _values(group, "weighted_f1", 3), _values(group, "macro_f1", 3)])
    return head, rows


def deltas_table(audits: Sequence[Audited]) -> Table:
    """For which deltas claims that name none stay refuted; no rows where none was looked at."""
    rows = []
    for group in grouped(audits):
        told = [audit.figures for audit in group if audit.figures.get("refuted_delta_epsilon") is not None]
        if not told:
            continue
        records = [(one.get("densities_records_beyond"), one.get("densities_records")) for one in told]
        beyond = ", ".join(sorted({_MISSING if few is None else f"{few} of {of}" for few, of in records}))
        row = [group[0].title, _least(told, "refuted_delta_epsilon", 2), _least(told, "refuted_delta_by_counts", 4)]
        rows.append([*row, _least(told, "refuted_delta_by_densities", 4), beyond, _least(told, "delta_rate", 4)])
    head = ["branch", "ε claimed, one record more or less", "refuted for every δ up to, by counts", "by densities"]
    return [*head, "records whose densities refute more than n^-1/2", "n^-1/2"], rows


def _least(told: Sequence[Mapping[str, Any]], name: str, digits: int) -> str:
    values = [one[name] for one in told if one.get(name) is not None]
    return f"{math.floor(min(values) * 10**digits) / 10**digits:.{digits}f}" if values else _MISSING


def bounds_table(audits: Sequence[Audited]) -> Table:
    """Each test's bound with its guesses, first seed."""
    rows = []
    for group in grouped(audits):
        bounds = {bound["name"]: bound for bound in group[0].figures["bounds"]}
        rows.append([group[0].title, *(_bound(bounds[name]) if name in bounds else _MISSING for name in TESTS)])
    return ["branch", *(heading for heading, _ in TESTS.values())], rows


def memorisation_table(audits: Sequence[Audited]) -> Table:
    """Likelihood ratios and what was memorised."""
    names = {
        "offline_lira_auc": "AUC, offline LiRA",
        LIKELIHOOD_RATIO: "AUC, online LiRA",
        "online_lira_tpr_at_fpr_0.001": "TPR at 0.1 %, online LiRA",
        "exposure_planted": "exposure planted",
        "exposure_not_planted": "exposure not planted",
        "wrong_code_agreement_trained": "wrong codes learnt",
        "wrong_code_agreement_not_trained": "wrong codes by chance",
        "fit_gap": "over-fit gap (nats)",
    }
    rows = [[group[0].title, *(_figure(group, name) for name in names)] for group in grouped(audits)]
    return ["branch", *names.values()], rows


def changes_table(runs: Mapping[str, Sequence[Audited]]) -> Table:
    """What was changed, after the unchanged branches that changes were made to."""
    changes = list(changed_groups(runs))
    touched = {group[0].branch for _, group, _ in changes}
    unchanged = [("", group, None) for group in grouped(runs[""]) if group[0].branch in touched]
    head = ["changed", "branch", "ε claimed, one record more or less", "natural reruns measured {claimed}"]
    head += ["ε refuted below", "verdict"]
    head += ["AUC of the loss", "AUC, online LiRA", "weighted F1", "change of F1", "macro F1"]
    rows = []
    for change, group, before in [*unchanged, *changes]:
        gain = _MISSING if before is None else f"{change_of_f1(group, before):+.3f}"
        row = [f"`{change}`" if change else f"nothing ({reruns(group)} reruns)", group[0].title]
        row += [_values(group, "epsilon_add_remove"), _natural(group[0]), _values(group, "epsilon_lower_bound")]
        row += [
            verdict(group),
            _values(group, "loss_auc", 3),
            _figure(group, LIKELIHOOD_RATIO),
            _values(group, "weighted_f1", 3),
        ]
        rows.append([*row, gain if change else "", _values(group, "macro_f1", 3)])
    return head, rows


def _natural(audit: Audited) -> str:
    bound = bound_of(audit, NATURAL)
    return _MISSING if bound is None else f"{bound['epsilon']:.2f}{_own_claim(bound)}"


def _bound(bound: Mapping[str, Any]) -> str:
    counts = f"({bound['correct']}/{bound['guesses']})"
    if not bound["reach"]:
        return f"cannot be measured here {counts}"
    halved = bound.get("at_half_noise")
    power = "" if halved is None else f"; half noise {halved:.2f}"
    return f"{bound['epsilon']:.2f} {counts} of {bound['reach']:.2f}{power}{_own_claim(bound)}"


def _own_claim(bound: Mapping[str, Any]) -> str:
    claimed = bound.get("claimed_in_trials")
    return "" if claimed is None else f" {{{claimed:.2f}}}"


def _figure(group: Sequence[Audited], name: str) -> str:
    value = figure(group, name)
    return _MISSING if value is None else f"{value:.3f}"


def _values(group: Sequence[Audited], name: str, digits: int = 2) -> str:
    values = [getattr(audit, name) for audit in group]
    return _MISSING if None in values else spread(values, digits)


def _curves(audits: Sequence[Audited]) -> list[Audited]:
    """First seed of each branch; of more than colours tell apart, those whose records are recognised best."""
    firsts = [group[0] for group in grouped(audits)]
    best = sorted(firsts, key=lambda audit: -audit.loss_auc)[:_CURVES]
    return [audit for audit in firsts if audit in best]


def roc_figure(audits: Sequence[Audited]) -> bytes:
    """SVG: ROC of each branch in log-log, the loss dashed and the likelihood ratio solid; grey is guessing."""
    from matplotlib.figure import Figure

    plot = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = plot.add_subplot()
    axes.plot([1e-4, 1], [1e-4, 1], color="0.6", linewidth=1)
    for number, audit in enumerate(audits):
        curves = json.loads((Path(audit.curves) / "curves.json").read_text())
        colour = f"C{number}"
        if "online_lira" in curves:
            axes.plot(curves["online_lira"]["fpr"], curves["online_lira"]["tpr"], color=colour, label=audit.title)
            axes.plot(curves["loss"]["fpr"], curves["loss"]["tpr"], color=colour, linestyle="--", linewidth=0.8)
        else:
            axes.plot(curves["loss"]["fpr"], curves["loss"]["tpr"], color=colour, label=audit.title)
    axes.set(xscale="log", yscale="log", xlim=(3e-4, 1), ylim=(3e-4, 1))
    axes.set_xlabel("share of held-out records taken for trained ones (FPR)")
    axes.set_ylabel("share of trained records recognised (TPR)")
    axes.set_title("Who was trained on? Likelihood ratio, and loss alone (dashed)", fontsize=10)
    axes.legend(fontsize=7, loc="lower right")
    return svg(plot).encode()
