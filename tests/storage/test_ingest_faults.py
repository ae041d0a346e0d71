"""Bad input: each fault is refused with the place and the remedy, and with nothing
of a narrative.
"""

import csv
import io
import json
import traceback
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from refusals import of_kind

from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig, check_source, ingest, pipeline
from tasks.running.failures import private_errors

MARKER = "PLANTED"
HEADER = ("EventDate", "Final Narrative", "Nature", "ID")
ROWS = [
    (f"1/{n}/2015", f"{MARKER} narrative {n}", ("111", "132")[n % 2], f"r{n}") for n in range(1, 9)
]


def text_of(rows: Sequence[tuple[str, ...]] = ROWS, header: tuple[str, ...] = HEADER) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue()


def with_cell(row: int, column: str, value: str) -> list[tuple[str, ...]]:
    rows = [list(r) for r in ROWS]
    rows[row - 1][HEADER.index(column)] = value
    return [tuple(r) for r in rows]


def everything_said(error: BaseException | None) -> str:
    """All text that a log or a database could get of an exception: its own and that of whatever it
    drags along.
    """
    said = ""
    while error is not None:
        said += "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
        error = error.__cause__ or error.__context__
    return said


def refused(
    content: bytes | str,
    folder: Path,
    config: IngestConfig | None = None,
    *,
    codelist: Path | None = None,
    act: Callable[..., object] = ingest,
) -> str:
    """Ingest, which must refuse; the error's text, after making sure that nothing of a record is in
    it.
    """
    path = folder / "source.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        if act is ingest:
            ingest(path, folder, config or IngestConfig(), codelist)
        else:
            check_source(path, config or IngestConfig(), codelist)
    assert MARKER not in everything_said(caught.value)
    assert not list(folder.glob("*.arrow"))
    return str(caught.value)


def archive(*names: str, content: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, content or text_of())
    return buffer.getvalue()


def encrypted_archive() -> bytes:
    content = bytearray(archive("injuries.csv"))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def broken_archive() -> bytes:
    content = bytearray(archive("injuries.csv", content=text_of(ROWS * 100)))
    middle = content.index(b"PK\x01\x02") // 2
    content[middle : middle + 20] = bytes(20)
    return bytes(content)


def test_sound_rows_are_taken(tmp_path: Path) -> None:
    """The rows that the faults below are planted in are accepted without them."""
    path = tmp_path / "source.csv"
    path.write_text(text_of())
    assert ingest(path, tmp_path, IngestConfig(id_column="ID"), None).train == 4


FILE_FAULTS = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n ", "is blank"),
    "header only": (text_of([]), "a header and no records"),
    "header only, no line feed": (text_of([]).rstrip(), "a header and no records"),
    "NUL bytes": (text_of().replace("narrative 3", "narr\0ative"), "NUL"),
    "UTF-16": (text_of().encode("utf-16"), "UTF-16. Save it as UTF-8"),
    "picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a picture"),
    "a page": (
        "<html><body>Not found</body></html>\n<p>x</p>\n",
        "is an HTML page, so the download failed",
    ),
    "no table": ("Not found\nx\n", "has no column 'Final Narrative' (--text)"),
    "missing column": (
        text_of(header=("EventDate", "FinalNarrative", "Nature", "ID")),
        (
            "(--text). Did you mean 'FinalNarrative'? It has 4 columns, 'EventDate', 'Nature' "
            "among "
            "them"
        ),
    ),
    "piece of a record in the header": (
        text_of(header=("EventDate", "Fell from a ladder", "Nature", "ID")),
        "no column 'Final Narrative' (--text). It has 4 columns, 'EventDate', 'Nature' among them",
    ),
    "column twice": (
        text_of(header=("EventDate", "Final Narrative", "Nature", "Nature")),
        "has 2 columns 'Nature'",
    ),
    "no header": (text_of(ROWS[1:], ROWS[0]), "its first row is not shown"),
    "a header of other names": (
        text_of(header=("Treated", "Age", "Alcohol", "Where")),
        "(--text). None of its 4 columns is recognised",
    ),
    "a header of usual names": (
        text_of(header=("date", "title", "code", "id")),
        "(--text). It has 4 columns, 'date', 'title', 'code', 'id' among them",
    ),
    "no CSV in ZIP": (archive("a.doc", "b.pdf"), "contains no CSV"),
    "workbook": (
        archive("xl/workbook.xml"),
        "the workbook is damaged, locked by a password, or none",
    ),
    "two CSVs in ZIP": (archive("2015.csv", "2016.csv"), "contains 2 tables (2015.csv, 2016.csv)"),
    "encrypted ZIP": (encrypted_archive(), "is encrypted"),
    "cut ZIP": (archive("a.csv")[:-30], "starts like a ZIP but is damaged"),
    "empty CSV in ZIP": (
        archive("a.csv", content="\n")[:0] + archive("a.csv", content=" "),
        "is blank",
    ),
    "cut Parquet": (b"PAR1" + b"\1" * 50, "starts like Parquet but is damaged"),
}


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_faults_of_the_file_are_found_at_a_glance(tmp_path: Path, name: str) -> None:
    """The pre-flight look and the ingest itself refuse with the same words."""
    content, said = FILE_FAULTS[name]
    at_once = refused(content, tmp_path, act=check_source)
    assert said in at_once
    assert refused(content, tmp_path) == at_once


LATE = [
    (f"1/{n % 28 + 1}/2015", f"{MARKER} {'x' * 500}", ("111", "132")[n % 2], f"r{n}")
    for n in range(20_000)
]
ROW_FAULTS = {
    "NUL byte far in": (
        text_of([*LATE, ("1/1/2015", "a\0b", "111", "x")]),
        "line 20002: a NUL byte",
    ),
    "damaged UTF-8": (
        text_of(with_cell(3, "Final Narrative", f"{MARKER} “é”, “ü”"))
        .encode()
        .replace("ü".encode(), b"\xc3"),
        "is UTF-8 with 1 damaged bytes in line 4",
    ),
    "neither encoding": (
        text_of().encode().replace(b"narrative 3", b"narrative \x81"),
        "line 4: neither UTF-8 nor",
    ),
    "field too many": (
        text_of([*ROWS[:3], (*ROWS[3], "more"), *ROWS[4:]]),
        "row 4: 5 fields, but the header has 4",
    ),
    "field too few": (
        text_of([*LATE, ("1/1/2015", MARKER)]),
        "row 20001: 2 fields, but the header has 4",
    ),
    "quote left open": (
        text_of().replace(f"{MARKER} narrative 5,132,r5", f'{MARKER} narrative 5,132,"r5'),
        "row 5: a quote is open to the end",
    ),
    "quote left open, long": (
        text_of([*ROWS, *LATE]).replace(f"{MARKER} narrative 5", f'"{MARKER} narrative 5'),
        "row 5: a quote is open to the end",
    ),
    "broken ZIP": (broken_archive(), "the ZIP cannot be unpacked"),
}


@pytest.mark.parametrize("name", ROW_FAULTS)
def test_faults_inside_name_the_place(tmp_path: Path, name: str) -> None:
    """Faults that only reading the whole finds name the row or line, and quote no cell."""
    content, said = ROW_FAULTS[name]
    assert said in refused(content, tmp_path)


RECORD_FAULTS = {
    "one code": (
        text_of([(*row[:2], "111", row[3]) for row in ROWS]),
        {},
        "all 8 usable records have the same code",
    ),
    "no code twice": (
        text_of([(*row[:2], f"1{n}", row[3]) for n, row in enumerate(ROWS)]),
        {},
        "0 codes have 2",
    ),
    "no text at all": (
        text_of([(row[0], " ", *row[2:]) for row in ROWS]),
        {},
        "none of 8 records can be used",
    ),
    "narratives as codes": (
        text_of([(row[0], row[2], f"{row[1]} {'x' * 200}", row[3]) for row in ROWS]),
        {},
        "column 'Nature' has values of over 120 characters. Use the column of codes",
    ),
    "empty text": (
        text_of(with_cell(3, "Final Narrative", " \t")),
        {"empty_text": "refuse"},
        "1 records without text",
    ),
    "bad date": (
        text_of(with_cell(3, "EventDate", "31/12/2015")),
        {},
        "1 dates are missing or do not read",
    ),
    "impossible date": (text_of(with_cell(3, "EventDate", "2/30/2015")), {}, "(row 3)"),
    "mistyped year": (text_of(with_cell(3, "EventDate", "2/3/0205")), {}, "(row 3)"),
    "no date": (
        text_of(with_cell(3, "EventDate", "")),
        {},
        "(row 3). Correct them, set data.ingest.date_format (such as %m/%d/%y if years",
    ),
    "own date format": (
        text_of(),
        {"date_format": "%d.%m.%Y"},
        "8 dates are missing or do not read as %d.%m.%Y",
    ),
    "same id": (
        text_of(with_cell(6, "ID", "r2")),
        {"id_column": "ID"},
        "2 records share an id with another (rows 2, 6)",
    ),
    "blank id": (text_of(with_cell(6, "ID", " ")), {"id_column": "ID"}, "1 ids are blank (row 6)"),
    "no unit": (text_of([(*row[:3], "") for row in ROWS]), {"unit_column": "ID"}, "(no_unit 8)"),
}


@pytest.mark.parametrize("name", RECORD_FAULTS)
def test_faults_of_the_records_name_the_rows(tmp_path: Path, name: str) -> None:
    """Counts, row numbers and the option that helps; never a cell."""
    content, options, said = RECORD_FAULTS[name]
    assert said in refused(content, tmp_path, IngestConfig.model_validate(options))


def test_many_faulty_rows_are_counted_and_the_first_named(tmp_path: Path) -> None:
    rows = [("never", f"{MARKER} {n}", ("111", "132")[n % 2], f"r{n}") for n in range(5000)]
    assert "5000 dates are missing" in (said := refused(text_of(rows), tmp_path))
    assert "(rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 4990 more)" in said


def test_values_off_the_list_are_described_and_never_shown(tmp_path: Path) -> None:
    """Of twenty social security numbers in the code column: their number, length and characters,
    and the way out.
    """
    codelist = tmp_path / "codes.csv"
    codelist.write_text("code,title\n111,Fractures\n9,Nine\n")
    numbers = [f"{n:03}-45-{6789 - n}" for n in range(20)]
    rows = [
        (f"1/{n + 1}/2015", f"{MARKER} {n}", number, f"r{n}") for n, number in enumerate(numbers)
    ]
    said = refused(text_of(rows), tmp_path, codelist=codelist)
    assert "20 of 20 records have a code that is not on the code list" in said
    assert (
        "(20 distinct values of 11 characters: digits, other signs). Use the right list or "
        "column, or"
    ) in said
    assert not [number for number in numbers if number in said]


def test_check_reads_the_code_list(tmp_path: Path) -> None:
    """A code list that is missing or no code list is refused before work starts."""
    assert "no file" in refused(
        text_of(), tmp_path, codelist=tmp_path / "absent.csv", act=check_source
    )
    other = tmp_path / "other.csv"
    other.write_text(text_of())
    assert "column 'code' is missing" in refused(
        text_of(), tmp_path, codelist=other, act=check_source
    )


@pytest.mark.parametrize(
    ("record", "refusal"),
    [
        (
            {"Final Narrative": "fell", "Nature": [{"Name": "Fall"}], "EventDate": ""},
            of_kind("nested-value"),
        ),
        ({"Final Narrative": "fell", "Hazards": []}, of_kind("no-column", column="Nature")),
    ],
)
def test_check_reads_small_json(
    tmp_path: Path, record: dict[str, object], refusal: of_kind
) -> None:
    """Whose columns are known at its end: what ingest would refuse is refused before it."""
    file = tmp_path / "recalls.json"
    file.write_text(json.dumps([record]))
    with pytest.raises(InputError, check=refusal):
        check_source(file, IngestConfig(), None)


def test_no_such_file(tmp_path: Path) -> None:
    """A path that is no file is refused, and a folder without files."""
    for path, refusal in (
        (tmp_path / "absent.csv", of_kind("no-data-file")),
        (tmp_path, of_kind("empty-folder")),
    ):
        with pytest.raises(InputError, check=refusal):
            check_source(path, IngestConfig(), None)


def test_parquet_columns_that_are_no_text(tmp_path: Path) -> None:
    """Lists and bytes that are no UTF-8 are refused by name and type."""
    for name, values in (("lists", [["a"], ["b"]]), ("bytes", [b"\xff\xfe", b"\xff"])):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(
            pa.table(
                {"Final Narrative": values, "Nature": ["1", "2"], "EventDate": ["1/1/2015"] * 2}
            ),
            path,
        )
        with pytest.raises(InputError, check=of_kind("column-type", saying="'Final Narrative'")):
            ingest(path, tmp_path, IngestConfig(), None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"text_columns": []}, "at least 1 item"),
        ({"text_columns": ["a", "a"]}, "repeats a column"),
        ({"label_column": "Final Narrative"}, "would read the answer"),
        ({"template": "{Final Narrative} {Job}"}, "names 'Job', which is not among text_columns"),
        ({"template": "always the same"}, "leaves out text column 'Final Narrative'"),
        ({"template": "{Final Narrative} {"}, "unmatched brace"),
        ({"max_per_unit": 2}, "has no unit_column"),
        ({"max_per_unit": 0, "unit_column": "u"}, "greater than or equal to 1"),
        ({"cap_per_code": 0}, "greater than or equal to 1"),
        ({"cap_per_code": 3, "min_per_code": 4}, "below min_per_code"),
        ({"min_per_code": 0}, "greater than or equal to 1"),
        ({"test_share": 1.0}, "less than 1"),
        ({"test_share": 0.0}, "greater than 0"),
        ({"test_share": float("nan")}, "finite"),
        ({"holdout_share": -0.1}, "greater than or equal to 0"),
        ({"holdout_share": float("inf")}, "finite"),
        ({"date_format": "%d.%m."}, "has no year"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"seed": 2**53}, "less than"),
        ({"cohort": "week"}, "'year', 'quarter', 'month' or 'none'"),
        ({"text_column": "Final Narrative"}, "Extra inputs are not permitted"),
        (
            {"sampling": "per-record", "cap_per_code": 200},
            "Set cap_per_code to null and min_per_code to 1",
        ),
        (
            {"sampling": "per-record", "min_per_code": 2},
            "Set cap_per_code to null and min_per_code to 1",
        ),
        ({"train_before": "2016-05-01", "date_column": None}, "has no date_column"),
        ({"train_before": "2016-05-32"}, "valid date"),
        (
            {"train_before": "2016-05-01", "unit_column": "u", "split_by_unit": True},
            "both sides of a date",
        ),
        ({"cohorts": ["2015-Q1"]}, "'2015-Q1' is not a year. Write it as 2015"),
        ({"cohorts": ["2015-13"], "cohort": "month"}, "is not a month. Write it as 2015-01"),
        ({"cohorts": []}, "at least 1 item"),
        ({"cohorts": [2015, "2015"]}, "is repeated"),
        ({"cohorts": [2015], "cohort": "none"}, "need dates"),
        ({"cohorts": [2015], "date_column": None}, "need dates"),
        ({"split_by_unit": True}, "split_by_unit has no unit_column"),
    ],
)
def test_configurations_that_contradict_themselves(options: dict[str, object], said: str) -> None:
    """Numbers out of range, contradictions and unknown names are refused before a
    file is opened.
    """
    with pytest.raises(ValidationError, match=said):
        IngestConfig.model_validate(options)


@pytest.mark.parametrize("copies", [1, 3000])
def test_full_disk_is_told_and_leaves_no_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    """A disk without room, met at the first row group or at the end, ends in an error that says so;
    no split is there. The device /dev/full stands for the disk: the kernel answers every write to
    it with ENOSPC.
    """
    monkeypatch.setattr(pipeline, "_partial", lambda path: Path("/dev/full"))
    path = tmp_path / "source.csv"
    path.write_text(text_of(ROWS * copies))
    out = tmp_path / "out"
    out.mkdir()
    with (
        pytest.raises(StorageError, check=of_kind("disk", saying=("ingest", "no space"))) as caught,
        private_errors("ingest"),
    ):
        ingest(path, out, IngestConfig(cap_per_code=None), None)
    assert MARKER not in everything_said(caught.value)
    assert not list(out.iterdir())


def test_source_changed_between_the_passes(tmp_path: Path) -> None:
    path = tmp_path / "source.csv"
    path.write_text(text_of(ROWS * 200))

    def append(done: int, total: int | None) -> None:
        if done * 2 == 1600:
            with path.open("a") as file:
                file.write(text_of(ROWS).partition("\n")[2])

    with pytest.raises(StorageError, check=of_kind("records-changed")):
        ingest(path, tmp_path, IngestConfig(), None, append)
    assert not list(tmp_path.glob("*.arrow"))
