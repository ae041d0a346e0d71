"""Reads rows of a table as a model reads them: one text, and the values of the columns next to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mechanisms.errors import MechanismError
from mechanisms.model.lexicon import Lexicon
from mechanisms.model.valued_text import ValuedText
from storage.errors import InputError
from storage.tables.narratives import Narratives


@dataclass(frozen=True)
class Records:
    """Names the columns of the text, how they are joined, and the table's column of each value that the model reads."""

    narratives: Narratives
    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, declared: Collection[str], columns: Sequence[str], template: str | None = None, *, usual: str = ""
    ) -> Records:
        """Returns the columns to read.

        Args:
            declared: columns that the model reads next to the text.
            columns: text columns, and NAME=COLUMN for a declared one that the table names otherwise.
            usual: the text column where none is named.

        Raises:
            InputError: the text columns do not fit the template.
        """
        renamed = {name: column for name, sign, column in (one.partition("=") for one in columns) if sign}
        renamed = {name: column for name, column in renamed.items() if name in declared}
        texts = [one for one in columns if one.partition("=")[0] not in renamed or "=" not in one]
        texts = texts or [usual] * bool(usual)
        return cls(Narratives(tuple(texts), template), {name: renamed.get(name, name) for name in declared})

    @classmethod
    def restored(cls, declared: Collection[str], columns: Sequence[str], template: str | None) -> Records:
        """Returns what has these `columns`, of a model that reads the declared ones."""
        at = len(columns) - len(declared)
        values = dict(zip(declared, columns[at:], strict=True))
        return cls(Narratives(tuple(columns[:at]), template), values)

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns the columns of the table to read: those of the text, then those of the values."""
        return (*self.narratives.columns, *self.values.values())

    @property
    def template(self) -> str | None:
        """Returns the template of the text."""
        return self.narratives.template

    @property
    def options(self) -> dict[str, str]:
        """Returns the option that names each column, for messages."""
        values = {column: f"--column {name}=COLUMN" for name, column in self.values.items()}
        return values | dict.fromkeys(self.narratives.columns, "--column")

    def texts(self, rows: Iterable[Sequence[str]]) -> list[str]:
        """Returns the texts of rows of these columns' cells, with the values that are not blank."""
        at = len(self.narratives.columns)
        return [
            with_values(self.narratives.join(row[:at]), dict(zip(self.values, row[at:], strict=True))) for row in rows
        ]


def with_values(text: str, cells: Mapping[str, str]) -> str:
    """Returns a text with a record's cells, without outer blanks; a blank one is no value."""
    values = {name: cell.strip() for name, cell in cells.items() if cell.strip()}
    return ValuedText(text, values) if values else text


def declared_columns(bundle: Path) -> tuple[str, ...]:
    """Returns the columns that a bundle reads next to the text, without loading its model."""
    try:
        lexicon = Lexicon.load(bundle)
    except MechanismError as error:
        raise InputError(f"--bundle: {error}") from None
    return () if lexicon is None else tuple(column.name for column in lexicon.value_columns)
