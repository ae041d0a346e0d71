"""A crosswalk is of two named versions, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.crosswalk import read_crosswalk
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
        (HEADER + "111,,2.01,3.01\n", "row 1 has no"),
        (HEADER + "111,1,2.00,3.01\n", "row 1 starts from another version"),
        (HEADER + "111,1,2.01,3.01\n112,1,2.01,3.02\n", "leads to 2 versions"),
        (HEADER + '"111,1,2.01,3.01\n', "does not read"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """Naming the row or the column."""
    (tmp_path / "walk.csv").write_text(content)
    with pytest.raises(InputError, match=said):
        read_crosswalk(tmp_path / "walk.csv", version="2.01")
