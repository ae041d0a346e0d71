"""Tables and images: the same sampling, split and report as narratives, and values in place of texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.datasets import load_split, load_values
from storage.errors import InputError
from storage.ingest import IngestConfig, IngestResult, check_source, ingest

ROWS = [(f"{n / 10}", ("F", "I", "M")[n % 3], f"{100 + n}", f"{n % 2}") for n in range(40)]


def table(path: Path, rows: Sequence[tuple[str, ...]] = ROWS, header: str = "length,sex,weight,label") -> Path:
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return path


def config(**options: Any) -> IngestConfig:
    features = {"numeric": {"length": [0, 4], "weight": None}, "categorical": {"sex": ["F", "I", "M"]}}
    return IngestConfig.model_validate({"kind": "table", "table": features} | options)


def images(path: Path, **arrays: Any) -> Path:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (60, 3, 2), dtype=np.uint8)
    named: dict[str, Any] = {
        "images": pixels,
        "labels": np.arange(60) % 3,
        "lesion": np.array([f"PLANTED-{n // 4}" for n in range(60)]),
    }
    np.savez(path, **(named | arrays))
    return path


def taken(source: Path, folder: Path, chosen: IngestConfig) -> IngestResult:
    folder.mkdir(exist_ok=True)
    return ingest(source, folder, chosen, None)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        act()
    assert "PLANTED" not in str(caught.value)
    return str(caught.value)


def test_the_values_of_a_table(tmp_path: Path) -> None:
    """Numbers as they stand, categories by their place on the list, each record in one half with its own label."""
    result = taken(table(tmp_path / "in.csv"), tmp_path / "out", config())
    assert (result.train, result.test, result.codes_observed) == (20, 20, 2)
    seen = 0
    for split in ("train", "test"):
        records, values = load_split(tmp_path / "out", split), load_values(tmp_path / "out", split)
        for record_id, label, row in zip(records["record_id"], records["label"], values, strict=True):
            n = record_id - 1
            assert row.tolist() == [n / 10, n % 3, 100 + n]
            assert label == n % 2
            seen += 1
    assert seen == 40
    schema = json.loads((tmp_path / "out" / "features.json").read_text())
    assert schema["columns"] == [
        {"name": "length", "kind": "numeric", "bounds": [0, 4]},
        {"name": "sex", "kind": "categorical", "categories": ["F", "I", "M"]},
        {"name": "weight", "kind": "numeric", "bounds": None},
    ]


def test_every_other_column_is_numeric_where_none_is_named(tmp_path: Path) -> None:
    """The label's, the unit's and the date's are left out; the look at a glance knows as many features."""
    source = table(tmp_path / "in.csv", [(row[0], row[2], row[3]) for row in ROWS], "length,weight,label")
    taken(source, tmp_path / "out", IngestConfig(kind="table"))
    assert load_values(tmp_path / "out", "train").shape == (20, 2)
    assert check_source(source, IngestConfig(kind="table"), None).features == 2
    assert check_source(table(tmp_path / "in.csv"), config(), None).features == 5


def test_what_a_table_may_lack(tmp_path: Path) -> None:
    """A blank is dropped and counted; what is off the list goes to `other` where that is chosen."""
    rows = [*ROWS[:38], ("", "F", "1", "0"), ("1", "PLANTED", "2", "1")]
    result = taken(
        table(tmp_path / "in.csv", rows),
        tmp_path / "out",
        config(table={"numeric": {"length": [0, 4]}, "categorical": {"sex": ["F", "I", "M"]}, "unlisted": "other"}),
    )
    assert result.report["dropped"]["no_value"] == 1
    assert sum(result.report["dropped"].values()) + result.report["sampled"] == result.report["rows_counted"] == 40
    values = np.concatenate([load_values(tmp_path / "out", split) for split in ("train", "test")])
    assert (values[:, 1] == 3).sum() == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            ("PLANTED", "F", "1", "0"),
            "column 'length': 1 values are not numbers (row 41; 1 distinct values of 7",
        ),
        (("inf", "F", "1", "0"), "are not numbers"),
        (("1", "PLANTED", "1", "0"), "column 'sex': 1 values are not on its list (row 41; "),
    ],
)
def test_cells_that_are_no_features(tmp_path: Path, row: tuple[str, ...], said: str) -> None:
    """Named by column and row, described and never shown; nothing is written."""
    assert said in refused(lambda: taken(table(tmp_path / "in.csv", [*ROWS, row]), tmp_path / "out", config()))
    assert not list((tmp_path / "out").iterdir())


def test_groups_of_images_stay_together(tmp_path: Path) -> None:
    """Every image with its own pixels and label; no unit on both sides; the same fingerprint again."""
    source = images(tmp_path / "in.npz")
    chosen = IngestConfig(kind="images", unit_column="lesion")
    assert chosen.split_by_unit
    result = taken(source, tmp_path / "out", chosen)
    assert result.train + result.test == 60
    assert abs(result.train - result.test) <= 12
    pixels = np.load(source)["images"].reshape(60, -1)
    units: dict[str, set[str]] = {}
    for split in ("train", "test"):
        records, values = load_split(tmp_path / "out", split), load_values(tmp_path / "out", split)
        units[split] = set(records["unit"])
        for record_id, label, row in zip(records["record_id"], records["label"], values, strict=True):
            assert (row == pixels[record_id - 1]).all()
            assert label == (record_id - 1) % 3
    assert not units["train"] & units["test"]
    assert len(units["train"] | units["test"]) == 15
    assert taken(source, tmp_path / "again", chosen).fingerprint == result.fingerprint
    assert check_source(source, chosen, None).features == 6
    assert "PLANTED" not in (tmp_path / "out" / "report.json").read_text()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": np.array([{"a": 1}] * 60, dtype=object)}, "has Python objects or is damaged"),
        ({"images": np.zeros((60, 4))}, "Give numbers [n, height, width]"),
        ({"images": np.full((60, 2, 2), np.nan)}, "has negative pixels, or NaN or infinite ones"),
        ({"images": np.full((60, 2, 2), 255.0)}, "floats above 1"),
        ({"labels": np.zeros(59, dtype=int)}, "a whole number or a text for each of the 60 images"),
        ({"labels": np.zeros(60)}, "a whole number or a text"),
    ],
)
def test_arrays_that_are_no_images(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    """Objects would have to be unpickled; the other faults name the array."""
    source = images(tmp_path / "in.npz", **arrays)
    assert said in refused(lambda: taken(source, tmp_path / "out", IngestConfig(kind="images")))


def test_files_that_hold_no_images(tmp_path: Path) -> None:
    """At a glance: a CSV, a file without the array, half a file."""
    source = images(tmp_path / "in.npz")
    (tmp_path / "half.npz").write_bytes(source.read_bytes()[:500])
    chosen = IngestConfig(kind="images", label_column="lables")
    assert "Did you mean 'labels'" in refused(lambda: check_source(source, chosen, None))
    for path in (table(tmp_path / "in.csv"), tmp_path / "half.npz"):
        assert "is not an .npz of arrays" in refused(
            lambda path=path: check_source(path, IngestConfig(kind="images"), None)
        )


@pytest.mark.parametrize(
    "settings",
    [
        {"text_columns": ("a",)},
        {"unit_column": "u", "split_by_unit": True},
        {"kind": "table"},
        {"kind": "images"},
        {"sampling": "per-record", "train_before": "2016-05-01", "cohorts": [2016]},
        {"fields": {"nature": {"label_column": "Nature"}, "part": {"label_column": "Part"}}},
    ],
)
def test_a_stored_configuration_is_read_back(settings: dict[str, Any]) -> None:
    """Of every kind, and with several fields: it is stored whole."""
    config = IngestConfig.model_validate(settings)
    stored = config.model_dump(mode="json")
    assert set(stored) == set(IngestConfig.model_fields)
    assert IngestConfig.model_validate(stored) == config


@pytest.mark.parametrize(
    ("name", "records", "features"),
    [("abalone", 4177, 10), ("car_eval_34", 1728, 21), ("ecoli", 336, 7), ("mammography", 11_183, 6)],
)
def test_public_tables(shared_data: Path, tmp_path: Path, name: str, records: int, features: int) -> None:
    """The shapes that the benchmark's own description gives."""
    result = taken(shared_data / "imblearn" / f"{name}.csv", tmp_path, IngestConfig(kind="table"))
    assert (result.train + result.test, result.codes_observed) == (records, 2)
    assert load_values(tmp_path, "train").shape == (result.train, features)


def test_public_images(shared_data: Path, tmp_path: Path) -> None:
    """10,015 pictures of 7,470 lesions in seven classes, no lesion on both sides."""
    chosen = IngestConfig(kind="images", unit_column="lesion_id", id_column="image_id")
    result = taken(shared_data / "ham10000_8x8_gray.npz", tmp_path, chosen)
    assert (result.train + result.test, result.codes_observed) == (10_015, 7)
    units = [set(load_split(tmp_path, split)["unit"]) for split in ("train", "test")]
    assert not units[0] & units[1]
    assert len(units[0] | units[1]) == 7470
