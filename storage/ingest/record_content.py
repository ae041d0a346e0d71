"""Reads what a coder learns from: the narrative of each record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.ingest.cell_digests import cell_digests
from storage.ingest.config import IngestConfig
from storage.tables.reader import Table, open_table
from storage.tables.source import Source, open_source, require_columns


@dataclass
class Faults:
    """Counts faulty rows and names the first few, counted from 1 after the header."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, rows: NDArray[np.int64]) -> None:
        """Adds rows, counted from 0."""
        self.count += len(rows)
        self.first.extend((rows[: max(0, 10 - len(self.first))] + 1).tolist())

    def __str__(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return f"{'row' if self.count == 1 else 'rows'} {', '.join(map(str, self.first))}{more}"


def trim(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Returns a column's cells without outer blanks."""
    return pc.call_function("utf8_trim_whitespace", [batch.column(name)])


def blank(cells: pa.Array) -> NDArray[np.bool_]:
    """Marks the empty ones of trimmed cells."""
    return np.asarray(pc.call_function("binary_length", [cells])) == 0


class Content:
    """Reads narratives, joined from their columns."""

    field = pa.field("text", pa.string(), nullable=False)

    def __init__(self, config: IngestConfig) -> None:
        self.columns = config.text_columns
        self._narratives = config.narratives

    def lacking(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Marks records whose text columns are all blank."""
        return np.logical_and.reduce([blank(trim(batch, name)) for name in self.columns])

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> list[str]:
        """Returns one text per row."""
        return self._narratives.texts(_rows(batch, self.columns, rows))

    def cells(self, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> list[bytes]:
        """Returns the digests of each row's text cells."""
        return [cell_digests(cells) for cells in _rows(batch, self.columns, rows)]


def _rows(batch: pa.RecordBatch, columns: Sequence[str], rows: NDArray[np.int64]) -> Iterator[tuple[str, ...]]:
    return zip(*(batch.column(name).take(pa.array(rows)).to_pylist() for name in columns), strict=True)


def open_records(path: Path | Sequence[Path], config: IngestConfig) -> tuple[Table, Content]:
    """Returns the records of a file, or of several, and their content."""
    table = open_table(path, config.columns, column_options=column_options(config), read=config.read)
    return table, Content(config)


def inspect_sources(path: Path | Sequence[Path], config: IngestConfig) -> list[Source]:
    """Returns the sources, once their columns are those that the configuration names; JSON needs a full reading."""
    sources = [
        open_source(file, read=config.read, required=config.columns)
        for file in ([path] if isinstance(path, Path) else path)
    ]
    for source in sources:
        if source.kind != "jsonl":
            require_columns(source, config.columns, column_options(config))
    return sources


def column_options(config: IngestConfig) -> dict[str, str]:
    """Returns the option or parameter that names each column of the configuration."""
    named = {
        config.id_column: "data.ingest.id_column",
        config.unit_column: "data.ingest.unit_column",
        config.dates_from: '--date, "" for none',
        config.label_column: "--label",
    }
    named |= dict.fromkeys(config.text_columns, "--text")
    return {name: by for name, by in named.items() if name is not None}
