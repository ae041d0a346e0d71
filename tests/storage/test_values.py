"""Values as agencies have them: what cannot be meant is said with its number of records, or refused
with its cause, and a setting reads it otherwise.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind

from storage.datasets import load_codes, load_split
from storage.errors import InputError
from storage.ingest import IngestConfig, SourcePreview, Units, ingest, preview
from storage.spelling import Spellings, odd, twins

NACE = ["86", "86.1", "86.10", "86.2", "86.21", "56", "56.1", "56.11", "1", "01.1"]


def written(path: Path, rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def look(
    folder: Path, codes: list[str], listed: list[str] | None = None, **more: Any
) -> SourcePreview:
    return preview(*given(folder, codes, listed, **more))


def given(folder: Path, codes: list[str], listed: list[str] | None, **more: Any) -> Any:
    records = written(
        folder / "in.csv", [(f"fell {n}", code) for n, code in enumerate(codes)], ("text", "code")
    )
    names = None
    if listed is not None:
        names = written(
            folder / "list.csv", [(code, f"title {code}") for code in listed], ("code", "title")
        )
    options = {"text_columns": ["text"], "label_column": "code", "date_column": None} | more
    return records, IngestConfig.model_validate({"min_per_code": 1} | options), names


def codes_of(folder: Path, codes: list[str], listed: list[str] | None, **more: Any) -> set[str]:
    """The codes that ingest makes of cells."""
    records, config, names = given(folder, codes, listed, **more)
    (folder / "out").mkdir()
    report = ingest(records, folder / "out", config, names).report
    return set(report["codes"])


def test_zeros_that_a_spreadsheet_took_off(tmp_path: Path) -> None:
    """86.1 is a listed group, and was 86.10: both readings are offered, and neither is silent."""
    cells = ["86.1"] * 20 + ["86.21"] * 20 + ["56.11"] * 20
    seen = look(tmp_path, cells, NACE)
    assert any("20 records have a code that has others below it" in note for note in seen.notes)
    assert any("lost_zeros=restore" in note for note in seen.notes)
    assert codes_of(tmp_path, cells, NACE, lost_zeros="restore") == {"86.10", "86.21", "56.11"}
    assert not look(tmp_path, ["86.21"] * 20 + ["56.11"] * 20, NACE).notes


def test_levels_without_a_list(tmp_path: Path) -> None:
    assert any("begin other codes" in note for note in twins({"86.1": 5, "86.10": 5}))
    assert not twins({str(n): 5 for n in range(1, 30)}), "numbers in a row are no levels"


def test_zeros_behind_a_level(tmp_path: Path) -> None:
    """ISCO as some countries write it: 2200 for 22; the hint says so, and `match` reads it."""
    listed, cells = ["2", "22", "222", "2221"], ["2200"] * 10 + ["2220"] * 10 + ["2221"] * 10
    with pytest.raises(InputError, check=of_kind("records-of-unlisted-codes", saying="zeros")):
        look(tmp_path, cells, listed)
    assert codes_of(tmp_path, cells, listed, unknown_codes="match") == {"22", "222", "2221"}


@pytest.mark.parametrize("cell", ["A17.0\u2020", "A170", "a17.0*", "A17.0 +", "A17.0!"])
def test_daggers_and_asterisks(tmp_path: Path, cell: str) -> None:
    """ICD-10's signs of cause and manifestation, which lists have or lack."""
    cells = [cell] * 5 + ["G01"] * 5
    assert codes_of(tmp_path, cells, ["A17.0", "G01"], unknown_codes="match") == {"A17.0", "G01"}


def test_a_code_that_fits_two(tmp_path: Path) -> None:
    """188.2 and 018.82 are 1882 without points and zeros: named as the cause, though `match` is
    set.
    """
    listed = ["188.2", "018.82", "007.1"]
    with pytest.raises(
        InputError, check=of_kind("records-of-unlisted-codes", saying="fit several")
    ):
        look(tmp_path, ["1882"] * 20 + ["007.1"] * 20, listed, unknown_codes="match")
    assert Spellings(listed).is_ambiguous("1882")


@pytest.mark.parametrize(
    ("listed", "cells"),
    [
        (["29-1141", "53-3032"], ["29-1141.00", "29-1141.02", "53-3032.00"]),
        (["190590", "040120"], ["1905900000", "0401200110"]),
        (["62.01", "62.02"], ["62.01Z", "62.02A"]),
    ],
    ids=["O*NET", "HS", "NAF"],
)
def test_codes_finer_than_the_list(tmp_path: Path, listed: list[str], cells: list[str]) -> None:
    """The cause is named with the way to cut them, and the cut codes are counted."""
    with pytest.raises(
        InputError, check=of_kind("records-of-unlisted-codes", saying="finer_codes=cut")
    ):
        look(tmp_path, cells * 10, listed)
    seen = look(tmp_path, cells * 10, listed, finer_codes="cut")
    assert any(note.startswith(f"{10 * len(cells)} codes are finer") for note in seen.notes)
    assert codes_of(tmp_path, cells * 10, listed, finer_codes="cut") == set(listed)


@pytest.mark.parametrize("cell", ["J690 I10", "J690;I10", "J690, I10", "J690|I10", "J690/I10"])
def test_several_codes_in_one_cell(tmp_path: Path, cell: str) -> None:
    cells = ["K219"] * 10 + ["M545"] * 10 + [cell] * 5
    notes = look(tmp_path, cells).notes
    assert any("1 codes of 5 records are made of other codes" in note for note in notes)
    first = {"K219", "M545", "J690"}
    assert codes_of(tmp_path, cells, None, several_codes="first") == first
    listed = [*first, "I10"]
    with pytest.raises(
        InputError, check=of_kind("records-of-unlisted-codes", saying="several_codes=first")
    ):
        look(tmp_path, cells, listed)
    seen = look(tmp_path, cells, listed, several_codes="first")
    assert any(note.startswith("5 cells have several codes") for note in seen.notes)


@pytest.mark.parametrize(
    ("cell", "first"),
    [
        ("Open wound; Burn", "Open wound"),
        ("Open wound|Burn|", "Open wound"),
        ("J690 ;", "J690"),
        *((name, name) for name in ("Slip/trip", "Cut, laceration", "Open wound", "Fall & slip")),
        *((name, name) for name in ("S52.5", "29-1141.00", "(none)")),
    ],
)
def test_only_codes_are_separated(tmp_path: Path, cell: str, first: str) -> None:
    """A name keeps the signs inside it; semicolons and | separate names, too."""
    cells = ["A1"] * 5 + [cell] * 5
    assert codes_of(tmp_path, cells, None, several_codes="first") == {"A1", first}


def test_another_spelling_is_not_several_codes(tmp_path: Path) -> None:
    """86,10 is the listed 86.10, and no list of 86 and 10."""
    listed = ["86", "10", "86.10", "56"]
    with pytest.raises(InputError, check=of_kind("records-of-unlisted-codes", saying="points")):
        look(tmp_path, ["86,10"] * 5 + ["56"] * 5, listed, several_codes="first")


EACH: dict[str, Any] = {
    "several_codes": "each",
    "unit_column": "person",
    "max_per_unit": 2,
    "split_by_unit": True,
    "sampling": "per-record",
}


def reports(folder: Path, cells: Sequence[str], **more: Any) -> tuple[Path, IngestConfig]:
    """Records of one person each."""
    rows = [(f"fell {n}", cell, f"P{n}", f"R{n}") for n, cell in enumerate(cells)]
    path = written(folder / "in.csv", rows, ("text", "code", "person", "report"))
    options = {"text_columns": ["text"], "label_column": "code", "date_column": None} | more
    return path, IngestConfig.model_validate(options)


@pytest.mark.parametrize("id_column", ["report", None])
def test_a_record_of_each_code(tmp_path: Path, id_column: str | None) -> None:
    """They are of one unit and one split, under its cap, and carry the row that they come from."""
    cells = ["J690; I10"] * 20 + ["I10"] * 20 + ["K219;I10;J690"] * 10 + ["J690;J690", "J690;"]
    path, config = reports(tmp_path, cells, id_column=id_column, **EACH)
    seen = preview(path, config, None)
    assert (seen.rows, seen.usable) == (92, 92)
    assert seen.units == Units(number=52, largest=3)
    assert seen.left_out["over_unit_cap"] == 10
    assert (
        "30 cells have several codes, and each is a record of its own: 40 records more"
        in (seen.notes[0])
    )
    ingest(path, tmp_path, config, None)
    halves = [load_split(tmp_path, split).to_list() for split in ("train", "test")]
    assert sum(map(len, halves)) == 82
    units = [{record["unit"] for record in half} for half in halves]
    assert not units[0] & units[1]
    codes = load_codes(tmp_path)
    by_record: dict[Any, set[str]] = {}
    for record in halves[0] + halves[1]:
        by_record.setdefault(record["record_id"], set()).add(codes[record["label"]].code)
    name = "R{}".format if id_column else (lambda n: n + 1)
    assert by_record[name(0)] == {"J690", "I10"}
    assert by_record[name(20)] == {"I10"}
    assert len(by_record[name(40)]) == 2
    assert by_record[name(50)] == by_record[name(51)] == {"J690"}


def test_parts_are_read_as_cells(tmp_path: Path) -> None:
    """Against the list, in its spelling; a part that it lacks is refused by its number."""
    listed = written(tmp_path / "l.csv", [("J69.0", "a"), ("I10", "b")], ("code", "title"))
    path, config = reports(tmp_path, ["J690;I10.0"] * 9 + ["I10"] * 9, **EACH)
    with pytest.raises(
        InputError, check=of_kind("records-of-unlisted-codes"), match=r"\b18\b.*\b27\b"
    ):
        preview(path, config, listed)
    seen = preview(path, config.model_copy(update={"unknown_codes": "match"}), listed)
    assert (seen.usable, seen.codes_observed) == (27, 2)


def test_rows_are_named_as_in_the_file(tmp_path: Path) -> None:
    cells = [("fell", "J690;I10", "P1"), ("", "J690", "P2"), ("cut", "I10", "P3")]
    path = written(tmp_path / "in.csv", cells, ("text", "code", "person"))
    options = {"text_columns": ["text"], "label_column": "code", "date_column": None} | EACH
    config = IngestConfig.model_validate(options | {"empty_text": "refuse"})
    with pytest.raises(InputError, check=of_kind("no-text"), match=r"\b1\b.*row 2"):
        preview(path, config, None)


@pytest.mark.parametrize("lacks", ["unit_column", "max_per_unit", "split_by_unit"])
def test_each_code_needs_a_unit(tmp_path: Path, lacks: str) -> None:
    """Otherwise a report would be several units, and in both halves."""
    kept = {name: value for name, value in EACH.items() if name != lacks}
    with pytest.raises(ValueError, match=r"(several_codes=each|_unit) .*unit_column"):
        reports(tmp_path, ["111"], **kept)


def test_a_date_splits_records_of_each_code(tmp_path: Path) -> None:
    kept = {name: value for name, value in EACH.items() if name != "split_by_unit"}
    more = {"train_before": "2020-01-01", "date_column": "d", "cohort": "none"}
    rows = [(f"fell {n}", "J690;I10", f"P{n}", f"20{19 + n % 2}-05-01") for n in range(20)]
    path = written(tmp_path / "in.csv", rows, ("text", "code", "person", "d"))
    options = {"text_columns": ["text"], "label_column": "code"} | kept | more
    seen = preview(path, IngestConfig.model_validate(options), None)
    assert seen.sampled == {"train": 20, "test": 20}


@pytest.mark.parametrize(
    "value",
    [
        *("01.11.2024", "2024-11-01", "2024-11-01 00:00:00", "10. Jan", "10-Jan", "Jan-10"),
        *("11. Mrz", "1 févr.", "11-ene", "1/11/2024", "01-Nov-2024"),
    ],
)
def test_codes_that_became_dates(tmp_path: Path, value: str) -> None:
    assert odd({value: 3, "01.11": 5}) == [
        "3 are dates, as a spreadsheet makes them of codes such as 1.11"
    ]


@pytest.mark.parametrize(
    "value",
    [
        *("-9", "-7", "-1.0", "999", "9999", "99.9", "ZZZ", "XX", "000", "***", "unknown"),
        *("Not stated", "(missing)", "k.A.", "inconnu", "sin dato", "Unbekannt"),
    ],
)
def test_marks_of_missing_codes(tmp_path: Path, value: str) -> None:
    """They are no classes that someone meant; named, a mark makes their records
    ones without code.
    """
    cells = [value] * 4 + ["111"] * 10 + ["132"] * 10
    seen = look(tmp_path, cells)
    assert any(note.startswith("of the codes, 4 are") and "missing=" in note for note in seen.notes)
    assert look(tmp_path, cells, read={"missing": [value]}).dropped == {"no_code": 4}


@pytest.mark.parametrize(
    "code", ["111", "S72.0", "A00-B99", "9", "0", "29-1141", "May", "86.10", "X1"]
)
def test_codes_are_not_odd(code: str) -> None:
    assert not odd({code: 1})


def dated(folder: Path, days: list[str], **more: Any) -> SourcePreview:
    rows = [(f"fell {n}", ("111", "132")[n % 2], day) for n, day in enumerate(days)]
    path = written(folder / "in.csv", rows, ("text", "code", "d"))
    options = {"text_columns": ["text"], "label_column": "code", "date_column": "d"} | more
    return preview(path, IngestConfig.model_validate(options), None)


@pytest.mark.parametrize(
    ("date_format", "day"),
    [
        ("%m%d%Y", "1012020"),
        ("%d%m%Y", "1012020"),
        ("%m%d%y", "10120"),
        ("%Y%m%d", "2020101"),
        ("%Y%m%d %H:%M", "2020101 10:00"),
    ],
)
def test_dates_that_lost_a_zero(tmp_path: Path, date_format: str, day: str) -> None:
    """strptime reads them as another month; they are refused by their length."""
    full = {"%m%d%Y": "12312020", "%d%m%Y": "31122020", "%m%d%y": "123120"}
    right = full.get(date_format, "20201231" + " 10:00" * date_format.endswith("%M"))
    assert dated(tmp_path, [right] * 8, date_format=date_format).cohorts == ("2020",)
    with pytest.raises(
        InputError, check=of_kind("unreadable-dates", saying=("row 9", "1 have another length"))
    ):
        dated(tmp_path, [right] * 8 + [day], date_format=date_format)


def test_dates_of_the_future_and_of_no_year(tmp_path: Path) -> None:
    """Years of two digits become 2065; 2202 is a date, and no year of records."""
    seen = dated(tmp_path, ["1/1/65", "2/2/20"] * 6, date_format="%m/%d/%y")
    assert any(note.startswith("6 dates lie in the future") for note in seen.notes)
    assert not dated(tmp_path, ["1/13/20", "2/2/20"] * 6, date_format="%m/%d/%y").notes
    seen = dated(tmp_path, ["1900-01-01", "2020-02-28"] * 6)
    assert any(note.startswith("6 dates are the first day of 1900") for note in seen.notes)
    with pytest.raises(
        InputError, check=of_kind("unreadable-dates", saying=("1 have a year", "1900", "2100"))
    ):
        dated(tmp_path, ["2020-01-31"] * 8 + ["2202-01-31"])
