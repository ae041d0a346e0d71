"""Code lists: order and spelling kept, faults refused by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.codelist import Code, normalise_code, read_codelist, shown
from storage.errors import InputError


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (" 111\t", "111"),
        ("111.0", "111"),
        ("111.000", "111"),
        ("0111", "0111"),
        ("111.5", "111.5"),
        ("111.", "111."),
        ("S72.0", "S72.0"),
        ("1e3", "1e3"),
        ("a b", "a b"),
        ("", ""),
        ("\u00a0111\u00a0", "111"),
    ],
)
def test_codes_are_touched_as_little_as_can_be(raw: str, code: str) -> None:
    """Outer blanks and a table program's `.0` go, nothing else; twice is once."""
    assert normalise_code(raw) == code
    assert normalise_code(code) == code


def test_a_known_spelling_stays() -> None:
    """Where the classification itself has 250.0, it is no artefact."""
    assert normalise_code("250.0", {"250.0", "250"}) == "250.0"
    assert normalise_code("250.0", {"250"}) == "250"


def test_messages_show_codes_and_no_sentences() -> None:
    """Values with blanks, or longer than codes are, are counted only."""
    assert shown(["111", "A-1.b"]) == "111, A-1.b"
    assert shown(["111", "fell from a roof", "x" * 21]) == "111 and 2 that do not look like codes and are not shown"
    assert shown([str(n) for n in range(25)]).endswith("18, 19 and 5 more")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_order_titles_and_encodings(tmp_path: Path, encoding: str) -> None:
    """Order of the file, columns in any order and case, blank lines passed over."""
    path = tmp_path / "list.csv"
    text = 'Title ,CODE,level\n"Cuts, “deep”",132,3\n\nÉcrasement,0111 ,3\n'
    path.write_bytes(text.encode(encoding))
    assert read_codelist(path) == (Code("132", "Cuts, “deep”"), Code("0111", "Écrasement"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"code,name\n1,a\n", "column title is missing"),
        (b"code,code,title\n1,1,a\n", "column code is missing or doubled"),
        (b"code,title\n", "it holds 0 codes"),
        (b"code,title\n1,a\n", "it holds 1 codes"),
        (b"code,title\n1,a\n ,b\n", "row 2 has no code"),
        (b"code,title\n1,a\n1,b\n", "row 2 repeats the code 1"),
        (b"code,title\n1,a,b\n", "row 1 has 3 fields, the header 2"),
        (b'code,title\n1,"a\n2,b\n', "is a quote left open"),
        (b"code,title\n1,a\0\n", "NUL bytes"),
        (b"code,title\n1,\x81\n2,b\n", "neither UTF-8 nor cp1252"),
        (b"code,title\n" + b"x" * 121 + b",a\n2,b\n", "over 120 characters"),
    ],
)
def test_faults(tmp_path: Path, content: bytes, said: str) -> None:
    """Each is refused with the file and the row or column."""
    path = tmp_path / "list.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_codelist(path)
    assert str(path) in str(caught.value)
    assert caught.value.__context__ is None


def test_oiics_list(shared_data: Path) -> None:
    """The published nature codes: 615, in order, with their dashes."""
    codes = read_codelist(shared_data / "oiics201_nature.csv")
    assert len(codes) == 615
    assert codes[0] == Code("1", "TRAUMATIC INJURIES AND DISORDERS")
    assert Code("1972", "Soreness, pain, hurt—nonspecified injury") in codes
