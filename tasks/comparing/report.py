"""`report.html`: one self-contained file in the private workspace, legible in print and in dark mode. Internal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from mechanisms.model import checkpoint
from storage.artifacts import ArtifactRef, digest
from storage.codelist import read_codelist
from storage.durable import write_atomically
from tasks.comparing import decision, figures, protocols, published, tables
from tasks.comparing.decision import Decided
from tasks.comparing.run import Compared
from tasks.comparing.summary import BranchSummary, summarise
from tasks.fitting.prepared import load_inputs
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
    "records, its δ is not quantified, and a low one is no evidence that records cannot be told apart."
)
PRIVACY, QUARTILES = "Table 1: privacy and utility", "Table 2: by quartile of class sizes"
DELTAS, ACCOUNTANTS = "Table 4: over δ", "Accountants: ε of the noise that ran"
ARTIFACTS = {
    "comparison": PRIVACY,
    "comparison-quartiles": QUARTILES,
    "comparison-deltas": DELTAS,
    "comparison-accountants": ACCOUNTANTS,
}
"""Tables that Prefect's page shows too, by the artifact's key."""


def write(decided: Sequence[Decided]) -> Path:
    """Write the report and the officer's page, and lay aggregates out as Prefect artifacts; returns the report.

    Args:
        decided: the same branches under one protocol or several, each with what is recommended of it.
    """
    study = decided[0].compared.study
    sections = [_section(one, number) for number, one in enumerate(decided)]
    text = render(
        "comparison.html",
        notice=NOTICE,
        kinds=KINDS,
        parameters=study.parameters,
        settings=study.settings,
        source=provenance(),
        encoder=Path(study.parameters.model.encoder).name,
        sections=sections,
        plans=[plan for number, one in enumerate(decided) for plan in decision.plans_of(one, number)],
        unprotected=sorted({line for one in decided for line in tables.unprotected(_summaries(one.compared))}),
    )
    outcomes = [outcome for one in decided for outcome in one.compared.outcomes]
    settings = study.settings.model_dump(mode="json", exclude={"protocols", "epsilons"})
    key = digest({"files": [outcome.measured.sha256 for outcome in outcomes], "settings": settings})[:16]
    folder = study.context.workspace.private / "comparisons" / key
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.html", text.encode())
    for section in sections:
        for name, svg in section["pictures"].items():
            write_atomically(folder / f"{section['prefix']}{name}.svg", svg.encode())
    decision.write(folder, decided, kinds=KINDS)
    _artifacts(sections, decided, folder)
    return folder / "report.html"


def _summaries(compared: Compared) -> list[BranchSummary]:
    return summarise(compared.outcomes)


def _section(one: Decided, number: int) -> Mapping[str, Any]:
    """Tables and figures of one protocol; the first has no prefix, so that its files are called as they always were."""
    compared, study = one.compared, one.compared.study
    summaries, outcomes, delta = _summaries(compared), compared.outcomes, compared.study.usual_delta
    beside = published.beside(study.parameters.data)
    first = {outcome.branch.name: outcome for outcome in outcomes if outcome.seed == compared.seeds[0]}
    weights = next((outcome.sensitivity for outcome in first.values() if outcome.event.risk_weights), None)
    shown = tables.representatives(summaries, beside)
    titles = {name: first[name].branch.title for name in shown}
    by_code = {titles[name]: codes_of(study.context, first[name].measured) for name in shown}
    swept = {s.branch for s in tables.over_delta(summaries, delta)}
    pictures = {
        "frontier": figures.frontier([s for s in summaries if s.branch not in swept]),
        "class-distribution": figures.class_distribution([row["size"] for row in next(iter(by_code.values()))]),
        "f1-by-size": figures.f1_by_size(by_code),
    }
    if weights is not None:
        found = weights_by_quartile(study.context, study.prepared, weights)
        pictures["weights"] = figures.weight_density(*found)
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
    fields = tuple(study.parameters.data.ingest.fields)
    of_fields = {}
    if fields:
        of_fields = {
            "F1 by field": tables.fields_table(summaries, fields),
            "One release against one a field": tables.separate_table(summaries, len(fields)),
        }
    return {
        "title": protocols.title(study.parameters),
        "prefix": f"protocol-{number + 1}-" if number else "",
        "facts": study.facts,
        "target": study.target,
        "delta": delta,
        "recommendation": one.recommendation,
        "refused": compared.refused,
        "rows": decision.branch_rows(one, number),
        "tables": {
            PRIVACY: tables.claims_table(summaries, beside),
            **of_fields,
            "Utility in full": tables.utility_table(summaries),
            QUARTILES: tables.quartile_table(summaries, beside),
            "F1 by code, first seed": tables.code_table(by_code, beside, titles=_titles(study.parameters.data)),
            DELTAS: tables.delta_table(summaries, beside, delta=delta),
            ACCOUNTANTS: tables.accounting_table(summaries),
        },
        "pictures": pictures,
    }


def _titles(data: DataParameters) -> dict[str, str]:
    """Title of each code that a list names, under the code as `codes_of` writes it."""
    lists = {name: read_codelist(file) for name, file in data.codelists.items() if file is not None}
    return {f"{name} {one.code}".strip(): one.title for name, codes in lists.items() for one in codes}


def _artifacts(sections: Sequence[Mapping[str, Any]], decided: Sequence[Decided], folder: Path) -> None:
    for section in sections:
        for key, title in ARTIFACTS.items():
            head, rows = section["tables"][title]
            create_table_artifact(
                key=f"{section['prefix']}{key}",
                table=[dict(zip(head, row, strict=True)) for row in rows],
                description=f"{title}. {section['title']}. Internal.",
            )
    said = [
        f"**{section['title']}.** {one.recommendation.sentence}" for section, one in zip(sections, decided, strict=True)
    ]
    create_markdown_artifact(
        key="comparison-report",
        markdown="\n\n".join(
            [
                NOTICE,
                *said,
                f"For whoever decides: `{folder / 'decision.html'}`",
                f"The report, with F1 by code and figures: `{folder / 'report.html'}`",
                KINDS,
            ]
        ),
        description="What is recommended, and where the comparison's report lies.",
    )


def weights_by_quartile(context: Context, prepared: ArtifactRef, weights: ArtifactRef) -> tuple[np.ndarray, np.ndarray]:
    """Risk weights of training records in the (largest, smallest) quarter of codes.

    Of several fields the quarters are those of all codes together, and a record counts once for each of its own.
    """
    alpha = checkpoint.load(context.store.open(weights) / "weights.safetensors")[0]["alpha"].numpy()
    labels = load_inputs(context.store.open(prepared), "train")[1].numpy()
    each = labels.reshape(len(labels), -1)
    record, field = np.nonzero(each >= 0)
    alpha, labels = alpha[record], each[record, field] * each.shape[1] + field
    code, size = np.unique(labels, return_counts=True)
    order = code[np.lexsort((code, size))]
    quarter = -(-len(order) // 4)
    return alpha[np.isin(labels, order[-quarter:])], alpha[np.isin(labels, order[:quarter])]
