"""A coded table of the next version has every row, chooses no code of a split, and its sets still cover."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csv_files import rows_of, write_csv

from storage.correspondence import Correspondence
from storage.errors import InputError
from tasks.coding.revise import Revision, revise_table, with_version

TABLE = Correspondence(
    {"111": ("1110",), "112": ("1110",), "132": ("1322", "1321"), "9": ()}, {}, before="2.01", after="3.00"
)
ROWS = [
    ("111", "111; 132"),
    ("132", "132; 9"),
    ("9", "111"),
    ("", ""),
    ("777", "777; 111"),
    ("112.0", "112; 111"),
]


def _coded(tmp_path: Path, *, version: str = "2.01") -> Path:
    header = ["id", "code", "set", "classification_version"]
    return write_csv(tmp_path / "coded.csv", header, [(n, *row, version) for n, row in enumerate(ROWS)])


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    """Splits, ended codes, codes that the table lacks and blank ones are for review; two codes that merge are not."""
    out = tmp_path / "revised.csv"
    revised = revise_table(_coded(tmp_path), out, TABLE)
    rows = rows_of(out)
    assert [row["id"] for row in rows] == ["0", "1", "2", "3", "4", "5"], "no row is lost or moved"
    assert [row["crosswalk_code"] for row in rows] == ["1110", "1322; 1321", "", "", "", "1110"]
    assert [row["crosswalk_review"] for row in rows] == ["false", "true", "true", "true", "true", "false"]
    assert [row["crosswalk_set"] for row in rows] == ["1110; 1322; 1321", "", "1110", "", "", "1110"]
    assert [row["crosswalk_set_size"] for row in rows] == ["3", "0", "1", "0", "0", "1"]
    assert revised == Revision("rows", "3.00", 6, 2, 1, 2, 1, {"132": 1}, 2)
    assert revised.one + revised.split + revised.missing + revised.blank == revised.total == len(ROWS)
    assert revised.review == sum(row["crosswalk_review"] == "true" for row in rows)
    with pytest.raises(InputError, match="has a column 'crosswalk_code'"):
        revise_table(out, tmp_path / "again.csv", TABLE)


def test_sets_of_new_codes_cover_as_those_of_old_ones(tmp_path: Path) -> None:
    """Of 2,000 rows with a right new code drawn below the right old one, no set that covered the old loses the new.

    The set of the best code's successors alone would lose some: the test tells the two apart.
    """
    rng = np.random.default_rng(0)
    olds = [f"o{at}" for at in range(30)]
    to = {old: tuple(f"n{one}" for one in rng.choice(60, size=rng.integers(1, 4), replace=False)) for old in olds}
    lines = []
    for _ in range(2000):
        members = rng.choice(olds, size=rng.integers(1, 5), replace=False).tolist()
        right = rng.choice(members if rng.random() < 0.9 else olds)
        lines.append((members[0], "; ".join(members), right, rng.choice(to[right])))
    coded = write_csv(tmp_path / "coded.csv", ["code", "set", "old", "new"], lines)
    revise_table(coded, tmp_path / "new.csv", Correspondence(to, {}, after="2"))
    lost = alone = covered = 0
    for row in rows_of(tmp_path / "new.csv"):
        before = row["old"] in row["set"].split("; ")
        covered += before
        lost += before and row["new"] not in row["crosswalk_set"].split("; ")
        alone += before and row["new"] not in row["crosswalk_code"].split("; ")
    assert lost == 0 < alone
    assert covered > 1700


def test_a_column_that_people_coded_is_revised(tmp_path: Path) -> None:
    """In JSON Lines too, where a code may be a number."""
    path = tmp_path / "hand.jsonl"
    path.write_text('{"Nature": 111}\n{"Nature": "132"}\n')
    revised = revise_table(path, tmp_path / "out.jsonl", TABLE, column="Nature")
    assert (revised.one, revised.split) == (1, 1)
    assert '"crosswalk_code": "1322; 1321"' in (tmp_path / "out.jsonl").read_text()


@pytest.mark.parametrize(
    ("version", "table", "said"),
    [
        ("2.00", TABLE, "it starts from 2.01"),
        ("3.00", TABLE, "has the new version already"),
        ("2.01", Correspondence({"x": ("y",)}, {}, after="3.00"), "it has none of the codes"),
    ],
)
def test_another_version_is_refused(tmp_path: Path, version: str, table: Correspondence, said: str) -> None:
    """And no output is left."""
    with pytest.raises(InputError, match=said):
        revise_table(_coded(tmp_path, version=version), tmp_path / "out.csv", table)
    assert [path.name for path in tmp_path.iterdir()] == ["coded.csv"]


def test_the_new_version_has_a_name_and_its_codes() -> None:
    """A table without a version needs one; every new code is in the new list."""
    unnamed = Correspondence({"1": ("2",)}, {})
    assert with_version(unnamed, "3", listed=["2", "4"]).after == "3"
    for table, version, listed, said in (
        (unnamed, None, (), "does not name the new version"),
        (TABLE, "2.00", (), "is not 3.00"),
        (unnamed, "3", ("4",), "1 new codes of --table are not in it"),
    ):
        with pytest.raises(InputError, match=said):
            with_version(table, version, listed=listed)
