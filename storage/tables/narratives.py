"""Joins a record's text columns into the text that a coder reads, in training and in coding."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage.errors import OutOfRange

SEPARATOR = " | "
"""Separates text columns if no template is set."""

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Narratives:
    """The text columns and how they are joined: with a template, or in order if not blank."""

    columns: tuple[str, ...]
    template: str | None = None

    def __post_init__(self) -> None:
        if fault := template_fault(self.columns, self.template):
            raise OutOfRange(f"text columns: {fault}", kind="text-template")

    def join(self, values: Sequence[str]) -> str:
        """Joins a record's cells without outer whitespace, in the order of the columns. Blank if
        all are blank.
        """
        trimmed = [value.strip() for value in values]
        if self.template is None or not any(trimmed):
            return SEPARATOR.join(value for value in trimmed if value)
        fields = dict(zip(self.columns, trimmed, strict=True))
        return _PLACEHOLDER.sub(lambda match: fields[match[1]], self.template).strip()

    def texts(self, rows: Iterable[Sequence[str]]) -> list[str]:
        return [self.join(cells) for cells in rows]


def template_fault(columns: Sequence[str], template: str | None) -> str | None:
    if not columns:
        return "no text column is named. Name one"
    if len(set(columns)) < len(columns):
        return "text_columns repeats a column. Name it once"
    if template is None:
        return None
    placeholders = set(_PLACEHOLDER.findall(template))
    if re.search(r"[{}]", _PLACEHOLDER.sub("", template)):
        return "template has an unmatched brace or an empty pair. Correct it"
    if unknown := sorted(placeholders - set(columns)):
        return f"template names {unknown[0]!r}, which is not among text_columns. Add it there"
    if unused := [name for name in columns if name not in placeholders]:
        return (
            f"template leaves out text column {unused[0]!r}. Name it or remove it from text_columns"
        )
    return None
