"""Where codes and scores stand in a coded table, and which fields it was coded in. Knows no model."""

from __future__ import annotations

from storage.errors import InputError
from storage.tables.reading import Table

FIELDS = "coded_fields"
"""Of a table that was coded in several fields: their names, in every row."""

TEMPERATURE = "score_temperature"
"""In every row: what logits were divided by, `0.94`; of several fields, `nature 0.94 part 1`."""


def temperature_of(cell: str, field: str) -> str:
    """That of one field; "" where the table is of before this column was."""
    words = cell.split()
    return dict(zip(words[::2], words[1::2], strict=False)).get(field, "") if field else cell.strip()


def code_column(field: str) -> str:
    """Where the code of a field stands; that of the only field under `code`."""
    return field or "code"


def score_column(field: str) -> str:
    """Where its score stands."""
    return f"{field}_score" if field else "score"


def fields_of(table: Table, *, option: str = "CODED") -> tuple[str, ...]:
    """The fields that a table was coded in; "" for the only one.

    Raises:
        InputError: its rows name different ones, or ones that it has no columns of.
    """
    if FIELDS not in table.columns:
        return ("",)
    named = {cell.strip() for (cell,) in table.text_rows([FIELDS])}
    if len(named) > 1:
        raise InputError(f"{option}: {table.source.name}: column {FIELDS} names different fields in its rows")
    found = tuple(next(iter(named), "").split())
    wanted = {column(field) for field in found for column in (code_column, score_column)}
    if not found or not wanted <= set(table.columns):
        raise InputError(f"{option}: {table.source.name}: column {FIELDS} names fields that it has no columns of")
    return found
