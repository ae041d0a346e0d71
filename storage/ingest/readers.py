"""The columns of a source in batches of text, in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from storage.errors import InputError
from storage.ingest.source import Source, safely

BLOCK_BYTES = 8 << 20
"""Of CSV read at once; a longer record is refused."""
_PARQUET_ROWS = 16_384
_END = "\x1eend of file\x1e"


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
    tail = source.delimiter.join([_END] * len(source.columns))
    last: pa.RecordBatch | None = None
    with source.open() as file:
        try:
            stream = _Tailed(file, f"\n{tail}\n".encode())
            with pcsv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert) as reader:
                for batch in reader:
                    if last is not None:
                        yield last
                    last = batch if batch.num_rows else last
        except pa.ArrowInvalid:
            if not ragged:
                raise
    if ragged:
        raise InputError(
            f"data: {source.name}, {ragged[0]} (rows are counted from 1 after the header); is a quote or a "
            "delimiter wrong there?"
        )
    if last is None or any(column[-1].as_py() != _END for column in last.columns):
        raise InputError(f"data: {source.name}: the quote of the last cell never ends; is the file whole?")
    yield last.slice(0, last.num_rows - 1)


class _Tailed(io.RawIOBase):
    """A file with a line of our own at its end, which an open quote would swallow."""

    def __init__(self, file: IO[bytes], tail: bytes) -> None:
        self._file, self._tail = file, tail

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if chunk := self._file.read(size):
            return chunk
        chunk, self._tail = self._tail, b""
        return chunk


def _parquet(source: Source, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
    readable = False
    try:
        with pq.ParquetFile(source.path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(columns), use_threads=False):
                yield pa.RecordBatch.from_arrays([_text(source, batch, name) for name in columns], names=list(columns))
        readable = True
    except (pa.ArrowException, OSError):
        pass
    if not readable:
        raise InputError(f"data: {source.name}: the Parquet file is damaged; write it anew")


def _text(source: Source, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.call_function("if_else", [pc.call_function("is_nan", [column]), None, column])
    readable = not pa.types.is_nested(column.type)
    try:
        column = column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        readable = False
    if not readable:
        raise InputError(f"data: {source.name}, column {name!r}: type {column.type} does not read as text")
    return column.fill_null("")
