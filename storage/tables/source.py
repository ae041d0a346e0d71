"""Recognises the format of a file of records, and opens its bytes.

No message contains a cell: errors of libraries quote the faulty line, so they are caught, and
replaced outside their handlers so that no exception chain leads to them.
"""

import bz2
import codecs
import difflib
import gzip
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
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.errors import Contradiction, InputError, Missing, OutOfRange, Unreadable
from storage.extras import install_command
from storage.tables import guarded
from storage.tables.inputs import STREAM, is_stream, title_of
from storage.tables.options import Quotes, ReadOptions

T = TypeVar("T")
Kind = Literal["csv", "parquet", "jsonl", "npz"]
Container = Literal["plain", "zip", "gzip", "bzip2", "xz", "workbook", "statistics"]

JSON_LINES: Final = {".jsonl", ".ndjson"}
MOST_COLUMNS = 100_000
MOST_EXPANSION, SMALL = 200, 64 << 20
"""Maximum expansion factor of a packed file, unless it is small."""
HEAD = 1 << 18
"""Number of first bytes with which a file is recognised."""
_BOOK_MEMORY = 4 << 30
AS_CSV: Final = ("workbook", "statistics")
"""Containers that a subprocess with limited memory converts to CSV in UTF-8."""
_MAGIC = 1 << 10
_PACKED: Final[dict[bytes, Container]] = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of an archive; the second is that of an empty one. A CSV may begin with `PK`, such as
a column of keys.
"""
UNPACK_FAULTS = (
    *(
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        RuntimeError,
        ValueError,
        OSError,
        struct.error,
    ),
)
"""Errors that the libraries raise for a damaged archive, whose offsets they follow."""
_OTHER_FORMATS: Final = {
    b"%PDF": "a PDF. Ask for the data as CSV or XLSX",
    rb"\{\\rtf": "a text document. Save the table as CSV",
    rb"\(\xb5/\xfd": "packed with Zstandard. Unpack it, or pack it with gzip",
    b"7z\xbc\xaf": "a 7z archive. Unpack it",
    b"Rar!": "a RAR archive. Unpack it",
    b"SQLite format 3": "a SQLite database. Export the table as CSV",
    b"\0\1\0\0Standard ": "an Access database. Export the table as CSV",
    b"ARROW1": "a Feather file. Write it as Parquet",
    b"FEA1": "a Feather file. Write it as Parquet",
    b"ORC": "an ORC file. Write it as Parquet",
    b"\x1f\x9d": "packed with compress. Unpack it, or pack it with gzip",
    b"version https://git-lfs": "a pointer of Git LFS, not the file. Fetch it with git lfs pull",
    rb"\s*<(?i:!doctype|html|head|body)": (
        "an HTML page, so the download failed or asks to log in. Fetch it again"
    ),
    rb"\s*<[?A-Za-z][^,;|]{0,80}>": (
        "HTML or XML. Open it in a spreadsheet, and save the table as XLSX or CSV"
    ),
    rb"[\x03\x04\x05\x30\x31\x32\x43\x63\x83\x8b\xcb\xf5\xfb]"
    rb".[\x01-\x0c][\x01-\x1f](?=.{0,28}\0)": ("a dBase file. Export it as CSV"),
    rb"[XAB]\n\0\0\0[\x02\x03]|RD[XAB][23]\n": (
        "an R file. Write the data frame as CSV or Parquet"
    ),
    rb".{8}DUCK": "a DuckDB database. Export the table as Parquet or CSV",
    rb"Obj\x01": "an Avro file. Write it as Parquet",
    rb"\x80[\x02-\x05][\x95}\]c(KX]": (
        "a pickle, which is never opened: it could run a program. Write it as Parquet"
    ),
    rb"MZ.\0": "a program or an archive that unpacks itself. Unpack it and give the table's path",
    rb"\x93NUMPY": "a NumPy array. Write the table as Parquet or CSV",
    rb"\x89HDF": "an HDF5 file. Write the table as Parquet or CSV",
    rb"MATLAB 5|MATLAB 7": "a MATLAB file. Write the table as CSV",
    rb"\xff\xff\xff\xff.{2}\0\0": "an Arrow stream. Write it as Parquet",
    rb"\x89PNG|\xff\xd8\xff|GIF8|II\*\0|MM\0\*": "a picture. Ask for the data as CSV or XLSX",
    rb"\x04\x22\x4d\x18": "packed with LZ4. Unpack it, or pack it with gzip",
    rb"(?:\.\./|/).{0,200}annex/objects": (
        "a pointer of git-annex, not the file. Fetch it with git annex get"
    ),
    rb".{257}ustar": "a tar archive. Unpack it and give the table's path",
}
_STATISTICS: Final = {
    b"<stata_dta>|[\x69-\x73][\x01\x02]\x01\x00": "Stata",
    rb"\$FL[23]": "SPSS",
    rb".{0,60}ASCII SPSS PORT FILE": "SPSS portable",
    rb"HEADER RECORD\*{7}": "SAS transport",
    b"\0{12}\xc2\xea\x81\x60": "SAS",
}
"""Files that pyreadstat reads, if it is installed."""
_XLS = b"\xd0\xcf\x11\xe0"
_PARQUET = b"PAR1"
"""First bytes of a Parquet file. A CSV may also begin like this, but continues as text."""
_TEXTS = {".csv", ".txt", ".tsv", ".tab", ".psv", ".dat", ".json", *JSON_LINES}


def to_arrow(values: NDArray[Any] | Sequence[Any]) -> pa.Array:
    """Converts numbers, truth values or texts to Arrow. `pa.array` would import pandas, which takes
    a second.
    """
    if not isinstance(values, np.ndarray):
        texts = [(value or "").encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        valid = np.packbits(
            np.array([value is not None for value in values], np.bool_), bitorder="little"
        )
        return pa.StringArray.from_buffers(
            len(texts), *map(pa.py_buffer, (ends, b"".join(texts), valid))
        )
    packed = (
        np.packbits(values, bitorder="little")
        if values.dtype == np.bool_
        else np.ascontiguousarray(values)
    )
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(packed)]
    )


_READ_BY: Final = {
    **dict.fromkeys(("code list", "--codelist", "--groups"), "--read-codelist"),
    "SECOND": "--read-second",
}
"""Options that change how a table is read, by the option that specifies the table."""


class SeveralSheets(InputError):
    """A workbook has rows in several sheets, and none was chosen."""

    def __init__(self, message: str, names: Sequence[str], *, kind: str = "") -> None:
        super().__init__(message, kind=kind)
        self.names = tuple(names)


@dataclass(frozen=True)
class Source:
    path: Path
    kind: Kind
    columns: tuple[str, ...]
    """Names without outer whitespace and quotes."""
    bytes: int
    """Size after unpacking, if known."""
    rows: int = 1
    """Estimated from the first bytes; exact for Parquet."""
    member: str | None = None
    """Name of the file inside the ZIP, or of the workbook's sheet."""
    encoding: str = "utf-8"
    delimiter: str = ","
    option: str = "data"
    """Option that specified the file, for messages."""
    container: Container = "plain"
    quotes: Quotes = "double"
    header_line: int | None = 0
    """Lines above the header. None: there is no header, and an option names the columns."""
    first_line: int = 0
    """Lines above the first record."""
    blank_end: bool = False
    """Whether every row ends in one more blank field than the header."""
    array: bool = False
    """Whether the JSON is one array instead of lines."""
    skips_bad_rows: bool = False
    repeated: tuple[int, ...] = ()
    """Numbers of the rows, from 0, that repeat the header."""
    written: tuple[str, ...] = ()
    """Names of the columns as written in the header, if it is text."""
    nested: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    """For JSON with nested values in its first record: the path to each required key, if any."""
    widths: tuple[int, ...] = ()
    """Width of each column in characters, if the file has fixed widths."""
    encoded_twice: int = 0
    """Number of letters that look like UTF-8 that was read as cp1252 and saved as UTF-8 again."""
    beside: int = 0
    """Number of further files."""

    @property
    def name(self) -> str:
        more = f" and {self.beside} more" if self.beside else ""
        inside = "" if self.member is None else f" ({self.member})"
        return f"{title_of(self.path)}{inside}{more}"

    @property
    def read_option(self) -> str:
        """The option that changes how this file is read."""
        return _READ_BY.get(self.option, "--read")

    @property
    def label(self) -> str:
        return f"{self.option}: {self.name}"

    @property
    def reading(self) -> str:
        packed = "" if self.container == "plain" else f"{self.container}, "
        if self.kind != "csv":
            return packed + {"jsonl": "a JSON array" if self.array else "JSON Lines"}.get(
                self.kind, self.kind
            )
        if self.container == "statistics":
            layout = f"file of {self.member}, values and not their labels"
        elif self.container == "workbook":
            layout = f"workbook, sheet {self.member}" if self.member else "workbook"
        else:
            quotes = {
                "double": "doubled quotes",
                "backslash": "quotes behind \\",
                "none": "quotes as text",
                "outer": "quotes off the ends of cells",
            }
            shown = {"\t": "tab", ",": "comma", ";": "semicolon"}.get(
                self.delimiter, self.delimiter
            )
            layout = f"{packed}{self.encoding}, separator {shown}, {quotes[self.quotes]}"
            if self.widths:
                layout = f"{packed}{self.encoding}, {len(self.widths)} columns of fixed widths"
        header = f"header in line {self.header_line + 1}" if self.header_line else "header first"
        return f"{layout}, {'no header' if self.header_line is None else header}"

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Opens the bytes of the text, which are unpacked while they are read."""
        if self.container in AS_CSV:
            with _open_guarded(self) as file:
                yield file
        elif self.container == "zip":
            with (
                zipfile.ZipFile(self.path) as archive,
                archive.open(cast(str, self.member)) as file,
            ):
                yield cast(IO[bytes], file)
        else:
            opened = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}.get(
                self.container, open
            )
            with opened(self.path, "rb") as file:
                yield cast(IO[bytes], file)


def recognise(path: Path, option: str, read: ReadOptions) -> tuple[Source, bytes]:
    """Recognises a file by its first bytes; also returns these, unpacked. The columns of text files
    are not determined here.
    """
    if path.is_dir():
        raise Unreadable(f"{option}: {path} is a folder. Specify a file", kind="folder")
    if is_stream(path):
        what = "standard input" if path == STREAM else "a pipe"
        raise Unreadable(
            f"{option}: {path} is {what}, which can be read only once. Save it to a file first",
            kind="read-once",
        )
    if not path.is_file():
        raise Missing(f"{option}: no file {path}", kind="no-data-file", option=option)
    size = path.stat().st_size
    if size == 0:
        raise Missing(
            f"{option}: {title_of(path)} is empty. Use a file of records",
            kind="empty-file",
            option=option,
        )
    with path.open("rb") as file:
        magic = file.read(16)
    if magic.startswith(_PARQUET) and (
        path.suffix.lower() == ".parquet" or (magic[4:5] < b" " and magic[4:5] not in b"\t\r\n")
    ):
        return _parquet(path, option), b""
    source = Source(path, "csv", (), size, option=option, skips_bad_rows=read.bad_rows == "skip")
    name = path
    for first, container in _PACKED.items():
        if magic.startswith(first):
            source, name = replace(source, container=container), path.with_suffix("")
    if magic.startswith(_XLS):
        source = replace(source, container="workbook", member=read.sheet)
    elif magic.startswith(_ZIP):
        source = _archive(source, read)
        name = Path(source.member or path.name)
    if source.container == "plain":
        source = _statistics(source)
    head = read_safely(source, lambda: _head(source))
    for first, what in _OTHER_FORMATS.items():
        if re.match(first, head, re.DOTALL):
            raise Unreadable(f"{source.label} is {what}", kind="other-format")
    if source.container not in AS_CSV and (kind := _json_kind(head, name.suffix.lower())):
        rows = 1 if kind == "array" else max(round(head.count(b"\n") * size / len(head)), 1)
        source = replace(source, kind="jsonl", array=kind == "array", rows=rows)
    return source, head


def _statistics(source: Source) -> Source:
    with source.path.open("rb") as file:
        head = file.read(_MAGIC)
    for first, program in _STATISTICS.items():
        if re.match(first, head, re.DOTALL):
            if find_spec("pyreadstat") is None:
                raise Unreadable(
                    f"{source.label} is a file of {program}. Export it as CSV or Parquet, or "
                    f"install the extra that reads it: {install_command('stats')}",
                    kind="needs-export",
                )
            return replace(source, container="statistics", member=program)
    return source


def _json_kind(head: bytes, suffix: str) -> Literal["array", "lines"] | None:
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if re.match(rb"\[\s*[\{\]]", start):
        return "array"
    if suffix in JSON_LINES:
        return "lines"
    first, _, more = start.partition(b"\n")
    if re.match(rb'\{\s*["\}]', first) and (suffix != ".json" or more.lstrip().startswith(b"{")):
        try:
            return "lines" if isinstance(json.loads(first), dict) else None
        except (ValueError, RecursionError):
            pass
    return "array" if suffix == ".json" else None


def require_columns(
    source: Source, required: Sequence[str], column_options: Mapping[str, str] | None = None
) -> None:
    """Refuses a source in which a column is missing or repeated.

    The message contains the column with its option, a similar column, and columns with common
    names, but nothing else, because a damaged header may contain part of a record.
    """
    for name in required:
        count = source.columns.count(name)
        if count > 1:
            raise Contradiction(
                f"{source.label} has {count} columns {name!r}. Rename all but one",
                kind="repeated-column-name",
                column=name,
            )
        if count == 1:
            continue
        header, usual = like_header(source.columns), _usual(source.columns)
        alike = (column for column in source.columns if header and len(column) <= len(name) + 2)
        folded = {column.strip().casefold(): column for column in alike}
        near = difflib.get_close_matches(name.strip().casefold(), list(folded), n=1, cutoff=0.8)
        shown = [repr(column) for column in source.columns[:60] if usual or column in required]
        hints = [f"Did you mean {folded[near[0]]!r}?"] if near else []
        if header and shown:
            hints.append(f"It has {len(source.columns)} columns, {', '.join(shown)} among them.")
        elif not near:
            hints.append(
                f"None of its {len(source.columns)} columns is recognised (its first row is not "
                "shown, since it may be "
                "a record; if it is one, put column names above it)."
            )
        if source.nested:
            inside = [path for path in source.nested.values() if path]
            hints = [
                "Its keys are nested: name a value by its path of keys, such as "
                f"{inside[0] if inside else 'data.text'}, or export records that are flat "
                "(JSON-MIN or CSV of Label Studio)"
            ]
        if len(source.columns) == 1 and source.kind == "csv":
            hints.append(
                "None of , ; tab | ^ ~ $ separates its rows; of fixed widths give them: "
                f"{source.read_option} 'widths=[5,8,60]' and its names=[…]."
            )
        if not near and source.kind == "csv":
            hints.append(
                f"It was read as {source.reading}: {source.read_option} separator=…, skip=… and "
                "names=… change "
                "that"
            )
        by = f" ({column_options[name]})" if column_options and name in column_options else ""
        raise Missing(
            f"{source.label} has no column {name!r}{by}. {' '.join(hints)}",
            kind="no-column",
            column=name,
        )


def like_header(columns: Sequence[str]) -> bool:
    """Whether a first row may be shown as column names. A narrative, a number or a date suggests
    that it is a record.
    """
    return all(
        len(name) <= 64 and "\n" not in name and not re.fullmatch(r"\s*[\d.,:/ -]+\s*", name)
        for name in columns
    )


_USUAL = frozenset(
    {
        "age",
        "category",
        "class",
        "code",
        "codes",
        "date",
        "description",
        "diagnosis",
        "event",
        "id",
        "industry",
        "job",
    }
    | {
        "label",
        "labels",
        "name",
        "narrative",
        "nature",
        "number",
        "occupation",
        "product",
        "sex",
        "soc",
        "text",
    }
    | {"title", "unit", "version", "year"}
)


def _usual(columns: Sequence[str]) -> bool:
    return (
        len(columns) > 1
        and all(set(re.findall(r"[a-z]+", name.casefold())) & _USUAL for name in columns)
        and all(len(name.split()) <= 3 for name in columns)
    )


def read_safely(source: Source, action: Callable[[], T]) -> T:
    """Runs a library's reading and replaces its error by one that quotes no cell.

    This is a function and not a context manager, because an error that is raised while another one
    is handled keeps that one as its context.
    """
    try:
        return action()
    except UNPACK_FAULTS as error:
        if source.container == "plain":
            raise
        packed = {"zip": "ZIP", "workbook": "workbook"}.get(
            source.container, f"{source.container} file"
        )
        fault = (
            f"the {packed} cannot be unpacked ({type(error).__name__}). Unpack it manually "
            "or fetch it again"
        )
    raise Unreadable(f"{source.label}: {fault}", kind="not-unpackable")


def _parquet(path: Path, option: str) -> Source:
    rows, columns = 0, ()
    try:
        with pq.ParquetFile(path) as file:
            rows, columns = file.metadata.num_rows, tuple(file.schema_arrow.names)
        readable = True
    except (pa.ArrowException, OSError, ValueError):  # ValueError: a column's name is not UTF-8
        readable = False
    if not readable:
        raise Unreadable(
            f"{option}: {title_of(path)} starts like Parquet but is damaged. Fetch it again",
            kind="damaged-parquet-file",
            option=option,
        )
    if rows == 0:
        raise Missing(
            f"{option}: {title_of(path)} has columns and no records. Use a file of records",
            kind="parquet-without-records",
            option=option,
        )
    return Source(path, "parquet", columns, path.stat().st_size, rows, option=option)


def _archive(source: Source, read: ReadOptions) -> Source:
    label, members = f"{source.option}: {title_of(source.path)}", None
    try:
        with zipfile.ZipFile(source.path) as archive:
            members = archive.infolist()
    except UNPACK_FAULTS:
        pass
    if members is None:
        raise Unreadable(
            f"{label} starts like a ZIP but is damaged. Fetch it again", kind="damaged-zip"
        )
    names = {member.filename for member in members}
    if names & {"xl/workbook.xml", "xl/workbook.bin"} or {"content.xml", "mimetype"} <= names:
        return replace(source, container="workbook", member=read.sheet)
    visible = [
        m for m in members if not m.is_dir() and not re.search(r"(^|/)(\.|__MACOSX/)", m.filename)
    ]
    tables = [m for m in visible if Path(m.filename).suffix.lower() in _TEXTS]
    csvs = [m for m in tables if m.filename.lower().endswith(".csv")] if len(tables) > 1 else tables
    if len(csvs or tables) != 1:
        shown = ", ".join(m.filename for m in (csvs or tables)[:5])
        if tables:
            raise Contradiction(
                f"{label} contains {len(csvs or tables)} tables ({shown}). Leave "
                "only one in it, or unpack it and specify their paths",
                kind="several-tables",
            )
        raise Missing(
            f"{label} contains no CSV or other table of text. Pack the CSV, or specify its path",
            kind="no-table-in-zip",
        )
    (table,) = csvs or tables
    if table.flag_bits & 0x1:
        raise Unreadable(
            f"{label} is encrypted. Unpack it and specify the path of the table",
            kind="encrypted-zip",
        )
    if table.file_size > max(SMALL, MOST_EXPANSION * table.compress_size):
        times = table.file_size // max(1, table.compress_size)
        raise Unreadable(
            f"{label} decompresses to {times:,} times its size. Unpack it and "
            "specify the path of the table",
            kind="zip-bomb",
        )
    return replace(source, container="zip", member=table.filename, bytes=table.file_size)


@contextmanager
def _open_guarded(source: Source) -> Iterator[IO[bytes]]:
    program = [
        sys.executable,
        "-I",
        guarded.__file__,
        source.container,
        str(_BOOK_MEMORY),
        str(source.path.absolute()),
    ]
    with subprocess.Popen(
        [*program, source.member or ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            yield cast(IO[bytes], child.stdout)
        finally:
            child.stdout.close()  # ends the program if not everything was read
            report, status = child.stderr.read().decode(errors="replace"), child.wait()
    if status == guarded.SHEETS:
        names = json.loads(report)
        raise SeveralSheets(
            f"{source.option}: {title_of(source.path)}: its sheets with rows are "
            f"{', '.join(map(repr, names))}. Choose one with {source.read_option} "
            "sheet=…",
            names,
            kind="sheet-not-chosen",
        )
    what = "the workbook" if source.container == "workbook" else f"the file of {source.member}"
    place = f"{source.option}: {title_of(source.path)}"
    if status == 1:
        raise OutOfRange(
            f"{place}: it takes over {_BOOK_MEMORY >> 30} GB to read. Save it as CSV",
            kind="workbook-too-large",
        )
    if status:
        raise Unreadable(
            f"{place}: {what} is damaged, locked by a password, or none. Save it as CSV",
            kind="unreadable-workbook",
        )


def _head(source: Source) -> bytes:
    with source.open() as file:
        return file.read(HEAD)
