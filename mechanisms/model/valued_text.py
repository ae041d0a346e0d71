"""Texts with the values of their record's columns, such as the industry: what a head reads next to the narrative.

The values belong to the text object, so that whatever passes texts on passes them too. Any text that is made from one,
such as a slice, has none: a model reads it as a record whose columns are blank, never with another record's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import BaseModel, Field, field_validator
from torch import Tensor

NOT_LISTED = ""
"""In the place of a value that no list has; a blank cell has no entry at all."""


class ValuedText(str):
    """A text, with the values of its record's columns by name; blank ones are left out."""

    values: Mapping[str, str]

    def __new__(cls, text: str, values: Mapping[str, str]) -> ValuedText:
        """Returns the text with values of columns that are not blank."""
        made = super().__new__(cls, text)
        made.values = values
        return made

    @staticmethod
    def like(text: str, other: str) -> str:
        """Returns a text with the values of another, if that has any."""
        return ValuedText(text, values_of(other)) if values_of(other) else text


def values_of(text: str) -> Mapping[str, str]:
    """Returns the values of a text's columns; none for a plain text."""
    return text.values if isinstance(text, ValuedText) else {}


class ValueColumn(BaseModel, frozen=True, extra="forbid"):
    """Names a column and its public values: one feature each, and one for any other value."""

    name: str = Field(min_length=1)
    values: tuple[str, ...] = Field(min_length=1)

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(values)) < len(values) or NOT_LISTED in values:
            raise ValueError("a value is blank or repeated")
        return values

    @property
    def width(self) -> int:
        """Returns the number of features."""
        return len(self.values) + 1


def one_hot(texts: Sequence[str], columns: Sequence[ValueColumn]) -> Tensor:
    """Returns for each text a 1 at its value in each column that is not blank, float32 [n, features].

    A value that is not on the list counts at the column's last place, so that no record adds a feature.
    """
    out = torch.zeros(len(texts), sum(column.width for column in columns))
    start = 0
    for column in columns:
        place = {value: at for at, value in enumerate(column.values)}
        for row, text in enumerate(texts):
            value = values_of(text).get(column.name)
            if value is not None:
                # guard: a value that no list has is `other`
                out[row, start + place.get(value, len(place))] = 1
        start += column.width
    return out
