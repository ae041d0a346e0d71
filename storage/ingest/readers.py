"""The columns of a source in batches of text, in bounded memory."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from storage.errors import InputError
from storage.ingest.source import Source, safely

BLOCK_BYTES = 8 << 20
"""Of CSV read at once; a longer record is refused."""
_PARQUET_ROWS = 16_384


def batches(
    source: Source, columns: Sequence[str], *, block_bytes: int = BLOCK_BYTES
) -> Generator[pa.RecordBatch, None, None]:
    """Read the columns in this order, every cell a string, absent values as empty ones.

    Raises:
        InputError: a row with too few or too many fields, or whatever else is no table; quotes no cell.
    """
    rows = _csv(source, columns, block_bytes) if source.kind == "csv" else _parquet(source, columns)
    with closing(rows):
        while True:
            batch = safely(source, lambda: next(rows, None))
            if batch is None:
                return
            yield batch


def _csv(source: Source, columns: Sequence[str], block_bytes: int) -> Generator[pa.RecordBatch, None, None]:
    ragged: list[str] = []

    def on_ragged(row: pcsv.InvalidRow) -> str:
        where = "" if row.number is None else f"row {row.number - 1}: "
        ragged.append(f"{where}{row.actual_columns} fields where the header has {row.expected_columns}")
        return "error"

    read = pcsv.ReadOptions(use_threads=False, block_size=block_bytes, encoding=source.encoding)
    parse = pcsv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True, invalid_row_handler=on_ragged)
    convert = pcsv.ConvertOptions(
        include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=False
    )
    done = False
    with source.open() as file:
        try:
            with pcsv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert) as reader:
                yield from reader
            done = True
        except pa.ArrowInvalid:
            if not ragged:
                raise
    if not done:
        raise InputError(
            f"data: {source.name}, {ragged[0]} (rows are counted from 1 after the header); is a quote or a "
            "delimiter wrong there?"
        )


def _parquet(source: Source, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
    with pq.ParquetFile(source.path) as file:
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(columns), use_threads=False):
            yield pa.RecordBatch.from_arrays([_text(source, batch, name) for name in columns], names=list(columns))


def _text(source: Source, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    readable = True
    try:
        column = column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        readable = False
    if not readable:
        raise InputError(f"data: {source.name}, column {name!r}: type {column.type} does not read as text")
    return column.fill_null("")
