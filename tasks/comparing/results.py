"""Writes the aggregates of a comparison as Markdown with figures, outside the workspace, for public records."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage.durable import write_atomically
from tasks.branches.branch import CompareParameters
from tasks.comparing import published, tables
from tasks.comparing.report import KINDS
from tasks.comparing.summary import BranchSummary
from tasks.pages.render import Table, notes_beside, render
from tasks.parameters import RetrainParameters
from tasks.running.provenance import provenance

FIGURES = ("frontier", "f1-by-size", "weights", "delta-running-maximum", "class-distribution")


def write(file: Path, report: str, summaries: Sequence[BranchSummary], **facts: Any) -> None:
    """Writes `file`, and the figures of the report to a folder of the same name next to it.

    What a person adds is in a file next to it (`results.notes.md` for `results.md`), which the page ends with.
    """
    folder = file.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, str] = {}
    for name in FIGURES:
        svg = Path(report).with_name(f"{name}.svg")
        if svg.is_file():
            write_atomically(folder / f"{name}.svg", svg.read_bytes())
            pictures[name.replace("-", " ")] = f"{folder.name}/{name}.svg"
    text = page(summaries, pictures=pictures, notes=notes_beside(file), **facts)
    write_atomically(file, text.encode())


def page(
    summaries: Sequence[BranchSummary],
    *,
    parameters: RetrainParameters,
    settings: CompareParameters,
    target: float | None,
    delta: float,
    pictures: dict[str, str],
    notes: str,
    others: Sequence[tuple[str, Sequence[BranchSummary]]] = (),
) -> str:
    """Renders the page.

    Args:
        pictures: addresses of figures by their names.
        others: title and branches of every further protocol, whose tables have no published figures.
    """
    publications = published.publications_for(parameters.data)
    return render(
        "results.md",
        kinds=KINDS,
        parameters=parameters,
        settings=settings,
        target=target,
        delta=delta,
        source=provenance(),
        file=parameters.data.file_names,
        encoder=Path(parameters.model.encoder).name,
        machine=f"{os.cpu_count()} CPU cores, {platform.machine()}",
        orderings=tables.orderings_table(summaries, publications),
        tables={
            "Table 1: privacy and utility": tables.claims_table(summaries, publications),
            "Differences, and their errors": tables.differences_table(summaries),
            "Utility in full": tables.utility_table(summaries),
            "Table 2: by quartile of class sizes": tables.quartile_table(summaries, publications),
            "Table 4: over δ": tables.delta_table(summaries, publications, delta=delta),
            "Accountants": tables.accounting_table(summaries),
            "Terms": tables.terms_table(summaries),
        }
        | {f"{title}: {name}": table for title, rows in others for name, table in _tables(rows)},
        unprotected=tables.unprotected(summaries),
        pictures=pictures,
        notes=notes,
    )


def _tables(summaries: Sequence[BranchSummary]) -> list[tuple[str, Table]]:
    return [
        ("privacy and utility", tables.claims_table(summaries, [])),
        ("differences", tables.differences_table(summaries)),
        ("by quartile of class sizes", tables.quartile_table(summaries, [])),
    ]
