"""One value per row of a table, stored in an array that grows with the table's batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class GrowingArray:
    """Appends values batch by batch, without copying if the expected number of rows was right."""

    def __init__(self, kind: DTypeLike, expected: int, width: tuple[int, ...] = ()) -> None:
        self._whole, self._rows = np.empty((expected, *width), dtype=kind), 0

    def append(self, values: NDArray[Any]) -> None:
        end = self._rows + len(values)
        if end > len(self._whole):
            larger = np.empty((max(end, 2 * self._rows), *self._whole.shape[1:]), self._whole.dtype)
            larger[: self._rows] = self._whole[: self._rows]
            self._whole = larger
        self._whole[self._rows : end] = values
        self._rows = end

    @property
    def values(self) -> NDArray[Any]:
        return self._whole[: self._rows]
