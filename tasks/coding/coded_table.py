"""Names the columns of a coded table and reads its fields. Imports no model."""

from __future__ import annotations

from storage.errors import InputError
from storage.tables.reader import Table

FIELDS = "coded_fields"
"""Column with the field names, in every row of a table coded in several fields."""

TEMPERATURE = "score_temperature"
"""Column with the temperature of the scores, in every row: `0.94`, or `nature 0.94 part 1` for several fields."""


def temperature_of(cell: str, field: str) -> str:
    """Returns the temperature of one field, or "" without one."""
    words = cell.split()
    return dict(zip(words[::2], words[1::2], strict=False)).get(field, "") if field else cell.strip()


def code_column(field: str) -> str:
    """Returns the column of a field's code; `code` for a single field."""
    return field or "code"


def column_of(field: str, name: str) -> str:
    """Returns the column of a field's `title`, `score` or `set` (a conformal set, codes with `;` between them)."""
    return f"{field}_{name}" if field else name


def fields_of(table: Table) -> tuple[str, ...]:
    """Returns the fields that a table was coded in; "" for a single field.

    Raises:
        InputError: its rows name different fields, or fields without columns.
    """
    if FIELDS not in table.columns:
        return ("",)
    named = {cell.strip() for (cell,) in table.text_rows([FIELDS])}
    if len(named) > 1:
        raise InputError(f"CODED: {table.source.name}: column {FIELDS} differs between rows.")
    fields = tuple(next(iter(named), "").split())
    required = {*map(code_column, fields), *(column_of(field, "score") for field in fields)}
    if not fields or not required <= set(table.columns):
        raise InputError(f"CODED: {table.source.name}: column {FIELDS} names fields without columns.")
    return fields
