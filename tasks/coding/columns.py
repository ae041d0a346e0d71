"""Defines the columns that coding adds to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from mechanisms.model.conformal import Sets
from storage.codelist import describe_shape
from storage.crosswalk import Crosswalk, read_crosswalk, successors
from storage.errors import InputError
from storage.rules import Rules
from storage.tables.reader import Row, Table
from tasks.coding.coded_table import code_column
from tasks.coding.coder import Coder, Coding
from tasks.coding.joint import Case, JointCoder, Threshold, of_field

_NEARLY_ALL = 0.9
"""Minimum share of a field's codes in its crosswalk."""


@dataclass(frozen=True)
class AnswerColumns:
    """Defines the answer columns of a job or of one of its fields."""

    top_k: int
    threshold: float | None
    crosswalk: Crosswalk | None
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
        sets |= {"crosswalk_sets": True} if sets and self.crosswalk is not None else {}
        return sets | {
            "top_k": self.top_k,
            "threshold": self.threshold,
            "grouped": self.grouped,
            "crosswalk": self.crosswalk and [self.crosswalk.version, sorted(self.crosswalk.to.items())],
        }

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
        if self.crosswalk is not None:
            fields += [(f"{of}crosswalk_code", pa.string()), (f"{of}crosswalk_version", pa.string())]
            if self.sets is not None:
                fields += [(f"{of}crosswalk_set", pa.string()), (f"{of}crosswalk_set_size", pa.int64())]
        return pa.schema(fields)

    def is_ambiguous(self, coding: Coding) -> bool:
        """Returns whether the crosswalk gives several new codes or none."""
        return self.crosswalk is not None and len(self._new(coding)) != 1

    def _new(self, coding: Coding) -> tuple[str, ...]:
        return self.crosswalk.codes(coding.answers[0].code) if self.crosswalk and coding.answers else ()

    def row(self, coding: Coding) -> Row:
        """Returns one row of `schema`."""
        cells: list[str | float | bool | int | None] = []
        for place in range(self.top_k):
            answer = coding.answers[place] if place < len(coding.answers) else None
            cells += [None, None, None] if answer is None else [answer.code, answer.title, round(answer.score, 6)]
        if self.threshold is not None:
            cells.append(coding.needs_review or self.is_ambiguous(coding))
            if self.grouped:
                group = coding.group
                cells += [None, None, None] if group is None else [group.code, group.title, round(group.score, 6)]
        if self.sets is not None:
            members = coding.members or ()
            cells += ["; ".join(members) or None, len(members)]
            cells += [coding.subtree or None] if self.grouped else []
        if self.crosswalk is not None:
            new = self._new(coding)
            cells += ["; ".join(new) or None, self.crosswalk.version if new else None]
            if self.sets is not None:
                union = successors(self.crosswalk.to, coding.members or ())
                cells += ["; ".join(union) or None, len(union)]
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
            # Crosswalks count too: with rules and without a threshold, no field has a mark for review.
            cells.append(
                bool(case.needs_review) or any(one.is_ambiguous(case.codings[one.field]) for one in self.fields)
            )
        cells += [] if self.rules is None else ["; ".join(map(str, case.conflicts or ())) or None]
        return tuple(cells)


def read_crosswalks(coder: Coder | JointCoder, files: Mapping[str, Path]) -> dict[str, Crosswalk]:
    """Reads a crosswalk for each field with a file, from the version of that field's code list.

    Raises:
        InputError: a file cannot be used (`read_crosswalk`), or belongs to another field.
    """
    crosswalks = {}
    for name, path in files.items():
        field_coder = coder.fields.get(name)
        if field_coder is None:
            fields = ", ".join(filter(None, coder.fields)) or "one field alone"
            raise InputError(f"--crosswalk: {path} belongs to {name or 'a single field'}. This bundle codes {fields}.")
        crosswalks[name] = read_crosswalk(path, version=field_coder.version, field=name)
        if name:
            _require_same_field(coder, name, path, crosswalks[name])
    return crosswalks


def _require_same_field(coder: Coder | JointCoder, name: str, path: Path, crosswalk: Crosswalk) -> None:
    """Refuses the file of another field. Versions and shared codes do not tell fields apart, so shares decide."""
    shares = {
        field: sum(code in crosswalk.to for code in one.model.codes) / len(one.model.codes)
        for field, one in coder.fields.items()
    }
    others = [field for field, share in shares.items() if share >= _NEARLY_ALL > shares[name]]
    if others or not shares[name]:
        more = "".join(f" and {shares[other]:.0%} of {other}" for other in others)
        raise InputError(
            f"--crosswalk: {path} covers {shares[name]:.0%} of the codes of {name}{more}. Give {name} the file of its "
            "codes, with a row for unchanged codes too."
        )


def answer_columns(
    coder: Coder | JointCoder,
    *,
    top_k: int,
    threshold: Threshold | None,
    crosswalks: Mapping[str, Crosswalk] | None = None,
) -> AnswerColumns | JointAnswerColumns:
    """Returns the answer columns of a coder."""
    walks = crosswalks or {}
    each = tuple(
        AnswerColumns(
            min(top_k, len(one.model.codes)),
            of_field(threshold, name),
            walks.get(name),
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
