"""A crosswalk is of two named versions, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.crosswalk import crosswalk_files, read_crosswalk
from storage.errors import InputError

HEADER = "from_code,to_code,from_version,to_version\n"


def test_codes_are_kept_split_and_missing(tmp_path: Path) -> None:
    """One to one, one to two, none; a repeated row counts once."""
    path = tmp_path / "walk.csv"
    path.write_text(HEADER + "111,1110,2.01,3.01\n132,1321,2.01,3.01\n132,1322,2.01,3.01\n132,1322,2.01,3.01\n")
    walk = read_crosswalk(path, version="2.01")
    assert walk.version == "3.01"
    assert [walk.codes(code) for code in ("111", "132", "999")] == [("1110",), ("1321", "1322"), ()]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (HEADER, "no records"),
        ("from_code,to_code\n1,2\n", "no column 'from_version'"),
        (HEADER + "111,,2.01,3.01\n", "row 1 lacks"),
        (HEADER + "111,1,2.00,3.01\n", "row 1 starts from another version"),
        (HEADER + "111,1,2.01,3.01\n112,1,2.01,3.02\n", "leads to 2 versions"),
        (HEADER + '"111,1,2.01,3.01\n', "is not valid CSV"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """Naming the row or the column."""
    (tmp_path / "walk.csv").write_text(content)
    with pytest.raises(InputError, match=said):
        read_crosswalk(tmp_path / "walk.csv", version="2.01")


def test_the_field_is_named_where_there_are_several(tmp_path: Path) -> None:
    """So that its version is looked for in the right place."""
    (tmp_path / "walk.csv").write_text(HEADER + "111,1,2.00,3.01\n")
    with pytest.raises(InputError, match=r"Give the table for version 2\.01 of nature"):
        read_crosswalk(tmp_path / "walk.csv", version="2.01", field="nature")


FIELDS = ("nature", "event")


def test_each_file_is_of_the_field_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first `=` ends the field: later ones are the file's, and a file of the whole name changes nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/jane")
    for name in ("nature=a.csv", "a.csv"):
        (tmp_path / name).write_text(HEADER)
    given = ["event=~/v=2/nature=b.csv", "nature=a.csv"]
    assert crosswalk_files(given, FIELDS) == {"event": Path("/home/jane/v=2/nature=b.csv"), "nature": Path("a.csv")}
    assert crosswalk_files(["nature=nature=a.csv"], FIELDS) == {"nature": Path("nature=a.csv")}
    assert crosswalk_files([], FIELDS) == crosswalk_files([], [""]) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["walk.csv"],
            "walk.csv: this bundle codes nature, event. Name the file's field, such as --crosswalk nature=",
        ),
        (["v=2.csv"], "such as --crosswalk nature=v=2.csv"),
        (["walks/v=3.csv"], "such as --crosswalk nature=walks/v=3.csv"),
        (["nature"], "such as --crosswalk nature=nature"),
        (["part=part.csv"], "this bundle has no field part. Give one of nature, event"),
        (["Nature=walk.csv"], "this bundle has no field Nature. Give one of nature, event"),
        (["=walk.csv"], "this bundle codes nature, event. Name the file's field"),
        (["event="], "no file is named. Give event=FILE"),
        (["event=a.csv", "nature=b.csv", "event=c.csv"], "event=c.csv: event has two files. Give one per field"),
        (["nature=a.csv", "nature=a.csv"], "nature=a.csv: nature has two files"),
    ],
)
def test_a_file_of_no_field_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], said: str
) -> None:
    """With what to give in its place; a name with `=` that is a file's is told from a field's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v=2.csv").write_text(HEADER)
    with pytest.raises(InputError, match=r"^--crosswalk: ") as refused:
        crosswalk_files(given, FIELDS)
    assert said in str(refused.value)


def test_of_the_only_field_a_file_may_be_called_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before there were several; a field's name before it, or two files, are refused with advice."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nature=a.csv").write_text(HEADER)
    for name in ("nature=a.csv", "walk.csv", "walks/v=2.csv"):
        assert crosswalk_files([name], [""]) == {"": Path(name)}
    with pytest.raises(InputError, match=r"no file part=b\.csv\. .*so give the file alone \(--crosswalk b\.csv\)"):
        crosswalk_files(["part=b.csv"], [""])
    with pytest.raises(InputError, match=r"this bundle codes one field. Give one file"):
        crosswalk_files(["a.csv", "b.csv"], [""])
