"""Defines the columns that coding adds to a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from mechanisms.model.conformal import Sets
from storage.codelist import describe_shape
from storage.errors import InputError
from storage.rules import Rules
from storage.tables.reader import Row, Table
from tasks.coding.coded_table import code_column
from tasks.coding.coder import Coder, Coding
from tasks.coding.joint import Case, JointCoder, Threshold, of_field


@dataclass(frozen=True)
class AnswerColumns:
    """Defines the answer columns of a job or of one of its fields."""

    top_k: int
    threshold: float | None
    grouped: bool
    sets: Sets | None = None
    """The limits of the conformal sets, if rows have them."""
    field: str = ""
    """Field name, which starts the columns' names, if there are several."""

    @property
    def key(self) -> dict[str, Any]:
        """Returns the settings that answers depend on, for the digest of a job."""
        # without sets as before, so that earlier jobs can resume
        sets = {} if self.sets is None else {"sets": asdict(self.sets)}
        return sets | {"top_k": self.top_k, "threshold": self.threshold, "grouped": self.grouped}

    @property
    def reviewed(self) -> bool:
        """Returns whether rows are marked for review."""
        return self.threshold is not None

    @property
    def blank_column(self) -> str:
        """Returns the column that is empty for a blank narrative."""
        return code_column(self.field)

    def schema(self) -> pa.Schema:
        """Returns the computed columns. The columns of the model's origin follow in the output."""
        code, of = code_column(self.field), f"{self.field}_" if self.field else ""
        fields: list[tuple[str, pa.DataType]] = []
        for end in ("", *(f"_{place}" for place in range(2, self.top_k + 1))):
            fields += [(f"{code}{end}", pa.string()), (f"{of}title{end}", pa.string())]
            fields.append((f"{of}score{end}", pa.float64()))
        if self.threshold is not None:
            fields.append((f"{of}needs_review", pa.bool_()))
            if self.grouped:
                fields += [(f"{of}group_code", pa.string()), (f"{of}group_title", pa.string())]
                fields.append((f"{of}group_score", pa.float64()))
        if self.sets is not None:
            fields += [(f"{of}set", pa.string()), (f"{of}set_size", pa.int64())]
            fields += [(f"{of}group_set", pa.string())] if self.grouped else []
        return pa.schema(fields)

    def row(self, coding: Coding) -> Row:
        """Returns one row of `schema`."""
        cells: list[str | float | bool | int | None] = []
        for place in range(self.top_k):
            answer = coding.answers[place] if place < len(coding.answers) else None
            cells += [None, None, None] if answer is None else [answer.code, answer.title, round(answer.score, 6)]
        if self.threshold is not None:
            cells.append(coding.needs_review)
            if self.grouped:
                group = coding.group
                cells += [None, None, None] if group is None else [group.code, group.title, round(group.score, 6)]
        if self.sets is not None:
            members = coding.members or ()
            cells += ["; ".join(members) or None, len(members)]
            cells += [coding.subtree or None] if self.grouped else []
        return tuple(cells)


@dataclass(frozen=True)
class JointAnswerColumns:
    """Defines the answer columns of several fields: those of each, then the mark for review and the conflicts."""

    fields: tuple[AnswerColumns, ...]
    rules: Rules | None = None

    @property
    def top_k(self) -> int:
        """Returns the largest number of codes per narrative in a field."""
        return max(one.top_k for one in self.fields)

    @property
    def threshold(self) -> dict[str, float] | None:
        """Returns the threshold of each field, or None if they have none."""
        thresholds = {one.field: one.threshold for one in self.fields if one.threshold is not None}
        return thresholds or None

    @property
    def key(self) -> dict[str, Any]:
        """Returns the settings that answers depend on, for the digest of a job."""
        rules = None if self.rules is None else [rule.as_json() for rule in self.rules.every]
        return {"fields": [[one.field, one.key] for one in self.fields], "rules": rules}

    @property
    def reviewed(self) -> bool:
        """Returns whether rows are marked for review."""
        return self.rules is not None or any(one.reviewed for one in self.fields)

    @property
    def blank_column(self) -> str:
        """Returns the column that is empty for a blank narrative: then all fields are empty."""
        return self.fields[0].blank_column

    def schema(self) -> pa.Schema:
        """Returns the computed columns."""
        columns = [column for one in self.fields for column in one.schema()]
        columns += [pa.field("needs_review", pa.bool_())] if self.reviewed else []
        columns += [] if self.rules is None else [pa.field("conflicts", pa.string())]
        return pa.schema(columns)

    def row(self, case: Case) -> Row:
        """Returns one row of `schema`."""
        cells = [cell for one in self.fields for cell in one.row(case.codings[one.field])]
        if self.reviewed:
            cells.append(bool(case.needs_review))
        cells += [] if self.rules is None else ["; ".join(map(str, case.conflicts or ())) or None]
        return tuple(cells)


def answer_columns(
    coder: Coder | JointCoder,
    *,
    top_k: int,
    threshold: Threshold | None,
) -> AnswerColumns | JointAnswerColumns:
    """Returns the answer columns of a coder."""
    each = tuple(
        AnswerColumns(
            min(top_k, len(one.model.codes)),
            of_field(threshold, name),
            one.groups is not None,
            one.sets,
            field=name,
        )
        for name, one in coder.fields.items()
    )
    return JointAnswerColumns(each, coder.rules) if isinstance(coder, JointCoder) else each[0]


def output_schema(table: Table, answers: AnswerColumns | JointAnswerColumns, coder: Coder | JointCoder) -> pa.Schema:
    """Returns the columns of the output: the input's, which none may overwrite, the answers', and their origin."""
    added = [*answers.schema(), *(pa.field(name, pa.string()) for name in coder.origin)]
    reserved = {field.name for field in added}
    for name in table.columns:
        if name in reserved:
            raise InputError(
                f"--data: {table.source.name} has a column {name!r}, which the answers would overwrite. Rename it."
            )
    return pa.schema([*table.schema, *added])


def check_version(table: Table, column: str, coder: Coder | JointCoder) -> None:
    """Refuses a table with rows coded under another version of the classification; names their number and the first."""
    if column not in table.columns:
        raise InputError(f"--version-column: {table.source.name} has no column {column!r}.")
    allowed = {coder.version, f"{coder.classification} {coder.version}"}
    wrong, first, others = 0, 0, set()
    for number, (cell,) in enumerate(table.text_rows([column]), start=1):
        version = cell.strip()
        if version and version not in allowed:
            wrong, first = wrong + 1, first or number
            others.add(version)
    if wrong:
        raise InputError(
            f"--version-column: {wrong:,} rows of {table.source.name}, row {first} first, have another version "
            f"({describe_shape(others)}). This bundle codes {coder.classification} {coder.version}. "
            "A table must not mix versions."
        )
