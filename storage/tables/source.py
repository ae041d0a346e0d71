"""Finds out what a file of records is: its container, encoding, separator, quotes and header.

Nothing here puts a cell into a message: the libraries' errors quote the faulty line, so they are caught and replaced
outside their handlers, which leaves no chain to them.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import difflib
import gzip
import io
import json
import lzma
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, AnyStr, Final, Literal, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import InputError
from storage.tables import guarded
from storage.tables.options import AS_IT_LOOKS, Quotes, ReadOptions

T = TypeVar("T")
Kind = Literal["csv", "parquet", "jsonl", "npz"]
Container = Literal["plain", "zip", "gzip", "bzip2", "xz", "workbook"]

JSON_LINES: Final = {".jsonl", ".ndjson"}

LONGEST_LINE = 1 << 24
"""Characters of a line, and of a record, at most."""
LONGEST_JSON = 1 << 22
"""Bytes of a record of JSON, which may unfold to thirty times as many."""
MOST_COLUMNS = 100_000
_MOST_EXPANSION, _SMALL = 200, 64 << 20
"""How many times a packed file may unfold, where it is not small."""
_HEAD = 1 << 20
_CHUNK = 4 << 20
_LOOKED_AT, _TITLES = 200, 50
"""Rows that the separator must fit, and those among which the header is looked for."""
_BOOK_MEMORY = 4 << 30
_PACKED: Final[dict[bytes, Container]] = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of an archive; the second is empty. A CSV may begin with `PK`, such as a column of keys."""
_UNPACK_FAULTS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError, OSError, struct.error),
)
"""Errors that the libraries raise for a damaged archive, whose offsets they follow."""
_OTHER_FORMATS: Final = {
    b"%PDF": "a PDF. Ask for the data as CSV or XLSX",
    b"{\\rtf": "a text document. Save the table as CSV",
    b"$FL2": "an SPSS file. Export it as CSV or Parquet",
    b"$FL3": "an SPSS file. Export it as CSV or Parquet",
    b"<stata_dta>": "a Stata file. Export it as CSV or Parquet",
    b"\x28\xb5\x2f\xfd": "packed with Zstandard. Unpack it, or pack it with gzip",
    b"7z\xbc\xaf": "a 7z archive. Unpack it",
    b"Rar!": "a RAR archive. Unpack it",
    b"SQLite format 3": "a SQLite database. Export the table as CSV",
}
_XLS = b"\xd0\xcf\x11\xe0"
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
    """Unpacked, where that is known."""
    estimated_rows: int
    member: str | None = None
    """Name of the file inside the ZIP, or of the workbook's sheet."""
    encoding: str = "utf-8"
    delimiter: str = ","
    option: str = "data"
    """Option that named the file, for messages."""
    container: Container = "plain"
    quotes: Quotes = "double"
    skip: int = 0
    """Lines above the header."""
    named: bool = False
    """The file has no header: the columns are named by an option."""
    blank_end: bool = False
    """Every row ends in one blank field more than the header, or the header in one more than every row."""
    array: bool = False
    """JSON in one array, not in lines."""
    skips_bad_rows: bool = False
    beside: int = 0
    """Number of further files."""

    @property
    def name(self) -> str:
        """Returns the path, and the file inside it, for messages."""
        more = f" and {self.beside} more" if self.beside else ""
        return f"{self.path}{more}" if self.member is None else f"{self.path} ({self.member}){more}"

    @property
    def label(self) -> str:
        """Returns the start of a message about it."""
        return f"{self.option}: {self.name}"

    @property
    def dialect(self) -> dict[str, Any]:
        """Returns the settings of Python's `csv`."""
        return _dialect(self.delimiter, self.quotes)

    @property
    def reading(self) -> str:
        """Says in one line how the file is read."""
        packed = "" if self.container == "plain" else f"{self.container}, "
        if self.kind != "csv":
            return packed + {"jsonl": "a JSON array" if self.array else "JSON Lines"}.get(self.kind, self.kind)
        if self.container == "workbook":
            layout = f"workbook, sheet {self.member}" if self.member else "workbook"
        else:
            quotes = {"double": "doubled quotes", "backslash": "quotes behind \\", "none": "quotes as text"}
            shown = {"\t": "tab", ",": "comma", ";": "semicolon"}.get(self.delimiter, self.delimiter)
            layout = f"{packed}{self.encoding}, separator {shown}, {quotes[self.quotes]}"
        header = "no header" if self.named else f"header in line {self.skip + 1}" if self.skip else "header first"
        return f"{layout}, {header}"

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Opens the bytes of the text, unpacked as they are read."""
        if self.container == "workbook":
            with _open_sheet(self) as file:
                yield file
        elif self.container == "zip":
            with zipfile.ZipFile(self.path) as archive, archive.open(cast(str, self.member)) as file:
                yield cast(IO[bytes], file)
        else:
            opened = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}.get(self.container, open)
            with opened(self.path, "rb") as file:
                yield cast(IO[bytes], file)

    @contextmanager
    def text(self) -> Iterator[IO[str]]:
        """Opens the same as characters; line ends stay unchanged."""
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        with self.open() as raw, io.TextIOWrapper(raw, encoding=encoding, newline="") as text:
            yield text


def _dialect(delimiter: str, quotes: Quotes) -> dict[str, Any]:
    more: dict[str, Any] = {
        "double": {},
        "backslash": {"escapechar": "\\", "doublequote": False},
        "none": {"quoting": csv.QUOTE_NONE},
    }[quotes]
    return {"delimiter": delimiter, "strict": True} | more


class TooLong(Exception):
    """Reports a line, or a record of several lines, over the limit."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class Lines(Iterator[str]):
    """Yields the lines of a file while neither one nor all of a record have more characters than they may."""

    def __init__(self, file: IO[str], most: int) -> None:
        self.number, self._file, self._most, self._record = 0, file, most, 0

    def __next__(self) -> str:
        line = self._file.readline(self._most)
        if not line:
            raise StopIteration
        self.number += 1
        self._record += len(line)
        # guard: a record of many lines has a limit
        if self._record >= self._most:
            raise TooLong(self.number)
        return line

    def end_record(self) -> None:
        """Begins the next record at the next line."""
        self._record = 0


def open_source(
    path: Path, option: str = "data", read: ReadOptions = AS_IT_LOOKS, required: Sequence[str] = ()
) -> Source:
    """Inspects the first megabyte of a file.

    The columns of JSON stay open: they are complete at its end only.

    Args:
        required: columns by which the header is found below lines of titles.
    """
    if not path.is_file():
        raise InputError(f"{option}: no file {path}")
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{option}: {path} is empty. Give a file of records")
    with path.open("rb") as file:
        magic = file.read(16)
    if magic.startswith(_PARQUET) and (
        path.suffix.lower() == ".parquet" or (magic[4:5] < b" " and magic[4:5] not in b"\t\r\n")
    ):
        return _parquet(path, option)
    source = Source(path, "csv", (), size, 0, option=option, skips_bad_rows=read.bad_rows == "skip")
    name = path
    for first, container in _PACKED.items():
        if magic.startswith(first):
            source, name = replace(source, container=container), path.with_suffix("")
    if magic.startswith(_XLS):
        source = replace(source, container="workbook", member=read.sheet)
    elif magic.startswith(_ZIP):
        source = _archive(source, read)
        name = Path(source.member or path.name)
    head = read_safely(source, lambda: _head(source))
    start = head.lstrip()[:64].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        raise InputError(f"{source.label} is an HTML page, so the download failed or asks to log in. Fetch it again")
    for first, what in _OTHER_FORMATS.items():
        if head.startswith(first):
            raise InputError(f"{source.label} is {what}")
    if source.container != "workbook" and (kind := _json_kind(head, name.suffix.lower())):
        rows = 1 if kind == "array" else _rows_estimated(head, size)
        return replace(source, kind="jsonl", array=kind == "array", estimated_rows=rows)
    return _csv(source, head, read, required)


def _json_kind(head: bytes, suffix: str) -> Literal["array", "lines"] | None:
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if suffix in JSON_LINES:
        return "array" if re.match(rb"\[\s*\{", start) else "lines"
    if re.match(rb"\[\s*[\{\]]", start):
        return "array"
    if not re.match(rb'\{\s*["\}]', start):
        return "array" if suffix == ".json" else None
    first, _, more = start.partition(b"\n")
    try:
        lines = isinstance(json.loads(first), dict) and (suffix != ".json" or more.lstrip().startswith(b"{"))
    except (ValueError, RecursionError):
        lines = False
    return "lines" if lines else "array" if suffix == ".json" else None


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
        if not near and source.kind == "csv":
            hint += f". It was read as {source.reading}: --read separator=…, skip=… and names=… change that"
        by = f" ({column_options[name]})" if column_options and name in column_options else ""
        raise InputError(f"{source.label} has no column {name!r}{by}. {hint.strip()}")


def read_safely(source: Source, action: Callable[[], T]) -> T:
    """Runs a library's reading; replaces its error by one that quotes no cell.

    A function and no context manager: an error raised while another is handled drags it along as its context.
    """
    try:
        return action()
    except UnicodeDecodeError:
        fault = f"it does not decode as {source.encoding}. Save it as UTF-8, or name its --read encoding=…"
    except _UNPACK_FAULTS as error:
        if source.container == "plain":
            raise
        packed = {"zip": "ZIP", "workbook": "workbook"}.get(source.container, f"{source.container} file")
        fault = f"the {packed} cannot be unpacked ({type(error).__name__}). Unpack it by hand or fetch it again"
    raise InputError(f"{source.label}: {fault}")


def scan(source: Source, read: ReadOptions) -> Source:
    """Reads all bytes of a text once, to determine its encoding; refuses NUL bytes and what unfolds too far."""
    if read.encoding is not None or source.container == "workbook":
        return source
    return replace(source, encoding=read_safely(source, lambda: _encoding(source)))


def _encoding(source: Source) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines, size, whole = 0, 0, True
    limit = max(_SMALL, _MOST_EXPANSION * source.path.stat().st_size)
    with source.open() as file:
        while chunk := file.read(_CHUNK):
            at, size = chunk.find(b"\0"), size + len(chunk)
            if at >= 0:
                line = lines + chunk.count(b"\n", 0, at) + 1
                raise InputError(
                    f"{source.label}, line {line}: a NUL byte, so the file is damaged or not text. Save it as UTF-8"
                )
            if size > limit:
                raise InputError(f"{source.label} unfolds to over {_MOST_EXPANSION} times its size. Unpack it")
            whole = whole and _decodes(decoder, chunk)
            lines += chunk.count(b"\n")
    if whole and _decodes(decoder, b"", final=True):
        return "utf-8"
    _check_cp1252(source)
    return "cp1252"


def _check_cp1252(source: Source) -> None:
    """Refuses a file with characters of both encodings, each of which misreads the other's, and bytes of neither."""
    valid = invalid = 0
    whole, damaged, undefined = [], [], []
    with source.open() as file:
        for number, line in enumerate(bounded_lines(file, source.label), start=1):
            if line.isascii():
                continue
            text = line.decode(errors="replace")
            bad = text.count("\ufffd")
            invalid, valid = invalid + bad, valid + len(text) - bad - len(text.encode("ascii", "ignore"))
            (damaged if bad else whole).append(number)
            if bad and len(line.translate(None, _UNDEFINED_IN_CP1252)) < len(line):
                undefined.append(number)
    way_out = "Save all of it as UTF-8, or name its --read encoding=…"
    if valid > invalid:
        raise InputError(
            f"{source.label} is UTF-8 with {invalid} damaged bytes in {_lines_named(damaged)}, which cp1252 would "
            f"misread. {way_out}"
        )
    if whole:
        raise InputError(
            f"{source.label} has lines in two encodings, UTF-8 in {_lines_named(whole)} and another in "
            f"{_lines_named(damaged)}. {way_out}"
        )
    if undefined:
        raise InputError(f"{source.label}, {_lines_named(undefined)}: neither UTF-8 nor cp1252. {way_out}")


def _lines_named(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:5]))
    return f"line{'s' * (len(lines) > 1)} {shown}{f' and {len(lines) - 5:,} more' if len(lines) > 5 else ''}"


def bounded_lines(file: IO[AnyStr], label: str, most: int | None = None) -> Iterator[AnyStr]:
    """Yields the lines of a file, none of which is held beyond its limit; refuses a longer one."""
    number, most = 0, most or LONGEST_LINE
    while line := file.readline(most):
        number += 1
        if len(line) == most:
            raise InputError(f"{label}, line {number}: over {most:,} characters. Shorten it")
        yield line


def _rows_estimated(head: bytes, size: int) -> int:
    return max(round(head.count(b"\n") * size / max(1, len(head))), 1)


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


def _archive(source: Source, read: ReadOptions) -> Source:
    """Returns the source of the table inside a ZIP, or of a workbook, which is one."""
    label, members = f"{source.option}: {source.path}", None
    try:
        with zipfile.ZipFile(source.path) as archive:
            members = archive.infolist()
    except _UNPACK_FAULTS:
        pass
    if members is None:
        raise InputError(f"{label} begins like a ZIP but is damaged. Fetch it again")
    names = {member.filename for member in members}
    if names & {"xl/workbook.xml", "xl/workbook.bin"} or {"content.xml", "mimetype"} <= names:
        return replace(source, container="workbook", member=read.sheet)
    visible = [m for m in members if not m.is_dir() and not re.search(r"(^|/)(\.|__MACOSX/)", m.filename)]
    tables = [m for m in visible if Path(m.filename).suffix.lower() in _TEXTS]
    csvs = [m for m in tables if m.filename.lower().endswith(".csv")] if len(tables) > 1 else tables
    if len(csvs or tables) != 1:
        shown = ", ".join(m.filename for m in (csvs or tables)[:5])
        if tables:
            raise InputError(
                f"{label} contains {len(csvs or tables)} tables ({shown}). Leave one, or unpack it and give their paths"
            )
        raise InputError(f"{label} contains no CSV or other table of text. Pack the CSV, or give its path")
    (table,) = csvs or tables
    if table.flag_bits & 0x1:
        raise InputError(f"{label} is encrypted. Unpack it and give the table's path")
    if table.file_size > max(_SMALL, _MOST_EXPANSION * table.compress_size):
        times = table.file_size // max(1, table.compress_size)
        raise InputError(f"{label} unfolds to {times:,} times its size. Unpack it and give the table's path")
    return replace(source, container="zip", member=table.filename, bytes=table.file_size)


_TEXTS = {".csv", ".txt", ".tsv", ".tab", ".psv", ".dat", ".json", *JSON_LINES}


@contextmanager
def _open_sheet(source: Source) -> Iterator[IO[bytes]]:
    """Opens a sheet of a workbook as CSV, which a program of limited memory writes."""
    program = [sys.executable, "-I", guarded.__file__, "workbook", str(_BOOK_MEMORY), str(source.path.resolve())]
    with subprocess.Popen([*program, source.member or ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            yield cast(IO[bytes], child.stdout)
        finally:
            child.stdout.close()  # ends the program where not all is read
            report, status = child.stderr.read().decode(errors="replace"), child.wait()
    fault = {
        0: "",
        1: f"it takes over {_BOOK_MEMORY >> 30} GB to read. Save the sheet as CSV",
        guarded.SHEETS: f"its sheets with rows are {report}. Name one with --read sheet=…",
    }.get(status, "the workbook is damaged, locked by a password, or none. Save the sheet as CSV")
    if fault:
        raise InputError(f"{source.option}: {source.path}: {fault}")


def _csv(source: Source, head: bytes, read: ReadOptions, required: Sequence[str]) -> Source:
    whole, encoding = len(head) < _HEAD, read.encoding
    if encoding is None:
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InputError(f"{source.label} is UTF-16. Save it as UTF-8, or give --read encoding=utf-16")
        if b"\0" in head:
            raise InputError(f"{source.label} has NUL bytes. Give a CSV, ZIP or Parquet")
        decoder = codecs.getincrementaldecoder("utf-8")()
        encoding = "utf-8" if _decodes(decoder, head, final=whole) else "cp1252"
    text = head.decode(encoding, errors="replace").removeprefix("\ufeff")
    if not text.strip():
        raise InputError(f"{source.label} is blank. Give a file of records")
    layout = _layout(text, read, required, whole=whole)
    source = replace(
        source,
        encoding=encoding,
        delimiter=layout.delimiter,
        quotes=layout.quotes,
        skip=layout.skip,
        named=bool(read.names),
    )
    header, below = layout.header, layout.below
    if not header:
        raise InputError(f"{source.label} is not valid CSV. Close the open quote in the header")
    if len(header) > MOST_COLUMNS:
        raise InputError(f"{source.label} has over {MOST_COLUMNS:,} columns. Give a table of records")
    if whole and not below and not layout.broken:
        raise InputError(f"{source.label} has a header and no records. Give a file of records")
    if below and not header[-1].strip() and all(len(row) == len(header) - 1 for row in below):
        header = header[:-1]
    blank_end = bool(below) and all(len(row) == len(header) + 1 and not row[-1].strip() for row in below)
    lines = max(text.count("\n"), 1)
    rows = lines - 1 + (not text.endswith("\n")) if whole else round(lines * source.bytes / len(head))
    return replace(
        source, columns=tuple(header), blank_end=blank_end, estimated_rows=max(rows - layout.skip + source.named, 1)
    )


@dataclass(frozen=True)
class _Layout:
    delimiter: str
    quotes: Quotes
    skip: int
    header: Sequence[str]
    below: Sequence[Sequence[str]]
    broken: bool
    required: bool
    """The header has every required column."""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Orders layouts: by the required columns, whole rows, and the share of rows that have the header's width."""
        width = len(self.header)
        fitting = sum(len(row) == width or (len(row) == width + 1 and not row[-1]) for row in self.below)
        share = (fitting / len(self.below) if self.below else 1.0) * (width > 1)
        return self.required, share > 0 and not self.broken, share


def _layout(text: str, read: ReadOptions, required: Sequence[str], *, whole: bool) -> _Layout:
    declared = re.match(r"\"?sep=(.)\"?(?:\r\n|\n|\r)", text)  # as Excel writes and reads it
    own = read.separator or (declared and declared[1])
    separators = [own] if own else [",", ";", "\t", "|"]
    layouts = []
    for quotes in [read.quotes] if read.quotes else ["double", "backslash", "none"]:
        for delimiter in separators:
            usual = quotes == "double" or read.quotes or (quotes == "backslash" and '\\"' in text)
            if usual or (quotes == "none" and delimiter in "\t|"):
                skip = (read.skip or 0) + bool(declared)
                rows, broken = _first_rows(text, delimiter, cast(Quotes, quotes), skip, whole=whole)
                at, has = (0, False) if read.skip is not None or read.names else _header_at(rows, required)
                header = read.names or (rows[at][1] if rows else [])
                below = [row for _, row in rows[at + (not read.names) :]]
                skip = rows[at][0] if at else skip
                layouts.append(_Layout(delimiter, cast(Quotes, quotes), skip, header, below, broken, has))
    return max(layouts, key=lambda layout: layout.rank)  # the first of the best


def _first_rows(
    text: str, delimiter: str, quotes: Quotes, skip: int, *, whole: bool
) -> tuple[list[tuple[int, list[str]]], bool]:
    end = 0 if whole else max(text.rfind("\n"), text.rfind("\r")) + 1  # the last line may be cut
    file = io.StringIO(text[: end or None], newline="")
    for _ in range(skip):
        file.readline()
    rows: list[tuple[int, list[str]]] = []
    reader, before = csv.reader(file, **_dialect(delimiter, quotes)), skip
    try:
        for row in reader:
            if row:
                rows.append((before, row))
            before = skip + reader.line_num
            if len(rows) == _LOOKED_AT:
                return rows, False
    except csv.Error:
        return rows, whole or bool(file.read(1))  # a quote may be open where the text was cut
    return rows, False


def _header_at(rows: Sequence[tuple[int, Sequence[str]]], required: Sequence[str]) -> tuple[int, bool]:
    """Returns the place of the header among the first rows, and whether it has the required columns.

    Titles above it have one cell at most.
    """
    for at, (_, row) in enumerate(rows[:_TITLES]):
        if required and set(required) <= set(row):
            return at, True
    filled = [sum(bool(cell.strip()) for cell in row) for _, row in rows[: _TITLES + 1]]
    at = next((at for at, number in enumerate(filled) if number > 1), 0)
    return at, False


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


csv.field_size_limit(LONGEST_LINE)  # Python's default refuses 131,073 characters
