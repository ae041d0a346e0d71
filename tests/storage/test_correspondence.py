"""A table of correspondence keeps every pair, the largest share first, or is refused by its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.correspondence import Correspondence, read_correspondence
from storage.errors import InputError


def _read(tmp_path: Path, content: str) -> Correspondence:
    path = tmp_path / "table.csv"
    path.write_text(content)
    return read_correspondence(path)


def test_codes_go_on_split_and_end(tmp_path: Path) -> None:
    """Candidates are in the order of their shares; a blank new code is an end; leading zeros stay."""
    read = _read(tmp_path, "note,old,new,share\n,011,110,1\n,132,1321,.3\n,132,1322,.7\n,9,,\n")
    assert read.to == {"011": ("110",), "132": ("1322", "1321"), "9": ()}
    assert read.shares["132", "1322"] == 0.7
    assert (read.before, read.after) == ("", "")


def test_a_crosswalk_names_its_versions(tmp_path: Path) -> None:
    """Both of them, in every row."""
    head = "from_code,to_code,from_version,to_version\n"
    read = _read(tmp_path, head + "111,1,2.01,3.00\n112,1,2.01,3.00\n")
    assert (read.before, read.after, read.to) == ("2.01", "3.00", {"111": ("1",), "112": ("1",)})
    with pytest.raises(InputError, match="joins 2 pairs of versions"):
        _read(tmp_path, head + "111,1,2.01,3.00\n112,1,2.00,3.00\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("old,next\n1,2\n", "column new is missing"),
        ("old,new,new\n1,2,3\n", "column new is missing or repeated"),
        ("old,new\n,2\n", "row 1 has no old code"),
        (f"old,new\n1,{'x' * 121}\n", "row 1 has no old code, or one of over 120"),
        ("old,new,share\n1,2,half\n", "row 1: the share must be above 0"),
        ("old,new,share\n1,2,nan\n", "row 1: the share must be above 0"),
        ("old,new,share\n1,2,0\n", "row 1: the share must be above 0"),
        ("old,new,share\n1,2,0.6\n1,3,0.6\n", "add up to more than 1"),
        ("old,new,share\n1,2,0.6\n1,3,\n", "one is missing"),
        ("old,new,share\n1,2,0.5\n1,2,0.5\n", "row 2 repeats a pair"),
        ("old,new\n", "no records"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """Naming the column or the row."""
    with pytest.raises(InputError, match=said):
        _read(tmp_path, content)
