"""`report.html`: one self-contained file in the private workspace, legible in print and in dark mode. Internal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from mechanisms.model import checkpoint
from storage.artifacts import ArtifactRef, digest
from storage.durable import write_atomically
from tasks.comparing import figures, published, tables
from tasks.comparing.run import Compared
from tasks.comparing.summary import BranchSummary
from tasks.fitting.prepared import load_inputs
from tasks.fitting.risks import running_maximum
from tasks.fitting.scores import codes_of
from tasks.pages.render import Table, render
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
ARTIFACTS = {
    "comparison": "Table 1: privacy and utility",
    "comparison-quartiles": "Table 2: by quartile of class sizes",
    "comparison-deltas": "Table 4: over δ",
    "comparison-accountants": "Accountants: ε of the noise that ran",
}
"""Tables that Prefect's page shows too, by the artifact's key."""


def write(compared: Compared, summaries: Sequence[BranchSummary]) -> Path:
    """Write the report and lay its aggregates out as Prefect artifacts; returns the file."""
    study, outcomes = compared.study, compared.outcomes
    context, parameters, settings = study.context, study.parameters, study.settings
    beside = published.beside(parameters.data)
    first = {outcome.branch.name: outcome for outcome in outcomes if outcome.seed == compared.seeds[0]}
    measured = {name: outcome.sensitivity for name, outcome in first.items()}
    weights = next((outcome.sensitivity for outcome in first.values() if outcome.event.risk_weights), None)
    shown = tables.representatives(summaries, beside)
    by_code = {name: codes_of(context, first[name].measured) for name in shown}
    content = {
        "Table 1: privacy and utility": tables.claims_table(summaries, beside),
        "Utility in full": tables.utility_table(summaries),
        "Table 2: by quartile of class sizes": tables.quartile_table(summaries, beside),
        "Table 3: F1 by code, first seed": tables.code_table(by_code, beside),
        "Table 4: over δ": tables.delta_table(summaries, beside, delta=settings.delta),
        "Accountants: ε of the noise that ran": tables.accounting_table(summaries),
    }
    swept = {one.branch for one in tables.over_delta(summaries, settings.delta)}
    pictures = {
        "frontier": figures.frontier([one for one in summaries if one.branch not in swept]),
        "class-distribution": figures.class_distribution([row["size"] for row in next(iter(by_code.values()))]),
        "f1-by-size": figures.f1_by_size(by_code),
    }
    if weights is not None:
        pictures["weights"] = figures.weight_density(*weights_by_quartile(context, study.prepared, weights))
    maxima = {name: running_maximum(context.store.open(ref)) for name, ref in measured.items() if ref is not None}
    if maxima:
        pictures["delta-running-maximum"] = figures.running_maxima(maxima)
    losses = {name: one.losses for name, one in first.items() if one.losses and name not in swept}
    if losses:
        pictures["training"] = figures.curves(losses)
    text = render(
        "comparison.html",
        notice=NOTICE,
        kinds=KINDS,
        parameters=parameters,
        settings=settings,
        facts=study.facts,
        target=study.target,
        source=provenance(),
        encoder=Path(parameters.model.encoder).name,
        tables=content,
        pictures=pictures,
        unprotected=tables.unprotected(summaries),
    )
    key = digest({"files": [o.measured.sha256 for o in outcomes], "settings": settings.model_dump(mode="json")})[:16]
    folder = context.workspace.private / "comparisons" / key
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.html", text.encode())
    for name, svg in pictures.items():
        write_atomically(folder / f"{name}.svg", svg.encode())
    _artifacts(content, folder / "report.html")
    return folder / "report.html"


def _artifacts(content: Mapping[str, Table], file: Path) -> None:
    for key, title in ARTIFACTS.items():
        head, rows = content[title]
        create_table_artifact(
            key=key, table=[dict(zip(head, row, strict=True)) for row in rows], description=f"{title}. Internal."
        )
    create_markdown_artifact(
        key="comparison-report",
        markdown=f"{NOTICE}\n\nThe report, with F1 by code and figures: `{file}`\n\n{KINDS}",
        description="Where the comparison's report lies.",
    )


def weights_by_quartile(context: Context, prepared: ArtifactRef, weights: ArtifactRef) -> tuple[np.ndarray, np.ndarray]:
    """Risk weights of training records in the (largest, smallest) quarter of codes."""
    alpha = checkpoint.load(context.store.open(weights) / "weights.safetensors")[0]["alpha"].numpy()
    labels = load_inputs(context.store.open(prepared), "train")[1].numpy()
    code, size = np.unique(labels, return_counts=True)
    order = code[np.lexsort((code, size))]
    quarter = -(-len(order) // 4)
    return alpha[np.isin(labels, order[-quarter:])], alpha[np.isin(labels, order[:quarter])]
