"""Columns of public values at ingest: each row is counted in each, and what no list has adds nothing to the data."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import COLUMN_VALUES, load_table, load_value_lists
from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig, IngestResult, check_source, ingest, preview
from storage.ingest.record_content import ListedColumn
from storage.ingest.value_lists import MOST_VALUES, read_value_lists

HEADER = ("ID", "Final Narrative", "Nature", "Industry", "Age")
INDUSTRIES = (" Construction ", "Mining", "Fishing", "")
LISTS = {"Industry": ["Mining", "Construction"], "Age": ["young", "old"]}
BASE: dict[str, Any] = {"id_column": "ID", "date_column": None, "sampling": "per-record", "value_columns": LISTS}


def write(folder: Path, *, rows: int = 40, industry: str = "Fishing") -> Path:
    """Every fourth industry is not on the list, every fourth is blank; one age is."""
    source = folder / "in.csv"
    with source.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(HEADER)
        for n in range(rows):
            cell = INDUSTRIES[n % 4].replace("Fishing", industry)
            lines.writerow((f"r{n}", f"Fell from ladder {n}", f"{100 + n % 3}", cell, "young" if n % 2 else ""))
    return source


def taken(folder: Path, **options: Any) -> IngestResult:
    return ingest(write(folder), folder, IngestConfig.model_validate(BASE | options), None)


def test_every_row_is_counted_in_every_column(tmp_path: Path) -> None:
    """Listed, not on the list or blank; ingest, its report and the dry run say the same."""
    expected = {
        "Industry": {"listed": 20, "not_on_list": 10, "blank": 10},
        "Age": {"listed": 20, "not_on_list": 0, "blank": 20},
    }
    result = taken(tmp_path)
    assert result.report["values"] == expected
    assert json.loads((tmp_path / "report.json").read_text())["values"] == expected
    assert preview(tmp_path / "in.csv", IngestConfig.model_validate(BASE), None).values == expected


def test_rows_that_are_lost_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ListedColumn, "count", lambda self, cells: None)
    with pytest.raises(StorageError, match="'Industry': 40 rows, 0 of them accounted for"):
        taken(tmp_path)


def test_records_have_the_listed_values_alone(tmp_path: Path) -> None:
    """Without outer blanks; another value is an empty text, whatever it is, and a blank is null."""
    taken(tmp_path)
    records = [row for split in ("train", "test") for row in load_table(tmp_path, split).to_pylist()]
    values = {row["record_id"]: row[COLUMN_VALUES] for row in records}
    assert [values[f"r{n}"] for n in range(4)] == [
        ["Construction", None],
        ["Mining", "young"],
        ["", None],
        [None, "young"],
    ]
    assert load_value_lists(tmp_path) == {name: tuple(own) for name, own in LISTS.items()}
    assert "Fishing" not in str(records)


def test_a_value_is_part_of_the_record(tmp_path: Path) -> None:
    """Another listed value makes other records; another that no list has makes the same."""
    folders = [tmp_path / name for name in ("fishing", "trading", "mining")]
    prints = []
    for folder, industry in zip(folders, ("Fishing", "Trading", "Mining"), strict=True):
        folder.mkdir()
        config = IngestConfig.model_validate(BASE)
        prints.append(ingest(write(folder, industry=industry), folder, config, None).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_data_without_columns_are_as_before(tmp_path: Path) -> None:
    """Nothing of a list is written, and files of an earlier run with columns go."""
    taken(tmp_path)
    result = taken(tmp_path, value_columns={})
    assert load_value_lists(tmp_path) == {}
    assert "values" not in result.report
    assert COLUMN_VALUES not in load_table(tmp_path, "train").column_names


@pytest.mark.parametrize("header", ["value", "Code,Title", "title,code"])
def test_a_file_gives_the_values(tmp_path: Path, header: str) -> None:
    """By its column value or code, in the file's order; blank lines do not count."""
    file, at = tmp_path / "list.csv", header.lower().split(",").index("value" if header == "value" else "code")
    lines = [",".join("t" if place != at else value for place in range(header.count(",") + 1)) for value in ("b", "a")]
    file.write_text("\n".join([header, *lines]) + "\n")
    assert read_value_lists({"x": str(file)}) == {"x": ("b", "a")}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere.csv", "no file nowhere.csv"),
        (["a", "b", "a "], "value 3 repeats 1"),
        (["a", " "], "value 2 is blank"),
        (["a\x1b[2J"], "value 1 is blank, has over"),
        (["x" * 121], "over 120 characters"),
        ([], "the list is empty"),
        ([str(n) for n in range(MOST_VALUES + 1)], "2,001 values, more than 2,000"),
    ],
)
def test_what_is_no_list_of_values_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=r"data\.ingest\.value_columns") as refused:
        read_value_lists({"industry": given})
    assert said in str(refused.value)


def test_a_column_that_the_file_lacks_is_named_with_its_setting(tmp_path: Path) -> None:
    config = IngestConfig.model_validate(BASE | {"value_columns": {"Branch": ["a"]}})
    with pytest.raises(InputError, match=r"no column 'Branch' \(data.ingest.value_columns\)"):
        check_source(write(tmp_path), config, None)


def test_numbers_of_a_list_are_text() -> None:
    """YAML reads 11 as a number, and a sector of an industry is one."""
    config = IngestConfig.model_validate(BASE | {"value_columns": {"Industry": [11, 21]}})
    assert config.value_columns == {"Industry": ("11", "21")}
