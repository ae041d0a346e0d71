"""Defines the columns that coding adds to a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass

import pyarrow as pa

from mechanisms.model.conformal import Sets
from storage.errors import Contradiction
from storage.json_values import Json
from storage.tables.reader import Row, Table
from tasks.coding.coder import Coder, Coding


@dataclass(frozen=True)
class AnswerColumns:
    top_k: int
    threshold: float | None
    grouped: bool
    sets: Sets | None = None
    """Limits of the conformal sets, if rows have them."""
    prefix: str = ""
    """Prefix of the column names, if the table has the codes of several bundles."""

    @property
    def key(self) -> dict[str, Json]:
        return asdict(self)

    def schema(self) -> pa.Schema:
        fields: list[tuple[str, pa.DataType]] = []
        for end in ("", *(f"_{place}" for place in range(2, self.top_k + 1))):
            fields += [
                (f"code{end}", pa.string()),
                (f"title{end}", pa.string()),
                (f"score{end}", pa.float64()),
            ]
        if self.threshold is not None:
            fields.append(("needs_review", pa.bool_()))
            if self.grouped:
                fields += [
                    ("group_code", pa.string()),
                    ("group_title", pa.string()),
                    ("group_score", pa.float64()),
                ]
        if self.sets is not None:
            fields += [("set", pa.string()), ("set_size", pa.int64())]
            fields += [("group_set", pa.string())] if self.grouped else []
        return pa.schema([(f"{self.prefix}{name}", kind) for name, kind in fields])

    def row(self, coding: Coding) -> Row:
        cells: list[str | float | bool | int | None] = []
        for place in range(self.top_k):
            answer = coding.answers[place] if place < len(coding.answers) else None
            cells += (
                [None, None, None]
                if answer is None
                else [answer.code, answer.title, round(answer.score, 6)]
            )
        if self.threshold is not None:
            cells.append(coding.needs_review)
            if self.grouped:
                group = coding.group
                cells += (
                    [None, None, None]
                    if group is None
                    else [group.code, group.title, round(group.score, 6)]
                )
        if self.sets is not None:
            members = coding.members or ()
            cells += ["; ".join(members) or None, len(members)]
            cells += [coding.subtree or None] if self.grouped else []
        return tuple(cells)


def answer_columns(
    coder: Coder, *, top_k: int, threshold: float | None, prefix: str = ""
) -> AnswerColumns:
    codes = min(top_k, len(coder.model.codes))
    return AnswerColumns(codes, threshold, coder.groups is not None, coder.sets, prefix)


def output_schema(
    table: Table, answers: Iterable[AnswerColumns], origin: Mapping[str, str]
) -> pa.Schema:
    """Returns the columns of the output: the input's, which must not be
    overwritten, the answers', and their origin.
    """
    added = [field for columns in answers for field in columns.schema()]
    added += [pa.field(name, pa.string()) for name in origin]
    require_free(table, {field.name for field in added})
    return pa.schema([*table.schema, *added])


USUAL = (
    *(
        "code",
        "title",
        "score",
        "model",
        "model_kind",
        "classification",
        "classification_version",
        "bundle_digest",
    ),
    "score_temperature",
)
"""Columns that coding always adds, after the bundle's prefix."""


def require_free(table: Table, added: Collection[str]) -> None:
    """Refuses a table with columns that the answers would overwrite. The message
    has their names, which are not data.
    """
    if taken := [name for name in table.columns if name in added]:
        raise Contradiction(
            f"--data: {table.source.name} has columns that the answers would overwrite: "
            f"{', '.join(taken)}. Rename "
            "them, or code with --bundle NAME=BUNDLE, which adds the prefix NAME_ to the answers' "
            "columns.",
            kind="overwritten-columns",
        )
