"""One person under several ids would have several times the records that the claim allows."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import of_kind

from storage.errors import InputError
from storage.ingest import IngestConfig, Units, ingest, preview, units_of
from storage.ingest.units import unit_form, unit_forms
from storage.tables.source import to_arrow

CONFIG = IngestConfig.model_validate(
    {
        "text_columns": ["text"],
        "label_column": "code",
        "date_column": None,
        "unit_column": "person",
        "max_per_unit": 1,
        "min_per_code": 1,
    }
)
SPELLINGS = ("{}", "{}.0", "000{}", " {} ", "'{}", '"{}"', "{}.00", "{},0")
LETTERED = ("P{}", "p{}", "P{}\u200b", "\uff30{}")
COMPOSED = (
    "Jos\u00e9 {}",
    "Jose\u0301 {}",
    "JOSE\u0301 {}",
    "Jos\u00e9\u00a0{}",
    "Jo\u200bse\u0301 {}",
    "\uff2aose\u0301 {}",
)


def written(path: Path, persons: list[str]) -> Path:
    rows = [
        (f"fell from step {n}", ("111", "132")[n % 2], person) for n, person in enumerate(persons)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "code", "person"), *rows])
    return path


@pytest.mark.parametrize(
    "spellings", [SPELLINGS, LETTERED, COMPOSED], ids=["numbers", "letters", "composed"]
)
def test_an_id_in_another_spelling(tmp_path: Path, spellings: tuple[str, ...]) -> None:
    """A cap of one record a person holds, however the id is written, also across files."""
    names = [spelling.format(person) for spelling in spellings for person in range(101, 121)]
    seen = preview(written(tmp_path / "in.csv", names), CONFIG, None)
    assert seen.units is not None
    assert (seen.units.number, seen.units.largest) == (20, len(spellings))
    assert sum(seen.sampled.values()) == 20
    files = [
        written(tmp_path / f"{n}.csv", [spelling.format(person) for person in range(101, 121)])
        for n, spelling in enumerate(spellings)
    ]
    assert sum(preview(files, CONFIG, None).sampled.values()) == 20


PIECES = (
    "0",
    "1",
    "12",
    "P",
    "p",
    "e5",
    "E",
    ".",
    ".0",
    ",0",
    "-",
    "_",
    " ",
    '"',
    "'",
    "=",
    "ſ",
    "\u200b",
    "１",
)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), min_size=1))
def test_ids_are_read_together_as_each_alone(cells: list[str]) -> None:
    """Most by arrow at once, in whatever spelling: the same forms as one by one."""
    stripped = [cell.strip() for cell in cells]
    alone = [unit_form(cell) if cell else "" for cell in stripped]
    assert unit_forms(to_arrow(stripped)).to_pylist() == alone


def test_ids_that_differ_stay_apart(tmp_path: Path) -> None:
    names = [
        *map(str, range(101, 121)),
        *(f"P{n}" for n in range(101, 121)),
        "1.5",
        "15",
        "10",
        "1",
    ]
    seen = preview(written(tmp_path / "in.csv", names), CONFIG, None)
    assert seen.units is not None
    assert seen.units.number == len(names)


@pytest.mark.parametrize(
    "cell", ["P1;P5", "P1, P2", "P2|P3", "P1 & P2", "P1/P2", "P1 P2", "P90;P91", "P1;P2;P90"]
)
def test_a_record_of_two_people(tmp_path: Path, cell: str) -> None:
    """It would count for neither; refused by its row, without the cell."""
    names = [f"P{n % 10}" for n in range(40)]
    path = written(tmp_path / "in.csv", [*names, cell])
    with pytest.raises(
        InputError, check=of_kind("ids-of-several", saying=("'person': 1", "row 41"))
    ) as said:
        preview(path, CONFIG, None)
    assert cell not in str(said.value)


@pytest.mark.parametrize("cell", ["ACME, Inc.", "Smith & Sons", "Plant 1/A", "12-3"])
def test_a_name_with_signs_is_one_unit(tmp_path: Path, cell: str) -> None:
    names = [*(f"Plant {n} LLC" for n in range(20)), "Smith LLC", cell]
    seen = preview(written(tmp_path / "in.csv", names), CONFIG, None)
    assert seen.units is not None
    assert seen.units.number == len(names)


def test_what_an_officer_reads_of_units(tmp_path: Path) -> None:
    """The number of units and the records of the largest are kept next to the data set."""
    path = written(tmp_path / "in.csv", [f"P{n % 20}" for n in range(40)] + ["p0", "P0.0"])
    ingest(path, tmp_path, CONFIG, None)
    assert units_of(tmp_path) == Units(number=21, largest=3)
    ingest(
        path, tmp_path, CONFIG.model_copy(update={"unit_column": None, "max_per_unit": None}), None
    )
    assert units_of(tmp_path) is None
