"""Converts a coded table to a revised classification with a correspondence table.

A code that became one code is replaced. If it became several codes, the untrained coder of the new
list chooses among these candidates by their titles. If it is not sure, or if the table does not
contain the code, the row goes to a person. Every row is counted under exactly one of these
outcomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from storage.codelist import normalise_code
from storage.durable import replace_atomically
from storage.errors import Missing, StorageError, Unknown
from storage.tables.narratives import Narratives
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import Row, Table, pieces, read_small
from storage.tables.writer import open_writer, output_kind
from tasks.coding.columns import require_free
from tasks.coding.untrained import UntrainedCoder

Way = Literal["one", "chosen", "doubtful", "no text", "unknown", "blank"]
"""Outcomes of a row: one candidate; several, one of which was chosen; several, none of which is
sure; several and no text; an old code that is not in the correspondence; no code.
"""
REVIEWED: frozenset[Way] = frozenset({"doubtful", "no text", "unknown", "blank"})
_COLUMNS = (
    *("new_code", "new_title", "new_score", "new_way", "needs_review"),
    *("model", "model_kind", "classification_version", "bundle_digest"),
)


def read_correspondence(
    path: Path, codes: Sequence[str], read: ReadOptions = AS_IT_LOOKS
) -> dict[str, tuple[str, ...]]:
    """Reads the columns `old` and `new`: the new codes of each old code, in the file's order.

    Raises:
        InputError: a new code is not on the new list.
    """
    option = "--correspondence"
    header, rows = read_small(path, ("old", "new"), option=option, read=read)
    old, new = header.index("old"), header.index("new")
    found: dict[str, dict[str, None]] = {}
    for number, row in enumerate(rows, 1):
        before, after = normalise_code(row[old]), normalise_code(row[new], codes)
        if not before or not after:
            continue
        if after not in codes:
            raise Unknown(
                f"{option}: {path}: row {number} has the new code {after[:40]!r}, "
                "which is not on --codelist. Use the list of the revision",
                kind="unlisted-new-code",
                row=number,
            )
        found.setdefault(before, {})[after] = None
    if not found:
        raise Missing(
            f"{option}: {path} has no row with an old and a new code", kind="empty-correspondence"
        )
    return {before: tuple(after) for before, after in found.items()}


@dataclass(frozen=True)
class Relabelled:
    ways: Mapping[Way, int]
    """Number of rows by outcome."""

    @property
    def rows(self) -> int:
        return sum(self.ways.values())

    @property
    def review(self) -> int:
        return sum(self.ways[way] for way in REVIEWED)


@dataclass(frozen=True)
class Relabelling:
    coder: UntrainedCoder
    correspondence: Mapping[str, Sequence[str]]
    narratives: Narratives
    column: str
    """Column with the old codes."""
    threshold: float

    def rows(self, old: Sequence[str], texts: Sequence[str]) -> list[Row]:
        """Returns the new cells of rows from their old codes and texts."""
        candidates = [self.correspondence.get(normalise_code(code), ()) for code in old]
        several = [n for n, of in enumerate(candidates) if len(of) > 1 and texts[n].strip()]
        scores = self.coder.scores([texts[n] for n in several]) if several else []
        chosen = {n: self._best(candidates[n], row) for n, row in zip(several, scores, strict=True)}
        return [
            self._row(code, of, chosen.get(n))
            for n, (code, of) in enumerate(zip(old, candidates, strict=True))
        ]

    def _best(self, candidates: Sequence[str], scores: np.ndarray) -> tuple[str, float]:
        places = [self.coder.model.codes.index(code) for code in candidates]
        among = scores[places].astype(np.float64)
        best = int(among.argmax())
        return candidates[best], float(among[best] / among.sum()) if among.sum() > 0 else 0.0

    def _row(self, old: str, candidates: Sequence[str], best: tuple[str, float] | None) -> Row:
        code, score, way = self._decide(old, candidates, best)
        origin = self.coder.origin
        title = None if code is None else self.coder.titles[code]
        shown = None if score is None else round(score, 6)
        return (
            *(code, title, shown, way, way in REVIEWED),
            *(origin[name] for name in _COLUMNS[5:]),
        )

    def _decide(
        self, old: str, candidates: Sequence[str], best: tuple[str, float] | None
    ) -> tuple[str | None, float | None, Way]:
        if not old.strip():
            return None, None, "blank"
        if not candidates:
            return None, None, "unknown"
        if len(candidates) == 1:
            return candidates[0], None, "one"
        if best is None:
            return None, None, "no text"
        # rounded as in the output
        sure = round(best[1], 6) >= self.threshold
        return *best, "chosen" if sure else "doubtful"


def relabel(table: Table, out: Path, how: Relabelling) -> Relabelled:
    """Writes the table with the new codes next to the old ones. The output is
    complete or not written at all.
    """
    require_free(table, _COLUMNS)
    kinds: dict[str, pa.DataType] = {"new_score": pa.float64(), "needs_review": pa.bool_()}
    added = [pa.field(name, kinds.get(name, pa.string())) for name in _COLUMNS]
    schema = pa.schema([*table.schema, *added])
    ways: Counter[Way] = Counter()
    wanted = [how.column, *how.narratives.columns]
    with (
        replace_atomically(out, source=table.source.path) as fresh,
        open_writer(fresh, output_kind(out), schema) as write,
    ):
        chunks = pieces(table.read(), columns=len(schema))
        cells = table.text_rows(wanted)
        for piece in chunks:
            read = [next(cells) for _ in piece]
            texts = how.narratives.texts([row[1:] for row in read])
            new = how.rows([row[0] for row in read], texts)
            write([row + more for row, more in zip(piece, new, strict=True)])
            ways.update(row[3] for row in new)
    done = Relabelled({way: ways[way] for way in get_args(Way)})
    if done.rows != table.rows:
        raise StorageError(
            f"{table.source.name}: {table.rows:,} rows, {done.rows:,} relabelled. Run again",
            kind="rows-not-relabelled",
        )
    return done
