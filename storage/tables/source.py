"""Inspects a source of records before it is read: the kind of file, its encoding, its columns.

Nothing here puts a cell into a message: the libraries' errors quote the faulty line, so they are caught and replaced
outside their handlers, which leaves no chain to them.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, AnyStr, Final, Literal, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import InputError

T = TypeVar("T")
Kind = Literal["csv", "parquet", "jsonl", "npz"]
Encoding = Literal["utf-8", "cp1252"]

JSON_LINES: Final = {".jsonl", ".ndjson"}

LONGEST_LINE = 1 << 24
"""Characters of a line, and of a cell, at most; bytes of a line of JSON."""
MOST_COLUMNS = 100_000
_MOST_EXPANSION, _SMALL = 200, 64 << 20
"""How many times a file inside a ZIP may unfold, where it is not small."""
_HEAD = 1 << 20
_CHUNK = 4 << 20
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of an archive; the second is empty. A CSV may begin with `PK`, such as a column of keys."""
_ZIP_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError, struct.error)
"""Errors that the library raises for a damaged archive, whose offsets it follows."""
_PARQUET = b"PAR1"
"""First bytes of a Parquet file; a CSV may begin so, too, but continues as text."""
_UNDEFINED_IN_CP1252 = bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D])


@dataclass(frozen=True)
class Source:
    """Describes where the records are and how to read them."""

    path: Path
    kind: Kind
    columns: tuple[str, ...]
    bytes: int
    """Unpacked."""
    estimated_rows: int
    member: str | None = None
    """Name of the CSV inside the ZIP."""
    encoding: Encoding = "utf-8"
    delimiter: str = ","
    option: str = "data"
    """Option that named the file, for messages."""

    @property
    def name(self) -> str:
        """Returns the path, and the file inside it, for messages."""
        return f"{self.path}" if self.member is None else f"{self.path} ({self.member})"

    @property
    def label(self) -> str:
        """Returns the start of a message about it."""
        return f"{self.option}: {self.name}"

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Opens the bytes of the CSV or JSON Lines, unpacked as they are read."""
        if self.member is None:
            with self.path.open("rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                yield cast(IO[bytes], file)

    @contextmanager
    def text(self) -> Iterator[IO[str]]:
        """Opens the same as characters; line ends stay unchanged."""
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        with self.open() as raw, io.TextIOWrapper(raw, encoding=encoding, newline="") as text:
            yield text


def open_source(path: Path, option: str = "data") -> Source:
    """Inspects the first megabyte of a file.

    The columns of JSON Lines stay open: they are complete at the last line only.
    """
    if not path.is_file():
        raise InputError(f"{option}: no file {path}")
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{option}: {path} is empty. Give a file of records")
    if path.suffix.lower() in JSON_LINES:
        return Source(path, "jsonl", (), size, _lines_estimated(path, size), option=option)
    with path.open("rb") as file:
        magic = file.read(4)
        after = file.read(1)
    if magic == _PARQUET and (path.suffix.lower() == ".parquet" or (after < b" " and after not in b"\t\r\n")):
        return _parquet(path, option)
    member: str | None = None
    if magic in _ZIP:
        member, size = _member(path, option)
    return _csv(Source(path, "csv", (), size, 0, member, option=option))


def require_columns(source: Source, required: Sequence[str], column_options: Mapping[str, str] | None = None) -> None:
    """Refuses a source that lacks a column, or has it twice.

    A message names the column, with its option, a similar one, and those with recognised names; nothing else.
    """
    for name in required:
        count = source.columns.count(name)
        if count > 1:
            raise InputError(f"{source.label} has {count} columns {name!r}. Rename all but one")
        if count == 1:
            continue
        header, others = like_header(source.columns), set(required) & set(source.columns) or _usual(source.columns)
        # A damaged header may contain a piece of a record: only required or similar names are shown.
        alike = (column for column in source.columns if header and len(column) <= len(name) + 2)
        folded = {column.strip().casefold(): column for column in alike}
        near = difflib.get_close_matches(name.strip().casefold(), list(folded), n=1, cutoff=0.8)
        hint = f"Did you mean {folded[near[0]]!r}? " if near else ""
        if header and others:
            usual = _usual(source.columns)  # then each of them is a name, and may be shown
            shown = [repr(column) for column in source.columns[:60] if column in required or usual]
            hint += f"It has {len(source.columns)} columns, {', '.join(shown)} among them"
        elif not near and header:
            hint = (
                f"Name its columns: of its {len(source.columns)} columns none is recognised (its first row is "
                "not shown, since it may be a record; if it is one, put column names above it)"
            )
        elif not near:
            hint = (
                "Its first row does not look like column names. Put them into the first row (it is not shown, "
                "since it may be a record)"
            )
        by = f" ({column_options[name]})" if column_options and name in column_options else ""
        raise InputError(f"{source.label} has no column {name!r}{by}. {hint.strip()}")


def scan(source: Source) -> Source:
    """Reads a whole CSV once, as bytes, to determine its encoding."""
    whole = read_safely(source, lambda: _is_utf8(source))
    if not whole:
        read_safely(source, lambda: _check_cp1252(source))
    return replace(source, encoding="utf-8" if whole else "cp1252")


def bounded_lines(file: IO[AnyStr], label: str) -> Iterator[AnyStr]:
    """Yields the lines of a file, none of which is held beyond its limit; refuses a longer one."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise InputError(f"{label}, line {number}: over {LONGEST_LINE:,} characters. Shorten it")
        yield line


def count_records(source: Source) -> int:
    """Counts the records of a CSV without its header, or of JSON Lines, line by line and by quotes alone.

    It shares nothing with the reader that splits rows, so that a fault of either shows as a difference. A quote opens
    a cell at the cell's start only; elsewhere outside quotes it is a character like others. Blank lines do not count.
    """
    return read_safely(source, lambda: _count_records(source))


def _count_records(source: Source) -> int:
    if source.kind == "jsonl":
        with source.open() as file:
            return sum(1 for line in bounded_lines(file, source.label) if line.strip())
    records, quoted = -1, False  # the header is none
    with source.text() as text:
        for line in bounded_lines(text, source.label):
            records += not quoted and line not in ("\n", "\r\n", "\r")
            if quoted or '"' in line:
                quoted = _ends_quoted(line, source.delimiter, quoted)
    return records


def _ends_quoted(line: str, delimiter: str, quoted: bool) -> bool:
    """Checks whether a quoted cell is open at the end of a line, given whether one was open at its start."""
    parts = line.split('"')
    at = 0
    while at < len(parts) - 1:  # the quote between parts[at] and parts[at + 1]
        if not quoted:
            quoted = parts[at].endswith(delimiter) or (at == 0 and not parts[0])
        elif not parts[at + 1] and at + 2 < len(parts):
            at += 1  # two quotes within quotes are one character
        else:
            quoted = False
        at += 1
    return quoted


def read_safely(source: Source, action: Callable[[], T]) -> T:
    """Runs a library's reading; replaces its error by one that quotes no cell.

    A function and no context manager: an error raised while another is handled drags it along as its context.
    """
    try:
        return action()
    except UnicodeDecodeError:
        fault = "it does not decode. Save it as UTF-8"
    except _ZIP_FAULTS as error:
        if source.member is None:
            raise
        fault = f"the ZIP cannot be unpacked ({type(error).__name__}). Unpack it by hand or fetch it again"
    except pa.ArrowException as error:
        fault = (
            "a quoted cell never ends, or is longer than a block. Close the open quote"
            if "straddl" in str(error)
            else "it is not a readable table. Give a CSV with a header, or a whole Parquet file"
        )
    raise InputError(f"{source.label}: {fault}")


def _lines_estimated(path: Path, size: int) -> int:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return max(round(head.count(b"\n") * size / len(head)), 1)


def _parquet(path: Path, option: str) -> Source:
    rows, columns = 0, ()
    try:
        with pq.ParquetFile(path) as file:
            rows, columns = file.metadata.num_rows, tuple(file.schema_arrow.names)
        readable = True
    except (pa.ArrowException, OSError, ValueError):  # the last: a column's name is not UTF-8
        readable = False
    if not readable:
        raise InputError(f"{option}: {path} begins like Parquet but is damaged. Fetch it again")
    if rows == 0:
        raise InputError(f"{option}: {path} has columns and no records. Give a file of records")
    return Source(path, "parquet", columns, path.stat().st_size, rows, option=option)


def _member(path: Path, option: str) -> tuple[str, int]:
    members: list[zipfile.ZipInfo] | None = None
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except _ZIP_FAULTS:
        pass
    if members is None:
        raise InputError(f"{option}: {path} begins like a ZIP but is damaged. Fetch it again")
    csvs = [m for m in members if m.filename.lower().endswith(".csv") and not m.filename.startswith("__MACOSX/")]
    if not csvs:
        hint = "Pack the CSV, or give its path"
        if any(m.filename == "xl/workbook.xml" for m in members):
            hint = "It is an Excel workbook: save it as CSV"
        raise InputError(f"{option}: {path} contains no CSV. {hint}")
    if len(csvs) > 1:
        names = ", ".join(m.filename for m in csvs[:5])
        raise InputError(
            f"{option}: {path} contains {len(csvs)} CSVs ({names}). Leave one, or unpack it and give a path"
        )
    if csvs[0].flag_bits & 0x1:
        raise InputError(f"{option}: {path} is encrypted. Unpack it and give the CSV's path")
    if csvs[0].file_size > max(_SMALL, _MOST_EXPANSION * csvs[0].compress_size):
        times = csvs[0].file_size // max(1, csvs[0].compress_size)
        raise InputError(f"{option}: {path} unfolds to {times:,} times its size. Unpack it and give the CSV's path")
    return csvs[0].filename, csvs[0].file_size


def _csv(source: Source) -> Source:
    if source.bytes == 0:
        raise InputError(f"{source.label} is empty. Give a file of records")
    head = read_safely(source, lambda: _head(source))
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{source.label} is UTF-16. Save it as UTF-8")
    if b"\0" in head:
        raise InputError(f"{source.label} has NUL bytes. Give a CSV, ZIP or Parquet")
    whole = len(head) == source.bytes
    decoder = codecs.getincrementaldecoder("utf-8")()
    encoding: Encoding = "utf-8" if _decodes(decoder, head, final=whole) else "cp1252"
    text = head.decode(encoding, errors="replace").removeprefix("\ufeff")
    if not text.strip():
        raise InputError(f"{source.label} is blank. Give a file of records")
    first_line = text.lstrip("\r\n").partition("\n")[0]
    delimiter = "," if "," in first_line else next((d for d in ";\t" if d in first_line), ",")
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        columns = tuple(next(row for row in rows if row))
        # A blank line does not count.
        records = any(row for row in rows)
    except (csv.Error, StopIteration):
        columns, records = (), False
    if not columns:
        raise InputError(f"{source.label} is not valid CSV. Close the open quote in the header")
    if len(columns) > MOST_COLUMNS:
        raise InputError(f"{source.label} has over {MOST_COLUMNS:,} columns. Give a table of records")
    if not records and whole:
        raise InputError(f"{source.label} has a header and no records. Give a file of records")
    lines = max(text.count("\n"), 1)
    rows_estimated = lines - 1 + (not text.endswith("\n")) if whole else round(lines * source.bytes / len(head))
    return replace(
        source, columns=columns, encoding=encoding, delimiter=delimiter, estimated_rows=max(rows_estimated, 1)
    )


def _head(source: Source) -> bytes:
    with source.open() as file:
        return file.read(_HEAD)


def like_header(columns: Sequence[str]) -> bool:
    """Checks whether a first row may be shown as column names. A narrative, a number or a date suggests a record."""
    return all(
        len(name) <= 64 and "\n" not in name and not re.fullmatch(r"\s*[\d.,:/ -]+\s*", name) for name in columns
    )


_USUAL = frozenset(
    {"age", "category", "class", "code", "codes", "date", "description", "diagnosis", "event", "id", "industry", "job"}
    | {"label", "labels", "name", "narrative", "nature", "number", "occupation", "product", "sex", "soc", "text"}
    | {"title", "unit", "version", "year"}
)


def _usual(columns: Sequence[str]) -> bool:
    """Checks whether a first row is column names by its words alone, such as title,code."""
    return (
        len(columns) > 1
        and all(set(re.findall(r"[a-z]+", name.casefold())) & _USUAL for name in columns)
        and all(len(name.split()) <= 3 for name in columns)
    )


def _decodes(decoder: codecs.IncrementalDecoder, chunk: bytes, *, final: bool = False) -> bool:
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError:
        return False
    return True


def _is_utf8(source: Source) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines, whole = 0, True
    with source.open() as file:
        while chunk := file.read(_CHUNK):
            at = chunk.find(b"\0")
            if at >= 0:
                line = lines + chunk.count(b"\n", 0, at) + 1
                raise InputError(
                    f"{source.label}, line {line}: a NUL byte, so the file is damaged or not text. Save it as UTF-8"
                )
            whole = whole and _decodes(decoder, chunk)
            lines += chunk.count(b"\n")
    return whole and _decodes(decoder, b"", final=True)


def _check_cp1252(source: Source) -> None:
    """Refuses bytes that cp1252 lacks, and UTF-8 with a few damaged bytes, which would turn to gibberish unnoticed."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    lines = valid = invalid = 0
    undefined_at: int | None = None
    with source.open() as file:
        while chunk := file.read(_CHUNK):
            text = decoder.decode(chunk)
            bad = text.count("\ufffd")
            invalid += bad
            valid += len(text) - bad - len(text.encode("ascii", "ignore"))
            if undefined_at is None and len(chunk.translate(None, _UNDEFINED_IN_CP1252)) < len(chunk):
                at = min(chunk.find(byte) for byte in _UNDEFINED_IN_CP1252 if byte in chunk)
                undefined_at = lines + chunk.count(b"\n", 0, at) + 1
            lines += chunk.count(b"\n")
    if valid > invalid:
        raise InputError(
            f"{source.label} is UTF-8 with {invalid} damaged bytes, which cp1252 would misread. Repair them"
        )
    if undefined_at is not None:
        raise InputError(f"{source.label}, line {undefined_at}: neither UTF-8 nor cp1252. Save it as UTF-8")
