"""Two tables joined by an id: each row with its own, what does not match counted, and repeated ids
refused unless it is said what becomes of them.
"""

import csv
from pathlib import Path

import pytest
from refusals import of_kind

from storage.errors import InputError
from storage.ingest.joining import Joined, join
from storage.tables.options import ReadOptions

REPORTS = "id,text\n101,fell\n102,cut\n103,burned\n"


def joined(
    folder: Path, second: str, first: str = REPORTS, **more: str
) -> tuple[Joined, list[list[str]]]:
    (folder / "first.csv").write_text(first)
    (folder / "second.csv").write_text(second)
    options = {"on": "id"} | more
    done = join(folder / "first.csv", folder / "second.csv", folder / "out.csv", **options)  # pyrefly: ignore[bad-argument-type]
    with (folder / "out.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    return done, rows


def test_each_row_with_its_own(tmp_path: Path) -> None:
    """In any order and spelling of the id."""
    done, rows = joined(tmp_path, "code,id\n132,102.0\n111,000101\n153,999\n")
    assert rows == [["101", "fell", "111"], ["102", "cut", "132"], ["103", "burned", ""]]
    assert done == Joined(rows=3, without_second=1, unused=1, left_out=0)


SEVERAL = "id,code\n101,111\n101,132\n102,153\n,999\n"


def test_several_rows_of_an_id(tmp_path: Path) -> None:
    with pytest.raises(InputError, check=of_kind("repeated-ids"), match=r"\b1\b"):
        joined(tmp_path, SEVERAL)
    assert not (tmp_path / "out.csv").exists()
    done, rows = joined(tmp_path, SEVERAL, several="first")
    assert [row[2] for row in rows] == ["111", "153", ""]
    assert done.left_out == 2
    done, rows = joined(tmp_path, SEVERAL, several="each")
    assert [row[2] for row in rows] == ["111", "132", "153", ""]


def test_columns_of_both_tables(tmp_path: Path) -> None:
    """FAERS has the number of the case in each: equal cells are written once, others refused."""
    first = "id,case,text\n101,7,fell\n102,8,cut\n103,9,burned\n"
    done, rows = joined(tmp_path, "id,case,code\n101,7,111\n102,8,132\n", first)
    assert rows == [
        ["101", "7", "fell", "111"],
        ["102", "8", "cut", "132"],
        ["103", "9", "burned", ""],
    ]
    assert done.rows == 3
    with pytest.raises(InputError, check=of_kind("same-columns")):
        joined(tmp_path, "id,case,code\n101,7,111\n102,9,132\n", first)


def test_each_table_is_read_by_its_own_options(tmp_path: Path) -> None:
    """The second has other signs and titles than the first."""
    (tmp_path / "first.csv").write_text(REPORTS)
    (tmp_path / "second.txt").write_bytes("102*Stöße\n101*Brüche\n".encode("cp850"))
    reading = ReadOptions(separator="*", encoding="cp850", names=("id", "title"))
    out = tmp_path / "out.csv"
    join(tmp_path / "first.csv", tmp_path / "second.txt", out, on="id", read_second=reading)
    with out.open(newline="") as file:
        assert [row["title"] for row in csv.DictReader(file)] == ["Brüche", "Stöße", ""]


@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        ("id,text\n101,a\n101.0,b\n", "id,code\n101,1\n", of_kind("joined-ids", saying="2 rows")),
        ("id,text\n,a\n102,b\n", "id,code\n101,1\n", of_kind("joined-ids", saying="1 ids")),
        (REPORTS, "id,text\n101,x\n", of_kind("same-columns", saying=("1 of", "'id'"))),
        (REPORTS, "key,code\n101,1\n", of_kind("no-column", column="id")),
    ],
)
def test_what_is_refused(tmp_path: Path, first: str, second: str, refusal: of_kind) -> None:
    with pytest.raises(InputError, check=refusal):
        joined(tmp_path, second, first)
