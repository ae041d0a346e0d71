"""Reads the codes in cells, with a code list if there is one. A cell may contain several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.codelist import normalise_code
from storage.ingest.config import IngestConfig
from storage.spelling import Spellings, parts_of, with_zero
from storage.tables.source import to_arrow

Respelling = Literal["added", "matched", "first", "cut", "restored"]


class CodeCells:
    """Reads the code in a cell."""

    def __init__(self, config: IngestConfig, listed: Mapping[str, int] | None) -> None:
        self._config, self._listed = config, listed
        strict = (config.unknown_codes, config.finer_codes, config.several_codes) in (
            ("refuse", "refuse", "keep"),
            ("drop", "refuse", "keep"),
        )
        self._spellings = None if listed is None or strict else Spellings(listed)

    def read(self, cell: str) -> tuple[str, Respelling | None]:
        """The code, and how the cell's spelling differed, if it did."""
        code = normalise_code(cell, self._listed or ())
        how: Respelling | None = None if code == cell else "added"
        if self._listed is not None and code in self._listed:
            return self._with_zeros(code, how)
        if self._config.several_codes == "first":
            first, *_ = self._several(code)
            if first != code:
                code, how = normalise_code(first, self._listed or ()), "first"
        if self._spellings is None or self._listed is None or code in self._listed:
            return code, how
        if self._config.unknown_codes == "match" and (match := self._spellings.match_padded(code)):
            return match, how if how == "first" else "matched"
        if self._config.finer_codes == "cut" and (coarser := self._spellings.coarser(code)):
            return coarser, "cut"
        return code, how

    def parts(self, cell: str) -> list[str]:
        """The cell, or its parts if each code in it makes a record."""
        code = normalise_code(cell, self._listed or ())
        parts = self._several(code)
        if parts == [code]:
            return [cell]
        different = {self.read(part)[0]: part for part in reversed(parts)}
        return list(reversed(different.values()))

    def _several(self, code: str) -> list[str]:
        is_listed = self._listed is not None and code in self._listed
        if is_listed or (self._spellings is not None and self._spellings.match(code)):
            return [code]
        return parts_of(code, self._listed or ())

    def _with_zeros(self, code: str, how: Respelling | None) -> tuple[str, Respelling | None]:
        if self._config.lost_zeros == "restore":
            restored = with_zero(code, self._listed or ())
            return (restored, "restored") if restored else (code, how)
        return code, how


Numbers = NDArray[np.int64]


def numbered(
    batches: Iterator[pa.RecordBatch], config: IngestConfig, listed: Mapping[str, int] | None
) -> Iterator[tuple[pa.RecordBatch, Numbers]]:
    """Yields batches with the number of each row in the table, from 0. With `several_codes=each`, a
    row is repeated for each of its codes.
    """
    column, before = config.label_column, 0
    cells = CodeCells(config, listed) if config.several_codes == "each" else None
    for batch in batches:
        if cells is None:
            yield batch, before + np.arange(batch.num_rows)
            before += batch.num_rows
            continue
        trimmed = pc.call_function("utf8_trim_whitespace", [batch.column(column)])
        encoded = trimmed.dictionary_encode()
        parts = [cells.parts(cell) for cell in encoded.dictionary.to_pylist()]
        of_row = [parts[place] for place in encoded.indices.to_pylist()]
        rows = np.repeat(np.arange(batch.num_rows), list(map(len, of_row)))
        if len(rows) > batch.num_rows:
            split = to_arrow([part for codes in of_row for part in codes])
            place = batch.schema.names.index(column)
            batch = batch.take(to_arrow(rows)).set_column(place, column, split)
        yield batch, before + rows
        before += len(of_row)
