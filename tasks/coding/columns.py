"""The columns that coding adds to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.codelist import shape
from storage.crosswalk import Crosswalk, read_crosswalk
from storage.errors import InputError
from storage.rules import Rules
from storage.tables.reading import Row, Table
from tasks.coding.coder import Coder, Coding
from tasks.coding.joint import Case, JointCoder, Threshold, of_field
from tasks.coding.names import code_column, score_column

_NEARLY_ALL = 0.9
"""Share of a field's codes that its own crosswalk starts from, at least."""


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
            fields += [(f"{of}crosswalk_code", pa.string()), (f"{of}crosswalk_version", pa.string())]
        return pa.schema(fields)

    def unplaced(self, coding: Coding) -> bool:
        """Whether the crosswalk has not exactly one new code: the new version splits it, or its table lacks it."""
        return self.crosswalk is not None and len(self._new(coding)) != 1

    def _new(self, coding: Coding) -> tuple[str, ...]:
        return self.crosswalk.codes(coding.answers[0].code) if self.crosswalk and coding.answers else ()

    def row(self, coding: Coding) -> Row:
        """One row of `schema`."""
        cells: list[str | float | bool | None] = []
        for place in range(self.top_k):
            answer = coding.answers[place] if place < len(coding.answers) else None
            cells.append(answer and answer.code)
            if place == 0:
                cells.append(answer and answer.title)
            cells.append(answer and round(answer.score, 6))
        if self.threshold is not None:
            cells.append(coding.needs_review or self.unplaced(coding))
            if self.grouped:
                group = coding.group
                cells += [group and group.code, group and group.title, group and round(group.score, 6)]
        if self.crosswalk is not None:
            new = self._new(coding)
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
        if self.reviewed:
            # Asked of the crosswalks too: with rules and no threshold, no field has a mark of its own that could tell.
            cells.append(bool(case.needs_review) or any(one.unplaced(case.codings[one.field]) for one in self.fields))
        cells += [] if self.rules is None else ["; ".join(map(str, case.conflicts or ())) or None]
        return tuple(cells)


def read_crosswalks(coder: Coder | JointCoder, files: Mapping[str, Path]) -> dict[str, Crosswalk]:
    """A crosswalk for each field that has a file, from the version of that field's own code list.

    Args:
        files: by field, as `crosswalk_files` has them.

    Raises:
        InputError: a file cannot be used (`read_crosswalk`), is of a field that is not coded, or is another field's.
    """
    found = {}
    for name, path in files.items():
        own = coder.fields.get(name)
        if own is None:
            known = ", ".join(filter(None, coder.fields)) or "one field alone"
            raise InputError(f"--crosswalk: {path} is of {name or 'a single field'}; this bundle codes {known}")
        found[name] = read_crosswalk(path, version=own.version, field=name)
        if name:
            _require_own(coder, name, path, found[name])
    return found


def _require_own(coder: Coder | JointCoder, name: str, path: Path, crosswalk: Crosswalk) -> None:
    """Refuse the file of another field: lists of one version do not tell it, nor does a code that both lists have."""
    shares = {
        field: sum(code in crosswalk.to for code in own.model.codes) / len(own.model.codes)
        for field, own in coder.fields.items()
    }
    others = [field for field, share in shares.items() if share >= _NEARLY_ALL > shares[name]]
    if others or not shares[name]:
        besides = "".join(f", and {shares[other]:.0%} of those of {other}" for other in others)
        raise InputError(
            f"--crosswalk: {path} starts from {shares[name]:.0%} of the codes of {name}{besides}; give {name} the file "
            "of its own codes, with rows for those that stay as they are too"
        )


def added_of(
    coder: Coder | JointCoder,
    *,
    top_k: int,
    threshold: Threshold | None,
    crosswalks: Mapping[str, Crosswalk] | None = None,
) -> Added | JointAdded:
    """The columns that this coder's answers make.

    Args:
        crosswalks: by field, as `read_crosswalks` has them.
    """
    walks = crosswalks or {}
    each = tuple(
        Added(
            min(top_k, len(own.model.codes)),
            of_field(threshold, name),
            walks.get(name),
            own.groups is not None,
            field=name,
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
