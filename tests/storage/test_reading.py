"""Files as agencies have them: each is read right, or refused with the true cause, and no message
has a cell.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import of_kind
from workbooks import workbook

from storage.errors import InputError
from storage.tables import csv_rows, reader, source
from storage.tables.csv_layout import dialect, open_source
from storage.tables.inputs import kept
from storage.tables.options import ReadOptions
from storage.tables.reader import MissingValues, open_table, read_small

ROWS = [
    (str(n), f"The welder, aged {20 + n}, fell from a step", ("0111", "132")[n % 2])
    for n in range(12)
]
HEADER = ("id", "text", "code")


def written(
    separator: str = ",", rows: Sequence[Sequence[str]] = ROWS, header: Sequence[str] = HEADER
) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator).writerows([header, *rows])
    return file.getvalue()


def read(
    path: Path, content: bytes | str, columns: Sequence[str] = HEADER, **options: object
) -> list[tuple[str, ...]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    table = open_table(path, columns, read=ReadOptions.model_validate(options))
    rows = list(table.text_rows(columns))
    assert table.rows == len(rows)
    return rows


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text, _: text,
        lambda text, sep: f"Table 3{sep * 2}\r\nProvisional{sep * 2}\r\n{sep * 2}\r\n{text}",
        lambda text, _: f"Injuries 2024\r\n\r\n{text}",
        lambda text, sep: text.replace("\r\n", f"{sep}\r\n").replace(
            f"code{sep}\r\n", "code\r\n", 1
        ),
        lambda text, sep: text.replace("code\r\n", f"code{sep}\r\n", 1),
        lambda text, sep: f"sep={sep}\r\n{text}",
        lambda text, _: text.replace("\r\n", "\r"),
        lambda text, _: "\ufeff" + text,
    ],
    ids=[
        "plain",
        "titles",
        "title of one cell",
        "blank field more",
        "blank name more",
        "sep=",
        "CR",
        "BOM",
    ],
)
def test_a_layout_is_found_by_what_fits(
    tmp_path: Path, separator: str, change: Callable[[str, str], str]
) -> None:
    assert read(tmp_path / "in.csv", change(written(separator), separator)) == ROWS


def test_a_comma_in_a_name_and_another_separator(tmp_path: Path) -> None:
    """The separator is that of the rows, also where the header has more of another sign."""
    header = ("id", "libelle, court, ou long", "code")
    assert read(tmp_path / "in.csv", written(";", header=header), header) == ROWS
    text = "Text\nfell; broke an arm\ncut; bled\n"
    assert read(tmp_path / "one.csv", text, ["Text"]) == [("fell; broke an arm",), ("cut; bled",)]


@pytest.mark.parametrize("separator", ["\t", "|"])
def test_quotes_that_are_text(tmp_path: Path, separator: str) -> None:
    """In files of tabs, as NEISS publishes: a cell that begins with a quotation ends at the
    separator.
    """
    rows = [*ROWS, ("12", '"BALL HIT HEAD" DX: LAC', "111"), ("13", '5" nail', "111")]
    text = "\n".join(separator.join(row) for row in [HEADER, *rows])
    assert read(tmp_path / "in.txt", text) == rows
    with pytest.raises(InputError, check=of_kind("open-quote", row=15, saying="quotes=")):
        read(tmp_path / "in.txt", text + f'\n1{separator}"open{separator}1', quotes="double")


def test_quotes_behind_a_backslash(tmp_path: Path) -> None:
    """As MySQL and Spark write them."""
    text = written().replace("a step", 'a \\"step\\"').replace("\r\n", "\n")
    assert read(tmp_path / "in.csv", text)[0][1].endswith('from a "step"')


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"]
)
def test_packed_files(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """By their first bytes, whatever they are called; a cut one is said to be."""
    packed = pack(written("|").encode())
    assert read(tmp_path / "in.csv", packed) == ROWS
    assert read(tmp_path / "in.jsonl.gz", pack(json.dumps({"text": "a"}).encode()), ["text"]) == [
        ("a",)
    ]
    with pytest.raises(InputError, check=of_kind("not-unpackable")):
        read(tmp_path / "cut.csv.gz", packed[:-9])


@pytest.mark.parametrize("name", ["in.csv", "data/in.txt", "in.tsv"])
def test_a_zip_of_any_text(tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for entry in (name, "__MACOSX/._in.csv", ".DS_Store", "readme.pdf"):
            archive.writestr(entry, written("\t"))
    assert read(tmp_path / "in.zip", packed.getvalue()) == ROWS


def test_a_workbook(tmp_path: Path) -> None:
    """Whole numbers have no point, titles are above, and of several sheets one is named."""
    rows = [
        ("Injuries 2024", "", ""),
        ("", "", ""),
        HEADER,
        *((float(a), b, float(c)) for a, b, c in ROWS),
    ]
    told = [(a, b, str(int(c))) for a, b, c in ROWS]
    assert read(tmp_path / "in.xlsx", workbook(rows)) == told
    assert read(tmp_path / "in.xlsx", workbook(rows, [])) == told, "an empty sheet is none"
    with pytest.raises(
        InputError, check=of_kind("sheet-not-chosen", saying=("'S1', 'S2'", "--read sheet=…"))
    ):
        read(tmp_path / "in.xlsx", workbook(rows, [("note", "x")]))
    assert read(tmp_path / "in.xlsx", workbook([("note", "x")], rows), sheet="S2") == told
    with pytest.raises(InputError, check=of_kind("unreadable-workbook")):
        read(tmp_path / "in.xlsx", workbook(rows).replace(b"</sheetData>", b"<sheetData>"))


def test_json_in_an_array(tmp_path: Path) -> None:
    """Of any layout; a number with more digits than a float has keeps them, or is named."""
    records = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    for indent in (None, 2):
        assert read(tmp_path / "in.json", json.dumps(records, indent=indent)) == ROWS
    assert read(tmp_path / "in.csv", json.dumps(records)) == ROWS, "by its content"
    assert read(tmp_path / "in.json", json.dumps({"count": 12, "results": records})) == ROWS, (
        "as services answer"
    )
    many = json.dumps(records * 5_000)
    assert len(many) > 3 << 20
    assert len(read(tmp_path / "in.json", many)) == 60_000
    for content, refusal in (
        (json.dumps(records)[:-9], of_kind("invalid-json")),
        (json.dumps([*records, ["PLANTED"]]), of_kind("not-an-object", saying="record 13")),
        (json.dumps({"columns": [], "data": []}), of_kind("not-an-array")),
        ('[{"text": NaN}]', of_kind("nan")),
        ('[{"text": 0.4e00669999999999999999999}]', of_kind("invalid-json")),
    ):
        with pytest.raises(InputError, check=refusal):
            read(tmp_path / "in.json", content, ["text"])


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"<!DOCTYPE html>\n<html>", of_kind("other-format", saying="HTML page")),
        (b"%PDF-1.7", of_kind("other-format", saying="PDF")),
        (b"7z\xbc\xaf'\x1c", of_kind("other-format", saying="7z archive")),
        (b"SQLite format 3\0", of_kind("other-format", saying="SQLite database")),
        (
            "text,code\n1,2\n".encode("utf-16"),
            of_kind("utf-32", saying="--read encoding=utf-16"),
        ),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, content: bytes, refusal: of_kind) -> None:
    with pytest.raises(InputError, check=refusal):
        read(tmp_path / "in.csv", content)


def test_lines_in_two_encodings_are_named(tmp_path: Path) -> None:
    """Not read as one of them in silence; an option reads what cannot be reported, such as a Mac's
    or DOS's letters.
    """
    text = written().splitlines()
    mixed = b"\r\n".join(
        [text[0].encode(), "1,café,1".encode("cp1252"), *["2,café,1".encode()] * 6]
    )
    with pytest.raises(InputError, check=of_kind("damaged-utf-8", saying=("1 damaged", "line 2"))):
        read(tmp_path / "in.csv", mixed)
    mixed = b"\r\n".join(
        [text[0].encode(), *["1,café,1".encode("cp1252")] * 7, "2,café,1".encode()]
    )
    with pytest.raises(
        InputError,
        check=of_kind("two-encodings", saying=("line 9", "lines 2, 3, 4, 5, 6 and 2 more")),
    ):
        read(tmp_path / "in.csv", mixed)
    for encoding in ("cp850", "mac_roman", "utf-16", "utf-8"):
        assert read(
            tmp_path / "in.csv", "text\ncafé\n".encode(encoding), ["text"], encoding=encoding
        ) == [("café",)]


def test_options_in_place_of_looking(tmp_path: Path) -> None:
    """Another separator, lines above, a file without a header."""
    text = "a note, with, commas\n" + written("~").split("\r\n", 1)[1]
    told = read(tmp_path / "in.csv", text, separator="~", skip=1, names=HEADER)
    assert told == ROWS
    with pytest.raises(InputError, check=of_kind("field-count", row=1, saying=(3, 2))):
        read(tmp_path / "in.csv", text, ["a"], separator="~", skip=1, names=["a", "b"])
    for wrong in (
        {"separator": ",,"},
        {"encoding": "utf-9"},
        {"encoding": "base64"},
        {"names": ["a", "a"]},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ReadOptions.model_validate(wrong)


def test_bad_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    """Rows of another width, each counted; a quote that is open to the end hides rows."""
    good = ["1,a,x", "2,b,y", "3,c,z"]
    text = "\n".join(["id,text,code", good[0], "4,too,many,PLANTED", good[1], good[2], "6,few"])
    path = tmp_path / "in.csv"
    with pytest.raises(
        InputError, check=of_kind("field-count", row=2, saying=("4 fields", "bad_rows=skip"))
    ):
        read(path, text)
    assert read(path, text, bad_rows="skip") == [tuple(row.split(",")) for row in good]
    table = open_table(path, HEADER, read=ReadOptions(bad_rows="skip"))
    assert (table.rows, table.skipped) == (3, 2)
    assert "2 bad rows skipped" in table.reading[0]
    with pytest.raises(InputError, check=of_kind("open-quote")):
        read(
            path, "\n".join(["id,text,code", *good, '4,"open,x', "5,e,z", "6,f,z"]), bad_rows="skip"
        )
    records = [json.dumps({"text": text}) for text in "abc"]
    assert (
        len(
            read(tmp_path / "in.jsonl", "\n".join([*records, "[]", "{"]), ["text"], bad_rows="skip")
        )
        == 3
    )


def test_several_files_are_one_table(tmp_path: Path) -> None:
    """One header check, a count a file; the columns' order may differ, and each file has the named
    ones.
    """
    (tmp_path / "a.csv").write_text(written(rows=ROWS[:5]))
    (tmp_path / "b.csv").write_text(written(";", [row[::-1] for row in ROWS[5:]], HEADER[::-1]))
    (tmp_path / "c.csv").write_text(written(header=("id", "text", "codes")))
    table = open_table([tmp_path / "a.csv", tmp_path / "b.csv"], ["text"])
    assert list(table.read()) == ROWS
    assert [row for batch in table.texts(["code", "id"]) for row in batch.to_pylist()] == [
        {"code": code, "id": number} for number, _, code in ROWS
    ]
    assert [line.split(",")[0] for line in table.reading] == ["a.csv: 5 rows", "b.csv: 7 rows"]
    assert not table.changed()
    with pytest.raises(InputError, check=of_kind("no-column", column="code", saying="c.csv")):
        open_table([tmp_path / "a.csv", tmp_path / "c.csv"], ["text", "code"])
    with pytest.raises(InputError, check=of_kind("repeated-file")):
        open_table([tmp_path / "a.csv", tmp_path / "a.csv"], ["text"])
    (tmp_path / "b.csv").write_text(written(rows=ROWS[5:]))
    assert table.changed()


def test_marks_of_missing_values_are_blank_and_counted(tmp_path: Path) -> None:
    """By column and mark; a code of the list that looks like one stays."""
    path = tmp_path / "in.csv"
    path.write_text("text,code\nfell,NA\nNULL,111\n. ,111\ncut,nan\nN/A pain,-\n")
    table = open_table(path, ["text", "code"])
    marks = table.marks({"-"})
    assert list(table.text_rows(["text", "code"], marks)) == [
        *(("fell", ""), ("", "111"), ("", "111"), ("cut", ""), ("N/A pain", "-"))
    ]
    assert (
        marks.sentence
        == "read as blank, by column: 'text': NULL (1), . (1); 'code': NA (1), nan (1)"
    )
    assert not MissingValues(()).sentence


def odd(text: str, **more: object) -> dict[str, Any]:
    return {"text": text} | more


PLAIN = written()
ODD: dict[str, dict[str, Any]] = {
    "header again": odd(PLAIN + written(rows=[]), note="1 repeated headers left out"),
    "files put together": odd(
        PLAIN[: PLAIN.index("5,")]
        + "\ufeff"
        + PLAIN.replace(PLAIN[: PLAIN.index("5,")], PLAIN[:14])
    ),
    "carets": odd(written("^")),
    "tildes": odd(written("~")),
    "R's row names": odd(
        "\n".join(["text,code", *(f'"{n}","{t}",{c}' for n, (_, t, c) in enumerate(ROWS, 1))])
    ),
    "a total": odd(PLAIN + "Total,,12\n", note="Its last row looks like a total"),
    "line ends of three kinds": odd(PLAIN.replace("\r\n", "\n", 3).replace("\n1", "\r1", 1)),
}


@pytest.mark.parametrize("name", ODD)
def test_files_that_no_one_expects(tmp_path: Path, name: str) -> None:
    """Put together, exported with row numbers, ended by a total: read as meant, or the dry run says
    so.
    """
    path = tmp_path / "in.csv"
    path.write_text(ODD[name]["text"], encoding="utf-8", newline="")
    table = open_table(path, ["text", "code"])
    rows = list(table.text_rows(["text", "code"]))
    assert [row for row in rows if row[0]] == [row[1:] for row in ROWS]
    assert list(open_table(path, ["text"]).text_rows(["text"])) == [row[:1] for row in rows]
    assert ODD[name].get("note", "") in table.reading[0]


def test_a_second_reading_leaves_out_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that is not kept in memory, where a repeated header shows only beside its other
    cells.
    """
    monkeypatch.setattr(reader, "_IN_MEMORY", 0)
    text = written(rows=[*ROWS, ("13", "text", "code"), HEADER, ("id", "text", "7")])
    rows = read(tmp_path / "in.csv", text, ["text"])
    assert rows == [*(row[1:2] for row in ROWS), ("text",), ("text",)]


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (
            b"text" + b" " * 30 + b"code\n" + b"fell; cut" + b" " * 25 + b"1\n" * 9,
            of_kind("no-column", saying="widths="),
        ),
        (
            "text,code\ncafé brûlé,1\n".encode("cp850") * 9,
            of_kind("signs-inside-words", saying="lines 2, 4, 6, 8, 10 and 4 more"),
        ),
        (
            "text,code\ncafé brûlé,1\n".encode("mac_roman") * 9,
            of_kind("signs-inside-words", saying=("cp850", "mac_roman")),
        ),
        ("text,code\na,1\n".encode("utf-32"), of_kind("utf-32", saying="UTF-32")),
        ("text,code\nfell,1\n".encode("utf-16-le"), of_kind("utf-16", saying="utf-16-le")),
        (b"<table><tr><td>text</td></tr></table>", of_kind("other-format", saying="HTML or XML")),
        (bytes(257) + b"ustar" + bytes(300), of_kind("other-format", saying="tar archive")),
        (b"\x1f\x9d\x90abc", of_kind("other-format", saying="packed with compress")),
    ],
)
def test_the_cause_is_the_true_one(tmp_path: Path, content: bytes, refusal: of_kind) -> None:
    with pytest.raises(InputError, check=refusal):
        read(tmp_path / "in.csv", content, ["text", "code"])


def _as_csv_reads(path: Path) -> bool:
    """Refused, or the rows of Python's csv under the layout that the table names; returns which."""
    try:
        table = open_table(path, [])
    except InputError:
        return False
    lines = io.StringIO(
        path.read_bytes().decode(table.source.encoding).removeprefix("\ufeff"), newline=""
    )
    for _ in range(table.source.first_line):
        lines.readline()
    rows = [
        row
        for row in csv.reader(lines, **dialect(table.source.delimiter, table.source.quotes))
        if row
    ]
    width, names = len(table.columns), list(table.columns)
    again = [
        n
        for n, row in enumerate(rows)
        if [cell.removeprefix("\ufeff") for cell in row[:width]] == names
    ]
    assert table.source.repeated == tuple(again)
    rows = [row for n, row in enumerate(rows) if n not in again]
    assert list(table.read()) == [tuple(row[:width]) for row in rows]
    assert not any("".join(row[width:]).strip() for row in rows)
    return True


KINDS = {
    "quoted line feed": 'id,text\n1,"fell\nfrom a step"\n2,cut\n',
    "quoted CRLF": 'id,text\r\n1,"fell\r\nfrom a step"\r\n2,cut\r\n',
    "quotes within quotes": 'id,text\n1,"said ""fell"""\n2,""""\n',
    "quotes and separator at an end": 'id,text\n1,"a,"\n2,",b"\n3,","\n',
    "quoted nothing": 'id,text\n1,""\n2,cut\n',
    "short rows": "id,text,code\n1,fell\n2,cut,111\n",
    "long rows": "id,text\n1,fell,x\n2,cut\n",
    "header alone": "id,text\n",
    "header without an end": "id,text",
    "separator at every end": "id,text,\n1,fell,\n2,cut,\n",
    "separator at the end of rows": "id,text\n1,fell,\n2,cut,\n",
    "CRLF, CR and LF": "id,text\r\n1,fell\r2,cut\n3,burned\r\n",
    "CR alone": "id,text\r1,fell\r2,cut\r",
    "mark of the encoding": "\ufeffid,text\n1,fell\n",
    "mark and a quoted header": '\ufeff"id","text"\n"1","fell"\n',
    "header with separator and quotes": '"id, number","text ""free"""\n1,fell\n2,cut\n',
    "header with a line feed": '"id\nnumber",text\n1,fell\n2,cut\n',
    "empty lines": "id,text\n\n1,fell\n\n\n2,cut\n\n",
    "lines of blanks": "id,text\n  \n1,fell\n",
    "lines of comments": "# of 2023\nid,text\n1,fell\n2,cut\n",
    "comment behind the header": "id,text\n# of 2023\n1,fell\n",
    "long cell": f'id,text\n1,"{"fell, " * 60_000}"\n2,cut\n',
    "quote within a cell": 'id,text\n1,a 5" pipe\n2,cut\n',
    "text behind a quote": 'id,text\n1,"fell"ing\n2,cut\n',
    "open quote": 'id,text\n1,"fell\n2,cut\n',
    "blanks around quotes": 'id,text\n1, "fell" \n2,cut\n',
    "separators in quotes alone": 'id;text\n1;"a,b,c"\n2;"d,e,f"\n',
    "a header twice": "id,id\n1,fell\n",
    "no header for a column": "id,\n1,fell\n",
}
REFUSED = {
    *("short rows", "long rows", "header alone", "header without an end", "lines of blanks"),
    *("comment behind the header", "open quote", "no header for a column"),
}
"""The others are read."""


@pytest.mark.parametrize("name", KINDS)
def test_kinds_that_other_readers_are_tried_with(tmp_path: Path, name: str) -> None:
    """Written anew after the kinds in the tests of duckdb and frictionless."""
    path = tmp_path / "in.csv"
    path.write_bytes(KINDS[name].encode())
    assert _as_csv_reads(path) == (name not in REFUSED)


SIGNS = 'a1",;|\t\\ \n\r'


@given(st.text(SIGNS, max_size=60), st.sampled_from([",", ";", "\t", "|"]))
def test_accepted_is_what_csv_reads(
    tmp_path_factory: pytest.TempPathFactory, content: str, separator: str
) -> None:
    """Whatever follows a header."""
    path = tmp_path_factory.mktemp("any") / "in.csv"
    path.write_bytes(f"id{separator}text\n1{separator}a\n{content}".encode())
    _as_csv_reads(path)


@pytest.mark.parametrize("separator", ["\t", "|", "^", "~", "$"])
def test_one_stray_quote_leaves_no_other(tmp_path: Path, separator: str) -> None:
    """As in NFIRS' files: cells that begin and end with a quote lose them, and the stray row is
    named; quotes inside stay.
    """
    rows = [(f'"{n}"', f'"fell on a ""step"" {n}"', f'"{code}"') for n, _, code in ROWS]
    stray = ('"12"', '"struck by a 5" bar""', '"111"')
    header = [f'"{name}"' for name in HEADER]
    path = tmp_path / "in.txt"
    told = read(path, "\n".join(separator.join(row) for row in [header, *rows, stray]))
    assert told[0] == ("0", 'fell on a "step" 0', "0111")
    assert told[-1] == ("12", 'struck by a 5" bar"', "111")
    table = open_table(path, HEADER)
    assert (table.strays, table.source.quotes) == ((13,), "outer")
    assert read(path, path.read_bytes(), quotes="outer") == told


@pytest.mark.parametrize("pad", [" {} ", '" {} "', '"{}"', "\u00a0{}"])
def test_names_of_columns_that_are_padded(tmp_path: Path, pad: str) -> None:
    header = "|".join(pad.format(name) for name in HEADER)
    text = "\n".join([header, *("|".join(row) for row in ROWS), header])
    assert read(tmp_path / "in.txt", text) == ROWS, "a repeated header is none of the records"


def test_files_with_a_column_more(tmp_path: Path) -> None:
    """As agencies add each year, in any order: the named columns are read, and the
    others counted.
    """
    first, second = tmp_path / "2023.csv", tmp_path / "2024.csv"
    first.write_text("text,code\na,1\n")
    second.write_text("year,code,text\n2024,2,b\n")
    table = open_table([first, second], ["text", "code"])
    assert list(table.text_rows(["text", "code"])) == [("a", "1"), ("b", "2")]
    assert [part.apart for part in table.files] == [0, 1]
    second.write_text("year,text\n2024,b\n")
    with pytest.raises(InputError, check=of_kind("no-column", column="code")):
        open_table([first, second], ["text", "code"])


def test_parquet_files_of_several_types(tmp_path: Path) -> None:
    """A code that is a number in one year and a text in the other is read as text."""
    for name, codes in (("a", [111, 132]), ("b", ["111", "S72"])):
        pq.write_table(pa.table({"text": ["x", "y"], "code": codes}), tmp_path / f"{name}.parquet")
    table = open_table([tmp_path / "a.parquet", tmp_path / "b.parquet"], ["text", "code"])
    assert [code for (code,) in table.text_rows(["code"])] == ["111", "132", "111", "S72"]


NESTED = [
    {"id": n, "data": {"text": text}, "annotations": [{"result": [{"value": {"choices": [code]}}]}]}
    for n, (_, text, code) in enumerate(ROWS)
]


def test_nested_json_by_paths_of_keys(tmp_path: Path) -> None:
    """As Label Studio writes it; the refusal names the path to a key of the wanted name."""
    content = json.dumps(NESTED)
    paths = ["data.text", "annotations.0.result.0.value.choices"]
    assert read(tmp_path / "in.json", content, paths) == [(text, code) for _, text, code in ROWS]
    with pytest.raises(InputError, check=of_kind("no-column", saying="data.text")):
        open_table(tmp_path / "in.json", ["text"])
    several = json.dumps([{"text": "a", "labels": ["1", "2"]}])
    with pytest.raises(InputError, check=of_kind("nested-value")):
        read(tmp_path / "in.json", several, ["text", "labels"])
    assert read(tmp_path / "in.json", several, ["text", "labels.0"]) == [("a", "1")]


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"\x03\x7c\x01\x0f" + bytes(60), of_kind("other-format", saying="dBase file")),
        (gzip.compress(b"X\n\0\0\0\x03\0\x04", mtime=0), of_kind("other-format", saying="R file")),
        (gzip.compress(b"RDX3\nX\n\0\0", mtime=0), of_kind("other-format", saying="R file")),
        (bytes(8) + b"DUCK" + bytes(90), of_kind("other-format", saying="DuckDB database")),
        (b"Obj\x01\x04\x14avro.codec", of_kind("other-format", saying="Avro file")),
        (b"\x80\x04\x95\x10\0\0\0", of_kind("other-format", saying="pickle")),
        (b"\x93NUMPY\x01\0", of_kind("other-format", saying="NumPy array")),
        (b"\x89HDF\r\n\x1a\n", of_kind("other-format", saying="HDF5 file")),
    ],
)
def test_other_programs_files_are_named(tmp_path: Path, content: bytes, refusal: of_kind) -> None:
    with pytest.raises(InputError, check=refusal):
        read(tmp_path / "in.dat", content)


def yearly(folder: Path) -> Path:
    years = folder / "years"
    years.mkdir()
    for n in (2024, 2023):
        (years / f"{n}.csv").write_text(f"text,code\nfell in {n},1\n")
    for name in (".DS_Store", "~$2023.csv", "Thumbs.db"):
        (years / name).write_text("x")
    return years


def test_a_folder_is_one_table(tmp_path: Path) -> None:
    """Its files are read in the order of their names, each counted; what programs leave is not."""
    table = open_table(yearly(tmp_path), ["text"])
    assert [row[0] for row in table.text_rows(["text"])] == ["fell in 2023", "fell in 2024"]
    assert [line[:16] for line in table.reading] == ["2023.csv: 1 rows", "2024.csv: 1 rows"]


@pytest.mark.parametrize(
    ("name", "content", "refusal"),
    [
        ("2025.csv", "text,kode\ncut,1\n", of_kind("no-column", column="code", saying="2025.csv")),
        ("2025.pdf", "%PDF-1.7", of_kind("other-format", saying=("2025.pdf", "PDF"))),
        (
            "2025.jsonl",
            '{"text": "cut", "code": "1"}\n',
            of_kind("mixed-formats", saying="2025.jsonl"),
        ),
    ],
)
def test_a_file_of_a_folder_that_is_no_part_of_the_table(
    tmp_path: Path, name: str, content: str, refusal: of_kind
) -> None:
    years = yearly(tmp_path)
    (years / name).write_text(content)
    with pytest.raises(InputError, check=refusal):
        open_table(years, ["text", "code"])


def test_folders_that_are_no_table(tmp_path: Path) -> None:
    years = yearly(tmp_path)
    with pytest.raises(InputError, check=of_kind("repeated-file")):
        open_table([years, years / "2023.csv"], ["text"])
    with pytest.raises(InputError, check=of_kind("folder-of-folders"), match=r"\b1\b"):
        open_table(tmp_path, ["text"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, check=of_kind("empty-folder")):
        open_table(tmp_path / "empty", ["text"])
    with pytest.raises(InputError, check=of_kind("folder")):
        read_small(years, ["text"], option="code list")


def test_few_blocks_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's threads would read 32 blocks of 16 MiB before the first is used."""
    monkeypatch.setattr(csv_rows, "LONGEST_RECORD", 1 << 12)
    reads = []
    read_block = csv_rows._Bytes.read

    def counted(stream: csv_rows._Bytes, size: int = -1) -> bytes:
        content = read_block(stream, size)
        reads.append(len(content))
        return content

    monkeypatch.setattr(csv_rows._Bytes, "read", counted)
    path = tmp_path / "in.csv"
    path.write_text("id,text\n" + "".join(f"{n},fell from step {n}\n" for n in range(40_000)))
    rows = 0
    for taken, batch in enumerate(csv_rows.csv_batches(open_source(path), None), start=1):
        rows += batch.num_rows
        assert len(reads) <= taken + csv_rows._AHEAD + 1
    assert rows == 40_000
    assert len(reads) > 200, "the file has many blocks"


_EXIT_AMID_READING = """
import sys, time
from pathlib import Path
from storage.tables import csv_rows
from storage.tables.csv_layout import open_source
read_next = csv_rows._Bytes._next
reading = False
def read_slowly(stream, size):
    global reading
    reading = True
    until = time.monotonic() + 1
    while time.monotonic() < until:
        time.sleep(0.001)
    return read_next(stream, size)
csv_rows.LONGEST_RECORD = 1 << 16
csv_rows._Bytes._next = read_slowly
batches = csv_rows.csv_batches(open_source(Path(sys.argv[1])), None)
for batch in batches:
    if reading:
        raise SystemExit(2)
"""


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_a_process_that_exits_while_arrow_reads_ahead(tmp_path: Path, encoding: str) -> None:
    """A thread of Arrow is in Python then. The status is that of the exit, and nothing else is
    printed; without waiting for the thread the process aborts.
    """
    path = tmp_path / "in.csv"
    rows = "".join(f"{n},fell from step {n} of a café\n" for n in range(60_000))
    path.write_text(f"id,text\n{rows}", encoding=encoding)
    done = subprocess.run(
        [sys.executable, "-c", _EXIT_AMID_READING, str(path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_lines_of_fixed_widths_in_several_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "_CUT_AT_ONCE", 1000)
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{n:06}fell from step {n:<10}\n" for n in range(500)))
    reading = ReadOptions(widths=(6, 40), names=("id", "text"))
    found = list(open_table(path, ["id", "text"], read=reading).text_rows(["id", "text"]))
    assert found == [(f"{n:06}", f"fell from step {n}") for n in range(500)]


def test_what_is_read_only_once(tmp_path: Path) -> None:
    """It is named as that, since a table is read several times; a kept stream leaves no file."""
    with pytest.raises(InputError, check=of_kind("read-once", saying="standard input")):
        open_table(Path("-"), HEADER)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, check=of_kind("read-once"), match=r"is a pipe"):
        open_table(pipe, HEADER)
    writer = Thread(target=pipe.write_text, args=("text,code\nfell,1\n",))
    writer.start()
    with kept(pipe, tmp_path) as file:
        table = open_table(file, ["text"])
        assert list(table.text_rows(["text"])) == [("fell",)]
        assert table.reading[0].startswith("standard input: 1 rows")
        assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    writer.join()


def test_a_kept_workbook(tmp_path: Path) -> None:
    """A program of its own reads it, too."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(workbook([["text"], ["fell"]]),))
    writer.start()
    with kept(pipe, tmp_path) as file:
        assert list(open_table(file, ["text"]).text_rows(["text"])) == [("fell",)]
    writer.join()


@pytest.mark.parametrize("name", ["new.dta", "old.dta", "in.sav", "in.por", "in.xpt"])
def test_files_of_statistical_programs(tmp_path: Path, name: str) -> None:
    """Stata of two ages, SPSS and SAS: whole numbers as such, days without a time,
    missing blank.
    """
    pyreadstat = pytest.importorskip("pyreadstat")
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "text": ["fell", "cut", "slipped"],
            "code": [111.0, None, 132.0],
            "day": pandas.to_datetime(["2024-01-31", "2024-02-01", "2024-02-02"]),
        }
    )
    path = tmp_path / name
    write = {
        ".dta": pyreadstat.write_dta,
        ".sav": pyreadstat.write_sav,
        ".por": pyreadstat.write_por,
        ".xpt": pyreadstat.write_xport,
    }[path.suffix]
    write(frame, str(path), **({"version": 8} if name == "old.dta" else {}))
    table = open_table(path, [])
    columns = {column.lower(): column for column in table.columns}
    rows = list(table.text_rows([columns[name] for name in ("text", "code", "day")]))
    assert rows[:2] == [("fell", "111", "2024-01-31"), ("cut", "", "2024-02-01")]
    assert "values and not their labels" in table.reading[0]


def test_a_statistical_file_without_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(InputError, check=of_kind("needs-export"), match=r"Stata"):
        read(tmp_path / "in.dta", b"r\x02\x01\0\x02\0" + bytes(100))
