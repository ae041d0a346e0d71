"""Holds one value a row of a table in one array, which the batches of the table fill."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class GrowingArray:
    """Appends values batch by batch, without a second copy where the number of rows was right."""

    def __init__(self, kind: DTypeLike, expected: int, width: tuple[int, ...] = ()) -> None:
        self._whole, self._rows = np.empty((expected, *width), dtype=kind), 0

    def append(self, values: NDArray[Any]) -> None:
        end = self._rows + len(values)
        if end > len(self._whole):
            more = np.empty((max(end, 2 * self._rows), *self._whole.shape[1:]), self._whole.dtype)
            more[: self._rows] = self._whole[: self._rows]
            self._whole = more
        self._whole[self._rows : end] = values
        self._rows = end

    @property
    def values(self) -> NDArray[Any]:
        return self._whole[: self._rows]
