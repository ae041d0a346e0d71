"""A source of records before it is read: which kind of file, how it is encoded, which columns it has.

Nothing here puts a cell into a message: the libraries' own errors quote the line they stumbled over, so they are
caught, judged and replaced outside their handlers, which leaves no chain to them.
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
from typing import IO, Final, Literal, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import InputError

T = TypeVar("T")
Kind = Literal["csv", "parquet", "jsonl", "npz"]
Encoding = Literal["utf-8", "cp1252"]

JSON_LINES: Final = {".jsonl", ".ndjson"}

_HEAD = 1 << 20
_CHUNK = 4 << 20
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
"""How an archive begins; the second is empty. A CSV may well begin with `PK`, such as a column of keys."""
_ZIP_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError, struct.error)
"""What the library raises of a damaged archive: it reads and seeks where the archive's own numbers send it."""
_PARQUET = b"PAR1"
"""How a Parquet file begins; a CSV may begin so, too, but goes on as text."""
_UNDEFINED_IN_CP1252 = bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D])


@dataclass(frozen=True)
class Source:
    """Where the records are and how to read them."""

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
    """By which the file was named, for messages."""

    @property
    def name(self) -> str:
        """For messages: the path, and the file inside it."""
        return f"{self.path}" if self.member is None else f"{self.path} ({self.member})"

    @property
    def label(self) -> str:
        """How a message about it begins."""
        return f"{self.option}: {self.name}"

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The bytes of the CSV or JSON Lines, unpacked as they are read."""
        if self.member is None:
            with self.path.open("rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                yield cast(IO[bytes], file)

    @contextmanager
    def text(self) -> Iterator[IO[str]]:
        """The same as characters; line ends stay as they are."""
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        with self.open() as raw, io.TextIOWrapper(raw, encoding=encoding, newline="") as text:
            yield text


def open_source(path: Path, option: str = "data") -> Source:
    """Look at the first megabyte of a file.

    The columns of JSON Lines stay open: only the last line tells them all.

    Raises:
        InputError: no such file, empty, not a CSV, ZIP, Parquet or JSON Lines that can be read, no records.
    """
    if not path.is_file():
        raise InputError(f"{option}: no file {path}")
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{option}: {path} is empty")
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


def require_columns(source: Source, wanted: Sequence[str], said_by: Mapping[str, str] | None = None) -> None:
    """Refuse a source that lacks a column, or has it twice.

    Args:
        said_by: what names each column, such as an option, for the message.

    Raises:
        InputError: names the column, one that hardly differs from it, and those of known names; nothing else.
    """
    for name in wanted:
        count = source.columns.count(name)
        if count > 1:
            raise InputError(f"{source.label} has {count} columns {name!r}; rename all but one")
        if count == 1:
            continue
        header, others = _like_header(source.columns), set(wanted) & set(source.columns) or _usual(source.columns)
        # A damaged header may hold a piece of a record: shown is what is known by name, or hardly differs from it.
        alike = (column for column in source.columns if header and len(column) <= len(name) + 2)
        folded = {column.strip().casefold(): column for column in alike}
        near = difflib.get_close_matches(name.strip().casefold(), list(folded), n=1, cutoff=0.8)
        hint = f"did you mean {folded[near[0]]!r}? " if near else ""
        if header and others:
            usual = _usual(source.columns)  # then each of them is a name, and may be shown
            known = [repr(column) for column in source.columns[:60] if column in wanted or usual]
            hint += f"it has {len(source.columns)} columns, {', '.join(known)} among them"
        elif not near and header:
            hint = (
                f"name those that it has: of its {len(source.columns)} columns none is known here (its first row is "
                "not shown, since it may be a record; if it is one, put column names above it)"
            )
        elif not near:
            hint = (
                "its first row does not look like column names; the first row must hold them (it is not shown here, "
                "since it may be a record)"
            )
        by = f" ({said_by[name]})" if said_by and name in said_by else ""
        raise InputError(f"{source.label} has no column {name!r}{by}; {hint.strip()}")


def scan(source: Source) -> Source:
    """Read a whole CSV once, as bytes, to settle its encoding.

    Raises:
        InputError: NUL bytes, or neither UTF-8 nor cp1252; names the line.
    """
    whole = safely(source, lambda: _is_utf8(source))
    if not whole:
        safely(source, lambda: _check_cp1252(source))
    return replace(source, encoding="utf-8" if whole else "cp1252")


def count_records(source: Source) -> int:
    """Records of a CSV without its header, or of JSON Lines, counted line by line and by quotes alone.

    It shares nothing with the reader that takes rows apart, so that a fault of either shows as a difference. A quote
    opens a cell at the cell's start only; elsewhere outside quotes it is a character like others. Blank lines are no
    records.
    """
    return safely(source, lambda: _count_records(source))


def _count_records(source: Source) -> int:
    if source.kind == "jsonl":
        with source.open() as file:
            return sum(1 for line in file if line.strip())
    records, quoted = -1, False  # the header is none
    with source.text() as text:
        for line in text:
            records += not quoted and line not in ("\n", "\r\n", "\r")
            if quoted or '"' in line:
                quoted = _ends_quoted(line, source.delimiter, quoted)
    return records


def _ends_quoted(line: str, delimiter: str, quoted: bool) -> bool:
    """Whether a cell is open at the end of a line that began inside a quoted cell, or not."""
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


def safely(source: Source, action: Callable[[], T]) -> T:
    """Run what a library reads with; if it raises, raise an error that quotes no cell.

    A function and no context manager: an error raised while another is handled drags it along as its context.
    """
    try:
        return action()
    except UnicodeDecodeError:
        fault = "it does not decode; save it as UTF-8"
    except _ZIP_FAULTS as error:
        if source.member is None:
            raise
        fault = f"the ZIP cannot be unpacked ({type(error).__name__}); unpack it yourself or fetch it anew"
    except pa.ArrowException as error:
        fault = (
            "a quoted cell never ends, or is longer than a block; look for a quote left open"
            if "straddl" in str(error)
            else "it does not read as a table; is it a CSV with a header, or a whole Parquet file?"
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
    except (pa.ArrowException, OSError, ValueError):  # the last: a column's name is no UTF-8
        readable = False
    if not readable:
        raise InputError(f"{option}: {path} begins like Parquet but cannot be read; is it whole?")
    if rows == 0:
        raise InputError(f"{option}: {path} has columns and no records")
    return Source(path, "parquet", columns, path.stat().st_size, rows, option=option)


def _member(path: Path, option: str) -> tuple[str, int]:
    members: list[zipfile.ZipInfo] | None = None
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except _ZIP_FAULTS:
        pass
    if members is None:
        raise InputError(f"{option}: {path} begins like a ZIP but cannot be read; is it whole?")
    csvs = [m for m in members if m.filename.lower().endswith(".csv") and not m.filename.startswith("__MACOSX/")]
    if not csvs:
        hint = "pack the CSV, or give its own path"
        if any(m.filename == "xl/workbook.xml" for m in members):
            hint = "it is an Excel workbook; save it as CSV"
        elif members and all(m.filename.endswith(".npy") for m in members):
            hint = "it is an archive of arrays, which only images are read from (`--profile images`)"
        raise InputError(f"{option}: {path} holds no CSV; {hint}")
    if len(csvs) > 1:
        names = ", ".join(m.filename for m in csvs[:5])
        raise InputError(f"{option}: {path} holds {len(csvs)} CSVs ({names}); leave one, or unpack it and give a path")
    if csvs[0].flag_bits & 0x1:
        raise InputError(f"{option}: {path} is encrypted; unpack it and give the CSV's path")
    return csvs[0].filename, csvs[0].file_size


def _csv(source: Source) -> Source:
    if source.bytes == 0:
        raise InputError(f"{source.label} is empty")
    head = safely(source, lambda: _head(source))
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{source.label} is UTF-16; save it as UTF-8")
    if b"\0" in head:
        raise InputError(f"{source.label} holds NUL bytes; it is neither a CSV, nor a ZIP or Parquet")
    whole = len(head) == source.bytes
    decoder = codecs.getincrementaldecoder("utf-8")()
    encoding: Encoding = "utf-8" if _decodes(decoder, head, final=whole) else "cp1252"
    text = head.decode(encoding, errors="replace").removeprefix("\ufeff")
    if not text.strip():
        raise InputError(f"{source.label} is blank")
    first_line = text.lstrip("\r\n").partition("\n")[0]
    delimiter = "," if "," in first_line else next((d for d in ";\t" if d in first_line), ",")
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        columns = tuple(next(row for row in rows if row))
        # A blank line is no record.
        records = any(row for row in rows)
    except (csv.Error, StopIteration):
        columns, records = (), False
    if not columns:
        raise InputError(f"{source.label} does not read as a CSV; is a quote left open in the header?")
    if not records and whole:
        raise InputError(f"{source.label} has a header and no records")
    lines = max(text.count("\n"), 1)
    rows_estimated = lines - 1 + (not text.endswith("\n")) if whole else round(lines * source.bytes / len(head))
    return replace(
        source, columns=columns, encoding=encoding, delimiter=delimiter, estimated_rows=max(rows_estimated, 1)
    )


def _head(source: Source) -> bytes:
    with source.open() as file:
        return file.read(_HEAD)


def _like_header(columns: Sequence[str]) -> bool:
    """Whether a first row may be shown as column names. A narrative, a number or a date speaks for a record."""
    return all(
        len(name) <= 64 and "\n" not in name and not re.fullmatch(r"\s*[\d.,:/ -]+\s*", name) for name in columns
    )


_USUAL = frozenset(
    {"age", "category", "class", "code", "codes", "date", "description", "diagnosis", "event", "id", "industry", "job"}
    | {"label", "labels", "name", "narrative", "nature", "number", "occupation", "product", "sex", "soc", "text"}
    | {"title", "unit", "version", "year"}
)


def _usual(columns: Sequence[str]) -> bool:
    """Whether a first row is column names by its words alone, such as title,code: no record has such cells only."""
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
                raise InputError(f"{source.label}, line {line}: a NUL byte; the file is damaged or no text")
            whole = whole and _decodes(decoder, chunk)
            lines += chunk.count(b"\n")
    return whole and _decodes(decoder, b"", final=True)


def _check_cp1252(source: Source) -> None:
    """Refuse bytes that cp1252 lacks, and UTF-8 with a few bytes broken, which would turn to gibberish unseen."""
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
            f"{source.label} is UTF-8 with {invalid} damaged bytes; repair them, or it would be misread as cp1252"
        )
    if undefined_at is not None:
        raise InputError(f"{source.label}, line {undefined_at}: neither UTF-8 nor cp1252; save it as UTF-8")
