"""The columns that coding adds to a table."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from storage.codelist import shape
from storage.crosswalk import Crosswalk
from storage.errors import InputError
from storage.tables.reading import Row, Table
from tasks.coding.coder import Coder, Coding


@dataclass(frozen=True)
class Added:
    """The answer columns of one job."""

    top_k: int
    threshold: float | None
    crosswalk: Crosswalk | None
    grouped: bool

    def schema(self) -> pa.Schema:
        """What is computed for each row; the columns of the model's origin follow in the output."""
        fields: list[tuple[str, pa.DataType]] = [("code", pa.string()), ("title", pa.string()), ("score", pa.float64())]
        for place in range(2, self.top_k + 1):
            fields += [(f"code_{place}", pa.string()), (f"score_{place}", pa.float64())]
        if self.threshold is not None:
            fields.append(("needs_review", pa.bool_()))
            if self.grouped:
                fields += [("group_code", pa.string()), ("group_title", pa.string()), ("group_score", pa.float64())]
        if self.crosswalk is not None:
            fields += [("crosswalk_code", pa.string()), ("crosswalk_version", pa.string())]
        return pa.schema(fields)

    def row(self, coding: Coding) -> Row:
        """One row of `schema`."""
        cells: list[str | float | bool | None] = []
        for place in range(self.top_k):
            answer = coding.answers[place] if place < len(coding.answers) else None
            cells.append(answer and answer.code)
            if place == 0:
                cells.append(answer and answer.title)
            cells.append(answer and round(answer.score, 6))
        new = self.crosswalk.codes(coding.answers[0].code) if self.crosswalk and coding.answers else ()
        if self.threshold is not None:
            # A code that the new version splits, or that its table lacks, is for a person to place.
            cells.append(coding.needs_review or (self.crosswalk is not None and len(new) != 1))
            if self.grouped:
                group = coding.group
                cells += [group and group.code, group and group.title, group and round(group.score, 6)]
        if self.crosswalk is not None:
            cells += ["; ".join(new) or None, self.crosswalk.version if new else None]
        return tuple(cells)


def output_schema(table: Table, added: Added, coder: Coder) -> pa.Schema:
    """Columns of the output: the input's, the answers', and where they come from.

    Raises:
        InputError: the input has a column of an answer's name.
    """
    answers = [*added.schema(), *(pa.field(name, pa.string()) for name in coder.origin)]
    reserved = {field.name for field in answers}
    for name in table.columns:
        if name in reserved:
            raise InputError(
                f"--data: {table.source.name} has a column {name!r}, which the answers would overwrite; rename it"
            )
    return pa.schema([*table.schema, *answers])


def check_version(table: Table, column: str, coder: Coder) -> None:
    """Refuse a table whose rows were coded under another version of the classification.

    Raises:
        InputError: says how many rows, and the first.
    """
    if column not in table.columns:
        raise InputError(f"--version-column: {table.source.name} has no column {column!r}")
    allowed = {coder.version, f"{coder.classification} {coder.version}"}
    wrong, first, others = 0, 0, set()
    for number, (cell,) in enumerate(table.text_rows([column]), start=1):
        version = cell.strip()
        if version and version not in allowed:
            wrong, first = wrong + 1, first or number
            others.add(version)
    if wrong:
        raise InputError(
            f"--version-column: {wrong:,} rows of {table.source.name}, row {first} first, are of another version "
            f"({shape(others)}); this bundle codes {coder.classification} {coder.version}, and versions are not mixed "
            "in one table"
        )
