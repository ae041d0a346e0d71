"""The columns that coding adds to a table, and how narratives are put together from the columns that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pydantic import ValidationError

from storage.codelist import shown
from storage.crosswalk import Crosswalk
from storage.errors import InputError
from storage.ingest import IngestConfig
from storage.tables.reading import Row, Table, as_text
from tasks.coding.coder import Coder, Coding


@dataclass(frozen=True)
class Narratives:
    """Which columns hold the text, joined as when the model was trained."""

    columns: tuple[str, ...]
    template: str | None = None

    def __post_init__(self) -> None:
        """Refuse a template that does not fit the columns.

        Raises:
            InputError: says what is wrong with it.
        """
        fault = ""
        try:
            self._joiner()
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]["msg"].removeprefix("Value error, ")
        if fault:
            raise InputError(f"--column, --template: {fault}")

    def _joiner(self) -> IngestConfig:
        # ingest's own join, so that a narrative is put together here as it was for training
        return IngestConfig(
            text_columns=self.columns, template=self.template, label_column="\0no label", date_column=None
        )

    def texts(self, rows: Sequence[Row]) -> list[str]:
        """One text a row of the text columns' values; blank where all of them are."""
        join = self._joiner().join
        cells = (tuple(as_text(value) for value in row) for row in rows)
        return [join(values) if any(value.strip() for value in values) else "" for values in cells]


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
    for number, (value,) in enumerate(table.read([column]), start=1):
        text = as_text(value).strip()
        if text and text not in allowed:
            wrong, first = wrong + 1, first or number
            others.add(text)
    if wrong:
        raise InputError(
            f"--version-column: {wrong:,} rows of {table.source.name}, row {first} first, are of version "
            f"{shown(sorted(others), 5)}; this bundle codes {coder.classification} {coder.version}, and versions are "
            "not mixed in one table"
        )
