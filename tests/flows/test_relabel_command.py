"""`autocoder relabel`: every row gets its new code in one way that is said, and they add up."""

import json
from collections import Counter
from pathlib import Path

import pytest
from in_process import CommandRunner, invoke
from jobs import read_csv, write_csv

TITLES = {"10": "Fractures of bones", "20": "Heat burns, scalds", "21": "Chemical burns, acid"}
PAIRS = [("1", "10"), ("2", "20"), ("2", "21")]
ROWS = [
    ("1", "Broke his wrist.", "one", "10"),
    ("2", "Acid chemical burns on the hand.", "chosen", "21"),
    ("2", "Scalds, heat burns.", "chosen", "20"),
    ("2", "", "no text", ""),
    ("9", "Fell.", "unknown", ""),
    ("", "Fell.", "blank", ""),
]


@pytest.fixture
def given(tmp_path: Path) -> list[object]:
    listed = [{"code": code, "title": title} for code, title in TITLES.items()]
    pairs = [{"old": old, "new": new} for old, new in PAIRS]
    rows = [{"was": old, "Text": text} for old, text, *_ in ROWS]
    files = {
        "--codelist": write_csv(tmp_path / "new.csv", listed),
        "--correspondence": write_csv(tmp_path / "pairs.csv", pairs),
        "--data": write_csv(tmp_path / "coded.csv", rows),
    }
    words = [word for option, file in files.items() for word in (option, file)]
    more = ("--code", "was", "--text", "Text", "--out", tmp_path / "out.csv")
    return ["relabel", *words, *more, "--home", tmp_path / "none"]


def test_each_row_is_accounted_for(given: list[object], tmp_path: Path) -> None:
    told = json.loads(invoke(*given, "--threshold", "0.5", "--json")[1])
    moved = read_csv(tmp_path / "out.csv")
    assert [(row["new_way"], row["new_code"]) for row in moved] == [row[2:] for row in ROWS]
    assert [row["was"] for row in moved] == [row[0] for row in ROWS]
    assert {row["model_kind"] for row in moved} == {"untrained"}
    assert told["rows"] == sum(told["ways"].values()) == len(ROWS)
    counts = Counter(row["new_way"] for row in moved)
    assert {way: count for way, count in told["ways"].items() if count} == counts
    assert told["needs_review"] == sum(row["needs_review"] == "true" for row in moved) == 3


def test_what_the_titles_are_not_sure_of_goes_to_a_person(
    given: list[object], tmp_path: Path
) -> None:
    """With its best guess; a correspondence to one code needs no score."""
    same = dict.fromkeys(("20", "21"), "Burns")
    rows = [{"code": code, "title": title} for code, title in (TITLES | same).items()]
    write_csv(tmp_path / "new.csv", rows)
    invoke(*given)
    moved = read_csv(tmp_path / "out.csv")
    assert [row["new_way"] for row in moved][:3] == ["one", "doubtful", "doubtful"]
    assert [row["new_code"] for row in moved][:3] == ["10", "20", "20"]
    assert [row["needs_review"] for row in moved][:3] == ["false", "true", "true"]


def test_the_correspondence_is_read_as_it_is_told(given: list[object], tmp_path: Path) -> None:
    pairs = "".join(f"{old};{new}\n" for old, new in PAIRS)
    (tmp_path / "pairs.csv").write_text(f"Published by the office\nold;new\n{pairs}")
    read = ("--read-correspondence", "skip=1", "--read-correspondence", "separator=;")
    invoke(*given, *read, "--threshold", "0.5")
    moved = read_csv(tmp_path / "out.csv")
    assert [(row["new_way"], row["new_code"]) for row in moved] == [row[2:] for row in ROWS]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("pairs.csv", "old,new\n1,77\n", "row 1 has the new code '77'"),
        ("pairs.csv", "from,to\n1,10\n", "old"),
        ("pairs.csv", "old,new\n,\n", "no row with an old and a new code"),
        ("coded.csv", "was,Text,new_code\n1,x,y\n", "new_code"),
        ("coded.csv", "other,Text\n1,x\n", "was"),
    ],
)
def test_what_cannot_be_moved_is_refused(
    given: list[object], told: CommandRunner, tmp_path: Path, file: str, content: str, said: str
) -> None:
    (tmp_path / file).write_text(content)
    status, error = told(*map(str, given))
    assert status == 2
    assert said in error
    assert not (tmp_path / "out.csv").exists()
