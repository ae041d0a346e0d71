"""The ledger for people and other programs: JSON and CSV export, budget table, Markdown."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from storage.errors import InputError
from storage.ledger.amounts import short
from storage.ledger.budget import BudgetLine
from storage.ledger.models import Row
from storage.tables.formulas import escape_formula


def to_json(rows: Iterable[Row]) -> str:
    """Return rows as a JSON array; each holds its hash, so the file can be verified against later."""
    return json.dumps([row.as_json() for row in rows], ensure_ascii=False, indent=1)


def to_csv(rows: Iterable[Row]) -> str:
    """Return rows as CSV, one column a field; lists and objects as JSON."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\r\n")
    names = list(Row.model_fields)
    writer.writerow(names)
    for row in rows:
        content = row.as_json()
        writer.writerow([_cell(content[name]) for name in names])
    return output.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return escape_formula(str(value))


def read_export(path: Path) -> Sequence[Row]:
    """Read rows that `to_json` wrote."""
    try:
        return [Row.model_validate(row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON export of a ledger") from error


BUDGET_COLUMNS = (
    "population", "cohort", "guarantee kind", "ε spent", "ε cap", "ε left", "δ spent", "δ cap", "δ left",
    "relation",
)  # fmt: skip


def budget_json(lines: Iterable[BudgetLine]) -> list[dict[str, Any]]:
    """Return the accounts as plain data, amounts as text."""
    return [
        {
            "population": line.account.population,
            "cohort": line.account.cohort,
            "guarantee_kind": line.account.guarantee_kind,
            "composition": line.account.rule or (line.cap.composition if line.cap else None),
            "neighbouring_relation": line.relation,
            "epsilon_spent": short(line.account.epsilon),
            "epsilon_cap": short(line.cap.epsilon) if line.cap else None,
            "epsilon_left": short(line.epsilon_left),
            "further_releases": line.further,
            "delta_spent": short(line.account.delta),
            "delta_cap": short(line.cap.delta) if line.cap and line.cap.delta else None,
            "delta_left": short(line.delta_left) if line.delta_left is not None else None,
        }
        for line in lines
    ]


def budget_cells(
    lines: Iterable[BudgetLine],
    *,
    up: Callable[[Decimal], str] = short,
    down: Callable[[Decimal], str] = short,
    brief: Callable[[Decimal], str] = short,
) -> list[list[str]]:
    """Return the accounts as text, in the order of `BUDGET_COLUMNS`.

    Args:
        up, down: write what is spent, and what remains, of epsilon.
        brief: writes a delta.
    """

    def delta(value: Decimal | None) -> str:
        return "–" if value is None else brief(value)

    return [
        [
            *(line.account.population, line.account.cohort, line.account.guarantee_kind, up(line.account.epsilon)),
            *("no cap" if line.cap is None else short(line.cap.epsilon), down(line.epsilon_left)),
            delta(line.account.delta if line.cap and line.cap.delta is not None else None),
            *(delta(line.cap.delta if line.cap else None), delta(line.delta_left), line.relation or "–"),
        ]
        for line in lines
    ]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; pipes and line breaks inside a cell are escaped."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Returns text with a space for every line break and tab: a carriage return alone ends a line of Markdown too."""
    return re.sub(r"[^\S ]", " ", text)


def escape(cell: str) -> str:
    """Return text that stays text inside a Markdown table or paragraph: no markup, no new cell, no new line."""
    text = one_line(cell).replace("\\", "\\\\").replace("<", "&lt;")
    for mark in "|*_`[]~":
        text = text.replace(mark, "\\" + mark)
    return text
