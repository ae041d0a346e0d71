"""Joins a second table to a table of records by an id, because narratives and codes are often in
separate files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from storage.durable import replace_atomically
from storage.errors import Contradiction
from storage.ingest.units import unit_form
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import Table, open_table, pieces
from storage.tables.writer import open_writer, output_kind

Several = Literal["refuse", "first", "each"]


@dataclass(frozen=True)
class Joined:
    rows: int
    """Number of rows written."""
    without_second: int
    """Rows of the first table with an id that is missing in the second. Their new columns are
    blank.
    """
    unused: int
    """Rows of the second table with an id that is missing in the first."""
    left_out: int
    """Rows of the second table that were skipped because only the first row of each id was
    requested.
    """


def join(
    first: Path,
    second: Path,
    out: Path,
    *,
    on: str,
    several: Several = "refuse",
    read: ReadOptions = AS_IT_LOOKS,
    read_second: ReadOptions = AS_IT_LOOKS,
) -> Joined:
    """Writes the rows of the first table, each with the cells of the second table's row with the
    same id.

    Ids are compared without the spelling differences of spreadsheet programs: 101, 101.0 and 000101
    are equal. The second table is held in memory.

    Args:
        on: the id column, in both tables.
        several: what to do if the second table has several rows with one id: refuse it, use the
            first row, or write a row for each.

    Raises:
        InputError: an id is blank or repeated in the first table, or repeated in the second; or
            another column is in both tables with different cells for the same id.
    """
    kind = output_kind(out)
    left = open_table(first, [on], option="FIRST", read=read)
    right = open_table(second, [on], option="SECOND", read=read_second)
    _require_single(left, on)
    added = [name for name in right.columns if name != on]
    twice = [name for name in added if name in left.columns]
    new = [name for name in added if name not in twice]
    matches = _rows_by_id(right, on, added, several)
    matched_rows = sum(map(len, matches.values()))
    counts = Counter(rows=0, without_second=0, left_out=right.rows - matched_rows)
    used: set[str] = set()
    schema = pa.schema([(name, pa.string()) for name in [*left.columns, *new]])
    blank = [("",) * len(added)]
    new_places = list(map(added.index, new))
    same = [(left.columns.index(name), added.index(name)) for name in twice]
    place = left.columns.index(on)

    def joined() -> Iterator[tuple[str, ...]]:
        for row in left.text_rows(left.columns):
            form = unit_form(row[place].strip())
            used.add(form)
            counts["without_second"] += form not in matches
            for more in matches.get(form, blank):
                counts["rows"] += 1
                if form in matches and _differ(row, more, same):
                    raise Contradiction(
                        f"{right.source.label}: {len(twice)} of its columns besides {on!r} are in "
                        "the first table, too, and have other cells there. Rename or remove them",
                        kind="same-columns",
                    )
                yield row + tuple(more[at] for at in new_places)

    with replace_atomically(out, source=first) as fresh, open_writer(fresh, kind, schema) as write:
        for piece in pieces(joined(), columns=len(schema)):
            write(piece)
    unused = matched_rows - sum(len(matches[form]) for form in matches.keys() & used)
    return Joined(counts["rows"], counts["without_second"], unused, counts["left_out"])


def _differ(row: Sequence[str], more: Sequence[str], same: Sequence[tuple[int, int]]) -> bool:
    """Whether two rows differ in the columns that both tables have."""
    return any(row[first].strip() != more[second].strip() for first, second in same)


def _require_single(table: Table, on: str) -> None:
    forms = Counter(
        unit_form(cell.strip()) if cell.strip() else "" for (cell,) in table.text_rows([on])
    )
    blank, again = forms.pop("", 0), sum(count for count in forms.values() if count > 1)
    if blank or again:
        raise Contradiction(
            f"{table.source.label}, column {on!r}: {blank:,} ids are blank, and "
            f"{again:,} rows share an id with another. Make each id occur once in "
            "the first table",
            kind="joined-ids",
            column=on,
        )


def _rows_by_id(
    table: Table, on: str, columns: Sequence[str], several: Several
) -> dict[str, list[tuple[str, ...]]]:
    rows: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    repeated = 0
    for cell, *cells in table.text_rows([on, *columns]):
        if not cell.strip():
            continue
        form = unit_form(cell.strip())
        repeated += form in rows
        if several != "first" or form not in rows:
            rows[form].append(tuple(cells))
    if repeated and several == "refuse":
        raise Contradiction(
            f"{table.source.label}, column {on!r}: {repeated:,} rows repeat an id. --several first "
            "takes the first row of each id; --several each writes a row for every one, and then "
            f"only --set data.ingest.unit_column={on} protects the whole of a person",
            kind="repeated-ids",
        )
    return dict(rows)
