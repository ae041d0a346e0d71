"""Writes a comparison as `results.json`, one table and one plot, only in the private workspace.
They contain aggregates only.
"""

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from mechanisms.privacy.numerics import epsilon_text
from storage.artifacts import digest
from storage.durable import write_atomically
from storage.figures import delta_text
from tasks.comparing.run import Group
from tasks.comparing.summary import SCORES, BranchSummary, Difference
from tasks.pages.render import Table, render
from tasks.pages.svg import BLACK, BLUE, ORANGE, figure_of, svg
from tasks.running.provenance import provenance

_STYLES = {"none": (BLACK, "s"), "asymptotic-local": (ORANGE, "o"), "formal": (BLUE, "^")}


def write(groups: Sequence[Group], summaries: Sequence[BranchSummary]) -> Path:
    study = groups[0].study
    context, parameters, seeds = (
        study.context,
        study.parameters,
        [outcome.seed for outcome in groups[0].outcomes],
    )
    measured = [outcome.measured.sha256 for group in groups for outcome in group.outcomes]
    folder = context.workspace.private / "comparisons" / digest(measured)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    source = provenance()
    content = {
        "population": parameters.data.population,
        "encoder": Path(parameters.model.encoder).name,
        "trainable": parameters.model.trainable,
        "records": {
            name: study.facts[name] for name in ("train", "test", "codes_observed", "label_space")
        },
        "seeds": seeds,
        "terms": study.terms.model_dump(mode="json"),
        "code": {"commit": source.code_commit, "changed": source.code_dirty},
        "branches": [summary.model_dump(mode="json") for summary in summaries],
    }
    write_atomically(
        folder / "results.json", json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"
    )
    write_atomically(folder / "results.svg", plot(summaries).encode())
    shown = table(summaries)
    unprotected = sorted({line for summary in summaries for line in summary.unprotected})
    text = render("comparison.md", content=content, table=shown, unprotected=unprotected)
    write_atomically(folder / "results.md", text.encode())
    context.run.publish_markdown(
        key="comparison", markdown=text, description="Branches on the same records. Internal."
    )
    return folder


def table(summaries: Sequence[BranchSummary]) -> Table:
    """Tabulates claims and scores. Each score has its error over seeds, then over held-out
    records.
    """
    head = [
        "branch",
        "claim",
        "ε",
        "ε, one replaced",
        "δ",
        "weighted F1",
        "macro F1",
        "minus the first",
        "seconds",
    ]
    rows = [
        [
            summary.title,
            summary.guarantee_kind,
            *map(_claimed, (summary.epsilon, summary.epsilon_replaced)),
            "–" if summary.delta is None else delta_text(Decimal(str(summary.delta))),
            *(
                f"{summary.mean[s]:.3f} ± {summary.spread[s]:.3f} ± {summary.record_errors[s]:.3f}"
                for s in SCORES
            ),
            _difference(summary.difference["weighted_f1"]) if summary.difference else "–",
            "–" if summary.seconds is None else f"{summary.seconds:.1f}",
        ]
        for summary in sorted(
            summaries, key=lambda summary: (bool(summary.difference), -summary.mean["weighted_f1"])
        )
    ]
    return head, rows


def _claimed(epsilon: float | None) -> str:
    return "–" if epsilon is None else epsilon_text(epsilon)


def _difference(difference: Difference) -> str:
    return f"{difference.gap:+.3f}" + ("" if difference.conclusive else " (within the error)")


def plot(summaries: Sequence[BranchSummary]) -> str:
    """Plots weighted F1 against epsilon with one line per branch. Branches without
    a guarantee are horizontal lines.
    """
    figure, axes = figure_of("Weighted F1 against ε; bars: the larger of both errors", height=4.6)
    lines: dict[str, list[BranchSummary]] = {}
    for summary in sorted(summaries, key=lambda summary: summary.epsilon or 0.0):
        lines.setdefault(summary.branch, []).append(summary)
    for number, points in enumerate(lines.values()):
        (colour, marker), first = _STYLES[points[0].guarantee_kind], points[0]
        label, scores = (
            f"{first.title} ({first.guarantee_kind})",
            [point.mean["weighted_f1"] for point in points],
        )
        if first.epsilon is None:
            axes.axhline(scores[0], color=colour, linestyle="--", label=label)
            continue
        errors = [
            max(point.spread["weighted_f1"], point.record_errors["weighted_f1"]) for point in points
        ]
        style = {
            "color": colour,
            "marker": marker,
            "linestyle": ("-", ":", "-.", "--")[number % 4],
            "capsize": 3,
        }
        axes.errorbar(
            [point.epsilon for point in points], scores, yerr=errors, label=label, **style
        )
    axes.set_xlabel("ε (kinds of claim are not comparable)")
    axes.set_ylabel("weighted F1, held-out records")
    axes.set_xlim(left=0)
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        fontsize=8,
        frameon=False,
        ncols=2,
    )
    return svg(figure)
