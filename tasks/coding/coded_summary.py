"""Summarises a coded table on a page next to it: rows for review, scores, codes."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from storage.durable import write_atomically
from storage.errors import Contradiction
from storage.tables.formulas import unquote
from storage.tables.reader import survey
from tasks.coding.coder import UNTRAINED
from tasks.pages.render import render

_DIGEST, _REVIEW, _KIND = "bundle_digest", "needs_review", "model_kind"
_MOST_CODES = 40
_TENTHS = 10


@dataclass
class BundleSummary:
    prefix: str
    scores: list[int] = field(default_factory=lambda: [0] * _TENTHS)
    """Number of rows by tenth of the score."""
    rows: Counter[str] = field(default_factory=Counter)
    review: Counter[str] = field(default_factory=Counter)
    """Number of rows for review by code."""
    titles: dict[str, str] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    """Sum of the scores by code."""
    kinds: set[str] = field(default_factory=set)
    """Kinds of models that coded the rows."""

    @property
    def untrained(self) -> bool:
        return UNTRAINED in self.kinds

    def add(self, code: str, title: str, score: float, *, review: bool) -> None:
        self.scores[min(int(score * _TENTHS), _TENTHS - 1)] += 1
        self.rows[code] += 1
        self.review[code] += review
        self.titles.setdefault(code, title)
        self.total[code] = self.total.get(code, 0.0) + score

    @property
    def tenths(self) -> list[tuple[float, int]]:
        return [(tenth / _TENTHS, rows) for tenth, rows in enumerate(self.scores)]

    def codes(self, *, reviewed: bool) -> tuple[list[str], list[list[str]]]:
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
        return [
            "code",
            "title",
            "rows",
            "share",
            *(["for a person"] if reviewed else []),
            "mean score",
        ], lines

    @property
    def others(self) -> tuple[int, int]:
        rest = self.rows.most_common()[_MOST_CODES:]
        return len(rest), sum(rows for _, rows in rest)


def write_summary(
    coded: Path,
    *,
    columns: Sequence[str] = (),
    notes: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> Path:
    """Writes `FILE.summary.html` next to a coded table and returns its path.

    Args:
        columns: text columns, which appear in the page's commands.
        notes: sentences on narratives that the models could not read in full.
        targets: sentences on the accuracies that determined which rows are for a person.
    """
    table = survey(coded, text_columns=[])
    prefixes = [name.removesuffix(_DIGEST) for name in table.columns if name.endswith(_DIGEST)]
    if not prefixes:
        raise Contradiction(
            f"{coded} was not written by `autocoder code`: it has no column {_DIGEST}.",
            kind="not-a-coded-table",
            column=_DIGEST,
        )
    reviewed = {prefix for prefix in prefixes if f"{prefix}{_REVIEW}" in table.columns}
    wanted: list[str] = []
    for prefix in prefixes:
        wanted += [f"{prefix}code", f"{prefix}title", f"{prefix}score", f"{prefix}{_KIND}"]
        if prefix in reviewed:
            wanted.append(f"{prefix}{_REVIEW}")
    summaries = [BundleSummary(prefix) for prefix in prefixes]
    blank = review = 0
    for row in table.text_rows(wanted):
        cells = dict(zip(wanted, map(unquote, row), strict=True))
        marked = {prefix for prefix in reviewed if _is_true(cells[f"{prefix}{_REVIEW}"])}
        coded_by = [summary for summary in summaries if cells[f"{summary.prefix}code"]]
        blank += not coded_by
        review += bool(marked)
        for summary in summaries:
            summary.kinds.add(cells[f"{summary.prefix}{_KIND}"])
        for summary in coded_by:
            prefix = summary.prefix
            code, title = cells[f"{prefix}code"], cells[f"{prefix}title"]
            score = float(cells[f"{prefix}score"])
            summary.add(code, title, score, review=prefix in marked)
    page = coded.with_name(f"{coded.name}.summary.html")
    shown = render(
        "coded.html",
        notice="Confidential: it counts your records by code. Do not publish it or pass it on.",
        name=coded.name,
        rows=table.rows,
        blank=blank,
        review=review if reviewed else None,
        bundles=summaries,
        commands=_commands(coded, columns),
        notes=notes,
        targets=targets,
    )
    write_atomically(page, shown.encode(), source=coded)
    return page


def _is_true(cell: str) -> bool:
    return cell.strip().lower() == "true"


def _commands(coded: Path, columns: Sequence[str]) -> str:
    name, stem = shlex.quote(str(coded)), coded.name.partition(".")[0]
    texts = "".join(f" --text {shlex.quote(column)}" for column in columns)
    return (
        f"autocoder sample {name}{texts} --out {stem}-sample.csv\nautocoder drift {name} "
        "--reference EARLIER.csv"
    )
