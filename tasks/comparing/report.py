"""`report.html`: one self-contained file in the private workspace, legible in print and in dark mode. Internal."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from mechanisms.model import checkpoint
from storage.artifacts import ArtifactRef, digest
from storage.durable import write_atomically
from tasks.branches.branch import CompareParameters
from tasks.branches.outcome import Outcome
from tasks.comparing import figures, published
from tasks.comparing.run import Compared
from tasks.comparing.summary import BranchSummary
from tasks.fitting.data import load_inputs
from tasks.fitting.risks import running_maximum
from tasks.fitting.scores import codes_of
from tasks.pages.html import STYLE, Table, html_table, own_ids
from tasks.parameters import RetrainParameters
from tasks.running.provenance import provenance
from tasks.running.stage import Context

NOTICE = (
    "Internal. These figures are computed from private records without protection and hold F1 by code. "
    "Keep this file in the private workspace; do not publish it or pass it on."
)
KINDS = (
    "Kinds are not comparable: a formal (ε, δ) holds for every data set; an asymptotic-local ε was estimated on these "
    "records, its δ is not quantified, and a low one is no evidence that records cannot be told apart."
)


def write(compared: Compared, summaries: Sequence[BranchSummary]) -> Path:
    """Write the report and lay its aggregates out as Prefect artifacts; returns the file."""
    study, outcomes = compared.study, compared.outcomes
    context, parameters, settings = study.context, study.parameters, study.settings
    facts, target, prepared = study.facts, study.target, study.prepared
    first = [outcome for outcome in outcomes if outcome.seed == compared.seeds[0]]
    measured = {outcome.branch.name: outcome.sensitivity for outcome in first if outcome.sensitivity is not None}
    weights = next((outcome.sensitivity for outcome in first if outcome.event.risk_weights), None)
    tables = {
        "Table 1: privacy and utility": claims_table(summaries),
        "Utility in full": utility_table(summaries),
        "Table 2: by quartile of class sizes": quartile_table(summaries),
        "Table 3: F1 by code, first seed": code_table(context, outcomes),
        "Table 4: DP-SGD over δ": delta_table(summaries),
        "Accountants: ε of the noise that ran": accounting_table(summaries),
    }
    pictures = plots(context, outcomes, summaries, prepared=prepared, measured=measured, weights=weights)
    text = page(parameters, settings, tables, pictures, summaries=summaries, facts=facts, target=target)
    key = digest({"files": [o.measured.sha256 for o in outcomes], "settings": settings.model_dump(mode="json")})[:16]
    folder = context.workspace.private / "comparisons" / key
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.html", text.encode())
    for name, svg in pictures.items():
        write_atomically(folder / f"{name}.svg", svg.encode())
    _artifacts(tables, folder / "report.html")
    return folder / "report.html"


def _artifacts(tables: Mapping[str, Table], file: Path) -> None:
    for key, title in (
        ("comparison", "Table 1: privacy and utility"),
        ("comparison-quartiles", "Table 2: by quartile of class sizes"),
        ("comparison-deltas", "Table 4: DP-SGD over δ"),
        ("comparison-accountants", "Accountants: ε of the noise that ran"),
    ):
        head, rows = tables[title]
        create_table_artifact(
            key=key, table=[dict(zip(head, row, strict=True)) for row in rows], description=f"{title}. Internal."
        )
    create_markdown_artifact(
        key="comparison-report",
        markdown=f"{NOTICE}\n\nThe report, with F1 by code and figures: `{file}`\n\n{KINDS}",
        description="Where the comparison's report lies.",
    )


def plus(mean: float, spread: float, seeds: int, *, digits: int = 3) -> str:
    """Mean and spread over seeds; the mean alone for one seed."""
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if seeds > 1 else "")


def _cell(one: BranchSummary, name: str) -> str:
    return plus(one.mean[name], one.spread[name], one.seeds) if name in one.mean else "–"


def _two(pair: Sequence[float] | None) -> str:
    return "–" if pair is None else " / ".join(f"{value:.2f}" for value in pair)


def _epsilon(one: BranchSummary) -> str:
    return "–" if one.epsilon is None else plus(one.epsilon, one.epsilon_spread, one.seeds, digits=2)


def _delta(one: BranchSummary) -> str:
    return f"{one.delta:g}" if one.delta is not None else one.delta_text or "–"


def claims_table(summaries: Sequence[BranchSummary]) -> Table:
    """The paper's table 1: every branch's claim with its kind, F1, and the paper's own."""
    head = ["branch", "guarantee", "ε claimed", "δ", "weighted F1", "macro F1", "paper: ε", "paper: F1 w / m"]
    return head, [
        [
            one.title,
            one.guarantee_kind,
            _epsilon(one),
            _delta(one),
            _cell(one, "weighted_f1"),
            _cell(one, "macro_f1"),
            f"{published.EPSILON[one.branch]:g}" if one.branch in published.EPSILON else "–",
            _two(published.AGGREGATE.get(one.branch)),
        ]
        for one in summaries
    ]


def utility_table(summaries: Sequence[BranchSummary]) -> Table:
    """Everything else that is measured."""
    names = {
        "accuracy": "accuracy",
        "top_3": "top 3",
        "top_5": "top 5",
        "ece": "ECE",
        "coverage_0.5": "coded at confidence 0.5",
        "accuracy_at_0.5": "right among those",
        "coverage_0.9": "coded at 0.9",
        "accuracy_at_0.9": "right among those (0.9)",
    }
    return ["branch", *names.values()], [[one.title, *(_cell(one, name) for name in names)] for one in summaries]


def quartile_table(summaries: Sequence[BranchSummary]) -> Table:
    """The paper's table 2."""
    head = ["branch", "top: weighted F1", "top: macro F1", "bottom: weighted F1", "bottom: macro F1"]
    names = ("top_quartile_weighted_f1", "top_quartile_macro_f1")
    names += ("bottom_quartile_weighted_f1", "bottom_quartile_macro_f1")
    rows = []
    for one in summaries:
        rows.append([one.title, *(_cell(one, name) for name in names)])
        if one.branch in published.QUARTILES:
            rows.append([f"{one.title}, paper", *(f"{v:.2f}" for v in published.QUARTILES[one.branch])])
    return [*head], rows


def _first(outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    return {o.branch.name: o for o in reversed(outcomes)}


def code_table(context: Context, outcomes: Sequence[Outcome]) -> Table:
    """The paper's table 3: F1 by code with class size, largest first. Internal."""
    first = _first(outcomes)
    shown = [n for n in ("non-private", "swag-ppm", "dp-sgd", "dp-sgd-tuned", "formal-head") if n in first]
    shown = shown or list(first)[:1]
    by_branch = {name: {row["code"]: row for row in codes_of(context, first[name].measured)} for name in shown}
    paper = published.per_code()
    rows = []
    for code, row in sorted(by_branch[shown[0]].items(), key=lambda item: (-item[1]["size"], item[0])):
        there = paper.get(code)
        rows.append(
            [
                code,
                str(row["size"]),
                *(f"{by_branch[name][code]['f1']:.2f}" for name in shown),
                *(
                    ["–"] * 4
                    if there is None
                    else [f"{there['size']:g}", *(f"{v:.2f}" for v in list(there.values())[1:])]
                ),
            ]
        )
    head = ["code", "size", *shown, "paper: size", "paper: non-private", "paper: SWAG-PPM", "paper: DP-SGD"]
    return head, rows


def delta_table(summaries: Sequence[BranchSummary]) -> Table:
    """The paper's table 4: DP-SGD in its setting over delta, by its own conversion."""
    head = ["branch", "δ", "ε (Mironov, the paper's)", "ε claimed (PLD)", "weighted F1", "macro F1", "paper: F1 w / m"]
    rows = [
        [
            one.title,
            _delta(one),
            f"{one.cost['epsilon_rdp_mironov']:.2f}" if "epsilon_rdp_mironov" in one.cost else "–",
            _epsilon(one),
            _cell(one, "weighted_f1"),
            _cell(one, "macro_f1"),
            _two(published.AGGREGATE.get(one.branch)),
        ]
        for one in summaries
        if one.branch == "dp-sgd" or "delta" in one.branch or one.branch == "swag-ppm"
    ]
    return head, rows


def accounting_table(summaries: Sequence[BranchSummary]) -> Table:
    """The same noise by each accountant. Only PLD is claimed."""
    names = {
        "noise_multiplier": "last noise multiplier",
        "steps": "steps",
        "epsilon": "PLD, add/remove (claim)",
        "epsilon_replace_one": "PLD, replace one",
        "epsilon_rdp": "RDP",
        "epsilon_rdp_mironov": "RDP, Mironov",
        "epsilon_opacus": "Opacus",
    }
    return ["branch", *names.values()], [
        [one.title, *(f"{one.cost[n]:.4g}" if n in one.cost else "–" for n in names)] for one in summaries if one.cost
    ]


def plots(
    context: Context,
    outcomes: Sequence[Outcome],
    summaries: Sequence[BranchSummary],
    *,
    prepared: ArtifactRef,
    measured: Mapping[str, ArtifactRef | None],
    weights: ArtifactRef | None,
) -> dict[str, str]:
    """SVG of each figure by name, those that the branches at hand allow."""
    first = _first(outcomes)
    codes = {
        name: codes_of(context, first[name].measured)
        for name in ("swag-ppm", "dp-sgd", "formal-head", "non-private")
        if name in first
    }
    some = next(iter(codes.values()), None) or codes_of(context, outcomes[0].measured)
    made = {
        "frontier": figures.frontier(summaries),
        "class-distribution": figures.class_distribution([row["size"] for row in some]),
    }
    if codes:
        made["f1-by-size"] = figures.f1_by_size(codes)
    if weights is not None:
        made["weights"] = figures.weight_density(*weights_by_quartile(context, prepared, weights))
    maxima = {name: running_maximum(context.store.open(ref)) for name, ref in measured.items() if ref is not None}
    if maxima:
        made["delta-running-maximum"] = figures.running_maxima(maxima)
    losses = {name: o.losses for name, o in first.items() if o.losses and "delta" not in name}
    if losses:
        made["training"] = figures.curves(losses)
    return made


def weights_by_quartile(context: Context, prepared: ArtifactRef, weights: ArtifactRef) -> tuple[np.ndarray, np.ndarray]:
    """Risk weights of training records in the (largest, smallest) quarter of codes."""
    alpha = checkpoint.load(context.store.open(weights) / "weights.safetensors")[0]["alpha"].numpy()
    labels = load_inputs(context.store.open(prepared), "train")[1].numpy()
    code, size = np.unique(labels, return_counts=True)
    order = code[np.lexsort((code, size))]
    quarter = -(-len(order) // 4)
    return alpha[np.isin(labels, order[-quarter:])], alpha[np.isin(labels, order[:quarter])]


def page(
    parameters: RetrainParameters,
    settings: CompareParameters,
    tables: Mapping[str, Table],
    pictures: Mapping[str, str],
    *,
    summaries: Sequence[BranchSummary],
    facts: Mapping[str, Any],
    target: float | None,
) -> str:
    """The report's HTML. Nothing in it comes from another file or address."""
    source = provenance()
    unprotected = sorted({line for one in summaries for line in one.unprotected})
    model = parameters.model
    about = (
        f"Population {parameters.data.population}; {facts['train']:,} training and {facts['test']:,} test records, "
        f"{facts['codes_observed']:,} codes observed of {facts['label_space']:,}; {model.trainable} on "
        f"{Path(model.encoder).name}; {settings.seeds} seeds from {parameters.fit.seed}; target ε "
        f"{'none' if target is None else f'{target:g}'} ({settings.target_epsilon}), δ {settings.delta:g}; "
        f"code {source.code_commit[:12]}{' with changes' if source.code_dirty else ''}."
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Comparison of mechanisms (internal)</title><style>{STYLE}</style>",
        f"<h1>Comparison of mechanisms</h1><p class=warn role=note><strong>{html.escape(NOTICE)}</strong></p>",
        f"<p>{html.escape(about)}</p><p>{html.escape(KINDS)}</p>",
        "<p>Figures are means ± sample standard deviations over seeds. Neighbours differ by one unit added or removed.",
    ]
    for title, table in tables.items():
        shown = html_table(table)
        if len(table[1]) > 40:
            shown = f"<details open><summary>{len(table[1])} rows</summary>{shown}</details>"
        parts.append(f"<h2>{html.escape(title)}</h2>{_download(title, table)}{shown}")
    parts.append("<h2>Figures</h2>")
    parts += [f"<figure role=img aria-label='{name}'>{own_ids(svg, name)}</figure>" for name, svg in pictures.items()]
    parts.append("<h2>Not protected by any ε above</h2><ul>")
    parts += [f"<li>{html.escape(line)}</li>" for line in unprotected]
    return "\n".join([*parts, "</ul></html>"])


def _download(title: str, table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([table[0], *table[1]])
    content = base64.b64encode(text.getvalue().encode()).decode()
    name = title.split(":")[0].lower().replace(" ", "-")
    return f"<p><a class=csv download='{name}.csv' href='data:text/csv;base64,{content}'>CSV</a></p>"
