"""The columns that coding adds to a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from storage.codelist import shape
from storage.crosswalk import Crosswalk
from storage.errors import InputError
from storage.rules import Rules
from storage.tables.reading import Row, Table
from tasks.coding.coder import Coder, Coding
from tasks.coding.joint import Case, JointCoder, Threshold, of_field
from tasks.coding.names import code_column, score_column


@dataclass(frozen=True)
class Added:
    """The answer columns of one job, or of one field of it."""

    top_k: int
    threshold: float | None
    crosswalk: Crosswalk | None
    grouped: bool
    field: str = ""
    """Of several: its name, which the columns begin with."""

    @property
    def key(self) -> dict[str, Any]:
        """What the answers depend on here, for the digest of a job."""
        return {
            "top_k": self.top_k,
            "threshold": self.threshold,
            "grouped": self.grouped,
            "crosswalk": self.crosswalk and [self.crosswalk.version, sorted(self.crosswalk.to.items())],
        }

    @property
    def reviewed(self) -> bool:
        """Whether rows are marked for a person to look at."""
        return self.threshold is not None

    @property
    def blank_where(self) -> str:
        """The column that is empty where nothing was said."""
        return code_column(self.field)

    def schema(self) -> pa.Schema:
        """What is computed for each row; the columns of the model's origin follow in the output."""
        code, score, of = code_column(self.field), score_column(self.field), f"{self.field}_" if self.field else ""
        fields: list[tuple[str, pa.DataType]] = [
            (code, pa.string()),
            (f"{of}title", pa.string()),
            (score, pa.float64()),
        ]
        for place in range(2, self.top_k + 1):
            fields += [(f"{code}_{place}", pa.string()), (f"{score}_{place}", pa.float64())]
        if self.threshold is not None:
            fields.append((f"{of}needs_review", pa.bool_()))
            if self.grouped:
                fields += [(f"{of}group_code", pa.string()), (f"{of}group_title", pa.string())]
                fields.append((f"{of}group_score", pa.float64()))
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


@dataclass(frozen=True)
class JointAdded:
    """The answer columns of several fields: those of each, then whether a person must look at the case, and why."""

    fields: tuple[Added, ...]
    rules: Rules | None = None

    @property
    def top_k(self) -> int:
        """Codes a narrative, in the field that has the most."""
        return max(one.top_k for one in self.fields)

    @property
    def threshold(self) -> dict[str, float] | None:
        """Of each field; all have one, or none has."""
        own = {one.field: one.threshold for one in self.fields if one.threshold is not None}
        return own or None

    @property
    def key(self) -> dict[str, Any]:
        """What the answers depend on here, for the digest of a job."""
        rules = None if self.rules is None else [rule.told for rule in self.rules.every]
        return {"fields": [[one.field, one.key] for one in self.fields], "rules": rules}

    @property
    def reviewed(self) -> bool:
        """Whether rows are marked for a person to look at."""
        return self.rules is not None or any(one.reviewed for one in self.fields)

    @property
    def blank_where(self) -> str:
        """The column that is empty where nothing was said: then all fields' are."""
        return self.fields[0].blank_where

    def schema(self) -> pa.Schema:
        """What is computed for each row."""
        own = [column for one in self.fields for column in one.schema()]
        own += [pa.field("needs_review", pa.bool_())] if self.reviewed else []
        own += [] if self.rules is None else [pa.field("conflicts", pa.string())]
        return pa.schema(own)

    def row(self, case: Case) -> Row:
        """One row of `schema`."""
        cells = [cell for one in self.fields for cell in one.row(case.codings[one.field])]
        cells += [bool(case.needs_review)] if self.reviewed else []
        cells += [] if self.rules is None else ["; ".join(map(str, case.conflicts or ())) or None]
        return tuple(cells)


def added_of(
    coder: Coder | JointCoder, *, top_k: int, threshold: Threshold | None, crosswalk: Crosswalk | None = None
) -> Added | JointAdded:
    """The columns that this coder's answers make.

    Raises:
        InputError: a crosswalk, which is of one field, and a coder of several.
    """
    if crosswalk is not None and isinstance(coder, JointCoder):
        raise InputError(f"--crosswalk: it is of one field, and this bundle codes {', '.join(coder.fields)}")
    each = tuple(
        Added(
            min(top_k, len(own.model.codes)), of_field(threshold, name), crosswalk, own.groups is not None, field=name
        )
        for name, own in coder.fields.items()
    )
    return JointAdded(each, coder.rules) if isinstance(coder, JointCoder) else each[0]


def output_schema(table: Table, added: Added | JointAdded, coder: Coder | JointCoder) -> pa.Schema:
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


def check_version(table: Table, column: str, coder: Coder | JointCoder) -> None:
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
