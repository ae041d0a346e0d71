"""Reads the rows of a CSV with Arrow.

Arrow's errors quote rows, so they are caught, and replaced outside their handlers so that no
exception chain leads to them.
"""

import atexit
import codecs
import io
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event, Semaphore
from types import FrameType
from typing import IO
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from storage.errors import Fault, InputError, Unreadable
from storage.tables.csv_layout import LONGEST_RECORD, is_quoted
from storage.tables.layouts import Cut
from storage.tables.source import (
    HEAD,
    UNPACK_FAULTS,
    Source,
    to_arrow,
)

_OPEN = Fault("a quote is open to the end of the file", kind="open-quote")
_ENDS = "\r\n"
_TOTALS = {"total", "totals", "grand total", "sum", "somme", "summe", "insgesamt", "totale"}
_PATIENCE = 10.0
"""Seconds within which Arrow's threads must release a file, or that they wait to read ahead."""
_FAREWELL = 0.05
"""Seconds that Arrow's threads have to free what they read last, at the end of the process."""
_CUT_AT_ONCE = 1 << 20
"""Number of characters per block of fixed-width lines."""
_AHEAD = 4
"""Number of blocks that Arrow's threads read ahead. Without a bound it is 32, of `LONGEST_RECORD`
each.
"""


class _Bytes:
    def __init__(self, source: Source, raw: IO[bytes], end: bytes) -> None:
        self._text: IO[str] | None = None
        self._raw, self._end = raw, end
        self.reader: pacsv.CSVStreamingReader | None = None
        """Reads from this stream, in threads that read ahead. Nothing else refers to it, so that it
        goes when this stream is closed.
        """
        self._released = Event()
        self._ended, self._room = False, Semaphore(_AHEAD)
        self.full: list[bool] = [False]
        """For each block, whether it had the maximum size, so that a record without an end in it is
        too long.
        """
        self._cut = Cut(source.widths).line if source.widths else None
        if codecs.lookup(source.encoding).name == "utf-8" and self._cut is None:
            head = raw.read(HEAD)
            text = io.StringIO(head.decode(errors="replace"), newline="")
            self._unread = head[
                sum(len(text.readline().encode()) for _ in range(source.first_line)) :
            ]
            return
        self._text, self._unread = io.TextIOWrapper(raw, encoding=source.encoding, newline=""), b""
        for _ in range(source.first_line):
            self._text.readline(LONGEST_RECORD)

    def close(self) -> None:
        """Ends the reading, and waits until Arrow's threads have released the file."""
        self._ended = True
        self._room.release(_AHEAD)
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        self._released.wait(_PATIENCE)
        _OPEN_STREAMS.discard(self)

    def next_batch(self) -> pa.RecordBatch | None:
        """Returns the next rows, or None at the end."""
        if self.reader is None:
            return None
        try:
            batch = self.reader.read_next_batch()
        except StopIteration:
            return None
        self._room.release()  # for another block
        return batch

    def read(self, size: int = -1) -> bytes:
        self._room.acquire(timeout=_PATIENCE)
        if self._ended:
            return b""
        content, self._unread = self._unread[:size], self._unread[size:]
        if not content:
            more = self._next(size)
            content, self._unread = more[:size], more[size:]
        if not content:
            content, self._end = self._end, b""
        return content

    def release(self) -> None:
        """Called when Arrow has released the file."""
        self._released.set()

    def _next(self, size: int) -> bytes:
        if self._text is not None and self._cut is not None:
            return self._lines(self._text, self._cut)
        most = size if self._text is None else max(size // 4, 1)
        part = self._raw.read(most) if self._text is None else self._text.read(most)
        self.full.append(len(part) == most)
        return part if isinstance(part, bytes) else part.encode()

    def _lines(self, text: IO[str], cut: Callable[[str], str]) -> bytes:
        lines: list[str] = []
        length = longest = 0
        while length < _CUT_AT_ONCE and (line := text.readline(LONGEST_RECORD)):
            lines.append(f"{cut(line.rstrip(_ENDS))}\n")
            length, longest = length + len(line), max(longest, len(line))
        self.full.append(longest == LONGEST_RECORD)
        return "".join(lines).encode()


class _Handle:
    """The object from which Arrow reads. Its threads read ahead."""

    closed = False

    def __init__(self, stream: _Bytes) -> None:
        self.read, self._release = stream.read, stream.release
        _OPEN_STREAMS.add(stream)

    def __del__(self) -> None:
        self._release()


_OPEN_STREAMS: WeakSet[_Bytes] = WeakSet()
"""Those that Arrow reads."""
_CALLS_OF_ARROW = {_Bytes.read.__code__, _Handle.__del__.__code__}


@atexit.register
def _end_reading() -> None:
    """Ends all reading before the interpreter exits, and waits until Arrow's threads have left it.

    A thread that needs the interpreter after its end aborts the process, so that a refusal would
    exit with the status of the abort. A refusal of what was read leaves its table unfinished.
    """
    streams = list(_OPEN_STREAMS)
    for stream in streams:
        stream.close()
    deadline = time.monotonic() + _PATIENCE
    while any(map(_is_call_of_arrow, sys._current_frames().values())):
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    if streams:
        time.sleep(_FAREWELL)


def _is_call_of_arrow(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _CALLS_OF_ARROW:
            return True
        frame = frame.f_back
    return False


@dataclass
class ScanResult:
    """The findings of a first pass over all rows."""

    bad: int = 0
    """Number of bad rows that were skipped, if the source allows it."""
    headers: list[int] = field(default_factory=list)
    """Numbers of the rows, from 0, that repeat the header, as in concatenated files."""
    total: bool = False
    """Whether the last row looks like a total."""
    strays: list[int] = field(default_factory=list)
    """Rows with an unpaired quote, if quotes are removed from the ends of cells."""


def csv_batches(
    source: Source, columns: Sequence[str] | None, seen: ScanResult | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields these columns of all rows as text. None yields all columns, and checks their cells for
    open quotes.
    """
    seen = seen or ScanResult(headers=list(source.repeated))
    wanted = source.columns if columns is None else tuple(columns)
    width = len(source.columns)
    names = list(map(str, range(width)))
    if source.blank_end:
        names.append("blank end")
    places = names[:width]
    if wanted != source.columns:
        places = [names[source.columns.index(name)] for name in wanted]
    mark = secrets.token_hex(16)
    bad: list[tuple[int, Fault]] = []

    def on_bad_row(row: pacsv.InvalidRow) -> str:
        fault = _OPEN if mark in row.text else _field_count(row.actual_columns, width)
        bad.append((row.number or 0, fault))
        return "skip" if source.skips_bad_rows else "error"

    read = pacsv.ReadOptions(use_threads=False, block_size=LONGEST_RECORD, column_names=names)
    parse = _parse_options(source, on_bad_row)
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        include_columns=list(dict.fromkeys([*(places or names[:1]), *names[width:]])),
        strings_can_be_null=False,
    )
    rows, blocks, ended, unended, broken = 0, 0, False, False, False
    with source.open() as raw:
        stream = _Bytes(source, raw, f"\n{source.delimiter.join([mark] * len(names))}\n".encode())
        try:
            stream.reader = pacsv.open_csv(
                pa.PythonFile(_Handle(stream), mode="r"), read, parse, convert
            )
            while (batch := stream.next_batch()) is not None:
                blocks += 1
                batch, ended = _without_mark(batch, mark)
                _require_whole_rows(source, batch, rows, mark)
                if columns is None:
                    _scan(source, batch, rows, seen)
                first, rows = rows, rows + batch.num_rows
                batch = _without_headers(batch, first, seen.headers)
                if source.quotes == "outer":
                    if columns is None:
                        seen.strays += [first + row + 1 for row in _strays(batch)]
                    batch = _without_quotes(batch)
                yield _selected(batch, places, wanted)
        except (pa.ArrowInvalid, *UNPACK_FAULTS) as error:
            # undecodable bytes were refused earlier, and rows of another width are in `bad`
            unended, broken = isinstance(error, pa.ArrowInvalid), True
        finally:
            stream.close()
    if source.skips_bad_rows:
        seen.bad += len(bad)
    elif bad:
        raise _bad_row(source, *bad[-1])
    if unended:
        over = Fault(
            f"it or a row after it has over {LONGEST_RECORD:,} characters", kind="row-too-long"
        )
        raise _bad_row(source, rows + 1, over if any(stream.full[blocks : blocks + 2]) else _OPEN)
    if broken:
        raise Unreadable(
            f"{source.label} cannot be read as {source.reading}. Fetch it again, or unpack it "
            "manually",
            kind="unreadable-csv",
        )
    # a row of marks after the last one proves that no open quote swallowed rows
    if not ended:
        raise _bad_row(source, rows + len(bad), _OPEN)


def _parse_options(
    source: Source, on_bad_row: Callable[[pacsv.InvalidRow], str]
) -> pacsv.ParseOptions:
    quoted = source.quotes not in ("none", "outer")
    return pacsv.ParseOptions(
        delimiter=source.delimiter,
        quote_char='"' if quoted else False,
        double_quote=source.quotes == "double",
        escape_char="\\" if source.quotes == "backslash" else False,
        newlines_in_values=True,
        invalid_row_handler=on_bad_row,
    )


def _selected(batch: pa.RecordBatch, places: Sequence[str], names: Sequence[str]) -> pa.RecordBatch:
    """These columns under these names. Without columns it is the batch itself, which has the number
    of rows.
    """
    if not places:
        return batch
    arrays = [batch.column(place) for place in places]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _without_mark(batch: pa.RecordBatch, mark: str) -> tuple[pa.RecordBatch, bool]:
    """A batch without the row of marks that ends the table, and whether it had that row."""
    last = batch.num_rows - 1
    if last < 0 or batch.column(0)[last].as_py() != mark:
        return batch, False
    return batch.slice(0, last), True


def _require_whole_rows(source: Source, batch: pa.RecordBatch, rows: int, mark: str) -> None:
    """Refuses a row with a cell after its last column, or one that swallowed the mark."""
    end = batch.column(batch.num_columns - 1)
    filled = _first_filled(end) if source.blank_end else 0
    if filled:
        width = len(source.columns)
        raise _bad_row(source, rows + filled, _field_count(width + 1, width))
    if batch.num_rows and mark in end[batch.num_rows - 1].as_py():
        raise _bad_row(source, rows + batch.num_rows, _OPEN)


def _scan(source: Source, batch: pa.RecordBatch, rows: int, seen: ScanResult) -> None:
    """Records repeated headers and a total; refuses a cell that swallowed records.

    Args:
        rows: number of rows in earlier batches.
    """
    # guard: test_an_open_quote_swallows_rows
    if swallowed := _swallowed(batch, source.delimiter):
        raise Unreadable(
            f"{source.label}, row {rows + swallowed[0]}: a cell has line breaks, and "
            f"{swallowed[1]} of its "
            "lines read as records. Close an open quote",
            kind="swallowed-records",
        )
    if batch.num_rows:
        seen.headers += [rows + number for number in _headers(source, batch)]
        last_row = batch.slice(batch.num_rows - 1).to_pylist()[0].values()
        seen.total = not _TOTALS.isdisjoint(cell.strip(" :").casefold() for cell in last_row)


def _without_headers(batch: pa.RecordBatch, first: int, headers: Sequence[int]) -> pa.RecordBatch:
    """A batch without the rows that repeat the header, given by their numbers in the table."""
    numbers = np.arange(first, first + batch.num_rows)
    repeated = np.isin(numbers, headers)
    return batch.filter(to_arrow(~repeated)) if repeated.any() else batch


def _matches(column: pa.Array, pattern: str) -> pa.Array:
    return pc.call_function("match_substring_regex", [column], pc.MatchSubstringOptions(pattern))


_IN_QUOTES = r'(?s)^".*"$'


def _without_quotes(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = []
    for column in batch.columns:
        inside = pc.call_function(
            "utf8_slice_codeunits", [column], pc.SliceOptions(start=1, stop=-1)
        )
        inside = pc.call_function(
            "replace_substring", [inside], pc.ReplaceSubstringOptions('""', '"')
        )
        quoted = _matches(column, _IN_QUOTES)
        long = pc.call_function("greater", [pc.call_function("utf8_length", [column]), 1])
        quoted = pc.call_function("and", [quoted, long])
        columns.append(pc.call_function("if_else", [quoted, inside, column]))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _strays(batch: pa.RecordBatch) -> list[int]:
    rows: set[int] = set()
    for column in batch.columns:
        odd = _matches(column, '^"')
        for number in pc.call_function("indices_nonzero", [odd]).to_pylist():
            cell = column[number].as_py()
            if not is_quoted(cell) or '"' in cell[1:-1].replace('""', ""):
                rows.add(number)
    return sorted(rows)


def _headers(source: Source, batch: pa.RecordBatch) -> list[int]:
    if source.header_line is None:
        return []
    name, *rest = source.written or source.columns
    alike = pc.call_function(
        "is_in", [batch.column(0)], pc.SetLookupOptions(to_arrow([name, f"\ufeff{name}"]))
    )
    numbers = pc.call_function("indices_nonzero", [alike]).to_pylist()
    return [
        n
        for n in numbers
        if all(batch.column(m)[n].as_py() == name for m, name in enumerate(rest, start=1))
    ]


def _field_count(fields: int, width: int) -> Fault:
    return Fault(f"{fields} fields, but the header has {width}", kind="field-count")


def _bad_row(source: Source, row: int, fault: Fault) -> InputError:
    return Unreadable(
        f"{source.label}, row {row}: {fault.text} (rows are counted from 1 after the "
        f"header). It was read as {source.reading}. Correct the quotes and "
        f"delimiters there, set others ({source.read_option} separator=…, "
        f"quotes=…), or skip such rows ({source.read_option} bad_rows=skip)",
        kind=fault.kind,
        row=row,
    )


def _first_filled(column: pa.Array) -> int:
    lengths = pc.call_function(
        "binary_length", [pc.call_function("utf8_trim_whitespace", [column])]
    )
    filled = pc.call_function("indices_nonzero", [lengths])
    return filled[0].as_py() + 1 if len(filled) else 0


_MANY_LINES = 5


def _swallowed(batch: pa.RecordBatch, delimiter: str) -> tuple[int, int] | None:
    if batch.num_columns < 2:
        return None
    suspects: set[int] = set()
    for column in batch.columns:
        content = column.buffers()[2] or b""
        for end in (end for end in "\n\r" if re.search(end.encode(), content)):
            broken = pc.call_function("match_substring", [column], pc.MatchSubstringOptions(end))
            suspects.update(pc.call_function("indices_nonzero", [broken]).to_pylist())
    for number in sorted(suspects):
        row = [column[number].as_py() for column in batch.columns]
        if inside := _records_inside(row, delimiter):
            return number + 1, inside
    return None


def _records_inside(row: Sequence[str], delimiter: str) -> int:
    """Counts the records that a cell swallowed: an open quote that meets a later one creates one
    valid cell from several rows.

    The lines of such a cell have exactly the delimiters that complete the row before it, whole
    records, and the rest of the row. Multi-line texts may match this by chance, so if there are few
    lines, another cell of each record must look alike as well.
    """
    for position, cell in enumerate(row):
        lines = [line for line in re.split(r"\r\n|\n|\r", cell) if line]
        behind = len(row) - 1 - position
        expected = [behind, *[len(row) - 1] * (len(lines) - 2), position]
        if len(lines) < 2 or [line.count(delimiter) for line in lines] != expected:
            continue
        first, *inner, last = (line.split(delimiter) for line in lines)
        records = [[*row[:position], *first], *inner, [*last, *row[position + 1 :]]]
        looks = [{_look(record[n]) for record in records} for n in range(len(row)) if n != position]
        alike = [look.pop() for look in looks if len(look) == 1]
        # Two records are recognised by a cell with digits, such as a number, a date or a code; more
        # records by any cell that is not blank.
        if len(lines) >= _MANY_LINES or any(
            words == 1 and (digits or inner) for words, digits in alike
        ):
            return len(lines)
    return 0


def _look(cell: str) -> tuple[int, bool]:
    return len(cell.split()), any(character.isdigit() for character in cell)
