"""Would win: rows that vanish in one cell, memory that a small file unfolds to, a setting that YAML
reads otherwise.
"""

import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from refusals import of_kind

from flows.commands.ledger_options import home_of_plan
from mechanisms.errors import MechanismError
from mechanisms.model import encoders
from storage import strict_yaml
from storage.errors import InputError
from storage.ledger import policy as ledger_policy
from storage.tables import csv_rows, encodings, json_rows, reader, source
from storage.tables.options import ReadOptions
from storage.tables.reader import survey
from tasks.coding.quality import draw, text_column

DECLARES = """
a file is read whole or refused, in bounded memory
| open quotes that swallow 1 to 11 rows in six forms of CSV; cells, lines and records of many lines,
of gigabytes, in CSV, ZIP and JSON; lists, objects and keys by the million; Parquet of many rows, or
of large cells, lists and dictionaries; a sample with its columns twice, or of a table that was
never coded
| one column alone, where an open quote looks like a text of several lines; two rows without a
number, date or code  settings are what is written
| aliases that unfold, depth, size, tags, merges; 30 keys that YAML reads as another type, and 13
numbers that it reads as others
| a `.md` card's head, which the gate reads by its own rules  a model folder neither hangs the
loader nor fetches code
| layers and sizes of 0, -1, 1e8, 1e30, text or none, at two places; attention by a program from
elsewhere
| configurations that are slow in other ways
"""

ROWS = {
    "number first": ("id,Text", "{n},PLANTED narrative {n}"),
    "number last": ("Text,code", "PLANTED narrative {n},{n}11"),
    "date, text, code": ("day,Text,code", "1/{n}/2026,PLANTED narrative {n},111"),
    "five": ("id,day,Text,code,site", "C-{n},2026-01-{n},PLANTED narrative {n},111,dock"),
    "words alone": ("job,Text", "nurse,PLANTED narrative {n}"),
    "semicolons": ("id;Text;code", "{n};PLANTED narrative {n};111"),
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("closed", [1, 2, 3, 6, 11])
@pytest.mark.parametrize("form", ROWS.values(), ids=ROWS)
def test_an_open_quote_swallows_rows(
    tmp_path: Path, form: tuple[str, str], closed: int, ends: str
) -> None:
    """A quote at a cell's start and another at a cell's end rows below make one valid cell, which
    `code` took.
    """
    header, row = form
    delimiter = ";" if ";" in header else ","
    lines = [row.format(n=n) for n in range(10, 23)]
    at = header.split(delimiter).index("Text")
    for place, before, after in ((0, '"', ""), (closed, "", '"')):
        cells = lines[place].split(delimiter)
        cells[at] = before + cells[at] + after
        lines[place] = delimiter.join(cells)
    if closed == 1 and "job" in header:
        pytest.skip("two rows of words alone are a text of two lines: not promised")
    path = tmp_path / "in.csv"
    path.write_text(ends.join([header, *lines]), newline="")
    with pytest.raises(
        InputError, check=of_kind("swallowed-records", saying=("row 1", closed + 1))
    ) as caught:
        survey(path, text_columns=["Text"])
    assert "PLANTED" not in str(caught.value)


@pytest.mark.parametrize("bad_rows", ["refuse", "skip"])
def test_an_open_quote_to_the_end(tmp_path: Path, bad_rows: Any) -> None:
    """In the last cell of a row every row behind it is one text of a record that
    has all its cells.
    """
    rows = "".join(f"PLANTED, narrative {n},{n}11\n" for n in range(3))
    (tmp_path / "in.csv").write_text('code,Text\n1,a\n2,b\n3,"a' + rows.replace(",", " "))
    with pytest.raises(InputError, check=of_kind("open-quote", row=3)) as caught:
        survey(tmp_path / "in.csv", text_columns=["Text"], read=ReadOptions(bad_rows=bad_rows))
    assert "PLANTED" not in str(caught.value)


TEXTS = {
    "two lines": "Fell from a ladder.\nBroke a leg, and an arm",
    "a list": "Injuries:\n1. wrist\n2. ankle",
    "an address": "Fell at\n12 Dock Road, Harbour",
    "paragraphs": "He fell.\n\nHe was found, later.\n\nHe died.",
    "many commas": "cuts, burns\nand, more, cuts\nand burns",
    "blank ends": "\nfell\n",
    "a quotation": 'He said "it, broke"\nand fell',
    "one line": "fell, and broke a leg",
    "four lines with a comma each": "Fell, hard\nbroke, twice\nbled, much\nlater, died",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_of_several_lines_is_read(tmp_path: Path, text: str) -> None:
    """The control: what writers of CSV make of texts comes back whole."""
    import csv

    path = tmp_path / "in.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "Text"), *((str(n), text) for n in range(1, 6))])
    assert [row[1] for row in survey(path, text_columns=["Text"]).read()] == [text] * 5


def _zip(content: bytes, folder: Path) -> Path:
    with zipfile.ZipFile(folder / "in.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in.csv", content)
    return folder / "in.zip"


def _file(name: str) -> Callable[[bytes, Path], Path]:
    def write(content: bytes, folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


LONG = b"x" * (3 << 20)
LINES = b'"' + b"x" * (1 << 16) + b'\n",'
CELLS: dict[str, tuple[bytes, Callable[[bytes, Path], Path]]] = {
    "a cell": (b"id,Text\n1," + LONG + b"\n", _file("in.csv")),
    "a quoted cell": (b'id,Text\n1,"' + LONG + b'"\n', _file("in.csv")),
    "a quoted cell of short lines": (
        b'id,Text\n1,"' + b"x, y, z\n" * (1 << 19) + b'"\n',
        _file("in.csv"),
    ),
    "a cell without an end": (b'id,Text\n1,"' + LONG, _file("in.csv")),
    "a cell nobody reads": (b"id,Text," + b"other\n1,a," + LONG + b"\n", _file("in.csv")),
    "a cell in cp1252": (b"id,Text\n1,\xe9" + LONG + b"\n", _file("in.csv")),
    "a record of long cells": (b"id,Text\n1," + LINES * 50, _file("in.csv")),
    "a record of short cells": (b"id,Text\n" + b'"x\n",' * (1 << 20), _file("in.csv")),
    "a record that ends": (b"id,Text\n" + LINES * 50 + b"1\n2,a\n", _file("in.csv")),
    "a packed record of long cells": (b"id,Text\n1," + LINES * 50, _zip),
    "carriage returns alone": (b"id,Text\r1," + LONG + b"\r", _file("in.csv")),
    "blanks": (b"id,Text\n1,a" + b" " * (3 << 20) + b"\n", _file("in.csv")),
    "a packed cell": (b"id,Text\n1," + LONG + b"\n", _zip),
    "a packed quoted cell": (b'id,Text\n1,"' + LONG + b'"\n', _zip),
    "packed rows": (b"id,Text\n" + b"1,a\n" * (1 << 16), _zip),
    "packed blank lines": (b"id,Text\n1,a\n" + b"\n" * (1 << 18), _zip),
    "a line of JSON": (b'{"Text": "' + LONG + b'"}\n', _file("in.jsonl")),
    "a key of JSON": (b'{"' + LONG + b'": 1}\n', _file("in.jsonl")),
    "a number of JSON": (b'{"Text": ' + b"1" * (3 << 20) + b"}\n", _file("in.jsonl")),
    "a list of JSON": (b'{"Text": "a", "b": [' + b"[]," * (1 << 20) + b"[]]}\n", _file("in.jsonl")),
    "blanks of JSON": (b" " * (3 << 20) + b'{"Text": "a"}\n', _file("in.jsonl")),
}


@pytest.mark.parametrize(("content", "write"), CELLS.values(), ids=CELLS)
def test_a_cell_of_gigabytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    write: Callable[[bytes, Path], Path],
) -> None:
    """With smaller limits: refused by the line, or by how often an archive unfolds, and never held
    whole.
    """
    for module in (csv_rows, json_rows):
        monkeypatch.setattr(module, "LONGEST_RECORD", 2 << 20)
    for module in (encodings, source):
        monkeypatch.setattr(module, "SMALL", 1 << 16)
    with pytest.raises(
        InputError, check=of_kind("long-line", "row-too-long", "zip-bomb", "expands-too-far")
    ):
        survey(write(content, tmp_path), text_columns=["Text"])


OBJECTS: dict[str, bytes] = {
    "lists": b'{"Text": "a", "b": [' + b"[]," * (1 << 20) + b"[]]}\n",
    "objects": b'{"Text": "a", "b": [' + b'{"":0},' * (1 << 19) + b"{}]}\n",
    "objects of their own keys": b'{"Text": "a", "b": ['
    + b",".join(b'{"%x":0}' % n for n in range(1 << 18))
    + b"]}\n",
    "decimals": b'{"Text": "a", "b": [' + b"1e999," * (1 << 19) + b"0]}\n",
}


@pytest.mark.parametrize("content", OBJECTS.values(), ids=OBJECTS)
def test_a_record_of_more_memory_than_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """A record of JSON, in a line or in an array, may have fewer characters than a row; a sound
    file is as long.
    """
    monkeypatch.setattr(json_rows, "LONGEST_RECORD", 2 << 20)
    monkeypatch.setattr(json_rows, "LONGEST_ARRAY", 2 << 20)
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(InputError, check=of_kind("long-line", row=1, saying="2,097,152")):
        survey(tmp_path / "in.jsonl", text_columns=["Text"])
    (tmp_path / "in.json").write_bytes(b"[" + content + b"]")
    with pytest.raises(InputError, check=of_kind("long-array"), match=r"\b2,097,152\b"):
        survey(tmp_path / "in.json", text_columns=["Text"])
    (tmp_path / "sound.jsonl").write_bytes(b'{"Text": "fell from a ladder"}\n' * 100_000)
    assert survey(tmp_path / "sound.jsonl", text_columns=["Text"]).rows == 100_000


def test_keys_that_are_long_and_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of columns are held to the end, so that all of them together have a limit; columns of a
    CSV have one.
    """
    monkeypatch.setattr(json_rows, "_LONGEST_KEYS", 1 << 20)
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"Text": "a", "{"k" * 10_000}{n}": 1}}\n' for n in range(110))
    )
    with pytest.raises(InputError, check=of_kind("too-many-keys"), match=r"line 105"):
        survey(tmp_path / "in.jsonl", text_columns=["Text"])
    (tmp_path / "in.csv").write_text("Text" + ",x" * 100_000 + "\na" + ",1" * 100_000)
    with pytest.raises(InputError, check=of_kind("too-many-columns", saying="100,000")):
        survey(tmp_path / "in.csv", text_columns=["Text"])


@pytest.mark.parametrize(
    "cell", [[[]] * 100, {"a": [1] * 100}, b"x" * 300, Decimal("1." + "1" * 300)], ids=type
)
def test_rows_whose_cells_are_no_text_are_cut_into_pieces_too(cell: Any) -> None:
    """A piece of 2,048 rows held two thousand lists of a million items each."""
    many = (
        [[cell] * 1000]
        if isinstance(cell, list)
        else cell * 1000
        if isinstance(cell, bytes)
        else [cell] * 1000
    )
    rows = iter([("a", many)] * 200)
    assert len(next(reader.pieces(rows, columns=2))) < 100


_MEASURE = """
import re, sys
from pathlib import Path
from storage.errors import InputError
from storage.tables.reader import pieces, survey
def peak():  # of this program; `getrusage` counts the process that started it too
    status = Path("/proc/self/status").read_text().replace("\\t", " ")
    return int(re.search("VmHWM: *(\\d+)", status)[1])
before = peak()
try:
    table = survey(Path(sys.argv[1]), text_columns=["Text"])
    for piece in pieces(table.read(), columns=len(table.columns)):
        pass
except InputError:
    pass
print((peak() - before) >> 10)
"""
HOSTILE: dict[str, tuple[str, bytes, bytes, int, int]] = {
    "records of cells": ("in.csv", b"id,Text\n", LINES, 3000, 140),
    "rows of lists": (
        "in.jsonl",
        b"",
        b'{"Text":"a","b":[' + b"[]," * (1 << 16) + b"[]]}\n",
        60,
        90,
    ),
    "keys": ("in.jsonl", b'{"Text":"a"}\n', b'{"' + b"k" * (1 << 16) + b'%06d":1}\n', 3000, 60),
}


@pytest.mark.parametrize(
    ("name", "head", "row", "times", "megabytes"), HOSTILE.values(), ids=HOSTILE
)
def test_memory_stays_bounded(
    tmp_path: Path, name: str, head: bytes, row: bytes, times: int, megabytes: int
) -> None:
    """With the true limits, in a process of its own. Without a bound each takes some four times as
    much, and more in longer files.
    """
    with (tmp_path / name).open("wb") as file:
        file.write(head)
        for number in range(times):
            file.write(row % number if b"%" in row else row)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < megabytes


def _parquet(**columns: Any) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(columns), path, compression="zstd")


MANY = 300_000
PARQUET: dict[str, Callable[[Path], None]] = {
    "rows of one word": _parquet(Text=pa.array(["a"]).take(pa.array([0] * MANY))),
    "rows of a dictionary": _parquet(
        Text=pa.array(["a"]).dictionary_encode().take(pa.array([0] * MANY))
    ),
    "rows of nothing": _parquet(Text=pa.nulls(MANY, pa.string())),
    "a large cell": _parquet(Text=["x" * (4 << 20)]),
    "a large cell nobody reads": _parquet(Text=["a"], other=["x" * (4 << 20)]),
    "a large binary cell": _parquet(Text=["a"], other=[b"x" * (4 << 20)]),
    "a large list": _parquet(Text=["a"], other=[[0] * (1 << 20)]),
    "a large word in every row": _parquet(
        Text=pa.array(["x" * (1 << 16)]).take(pa.array([0] * 300))
    ),
    "a large word of a dictionary": _parquet(
        Text=pa.array(["x" * (4 << 20), "a"]).dictionary_encode().take(pa.array([1, 0]))
    ),
}


@pytest.mark.parametrize("write", PARQUET.values(), ids=PARQUET)
def test_parquet_that_unfolds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    """With smaller limits: read once to its end by a program of limited memory, before this one
    reads a row.
    """
    monkeypatch.setattr(reader, "_FEW_ROWS", 1000)
    monkeypatch.setattr(reader, "_PARQUET_BYTES", 2 << 20)
    write(tmp_path / "in.parquet")
    with pytest.raises(InputError, check=of_kind("too-many-rows", "rows-too-large")):
        survey(tmp_path / "in.parquet", text_columns=["Text"])


def test_parquet_that_takes_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's memory ends before the machine's; a sound file passes with the same limit for
    its rows.
    """
    _parquet(Text=["x" * (150 << 20)])(tmp_path / "in.parquet")
    assert (tmp_path / "in.parquet").stat().st_size < 1 << 20
    monkeypatch.setattr(reader, "_PARQUET_MEMORY", 300 << 20)
    monkeypatch.setattr(reader, "_PARQUET_BYTES", 2 << 30)
    with pytest.raises(InputError, check=of_kind("rows-too-large")):
        survey(tmp_path / "in.parquet", text_columns=["Text"])
    _parquet(Text=["fell"] * 300)(tmp_path / "sound.parquet")
    assert survey(tmp_path / "sound.parquet", text_columns=["Text"]).rows == 300


def _laughs(depth: int, width: int, shape: str) -> str:
    lines = ["a0: &a0 x"]
    for n in range(1, depth):
        inner = ", ".join([f"*a{n - 1}"] * width)
        lines.append(
            f"a{n}: &a{n} [{inner}]" if shape == "list" else f"a{n}: &a{n} {{x: [{inner}]}}"
        )
    return "\n".join(lines)


BOMBS = {
    **{
        f"{w}^{d} in a {s}": _laughs(d, w, s)
        for d, w in ((6, 12), (10, 9), (20, 4), (30, 3))
        for s in ("list", "map")
    },
    "long": "x: " + "a" * (1 << 20),
    "deep lists": "x: " + "[" * 60 + "]" * 60,
    "deep maps": "{x: " * 60 + "1" + "}" * 60,
    "deep blocks": "\n".join(" " * n + "x:" for n in range(60)),
    "many values": "x: [" + "1," * 200_000 + "1]",
    "many keys": "\n".join(f"k{n}: 1" for n in range(60_000)),
    "itself": "x: &x [*x, *x]",
    "a tag": "x: !!python/object/apply:os.system [ls]",
    "another tag": "x: !!python/tuple [1]",
    "a set of lists": "x: !!set {[1]: }",
    "two documents": "x: 1\n---\nx: 2",
    "an unknown alias": "x: *y",
    "a merge": "a: &a {x: 1}\nb: {<<: *a}",
    "a merge of two": "a: &a {x: 1}\nb: {<<: [*a, *a]}",
}
KEYS = [
    *(
        "no",
        "No",
        "NO",
        "off",
        "on",
        "yes",
        "y: 1\nYes",
        "true",
        "True",
        "FALSE",
        "null",
        "~",
        "Null",
        "010",
        "0x10",
    ),
    *(
        "0b11",
        "1_000",
        "1.5",
        ".inf",
        ".nan",
        "-.inf",
        "2026-01-01",
        "2026-01-01 10:00:00",
        "+5",
        "-0",
        "1:30",
    ),
    *(
        "[a, b]",
        "{a: b}",
        "? [a]\n",
        "!!bool 'yes'",
        "!!null ''",
        "!!float '1'",
        "''\n'': 2",
        "0o7: 1\n0o7",
    ),
]


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_yaml_that_unfolds(text: str) -> None:
    """Its size, depth and values are counted before one is made, aliases as if they were written
    out.
    """
    with pytest.raises(yaml.YAMLError):
        strict_yaml.load(text)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_yaml_reads_otherwise(key: str) -> None:
    """A population called `no` became False, and the default's cap was used: keys are strings, or
    years as written.
    """
    with pytest.raises(yaml.YAMLError):
        strict_yaml.load(
            f"populations:\n  {key.replace(chr(10), chr(10) + '  ')}: {{epsilon: 0.1}}\n"
        )


NUMBERS = [
    *(
        "1:30",
        "1:5",
        "-1:00",
        "1:30.5",
        "010",
        "-07",
        "0x10",
        "0b11",
        "1_0",
        "1_000",
        "1_0.5",
        "00.5",
        "007",
    )
]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_yaml_reads_otherwise(number: str, tmp_path: Path) -> None:
    """A cap of 1:5, mistyped for 1.5, was one of 65, and 010 one of 8: a policy and a setting
    refuse them by line.
    """
    with pytest.raises(yaml.YAMLError):
        strict_yaml.load(f"epsilon: {number}")
    file = tmp_path / "policy.yaml"
    file.write_text(f"name: p\ndefault:\n  formal: {{epsilon: {number}, delta: 0.00001}}\n")
    with pytest.raises(InputError, check=of_kind("policy-not-yaml", saying="policy.yaml, line 3")):
        ledger_policy.Policy.load(file)


def test_numbers_that_are_read_as_written() -> None:
    """The control: whole, negative, decimal and with an exponent; in quotes, a text."""
    text = "[0, 7, -3, +5, 0.5, -0.25, .5, 1.0e-5, 100, 20260101, '1:30', 2026-01-01]"
    assert strict_yaml.load(text)[:-1] == [
        0,
        7,
        -3,
        5,
        0.5,
        -0.25,
        0.5,
        1e-5,
        100,
        20260101,
        "1:30",
    ]


def test_aliases_and_years_are_read() -> None:
    """The control: an alias is its value, a year a key."""
    assert strict_yaml.load("a: &a [1, 2]\n2026: *a\n'no': 5") == {
        "a": [1, 2],
        "2026": [1, 2],
        "no": 5,
    }


@pytest.mark.parametrize(
    "columns",
    [
        ["qa_row"],
        ["qa_weight"],
        ["human_code"],
        ["Text", "Text"],
        ["Text", "qa_row"],
        ["human_code", "Text"],
    ],
)
def test_a_sample_with_a_column_twice(tmp_path: Path, columns: list[str]) -> None:
    """A table with such columns of its own: refused before a person fills in what no one can read
    back.
    """
    coded = tmp_path / "coded.csv"
    coded.write_text(
        "Text,qa_row,qa_weight,human_code,code,score\nfell,1,1,1,111,0.5\nhit,2,1,1,111,0.5\n"
    )
    with pytest.raises(InputError, check=of_kind("column-in-sample")):
        draw(coded, tmp_path / "out.csv", share=0.5, columns=columns, seed=1)
    assert not (tmp_path / "out.csv").exists()


CONFIGS: list[tuple[str, Any]] = [
    *(
        (key, size)
        for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
        for size in (10**8, -1, 0, 1.5, "12", True, None, [1], 10**30)
    ),
    *(
        (key, way)
        for key in ("_attn_implementation", "attn_implementation")
        for way in (
            "org/kernel",
            "kernels-community/flash-attn",
            "flash_attention_2",
            "",
            1,
            ["sdpa"],
            {},
        )
    ),
]


@pytest.mark.parametrize(("key", "value"), CONFIGS)
@pytest.mark.parametrize("inside", ["", "text_config"])
def test_a_model_that_hangs_or_fetches(
    tiny_roberta: Path, tmp_path: Path, key: str, value: Any, inside: str
) -> None:
    """Layers of a hundred million, or attention by a program from elsewhere: refused before
    loading.
    """
    folder = tmp_path / "model"
    folder.mkdir()
    config = json.loads((tiny_roberta / "config.json").read_text())
    changed = config | {inside: {key: value}} if inside else config | {key: value}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(
        MechanismError, check=of_kind("encoder-setting", "encoder-attention", saying="config.json")
    ):
        encoders.load_encoder(str(folder))


def test_the_same_folder_as_it_was(tiny_roberta: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_roberta, tmp_path / "model")
    assert encoders.load_encoder(str(tmp_path / "model"))


def test_an_archive_whose_directory_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that little is inside: no more than that is read, and the file is refused as damaged
    or cut.
    """
    monkeypatch.setattr(source, "SMALL", 1 << 10)
    content = b"id,Text\n" + b"1,a\n" * 50_000
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in.csv", content)
    size = len(content).to_bytes(4, "little")
    (tmp_path / "in.zip").write_bytes(packed.getvalue().replace(size, (2000).to_bytes(4, "little")))
    with pytest.raises(InputError):
        survey(tmp_path / "in.zip", text_columns=["Text"])


def test_a_plan_of_brackets(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("[" * 100_000)
    with pytest.raises(InputError, check=of_kind("invalid-plan")):
        home_of_plan(plan, None)


def test_a_sample_of_a_table_that_was_never_coded(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("Text\na fall\n")
    with pytest.raises(InputError, check=of_kind("no-column", column="code")):
        text_column(table)
