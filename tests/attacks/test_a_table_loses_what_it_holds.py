"""Would win: rows, digits or keys that vanish between a table and its coded copy; a formula that a
partner runs.
"""

import csv
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import of_kind

from storage.codelist import Code
from storage.egress.allow_list import FILES
from storage.errors import InputError
from storage.tables.formulas import escape_formula, quote, unquote
from storage.tables.reader import Table, pieces, survey
from storage.tables.writer import open_writer, output_kind
from tasks.bundle.fill import codes_text

DECLARES = """
nothing vanishes between a table and its coded copy
| digits, exponents, keys twice, NaN and infinities at any depth, nanoseconds, years and zones that
no calendar has, text that is no UTF-8, first columns that look like another format, formulas as
titles; six marks that some take for a line's end, mixed line ends, null bytes
| a trailing zero of a number in JSON; files in other encodings than UTF-8 and cp1252
"""


def copied(table: Table, path: Path) -> Path:
    with open_writer(path, output_kind(path), table.schema) as write:
        for piece in pieces(table.read(), columns=len(table.columns)):
            write(piece)
    return path


def there_and_back(tmp_path: Path, line: str, suffix: str = ".jsonl") -> Path:
    (tmp_path / "in.jsonl").write_text(line + "\n")
    return copied(survey(tmp_path / "in.jsonl", text_columns=[]), tmp_path / f"out{suffix}")


@pytest.mark.parametrize(
    "number",
    [
        *(
            "0.1234567890123456789",
            "123456789012345678.5",
            "1e400",
            "-1E-400",
            "12345678901234567890123",
        ),
        *("1.0000000000000000001", "-0.0", "2.5", "0.1", "1e22", "9007199254740993.0"),
    ],
)
@pytest.mark.parametrize(
    "shape", ['{{"Text": "a", "n": {}}}', '{{"Text": "a", "n": {{"deep": [{}]}}}}']
)
def test_digits_of_a_number(tmp_path: Path, number: str, shape: str) -> None:
    """Stay, in JSON and in CSV, however deep and however many."""
    out = json.loads(
        there_and_back(tmp_path, shape.format(number)).read_text(),
        parse_float=Decimal,
        parse_int=Decimal,
    )
    value = out["n"] if "deep" not in shape else out["n"]["deep"][0]
    assert value == Decimal(number)
    with there_and_back(tmp_path, shape.format(number), ".csv").open(newline="") as file:
        cell = next(csv.DictReader(file))["n"]
    if "deep" not in shape:
        assert Decimal(cell) == Decimal(number)


@pytest.mark.parametrize(
    "line",
    [
        *(
            '{"Text": "a", "Text": "b"}',
            '{"a": {"b": 1, "b": 2}}',
            '{"a": NaN}',
            '{"a": [-Infinity]}',
        ),
        '{"a": 1, "\\u0061": 2}',
    ],
)
def test_what_json_cannot_say_twice_or_at_all(tmp_path: Path, line: str) -> None:
    """Refused by line: a key that comes twice, NaN, infinities."""
    (tmp_path / "in.jsonl").write_text('{"Text": "x"}\n' + line + "\n")
    kind = "nan" if "NaN" in line or "Infinity" in line else "invalid-json"
    with pytest.raises(InputError, check=of_kind(kind, saying="line 2")):
        survey(tmp_path / "in.jsonl", text_columns=[])


@pytest.mark.parametrize(
    "value", [float("inf"), float("nan"), [float("-inf")], {"a": [float("nan")]}]
)
def test_infinity(tmp_path: Path, value: Any) -> None:
    """Of a Parquet file is null in JSON, at any depth: the result is JSON."""
    pq.write_table(pa.table({"n": [value]}), tmp_path / "in.parquet")
    text = copied(
        survey(tmp_path / "in.parquet", text_columns=[]), tmp_path / "out.jsonl"
    ).read_text()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert "null" in text
    json.loads(text, parse_constant=refuse)


def of(number: int, kind: pa.DataType, store: pa.DataType | None = None) -> pa.Array:
    return pa.array([number], store or pa.int64()).cast(kind)


WHOLE = {
    "a moment": (
        of(1_700_000_000_123_456_789, pa.timestamp("ns")),
        "2023-11-14T22:13:20.123456789",
    ),
    "a moment in a zone": (
        of(1_700_000_000_123_456_789, pa.timestamp("ns", "UTC")),
        "123456789+00:00",
    ),
    "a duration": (pa.array([123_456_789], pa.duration("ns")), "0.123456789S"),
    "a list of moments": (
        pa.array([[1_700_000_000_123_456_789]], pa.list_(pa.timestamp("ns"))),
        "123456789",
    ),
    "an unsigned number": (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
    "a decimal": (pa.array([Decimal("1" * 60 + ".5")]), "1" * 60 + ".5"),
}


@pytest.mark.parametrize(("column", "told"), WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_nanoseconds_and_digits_of_parquet(
    tmp_path: Path, column: pa.Array, told: str, suffix: str
) -> None:
    pq.write_table(pa.table({"n": column}), tmp_path / "in.parquet")
    assert (
        told
        in copied(
            survey(tmp_path / "in.parquet", text_columns=[]), tmp_path / f"out{suffix}"
        ).read_text()
    )


BAD_TEXT = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe")]
)
UNREADABLE = {
    "years over 9999": of(400_000_000_000, pa.timestamp("s")),
    "years before 1": of(-99_999_999_999_999_999, pa.timestamp("us")),
    "a day over 9999": of(10**7, pa.date32(), pa.int32()),
    "an unknown zone": of(1_700_000_000, pa.timestamp("s", "Nowhere/Land")),
    "a zone of 99 hours": of(1_700_000_000, pa.timestamp("s", "+99:00")),
    "text that is no UTF-8": BAD_TEXT,
    "such text in a list": pa.ListArray.from_arrays([0, 1], BAD_TEXT),
    "an unknown zone in a list": pa.ListArray.from_arrays(
        [0, 1], of(1_700_000_000, pa.timestamp("s", "Nowhere/Land"))
    ),
    "a duration without end": pa.array([2**62], pa.duration("s")),
    "nanoseconds of the day": of(1_234_567, pa.time64("ns")),
    "nanoseconds of the day in a list": pa.array([[1_234_567]], pa.list_(pa.time64("ns"))),
}


@pytest.mark.parametrize("column", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("as_text", [True, False], ids=["as text", "beside"])
def test_what_no_calendar_or_alphabet_has(tmp_path: Path, column: pa.Array, as_text: bool) -> None:
    """Is refused by its column, before work, and is no case for a report."""
    pq.write_table(pa.table({"n": column}), tmp_path / "in.parquet")
    with pytest.raises(InputError, check=of_kind("nanoseconds", "unreadable-values", column="n")):
        survey(tmp_path / "in.parquet", text_columns=["n"] if as_text else [])


@pytest.mark.parametrize("column", UNREADABLE.values(), ids=UNREADABLE)
def test_training_refuses_what_coding_would_in_a_column_it_leaves_alone(
    tmp_path: Path, column: pa.Array
) -> None:
    """One file is not taken by one and damaged to the other."""
    from storage.tables.reader import open_table

    pq.write_table(pa.table({"Text": ["fell"], "n": column}), tmp_path / "in.parquet")
    with pytest.raises(InputError, check=of_kind("nanoseconds", "unreadable-values", column="n")):
        list(open_table(tmp_path / "in.parquet", ["Text"]).texts(["Text"]))


def test_training_refuses_damage_in_a_column_it_leaves_alone(tmp_path: Path) -> None:
    from storage.tables.reader import open_table

    whole = pa.table({"Text": ["fell"] * 500, "n": [f"{number:09}" for number in range(500)]})
    pq.write_table(whole, tmp_path / "in.parquet", compression="zstd", use_dictionary=False)
    assert (
        sum(
            batch.num_rows
            for batch in open_table(tmp_path / "in.parquet", ["Text"]).texts(["Text"])
        )
        == 500
    )
    content = bytearray((tmp_path / "in.parquet").read_bytes())
    at = pq.read_metadata(tmp_path / "in.parquet").row_group(0).column(1).data_page_offset
    content[at + 60 : at + 120] = bytes(60)
    (tmp_path / "in.parquet").write_bytes(content)
    with pytest.raises(InputError, check=of_kind("damaged-parquet")):
        list(open_table(tmp_path / "in.parquet", ["Text"]).texts(["Text"]))


@pytest.mark.parametrize("first", ["PK", "PK1", "PK\x05", "PAR1", "PAR1_key", "PAR"])
@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_first_column_that_begins_like_another_format(
    tmp_path: Path, first: str, between: str
) -> None:
    (tmp_path / "in.csv").write_text(f"{first},Text\n1,fell\n2,cut\n".replace(",", between))
    table = survey(tmp_path / "in.csv", text_columns=["Text"])
    assert (table.kind, table.rows) == ("csv", 2)


@pytest.mark.parametrize(
    "title",
    [
        "=HYPERLINK(1)",
        "+x",
        "-x",
        "@x",
        "\t=1",
        "'=1",
        "'",
        "''x",
        "'Other'",
        "plain",
        "",
        "-5",
        "＝1",
    ],
)
def test_a_formula_as_title(tmp_path: Path, title: str) -> None:
    """Is no formula in the bundle's code list, and is the same title again where
    the list is read.
    """
    codes = [Code("1", title), Code(title or "x", "y")]
    (tmp_path / "codelist.csv").write_text(
        codes_text(codes, title, "=1"), encoding="utf-8", newline=""
    )
    with (tmp_path / "codelist.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert all(escape_formula(cell) == cell for cell in cells)
    read = FILES["codelist.csv"].read
    if "\t" not in title:
        assert read("codelist.csv", tmp_path / "codelist.csv") == [
            ("1", title, title, "=1"),
            (title or "x", "y", title, "=1"),
        ]


@given(st.text("'=+-@ \t\r\nx5＝", max_size=5))
def test_every_text_comes_back_from_its_cell(text: str) -> None:
    assert unquote(quote(text)) == text
    assert escape_formula(quote(text)) == quote(text)


@pytest.mark.parametrize(
    "write", [lambda p: p.write_text("code,title,classification,version\n111,=1+1,O,2\n")]
)
def test_a_bundle_of_an_earlier_version(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "codelist.csv")
    assert FILES["codelist.csv"].read("codelist.csv", tmp_path / "codelist.csv") == [
        ("111", "=1+1", "O", "2")
    ]


@pytest.mark.parametrize(
    "mark", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"], ids=lambda c: f"{ord(c):04x}"
)
def test_a_mark_that_some_take_for_the_end_of_a_line(tmp_path: Path, mark: str) -> None:
    """Inside a cell, quoted or not, in CSV and JSON Lines: no row more, none less, and the cell is
    whole.
    """
    from storage.tables.reader import open_table

    cells = [f"fell{mark}from a ladder", "cut", f"{mark}"]
    (tmp_path / "plain.csv").write_text(
        "Text,n\n" + "".join(f"{cell},1\n" for cell in cells), encoding="utf-8"
    )
    (tmp_path / "quoted.csv").write_text(
        "Text,n\n" + "".join(f'"{cell}",1\n' for cell in cells), encoding="utf-8"
    )
    lines = (json.dumps({"Text": cell, "n": 1}, ensure_ascii=False) + "\n" for cell in cells)
    (tmp_path / "lines.jsonl").write_text("".join(lines), encoding="utf-8")
    for name in ("plain.csv", "quoted.csv", "lines.jsonl"):
        assert survey(tmp_path / name, text_columns=["Text"]).rows == 3, name
        table = open_table(tmp_path / name, ["Text"])
        assert [
            cell for batch in table.texts(["Text"]) for cell in batch.column(0).to_pylist()
        ] == cells, name


@pytest.mark.parametrize("end", ["\r", "\r\r\n", "\n\r"], ids=repr)
def test_ends_of_lines_that_are_mixed(tmp_path: Path, end: str) -> None:
    """Every row is there once, or the file is refused; training and coding agree."""
    from storage.tables.reader import open_table

    (tmp_path / "in.csv").write_bytes(
        end.join(["Text,n", "fell,1", "cut,2", "burnt,3"]).encode() + b"\n"
    )
    seen = []
    for read in (
        lambda: survey(tmp_path / "in.csv", text_columns=["Text"]).rows,
        lambda: sum(
            batch.num_rows for batch in open_table(tmp_path / "in.csv", ["Text"]).texts(["Text"])
        ),
    ):
        try:
            seen.append(read())
        except InputError:
            seen.append("refused")
    assert seen in ([3, 3], ["refused", "refused"])


def test_a_null_byte(tmp_path: Path) -> None:
    """In a cell or at the end: refused, or kept; never the end of a text."""
    from storage.tables.reader import open_table

    for content in (b"Text,n\nfell\x00 off,1\ncut,2\n", b"Text,n\nfell,1\ncut,2\n\x00\x00"):
        (tmp_path / "in.csv").write_bytes(content)
        table = tmp_path / "in.csv"
        cells: list[Any] = []
        with suppress(InputError):
            cells = [
                c
                for b in open_table(table, ["Text"]).texts(["Text"])
                for c in b.column(0).to_pylist()
            ]
        assert cells in ([], ["fell\x00 off", "cut"])


@pytest.mark.parametrize("change", ["fell,1\n", "fell,1\ncut,2\nburnt,3\n"], ids=["fewer", "more"])
def test_rows_that_come_or_go_between_count_and_reading(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are counted twice, where they are not held: what was counted and what was read must be
    the same.
    """
    from storage.tables import reader
    from storage.tables.reader import open_table

    monkeypatch.setattr(reader, "_IN_MEMORY", 0)
    (tmp_path / "in.csv").write_text("Text,n\nfell,1\ncut,2\n")
    table = open_table(tmp_path / "in.csv", ["Text"])
    (tmp_path / "in.csv").write_text("Text,n\n" + change)
    with pytest.raises(InputError, check=of_kind("changed-while-read"), match=r"\b2\b"):
        list(table.texts(["Text"]))
