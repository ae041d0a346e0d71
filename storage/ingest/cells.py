"""Small things about a batch's cells that every judge of rows needs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


@dataclass
class Faults:
    """Rows at fault: how many, and the first few, counted from 1 after the header."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, rows: NDArray[np.int64]) -> None:
        """Add rows, counted from 0."""
        self.count += len(rows)
        self.first.extend((rows[: max(0, 10 - len(self.first))] + 1).tolist())

    def __str__(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return f"{'row' if self.count == 1 else 'rows'} {', '.join(map(str, self.first))}{more}"


def trimmed(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column's cells without outer blanks."""
    return pc.call_function("utf8_trim_whitespace", [batch.column(name)])


def blank(cells: pa.Array) -> NDArray[np.bool_]:
    """Which trimmed cells are empty."""
    return np.asarray(pc.call_function("binary_length", [cells])) == 0
