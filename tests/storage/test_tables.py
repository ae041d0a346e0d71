"""Tables in and out: every row once, in bounded pieces, no formula to run, no cell in a message."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import of_kind

from storage.errors import InputError
from storage.tables.formulas import escape_formula
from storage.tables.json_rows import ABSENT
from storage.tables.reader import Table, pieces, survey
from storage.tables.writer import open_writer, output_kind

ROWS = [("1", "fell\nfrom a ladder"), ("2", 'cut "deep", twice'), ("3", ""), ("4", "brûlé")]


def csv_of(
    path: Path, rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("id", "Text")
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def copied(table: Table, path: Path) -> Path:
    with open_writer(path, output_kind(path), table.schema) as write:
        for piece in pieces(table.read(), columns=len(table.columns)):
            write(piece)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_rows_go_through_every_format(tmp_path: Path, suffix: str) -> None:
    """CSV to the format and back gives the same rows: line breaks, quotes, accents and blanks."""
    table = survey(csv_of(tmp_path / "in.csv", ROWS), text_columns=["Text"])
    there = survey(copied(table, tmp_path / f"there{suffix}"), text_columns=["Text"])
    back = survey(copied(there, tmp_path / "back.csv"), text_columns=["Text"])
    assert there.rows == back.rows == len(ROWS)
    assert list(back.read()) == ROWS
    assert list(back.read(["Text"])) == [(text,) for _, text in ROWS]


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    """Dates, decimals, lists, nulls and dictionaries come out as they went in."""
    from datetime import date
    from decimal import Decimal

    table = pa.table(
        {
            "Text": pa.array(["a", None]).dictionary_encode(),
            "day": [date(2026, 1, 2), None],
            "cost": [Decimal("1.50"), Decimal("-2.00")],
            "parts": [["arm", "leg"], []],
            "n": pa.array([1, 2**60], pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    read = survey(tmp_path / "in.parquet", text_columns=["Text"])
    assert pq.read_table(copied(read, tmp_path / "out.parquet")).equals(table)


def test_json_keeps_what_each_record_holds(tmp_path: Path) -> None:
    """Numbers, nested values and missing keys are the same afterwards; a missing key is not a null
    one.
    """
    records: list[dict[str, Any]] = [
        {"Text": "a", "n": 1, "deep": {"x": [1, None]}},
        {"n": 2.5},
        {"Text": None},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("\n\n".join(json.dumps(record) for record in records))
    table = survey(path, text_columns=["Text"])
    assert [text for (text,) in table.text_rows(["Text"])] == ["a", "", ""]
    out = copied(table, tmp_path / "out.jsonl")
    assert [json.loads(line) for line in out.read_text().splitlines()] == records
    assert pq.read_table(copied(table, tmp_path / "out.parquet"))["n"].to_pylist() == [
        "1",
        "2.5",
        None,
    ]


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "+SUM(A1)",
        "-2+3",
        "@x",
        "\t=1",
        "\r=1",
        "  =cmd|' /C calc'!A0",
        "\n=1",
        "＝1+1",
        "-",
        "-x",
    ],
)
def test_a_formula_becomes_text(cell: str, tmp_path: Path) -> None:
    """It gets an apostrophe, in cells and in the header."""
    assert escape_formula(cell) == "'" + cell
    table = survey(csv_of(tmp_path / "in.csv", [("1", cell)], ("id", "=cmd()")), text_columns=[])
    written = copied(table, tmp_path / "out.csv")
    with written.open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["id", "'=cmd()"], ["1", "'" + cell]]


@pytest.mark.parametrize(
    "cell", ["", "-5", "+3.5", "-1e5", "-12 ", "a=b", "fell - hard", "'=1", "3%", "-1,000"]
)
def test_what_is_no_formula_stays(cell: str) -> None:
    assert escape_formula(cell) == cell


@given(st.text())
def test_no_cell_begins_like_a_formula_after_it_was_made_harmless(cell: str) -> None:
    """Whatever the text, its first character that counts is none of the dangerous ones, unless it
    is a number.
    """
    start = escape_formula(cell).lstrip(" \n")[:1]
    if start and start in "=+-@\t\r":
        assert escape_formula(cell).strip(" \n").lstrip("+-")[0].isdigit()


@given(
    # a cell of lines with delimiters may be refused, since an open quote makes the same bytes
    rows=st.lists(
        st.tuples(*[st.text('a"; \t\n\r', max_size=6) | st.text('a",; \t', max_size=6)] * 2).filter(
            any
        ),
        min_size=1,
        max_size=8,
    ),
    ends=st.sampled_from(
        [("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]
    ),
)
def test_whatever_is_written_is_read_and_counted(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], ends: tuple[str, Any]
) -> None:
    """Cells of quotes, delimiters and line breaks come back as they were, and both ways of counting
    agree.
    """
    path = tmp_path_factory.mktemp("any") / "in.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator=ends[0], quoting=ends[1]).writerows([("id", "Text"), *rows])
    table = survey(path, text_columns=["Text"])
    assert (table.rows, list(table.read())) == (len(rows), rows)


def test_pieces_are_bounded_by_cells_and_characters() -> None:
    """10,000 columns make pieces of some hundred rows, narratives of 10 MB pieces of two; nothing
    is lost.
    """
    assert {len(piece) for piece in pieces(iter([("",)] * 3000), columns=10_000)} == {104, 88}
    long = [("x" * 10_000_000,)] * 3
    assert [len(piece) for piece in pieces(iter(long), columns=1)] == [2, 1]
    assert sum(len(piece) for piece in pieces(iter([("a",)] * 5001), columns=2)) == 5001


def test_ten_thousand_columns_and_a_long_narrative(tmp_path: Path) -> None:
    """A wide table and a field far over Python's default limit read whole."""
    names = tuple(f"c{n}" for n in range(10_000))
    wide = survey(
        csv_of(tmp_path / "wide.csv", [tuple("x" * 10_000)] * 3, names), text_columns=["c9999"]
    )
    assert (len(wide.columns), wide.rows) == (10_000, 3)
    long = survey(
        csv_of(tmp_path / "long.csv", [("1", "fell " * 1_000_000)]), text_columns=["Text"]
    )
    assert [len(text) for (text,) in long.read(["Text"])] == [5_000_000]


@pytest.mark.parametrize(
    ("name", "content", "refusal"),
    [
        ("a.csv", b"id,Text\n1,x\n2,secret,z\n", of_kind("field-count", row=2, saying=(3, 2))),
        ("a.csv", b'id,Text\n1,x\n2,"secret\n', of_kind("open-quote", row=2)),
        ("a.csv", b"id,Text\n1,secret\0\n", of_kind("nul-in-header")),
        ("a.csv", b"id,text\n1,secret\n", of_kind("no-column", saying="'text'")),
        ("a.csv", b"secret one,secret two\nx,y\n", of_kind("no-column", saying="first row")),
        (
            "a.csv",
            b"Text,Text\nsecret,y\n",
            of_kind("repeated-column-name", column="Text", saying=2),
        ),
        ("a.csv", b"", of_kind("empty-file")),
        ("a.jsonl", b'{"Text": "secret"}\n["secret"]\n', of_kind("not-an-object", saying="line 2")),
        ("a.jsonl", b'{"Text": "secret"\n', of_kind("invalid-json", saying="line 1")),
        ("a.jsonl", b'{"Text": "\xff secret"}\n', of_kind("json-not-utf-8", saying="line 1")),
        (
            "a.jsonl",
            b'{"Text": ' + b"[" * 100_000 + b"\n",
            of_kind("invalid-json", saying="line 1"),
        ),
        (
            "a.jsonl",
            b'{"Text": ["secret", "b"]}\n',
            of_kind("nested-value", saying=("line 1", "'Text'")),
        ),
        (
            "a.jsonl",
            b'{"Text": [["secret"]]}\n',
            of_kind("nested-value", saying=("line 1", "'Text'")),
        ),
        (
            "a.jsonl",
            b'{"Text": {"a": "secret"}}\n',
            of_kind("nested-value", saying=("line 1", "'Text'")),
        ),
        ("a.jsonl", b'{"Text": "secret \\uD800"}\n', of_kind("half-a-surrogate", saying="line 1")),
        ("a.jsonl", b"\n", of_kind("no-json-records")),
        ("a.parquet", b"PAR1 secret", of_kind("damaged-parquet-file")),
    ],
)
def test_no_table_is_refused_by_row_and_without_cells(
    tmp_path: Path, name: str, content: bytes, refusal: of_kind
) -> None:
    """Before any work, naming file and row."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, check=refusal) as caught:
        survey(tmp_path / name, text_columns=["Text"])
    assert "secret" not in str(caught.value)
    assert name in str(caught.value)


def test_what_stands_for_an_absent_key_is_no_text(tmp_path: Path) -> None:
    """It is read as blank, and a NUL in a cell of JSON or Parquet becomes a blank."""
    path = tmp_path / "in.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(r)
            for r in ({"x": None}, {"x": ABSENT}, {"x": "a\0b"}, {"x": 5}, {"x": True}, {})
        )
    )
    assert [text for (text,) in survey(path, text_columns=["x"]).text_rows(["x"])] == [
        "",
        "",
        "a b",
        "5",
        "true",
        "",
    ]
    pq.write_table(pa.table({"x": ["a\0b", None]}), tmp_path / "in.parquet")
    assert list(survey(tmp_path / "in.parquet", text_columns=["x"]).text_rows(["x"])) == [
        ("a b",),
        ("",),
    ]
