"""Several fields of a record: where each row's code of each field goes, and what is refused by field and column."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.datasets import load_codes, load_fields, load_labels, load_split
from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig, IngestResult, check_source, ingest, preview

HEADER = ("ID", "EventDate", "Final Narrative", "Nature", "Part", "Source")
PARTS = ("11", "12", "")
Row = tuple[str, ...]


def rows_of(count: int) -> list[Row]:
    """Every third lacks its part; every tenth has no code at all."""
    return [
        (
            f"r{n}",
            f"{n % 12 + 1}/1/2015",
            f"Fell from ladder {n}",
            "" if n % 10 == 0 else f"{100 + n % 4}",
            "" if n % 10 == 0 else PARTS[n % 3],
            "" if n % 10 == 0 else f"{n % 2 + 1}.0",
        )
        for n in range(count)
    ]


def lists(folder: Path) -> dict[str, Any]:
    """Nature and part with a code list each, source without."""
    (folder / "nature.csv").write_text("code,title\n" + "".join(f"{100 + n},Nature {n}\n" for n in range(6)))
    (folder / "part.csv").write_text("code,title\n12,Leg\n11,Arm\n13,Head\n")
    return {
        "nature": {"label_column": "Nature", "codelist": str(folder / "nature.csv")},
        "part": {"label_column": "Part", "codelist": str(folder / "part.csv")},
        "source": {"label_column": "Source"},
    }


def taken(folder: Path, rows: Sequence[Row], **options: Any) -> IngestResult:
    source = folder / "in.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    config = IngestConfig.model_validate({"id_column": "ID", "fields": lists(folder)} | options)
    return ingest(source, folder, config, None)


def test_every_row_and_field_is_accounted_for(tmp_path: Path) -> None:
    """A record that lacks some of its codes is kept with label -1 there; one that lacks all is dropped."""
    result = taken(tmp_path, rows_of(90))
    assert (result.train + result.test, result.report["dropped"]["no_code"]) == (81, 9)
    spaces = load_fields(tmp_path)
    assert spaces is not None
    assert {name: [code.code for code in space] for name, space in spaces.items()} == {
        "nature": [f"{100 + n}" for n in range(6)],
        "part": ["12", "11", "13"],
        "source": ["1", "2"],
    }
    seen = 0
    for split in ("train", "test"):
        labels = load_labels(tmp_path, split)
        for record, found in zip(load_split(tmp_path, split).to_list(), labels.tolist(), strict=True):
            n = int(record["record_id"].removeprefix("r"))
            assert found == [n % 4, {0: 1, 1: 0, 2: -1}[n % 3], n % 2]
            seen += 1
    assert seen == 81
    part = result.report["fields"]["part"]
    assert part["rows"] == {"coded": 54, "blank": 36, "not_on_list": 0}
    assert part["splits"]["train"] + part["splits"]["test"] == 54
    assert result.report["fields"]["source"]["codes_respelt"] == 81
    assert {name: (f.label_space, f.label_space_source) for name, f in result.fields.items()} == {
        "nature": (6, "codelist"),
        "part": (3, "codelist"),
        "source": (2, "observed"),
    }
    assert (result.label_space, result.label_space_source) == (11, "observed")
    with pytest.raises(StorageError, match="several fields"):
        load_codes(tmp_path)


def test_a_record_less_moves_no_other(tmp_path: Path) -> None:
    """Splits are each record's own, whichever of its codes it has."""
    (tmp_path / "all").mkdir()
    (tmp_path / "less").mkdir()
    rows = rows_of(60)
    taken(tmp_path / "all", rows)
    taken(tmp_path / "less", rows[:7] + rows[8:])
    places = [
        {
            record["record_id"]: split
            for split in ("train", "test")
            for record in load_split(tmp_path / at, split).to_list()
        }
        for at in ("all", "less")
    ]
    del places[0]["r7"]
    assert places[0] == places[1]


def test_the_fingerprint_knows_each_field(tmp_path: Path) -> None:
    """Another code in any field is other data; which numbers codes have is not."""
    rows = rows_of(60)
    before = taken(tmp_path, rows).fingerprint
    assert taken(tmp_path, rows).fingerprint == before
    changed = [(*row[:4], "12" if row[0] == "r2" else row[4], row[5]) for row in rows]
    assert taken(tmp_path, changed).fingerprint != before


def test_codes_off_the_list_go_field_by_field(tmp_path: Path) -> None:
    """Refused by field, column and option; dropped, the record stays for its other fields."""
    rows = [(*row[:4], "99" if row[0] == "r1" else row[4], row[5]) for row in rows_of(60)]
    with pytest.raises(
        InputError, match=r"field `part`, column 'Part': 1 of 60 .*data\.ingest\.fields\.part\.codelist"
    ):
        taken(tmp_path, rows)
    result = taken(tmp_path, rows, unknown_codes="drop")
    assert result.report["fields"]["part"]["rows"]["not_on_list"] == 1
    assert result.report["fields"]["part"]["codes_not_on_list"] == {"99": 1}
    assert result.train + result.test == 54


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (5, "", "field `source`, column 'Source': no usable record has a code"),
        (5, "1", "field `source`, column 'Source': all 54 usable records have the same code"),
    ],
)
def test_a_field_needs_two_codes(tmp_path: Path, column: int, value: str, said: str) -> None:
    """Named by field and column."""
    rows = [tuple(value if at == column else cell for at, cell in enumerate(row)) for row in rows_of(60)]
    if value:
        rows = [row if row[3] else (*row[:5], "") for row in rows]
    with pytest.raises(InputError, match=said):
        taken(tmp_path, rows)


def test_both_halves_have_codes_of_each_field(tmp_path: Path) -> None:
    """A field that is coded on one side of a date alone cannot be learned or measured."""
    rows = [(*row[:5], row[5] if row[1].startswith(("1/", "2/")) else "") for row in rows_of(120)]
    with pytest.raises(InputError, match="field `source`, column 'Source': no usable records for the test half"):
        taken(tmp_path, rows, train_before="2015-06-01")


def test_files_and_columns_are_named(tmp_path: Path) -> None:
    """A missing column or code list is named by its field's option at the first look."""
    taken(tmp_path, rows_of(30))
    fields = lists(tmp_path)
    fields["part"]["label_column"] = "Body"
    config = IngestConfig.model_validate({"fields": fields})
    with pytest.raises(InputError, match=r"data\.ingest\.fields\.part\.label_column"):
        check_source(tmp_path / "in.csv", config, None)
    fields["part"] |= {"label_column": "Part", "codelist": str(tmp_path / "none.csv")}
    with pytest.raises(InputError, match=r"data\.ingest\.fields\.part\.codelist: no file"):
        check_source(tmp_path / "in.csv", IngestConfig.model_validate({"fields": fields}), None)


def test_a_look_counts_the_codes_of_all_fields(tmp_path: Path) -> None:
    """As ingest does, without writing."""
    taken(tmp_path, rows_of(60))
    looked = preview(tmp_path / "in.csv", IngestConfig.model_validate({"fields": lists(tmp_path)}), None)
    assert (looked.rows, looked.usable, looked.codes, looked.codes_observed) == (60, 54, 6 + 3 + 2, 4 + 2 + 2)


def test_a_field_may_be_called_what_no_column_is() -> None:
    """A longer name of the same beginning is another field; with fields each record is sampled by itself."""
    fields = {name: {"label_column": name} for name in ("event", "event_detail", "title", "code", "part_score_list")}
    config = IngestConfig.model_validate({"fields": fields})
    assert list(config.fields) == list(fields)
    assert (config.sampling, config.cap_per_code, config.min_per_code) == ("per-record", None, 1)


def test_one_field_is_stored_without_fields(tmp_path: Path) -> None:
    """Columns, code list and report of a single field know nothing of fields."""
    config = IngestConfig(label_column="Nature")
    source = tmp_path / "in.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows_of(60)])
    result = ingest(source, tmp_path, config, None)
    assert "fields" not in result.report
    assert result.fields == {}
    assert load_fields(tmp_path) is None
    assert load_split(tmp_path, "train").column_names == ["record_id", "text", "label", "cohort", "unit"]
    labels = load_labels(tmp_path, "train")
    np.testing.assert_array_equal(labels, load_split(tmp_path, "train")["label"])
    assert [code.code for code in load_codes(tmp_path)] == ["100", "101", "102", "103"]
    assert set(json.loads((tmp_path / "report.json").read_text())["codes"]) == {"100", "101", "102", "103"}
