"""Reads the texts of a data set's records, with the values of their columns where the data set has such columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from mechanisms.model.valued_text import ValuedText
from storage.datasets import COLUMN_VALUES, load_value_lists


def texts_of(dataset: Path, records: pa.Table) -> list[str]:
    """Returns the text of each of a split's records."""
    texts: list[str] = records.column("text").to_pylist()
    if COLUMN_VALUES not in records.column_names:
        return texts
    names = tuple(load_value_lists(dataset))
    rows = records.column(COLUMN_VALUES).to_pylist()
    given = ({name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows)
    return [ValuedText(text, values) for text, values in zip(texts, given, strict=True)]
