"""Writes audits of public records as a Markdown page with figures, outside the workspace."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.durable import write_atomically
from tasks.auditing.audit_result import BranchAudit
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
from tasks.branches.branch import Terms
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
"""Heading of each test, and its name in the table of claims."""
_CURVES = 9
"""Curves that colours can distinguish in one figure."""
_MISSING = "–"


def write(file: Path, runs: Mapping[str, Sequence[BranchAudit]], **facts: Any) -> None:
    """Writes `file`, and the ROC figure to a folder of the same name next to it.

    The page ends with notes of a person, from a file next to it (`truth.notes.md` for `truth.md`).
    """
    folder = file.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "roc.svg", roc_figure(_curves(runs[""])))
    text = page(runs, roc=f"{folder.name}/roc.svg", notes=notes_beside(file), **facts)
    write_atomically(file, text.encode())


def page(
    runs: Mapping[str, Sequence[BranchAudit]],
    *,
    parameters: RetrainParameters,
    settings: AuditParameters,
    terms: Terms,
    target: float | None,
    roc: str,
    notes: str,
) -> str:
    """Returns the page.

    Args:
        runs: audits by change of the parameters; the first, under an empty name, changed nothing.
    """
    unchanged = runs[""]
    effects = [effect for source in published.publications_for(parameters.data) for effect in source.effects]
    changes = [group for _, group, _ in changed_groups(runs)]
    return render(
        "truth.md",
        parameters=parameters,
        settings=settings,
        terms=terms,
        target=target,
        source=provenance(),
        file=parameters.data.file_names,
        encoder=Path(parameters.model.encoder).name,
        machine=f"{os.cpu_count()} CPU cores, {platform.machine()}",
        seeds=sorted({audit.seed for audit in unchanged}),
        findings=findings(runs, effects),
        claims=claims_table(unchanged),
        bounds=bounds_table(unchanged),
        deltas=deltas_table(unchanged),
        largest_exposure=next(
            (f"{value:.3f}" for audit in unchanged if (value := audit.figures.get("exposure_largest_possible"))),
            _MISSING,
        ),
        memorisation=memorisation_table(unchanged),
        changed=changes[0] if changes else None,
        changed_reruns=reruns(changes[0]) if changes else 0,
        changes=changes_table(runs),
        roc=roc,
        notes=notes,
    )


def claims_table(audits: Sequence[BranchAudit]) -> Table:
    """Tabulates claim and measurement, one row per branch."""
    head = ["branch", "guarantee", "ε claimed", "ε claimed, one record more or less", "noise excluded above"]
    head += ["ε refuted below", "of any (ε, δ)", "by"]
    head += ["perfect guesses", "natural reruns measured {claimed}", "verdict", "strongest membership test", "its AUC"]
    head += ["its TPR at FPR 0.1 %", "weighted F1", "macro F1"]
    rows = []
    for group in grouped(audits):
        tests = sorted({TESTS[audit.figures["from"]][1] for audit in group if audit.epsilon_lower_bound > 0})
        guarantee = group[0].guarantee_kind
        row = [group[0].title, guarantee, _values(group, "epsilon"), _values(group, "epsilon_add_remove")]
        of_any = "epsilon_of_any" if group[0].figures.get("epsilon_of_any") is not None else None
        row += [_figure(group, "noise_at_most", 2), _values(group, "epsilon_lower_bound")]
        row += [_values(group, "epsilon_lower_bound") if of_any is None else _figure(group, of_any, 2)]
        row += [", ".join(tests) or _MISSING, _values(group, "reach")]
        row += [
            _natural(group[0]),
            verdict(group),
            ", ".join(sorted({audit.attack.replace("_", " ") for audit in group}))
            + ("" if group[0].figures.get("coin", True) else " (earlier against later: no membership test)"),
        ]
        row += [_values(group, "auc", 3), _values(group, "tpr_at_fpr_0001", 4)]
        rows.append([*row, _values(group, "weighted_f1", 3), _values(group, "macro_f1", 3)])
    return head, rows


def deltas_table(audits: Sequence[BranchAudit]) -> Table:
    """Tabulates the deltas for which claims without delta stay refuted; no rows if none was measured."""
    rows = []
    for group in grouped(audits):
        refuted = [audit.figures for audit in group if audit.figures.get("refuted_delta_epsilon") is not None]
        if not refuted:
            continue
        row = [_least(refuted, "refuted_delta_epsilon", 2), _least(refuted, "refuted_delta_by_counts", 4)]
        rows.append([group[0].title, *row])
    return ["branch", "ε claimed, one record more or less", "refuted for every δ up to"], rows


def _least(figures: Sequence[Mapping[str, Any]], name: str, digits: int) -> str:
    values = [one[name] for one in figures if one.get(name) is not None]
    return f"{math.floor(min(values) * 10**digits) / 10**digits:.{digits}f}" if values else _MISSING


def bounds_table(audits: Sequence[BranchAudit]) -> Table:
    """Tabulates each test's bound with its guesses, first seed."""
    rows = []
    for group in grouped(audits):
        bounds = {bound["name"]: bound for bound in group[0].figures["bounds"]}
        rows.append([group[0].title, *(_bound(bounds[name]) if name in bounds else _MISSING for name in TESTS)])
    return ["branch", *(heading for heading, _ in TESTS.values())], rows


def memorisation_table(audits: Sequence[BranchAudit]) -> Table:
    """Tabulates likelihood ratios and memorisation."""
    names = {
        "rmia_auc": "AUC, RMIA",
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


def changes_table(runs: Mapping[str, Sequence[BranchAudit]]) -> Table:
    """Tabulates changes, after the unchanged branches that they apply to."""
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


def _natural(audit: BranchAudit) -> str:
    bound = bound_of(audit, NATURAL)
    return _MISSING if bound is None else f"{bound['epsilon']:.2f}{_claim_in_trials(bound)}"


def _bound(bound: Mapping[str, Any]) -> str:
    counts = f"({bound['correct']}/{bound['guesses']})"
    if not bound["reach"]:
        return f"cannot be measured here {counts}"
    halved = bound.get("at_half_noise")
    power = "" if halved is None else f"; half noise {halved:.2f}"
    noise, of_any = bound.get("noise_at_most"), bound.get("epsilon_of_any")
    limit = "" if noise is None else f"noise {noise:.2f}, "
    whatever = "" if of_any is None else f", any {of_any:.2f}"
    return f"{limit}{bound['epsilon']:.2f} {counts} of {bound['reach']:.2f}{whatever}{power}{_claim_in_trials(bound)}"


def _claim_in_trials(bound: Mapping[str, Any]) -> str:
    claimed = bound.get("claimed_in_trials")
    return "" if claimed is None else f" {{{claimed:.2f}}}"


def _figure(group: Sequence[BranchAudit], name: str, digits: int = 3) -> str:
    value = figure(group, name)
    return _MISSING if value is None else f"{value:.{digits}f}"


def _values(group: Sequence[BranchAudit], name: str, digits: int = 2) -> str:
    values = [getattr(audit, name) for audit in group]
    return _MISSING if None in values else spread(values, digits)


def _curves(audits: Sequence[BranchAudit]) -> list[BranchAudit]:
    """Returns the first seed of each branch; if colours do not suffice, those whose records are recognised best."""
    firsts = [group[0] for group in grouped(audits)]
    best = sorted(firsts, key=lambda audit: -audit.loss_auc)[:_CURVES]
    return [audit for audit in firsts if audit in best]


def roc_figure(audits: Sequence[BranchAudit]) -> bytes:
    """Draws as SVG the ROC of each branch in log-log: loss dashed, likelihood ratio solid, guessing grey."""
    from matplotlib.figure import Figure

    plot = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = plot.add_subplot()
    axes.plot([1e-4, 1], [1e-4, 1], color="0.6", linewidth=1)
    for number, audit in enumerate(audits):
        curves = json.loads((Path(audit.curves) / "curves.json").read_text())
        colour, loss = f"C{number}", curves["loss"]
        best = curves.get("online_lira", loss)
        axes.plot(best["fpr"], best["tpr"], color=colour, label=audit.title)
        if best is not loss:
            axes.plot(loss["fpr"], loss["tpr"], color=colour, linestyle="--", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=(3e-4, 1), ylim=(3e-4, 1))
    axes.set_xlabel("share of held-out records taken for trained ones (FPR)")
    axes.set_ylabel("share of trained records recognised (TPR)")
    axes.set_title("Who was trained on? Likelihood ratio, and loss alone (dashed)", fontsize=10)
    axes.legend(fontsize=7, loc="lower right")
    return svg(plot).encode()
