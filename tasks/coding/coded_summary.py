"""Summarises a coded table on a page next to it: what a person must check, the scores, the codes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from storage.durable import write_atomically
from storage.tables.formulas import unquote
from storage.tables.reader import Table, survey
from tasks.coding.coded_table import code_column, column_of, fields_of
from tasks.pages.render import render

_REVIEW = "needs_review"
_MOST_CODES = 40
_TENTHS = 10


@dataclass
class FieldSummary:
    """Counts the answers of one field."""

    name: str
    scores: list[int] = field(default_factory=lambda: [0] * _TENTHS)
    """Rows by tenths of the score."""
    rows: Counter[str] = field(default_factory=Counter)
    review: Counter[str] = field(default_factory=Counter)
    """Rows by code that a person must check."""
    titles: dict[str, str] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    """Sum of the scores by code."""

    def add(self, code: str, title: str, score: float, *, review: bool) -> None:
        """Counts one row."""
        self.scores[min(int(score * _TENTHS), _TENTHS - 1)] += 1
        self.rows[code] += 1
        self.review[code] += review
        self.titles.setdefault(code, title)
        self.total[code] = self.total.get(code, 0.0) + score

    @property
    def tenths(self) -> list[tuple[str, int, float]]:
        """Returns score range, rows, and rows as a share of the largest range, best scores first."""
        most = max(*self.scores, 1)
        ranges = [f"{at / _TENTHS:.1f} to {(at + 1) / _TENTHS:.1f}" for at in range(_TENTHS)]
        return [(ranges[at], rows, rows / most) for at, rows in reversed(list(enumerate(self.scores)))]

    def codes(self, *, reviewed: bool) -> tuple[list[str], list[list[str]]]:
        """Returns the table of codes, the most frequent first."""
        coded = self.rows.total()
        lines = [
            [
                code,
                self.titles[code],
                f"{rows:,}",
                f"{rows / coded:.1%}",
                *([f"{self.review[code]:,}"] if reviewed else []),
                f"{self.total[code] / rows:.2f}",
            ]
            for code, rows in islice(self.rows.most_common(), _MOST_CODES)
        ]
        return ["code", "title", "rows", "share", *(["for a person"] if reviewed else []), "mean score"], lines

    @property
    def others(self) -> tuple[int, int]:
        """Returns how many codes the table leaves out, and their rows."""
        left = self.rows.most_common()[_MOST_CODES:]
        return len(left), sum(rows for _, rows in left)


def write_summary(coded: Path, *, columns: Sequence[str] = ()) -> Path:
    """Writes `FILE.summary.html` next to a coded table and returns it; the page's commands name the text columns.

    Raises:
        InputError: the file is not a coded table.
    """
    table = survey(coded, text_columns=[])
    names = fields_of(table)
    wanted, reviewed = _columns(table, names)
    summaries = [FieldSummary(name) for name in names]
    blank = review = 0
    for row in table.text_rows(wanted):
        cells = [unquote(cell) for cell in row]
        marked = reviewed and cells[-1].strip().lower() == "true"
        blank += not any(cells[0 : 3 * len(names) : 3])
        review += marked
        for at, one in enumerate(summaries):
            code, title, score = cells[3 * at : 3 * at + 3]
            if code:
                one.add(code, title, float(score), review=marked)
    page = coded.with_name(f"{coded.name}.summary.html")
    shown = render(
        "coded.html",
        notice="Confidential: it counts your records by code. It is no part of a release.",
        name=coded.name,
        rows=table.rows,
        blank=blank,
        review=review if reviewed else None,
        fields=summaries,
        commands=_commands(coded, columns),
    )
    write_atomically(page, shown.encode(), source=coded)
    return page


def _columns(table: Table, fields: Sequence[str]) -> tuple[list[str], bool]:
    """Returns code, title and score of each field, then the mark for review if the table has one."""
    triples = [(code_column(name), column_of(name, "title"), column_of(name, "score")) for name in fields]
    reviewed = _REVIEW in table.columns
    return [column for triple in triples for column in triple] + [_REVIEW] * reviewed, reviewed


def _commands(coded: Path, columns: Sequence[str]) -> str:
    name, stem = shlex.quote(str(coded)), coded.name.partition(".")[0]
    texts = "".join(f" --text {shlex.quote(one)}" for one in columns if "=" not in one)
    return f"autocoder qa draw {name}{texts} --out {stem}-sample.csv\nautocoder drift {name} --reference EARLIER.csv"
