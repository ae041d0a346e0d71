"""How a record's text columns become the one text that a coder reads, in training and in use alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage.errors import InputError

SEPARATOR = " | "
"""Between text columns where no template is given."""

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Narratives:
    """Which columns hold the text, and how they are joined: by a template, or in their order where not blank."""

    columns: tuple[str, ...]
    template: str | None = None

    def __post_init__(self) -> None:
        """Refuse a template that does not fit the columns.

        Raises:
            InputError: says what is wrong with it.
        """
        if fault := template_fault(self.columns, self.template):
            raise InputError(f"text columns: {fault}")

    def join(self, values: Sequence[str]) -> str:
        """One text from a record's cells, in the order of the columns; outer blanks are gone. Blank if all are."""
        trimmed = [value.strip() for value in values]
        if self.template is None or not any(trimmed):
            return SEPARATOR.join(value for value in trimmed if value)
        fields = dict(zip(self.columns, trimmed, strict=True))
        return _PLACEHOLDER.sub(lambda match: fields[match[1]], self.template).strip()

    def texts(self, rows: Iterable[Sequence[str]]) -> list[str]:
        """One text a row of the text columns' cells."""
        return [self.join(cells) for cells in rows]


def template_fault(columns: Sequence[str], template: str | None) -> str | None:
    """What is wrong with text columns and a template; None where they go together."""
    if not columns:
        return "no text column is named"
    if len(set(columns)) < len(columns):
        return "text_columns names a column twice"
    if template is None:
        return None
    named = set(_PLACEHOLDER.findall(template))
    if re.search(r"[{}]", _PLACEHOLDER.sub("", template)):
        return "template has a brace without its partner, or an empty pair"
    if unknown := sorted(named - set(columns)):
        return f"template names {unknown[0]!r}, which is not among text_columns"
    if unused := [name for name in columns if name not in named]:
        return f"template leaves out text column {unused[0]!r}; name it or remove it from text_columns"
    return None
