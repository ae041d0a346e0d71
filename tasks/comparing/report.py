"""Writes `report.html`: one self-contained file in the private workspace, for screen, print and dark mode. Internal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.model import checkpoint
from storage.artifacts import ArtifactRef, digest
from storage.codelist import read_codelist
from storage.durable import write_atomically
from tasks.comparing import decision, figures, protocols, published, tables
from tasks.comparing.decision import Decision
from tasks.comparing.run import Comparison
from tasks.comparing.summary import BranchSummary, summarise
from tasks.fitting.model_inputs import load_inputs
from tasks.fitting.risks import running_maximum
from tasks.fitting.scores import codes_of
from tasks.pages.render import render
from tasks.parameters import DataParameters
from tasks.running.provenance import provenance
from tasks.running.stage import Context

NOTICE = (
    "Internal. These figures are computed from private records without protection and hold F1 by code. "
    "Keep this file in the private workspace; do not publish it or pass it on."
)
KINDS = (
    "Kinds are not comparable: a formal (ε, δ) holds for every data set; an asymptotic-local ε was estimated on these "
    "records, its δ is not quantified, and a low one does not show that records cannot be distinguished."
)
PRIVACY, QUARTILES = "Table 1: privacy and utility", "Table 2: by quartile of class sizes"
DELTAS, ACCOUNTANTS = "Table 4: over δ", "Accountants: ε of the noise that ran"
ARTIFACTS = {
    "comparison": PRIVACY,
    "comparison-quartiles": QUARTILES,
    "comparison-deltas": DELTAS,
    "comparison-accountants": ACCOUNTANTS,
}
"""Tables that Prefect shows too, by the artifact's key."""


def write(decisions: Sequence[Decision]) -> Path:
    """Writes the report and the decision page, and publishes aggregates on the run's page; returns the report."""
    study = decisions[0].comparison.study
    sections = [_section(one, number) for number, one in enumerate(decisions)]
    text = render(
        "comparison.html",
        notice=NOTICE,
        kinds=KINDS,
        parameters=study.parameters,
        terms=study.terms,
        seeds=decisions[0].comparison.seeds,
        source=provenance(),
        encoder=Path(study.parameters.model.encoder).name,
        sections=sections,
        plans=decision.plan_entries(decisions),
        unprotected=sorted({line for one in decisions for line in tables.unprotected(_summaries(one.comparison))}),
    )
    outcomes = [outcome for one in decisions for outcome in one.comparison.outcomes]
    settings = study.terms.model_dump(mode="json", exclude={"protocols", "epsilons"})
    key = digest({"files": [outcome.measured.sha256 for outcome in outcomes], "settings": settings})[:16]
    folder = study.context.workspace.private / "comparisons" / key
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.html", text.encode())
    for section in sections:
        for name, svg in section["pictures"].items():
            write_atomically(folder / f"{section['prefix']}{name}.svg", svg.encode())
    decision.write(folder, decisions, kinds=KINDS)
    _artifacts(sections, decisions, folder)
    return folder / "report.html"


def _summaries(comparison: Comparison) -> list[BranchSummary]:
    return summarise(comparison.outcomes, comparison.study.context)


def _section(one: Decision, number: int) -> Mapping[str, Any]:
    """Returns tables and figures of one protocol; the files of the first have no prefix."""
    comparison, study = one.comparison, one.comparison.study
    summaries, outcomes, delta = _summaries(comparison), comparison.outcomes, comparison.study.default_delta
    publications = published.publications_for(study.parameters.data)
    first = {outcome.branch.name: outcome for outcome in outcomes if outcome.seed == comparison.seeds[0]}
    weights = next((outcome.sensitivity for outcome in first.values() if outcome.event.risk_weights), None)
    shown = tables.representatives(summaries, publications)
    titles = {name: first[name].branch.title for name in shown}
    by_code = {titles[name]: codes_of(study.context, first[name].measured) for name in shown}
    swept = {s.branch for s in tables.over_delta(summaries, delta)}
    pictures = {
        "frontier": figures.frontier([s for s in summaries if s.branch not in swept]),
        "class-distribution": figures.class_distribution([row["size"] for row in next(iter(by_code.values()))]),
        "f1-by-size": figures.f1_by_size(by_code),
    }
    if weights is not None:
        pictures["weights"] = figures.weight_density(*weights_by_quartile(study.context, study.prepared, weights))
    maxima = {
        o.branch.title: running_maximum(study.context.store.open(o.sensitivity))
        for o in first.values()
        if o.sensitivity is not None
    }
    if maxima:
        pictures["delta-running-maximum"] = figures.running_maxima(maxima)
    losses = {o.branch.title: o.losses for name, o in first.items() if o.losses and name not in swept}
    if losses:
        pictures["training"] = figures.curves(losses)
    return {
        "title": protocols.protocol_title(study.parameters),
        "prefix": f"protocol-{number + 1}-" if number else "",
        "facts": study.facts,
        "target": study.target,
        "delta": delta,
        "recommendation": one.recommendation,
        "rows": decision.branch_rows(one, number),
        "tables": {
            PRIVACY: tables.claims_table(summaries, publications),
            "Differences, and their errors": tables.differences_table(summaries),
            "Utility in full": tables.utility_table(summaries),
            QUARTILES: tables.quartile_table(summaries, publications),
            "F1 by code, first seed": tables.code_table(by_code, publications, titles=_titles(study.parameters.data)),
            DELTAS: tables.delta_table(summaries, publications, delta=delta),
            ACCOUNTANTS: tables.accounting_table(summaries),
        },
        "pictures": pictures,
    }


def _titles(data: DataParameters) -> dict[str, str]:
    """Returns the title of each code of the list."""
    file = data.codelist_path
    codes = () if file is None else read_codelist(file, columns=data.ingest.codelist_columns)
    return {code.code: code.title for code in codes}


def _artifacts(sections: Sequence[Mapping[str, Any]], decisions: Sequence[Decision], folder: Path) -> None:
    run = decisions[0].comparison.study.context.run
    for section in sections:
        for key, title in ARTIFACTS.items():
            head, rows = section["tables"][title]
            run.publish_table(
                key=f"{section['prefix']}{key}",
                table=[dict(zip(head, row, strict=True)) for row in rows],
                description=f"{title}. {section['title']}. Internal.",
            )
    recommendations = [
        f"**{section['title']}.** {one.recommendation.sentence}"
        for section, one in zip(sections, decisions, strict=True)
    ]
    run.publish_markdown(
        key="comparison-report",
        markdown="\n\n".join(
            [
                NOTICE,
                *recommendations,
                f"The page for a decision: `{folder / 'decision.html'}`",
                f"The report, with F1 by code and figures: `{folder / 'report.html'}`",
                KINDS,
            ]
        ),
        description="The recommendation, and the path of the comparison's report.",
    )


def weights_by_quartile(context: Context, prepared: ArtifactRef, weights: ArtifactRef) -> tuple[np.ndarray, np.ndarray]:
    """Returns the risk weights of training records in the (largest, smallest) quarter of codes."""
    alpha = checkpoint.load(context.store.open(weights) / "weights.safetensors")[0]["alpha"].numpy()
    labels = load_inputs(context.store.open(prepared), "train")[1].numpy()
    code, size = np.unique(labels, return_counts=True)
    order = code[np.lexsort((code, size))]
    quarter = -(-len(order) // 4)
    return alpha[np.isin(labels, order[-quarter:])], alpha[np.isin(labels, order[:quarter])]
