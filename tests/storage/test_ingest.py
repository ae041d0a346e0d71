"""Ingest of sound sources: every kind of file gives the same records, and the output is what it
says.
"""

import csv
import datetime
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import of_kind

from storage.code_levels import describe_with_levels
from storage.codelist import Code
from storage.datasets import load_codes, load_split
from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig, IngestResult, check_source, ingest, preview
from storage.tables import reader

HEADER = ("EventDate", "Final Narrative", "Nature", "Establishment")
ROWS = [
    ("1/1/2015", "An employee fell\r\nfrom a “ladder”.", "111", "A"),
    ("12/31/2016", "Fell, and broke a leg", "111", "A"),
    ("3/5/2015", 'A 6" pipe fell on the café worker', " 132 ", "B"),
    ("3/5/2015", "Cut a finger", "132.0", "C"),
    ("3/6/2015", "Cut a thumb", "132", "C"),
    ("3/7/2015", "Slipped", "111", "D"),
    ("3/8/2015", "Stung by a wasp", "1966", "D"),
]
CONFIG = IngestConfig()


def text_of(
    rows: Sequence[tuple[str, ...]] = ROWS,
    header: tuple[str, ...] = HEADER,
    *,
    delimiter: str = ",",
) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def run(content: bytes | str, folder: Path, config: IngestConfig = CONFIG) -> IngestResult:
    path = folder / ("source.jsonl" if content[:1] in ("{", b"{") else "source")
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    return ingest(path, out, config, None)


def run_listed(codes: str, folder: Path, **options: object) -> IngestResult:
    (folder / "codes.csv").write_text(codes)
    (folder / "source.csv").write_text(text_of(), encoding="utf-8", newline="")
    return ingest(
        folder / "source.csv", folder, IngestConfig.model_validate(options), folder / "codes.csv"
    )


def records(out: Path, split: str) -> list[dict[str, object]]:
    return load_split(out, split).to_list()


def by_id(out: Path, column: str) -> dict[object, object]:
    return {
        row["record_id"]: row[column] for split in ("train", "test") for row in records(out, split)
    }


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("readme.txt", "about")
        archive.writestr("January2015toSeptember2023.CSV", content)
    return buffer.getvalue()


def parquet(**columns: Sequence[object]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def test_records_and_labels_are_those_of_the_source(tmp_path: Path) -> None:
    """What is written is what was read: text, code by its label, cohort; no record twice, none in
    both halves.
    """
    result = run(text_of(), tmp_path)
    out = tmp_path / "out"
    codes = load_codes(out)
    assert codes == [Code("111"), Code("132")]
    found = {row["record_id"]: row for split in ("train", "test") for row in records(out, split)}
    assert len(found) == result.train + result.test == 6
    for row, (date, text, code, _) in enumerate(ROWS[:6], start=1):
        kept = found[row]
        assert kept["text"] == text
        assert codes[int(str(kept["label"]))].code == code.strip().removesuffix(".0")
        assert kept["cohort"] == date[-4:]
        assert kept["unit"] is None
    assert result.rows_read == 7
    assert result.cohorts == ("2015", "2016")
    assert (result.codes_observed, result.label_space, result.label_space_source) == (
        2,
        2,
        "observed",
    )
    assert result.report["dropped"] == {"over_unit_cap": 0, "rare_code": 1, "over_code_cap": 0}
    assert result.report["codes_respelt"] == 1
    for code in (0, 1):
        halves = [
            sum(row["label"] == code for row in records(out, split)) for split in ("train", "test")
        ]
        assert sorted(halves) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("utf-8 with mark", text_of().encode("utf-8-sig")),
        ("cp1252", text_of().encode("cp1252")),
        ("zip", zipped(text_of().encode())),
        ("zip of cp1252", zipped(text_of().encode("cp1252"))),
        ("semicolons", text_of(delimiter=";").encode()),
        ("tabs", text_of(delimiter="\t").encode()),
        ("no last line feed", text_of().encode().rstrip(b"\r\n")),
        ("blank lines", text_of().replace("\r\n3/", "\r\n\r\n3/").encode()),
        (
            "json lines",
            "".join(
                json.dumps(dict(zip(HEADER, row, strict=True))) + "\n" for row in ROWS
            ).encode(),
        ),
        ("parquet", parquet(**{name: [row[at] for row in ROWS] for at, name in enumerate(HEADER)})),
    ],
)
def test_every_kind_of_file_gives_the_same_records(
    tmp_path: Path, kind: str, content: bytes
) -> None:
    """Encoding, packing, delimiter and Parquet leave no trace in the records: one fingerprint for
    all.
    """
    (tmp_path / "plain").mkdir()
    plain = run(text_of(), tmp_path / "plain")
    assert run(content, tmp_path).fingerprint == plain.fingerprint
    for split in ("train", "test"):
        assert records(tmp_path / "out", split) == records(tmp_path / "plain" / "out", split)


def test_parquet_columns_of_numbers_and_dates(tmp_path: Path) -> None:
    """Codes stored as floats with gaps, dates stored as dates and nulls read as a CSV would give
    them.
    """
    from datetime import date

    content = parquet(
        **{
            "Final Narrative": ["fell", "tripped", "cut", "sliced", None, "lost"],
            "Nature": [111.0, 111.0, 132.0, 132.0, 132.0, float("nan")],
            "EventDate": [
                date(2015, 1, 1),
                date(2016, 1, 1),
                date(2015, 1, 1),
                date(2015, 1, 1),
                None,
                None,
            ],
        }
    )
    result = run(content, tmp_path)
    assert [code.code for code in load_codes(tmp_path / "out")] == ["111", "132"]
    assert {name: n for name, n in result.report["dropped"].items() if n} == {
        "no_code": 1,
        "no_text": 1,
    }
    assert result.cohorts == ("2015", "2016")


@pytest.mark.parametrize("name", ["late byte", "split character"])
def test_encoding_is_judged_by_the_whole_file(tmp_path: Path, name: str) -> None:
    """A cp1252 letter after megabytes of ASCII, and a UTF-8 letter across two chunks, are read for
    what they are.
    """
    filler = [("1/1/2015", "x" * 1000, "111", "A")] * 5000
    if name == "late byte":
        content = text_of(
            [*filler, ("1/1/2015", "café", "132", "A"), ("1/1/2015", "é", "132", "A")]
        ).encode("cp1252")
    else:
        content = text_of(
            [*filler, ("1/1/2015", "é" * 50_001, "132", "A"), ("1/1/2015", "é", "132", "A")]
        ).encode()
        shift = (4 << 20) - content.index("é".encode()) - 1
        content = content.replace(b"x" * 1000, b"x" * (1000 + shift % 2), 1)
    run(content, tmp_path)
    texts = {
        str(row["text"]) for split in ("train", "test") for row in records(tmp_path / "out", split)
    }
    assert "é" in texts


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Read some rows at a time, line breaks in quotes included: same bytes on disk."""
    records = [
        (f"{1 + n % 12}/1/2015", f"case {n}\nof “{n % 7}”", str(100 + n % 3), f"U{n % 11}")
        for n in range(300)
    ]
    config = IngestConfig(
        unit_column="Establishment", max_per_unit=5, cap_per_code=10, holdout_share=0.2
    )
    (tmp_path / "a").mkdir()
    whole = run(text_of(records), tmp_path / "a", config)
    monkeypatch.setattr(reader, "_PIECE_ROWS", rows)
    assert run(text_of(records), tmp_path, config) == whole
    for name in ("train.arrow", "test.arrow", "holdout.arrow", "codes.json", "report.json"):
        assert (tmp_path / "out" / name).read_bytes() == (
            tmp_path / "a" / "out" / name
        ).read_bytes()


def test_code_list_fixes_the_label_space(tmp_path: Path) -> None:
    """The whole list in its order, whatever was observed; a code the list spells 132.0 keeps its
    spelling.
    """
    codes = (
        "level,Code,Title\n2,9,Nine\n2,132.0,Cuts\n2,111,Fractures\n2,132,Other "
        "cuts\n2,1966,Stings\n"
    )
    result = run_listed(codes, tmp_path, min_per_code=1)
    assert load_codes(tmp_path) == [
        *(
            Code("9", "Nine"),
            Code("132.0", "Cuts"),
            Code("111", "Fractures"),
            Code("132", "Other cuts"),
        ),
        Code("1966", "Stings"),
    ]
    assert (result.label_space, result.codes_observed, result.label_space_source) == (
        5,
        4,
        "codelist",
    )
    assert by_id(tmp_path, "label") == {1: 2, 2: 2, 3: 3, 4: 1, 5: 3, 6: 2, 7: 4}


def test_observed_codes_keep_what_their_list_says(tmp_path: Path) -> None:
    """Codes without a record are no classes, the list's order stays, and each class knows the
    levels above it.
    """
    listed = "code,title\n1,Injuries\n1966,Stings\n15,Burns\n13,Wounds\n132,Cuts\n111,Fractures\n"
    result = run_listed(listed, tmp_path, min_per_code=2, label_space="observed")
    codes = load_codes(tmp_path)
    assert [(code.code, code.title, list(code.above)) for code in codes] == [
        ("132", "Cuts", ["Wounds", "Injuries"]),
        ("111", "Fractures", ["Injuries"]),
    ]
    assert describe_with_levels(codes) == ["Cuts. Wounds. Injuries", "Fractures. Injuries"]
    assert (result.label_space, result.codes_observed, result.label_space_source) == (
        2,
        2,
        "observed",
    )
    assert by_id(tmp_path, "label") == {1: 1, 2: 1, 3: 0, 4: 0, 5: 0, 6: 1}


def test_codes_off_the_list_are_dropped_when_told(tmp_path: Path) -> None:
    """They are counted by code in the report, and nothing of them is in the splits."""
    result = run_listed(
        "code,title\n111,Fractures\n132,Cuts\n", tmp_path, min_per_code=1, unknown_codes="drop"
    )
    assert result.report["codes_not_on_list"] == {"1966": 1}
    assert result.report["dropped"]["code_not_on_list"] == 1
    assert result.train + result.test == 6


def test_several_text_columns_by_template(tmp_path: Path) -> None:
    """A template places columns; without one, columns that are not blank are joined."""
    header = ("Job", "What happened", "Nature")
    rows = [
        ("Roofer", "fell {badly}", "111"),
        (" ", "slipped", "111"),
        ("Cook", "cut", "132"),
        ("Cook", "", "132"),
    ]
    columns = ("Job", "What happened")
    plain = IngestConfig(text_columns=columns, date_column=None)
    run(text_of(rows, header), tmp_path, plain)
    joined = {1: "Roofer | fell {badly}", 2: "slipped", 3: "Cook | cut", 4: "Cook"}
    assert by_id(tmp_path / "out", "text") == joined
    config = plain.model_copy(update={"template": "{What happened} (job: {Job})"})
    result = run(text_of(rows, header), tmp_path, config)
    placed = {
        1: "fell {badly} (job: Roofer)",
        2: "slipped (job: )",
        3: "cut (job: Cook)",
        4: "(job: Cook)",
    }
    assert by_id(tmp_path / "out", "text") == placed
    assert result.cohorts == ("all",)


@pytest.mark.parametrize(
    ("config", "dates", "cohorts"),
    [
        (
            IngestConfig(),
            ["1/31/2015", "2016-02-29", "12/1/2015 10:30:00 AM", "2016-01-01T00:00:00"],
            ("2015", "2016"),
        ),
        (IngestConfig(cohort="quarter"), ["1/31/2015", "6/30/2015", "7/1/2015", "2/2/2015"], None),
        (
            IngestConfig(cohort="month"),
            ["1/31/2015", "1/1/2015", "11/1/2015", "1/9/2015"],
            ("2015-01", "2015-11"),
        ),
        (
            IngestConfig(date_format="%d.%m.%y"),
            ["31.01.15", "28.02.16", "01.01.15", "01.01.15"],
            ("2015", "2016"),
        ),
        (IngestConfig(cohort="none"), ["never", "", "soon", "?"], ("all",)),
    ],
)
def test_cohorts(
    tmp_path: Path, config: IngestConfig, dates: list[str], cohorts: tuple[str, ...] | None
) -> None:
    """Year, quarter and month of OSHA's, ISO and own date formats; `none` does not look at the
    dates.
    """
    rows = [(day, f"case {n}", str(111 + n % 2), "A") for n, day in enumerate(dates)]
    assert run(text_of(rows), tmp_path, config).cohorts == (
        cohorts or ("2015-Q1", "2015-Q2", "2015-Q3")
    )


def test_ids_and_units(tmp_path: Path) -> None:
    """Ids of the source name the records; units are grouped, hidden from sight, and blank ones
    dropped.
    """
    header = ("EventDate", "Final Narrative", "Nature", "Establishment", "ID")
    rows = [(*row, f"id-{n}") for n, row in enumerate(ROWS[:6])]
    rows[5] = ("3/7/2015", "Slipped", "111", " ", "id-5")
    config = IngestConfig(id_column="ID", unit_column="Establishment")
    result = run(text_of(rows, header), tmp_path, config)
    found = by_id(tmp_path / "out", "unit")
    assert set(found) == {f"id-{n}" for n in range(5)}
    assert found["id-0"] == found["id-1"]
    assert found["id-3"] == found["id-4"]
    assert len(set(found.values())) == 3
    assert not {"A", "B", "C"} & set(found.values())
    assert result.report["dropped"]["no_unit"] == 1


def test_a_look_samples_as_ingest_does(tmp_path: Path) -> None:
    """The same halves and the same rows left out, by reason; and a half without records is refused
    without a run.
    """
    config = IngestConfig(cap_per_code=3, min_per_code=2)
    result = run(text_of([*ROWS, *ROWS[:6]]), tmp_path, config)
    looked = preview(tmp_path / "source", config, None)
    assert looked.sampled == {"train": result.train, "test": result.test}
    assert looked.left_out == {
        "over_code_cap": result.report["dropped"]["over_code_cap"],
        "rare_code": 1,
    }
    assert looked.usable == result.train + result.test + sum(looked.left_out.values())
    late = IngestConfig(train_before=datetime.date(2014, 1, 1))
    with pytest.raises(InputError, check=of_kind("no-usable-records", saying="before 2014")):
        preview(tmp_path / "source", late, None)


def test_fingerprint_follows_the_records_alone(tmp_path: Path) -> None:
    """One changed letter, code, date or split changes it; a column that is not read does not."""
    base = run(text_of(), tmp_path).fingerprint
    changed = [
        run(text_of([(*ROWS[0][:1], "an employee fell", *ROWS[0][2:]), *ROWS[1:]]), tmp_path),
        run(text_of([(*ROWS[0][:2], "132", "A"), *ROWS[1:]]), tmp_path),
        run(text_of([("1/1/2016", *ROWS[0][1:]), *ROWS[1:]]), tmp_path),
        run(text_of(), tmp_path, IngestConfig(seed=3, test_share=0.4)),
    ]
    assert base not in [result.fingerprint for result in changed]
    assert run(text_of([(*row[:3], "Z") for row in ROWS]), tmp_path).fingerprint == base


def test_leftovers_of_a_killed_run_are_replaced(tmp_path: Path) -> None:
    """A holdout of another configuration and half-written files do not survive."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("holdout.arrow", "train.arrow", "train.arrow.partial", "codes.json"):
        (out / name).write_bytes(b"half")
    run(text_of(), tmp_path)
    assert sorted(path.name for path in out.iterdir()) == [
        "cells.parquet",
        "codes.json",
        "report.json",
        "test.arrow",
        "train.arrow",
    ]
    assert len(load_split(out, "train")) == 3
    with pytest.raises(StorageError, check=of_kind("no-table", saying="holdout.arrow")):
        load_split(out, "holdout")


def test_report_holds_counts_and_no_narratives(tmp_path: Path) -> None:
    """The report's counts a code add up, and no narrative or unit is in it or in
    the label space.
    """
    run(text_of([(*row[:1], f"MARKER {row[1]}", row[2], "MARKER-UNIT") for row in ROWS]), tmp_path)
    text = (tmp_path / "out" / "report.json").read_text()
    assert "MARKER" not in text
    assert "MARKER" not in (tmp_path / "out" / "codes.json").read_text()
    report = json.loads(text)
    assert report["codes"]["111"]["train"] + report["codes"]["111"]["test"] == 3
    assert report["codes"]["1966"] == {"usable": 1, "train": 0, "test": 0, "holdout": 0}


def test_progress_ends_at_the_rows_read(tmp_path: Path) -> None:
    """Progress never falls and ends with all rows done."""
    path = tmp_path / "source.csv"
    path.write_text(text_of(ROWS * 1000), encoding="utf-8", newline="")
    seen: list[tuple[int, int | None]] = []
    ingest(path, tmp_path, CONFIG, None, lambda done, total: seen.append((done, total)))
    assert len(seen) >= 4
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (7000, 7000)


def test_loading_leaves_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split loads offline as a `datasets.Dataset` whose columns feed torch, and writes nothing
    anywhere near.
    """
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    run(text_of(), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    split = load_split(tmp_path / "out", "train")
    labels = torch.tensor(split["label"], dtype=torch.int64)
    assert labels.shape == (len(split),)
    assert len(list(split["text"])) == len(split)
    assert sorted(tmp_path.rglob("*")) == before


def test_check_tells_the_size_at_once(tmp_path: Path) -> None:
    """The pre-flight look gives about as many rows as there are."""
    path = tmp_path / "source.csv"
    path.write_text(
        text_of([(*row[:1], row[1].replace("\r\n", " "), *row[2:]) for row in ROWS] * 20_000)
    )
    found = check_source(path, CONFIG, None)
    assert found == pytest.approx(140_000, rel=0.05)


def test_osha_sample_is_the_documented_one(shared_data: Path, tmp_path: Path) -> None:
    """16,654 reports give 4,713 records of 102 codes under the paper's sampling (figures of the
    data's own README).
    """
    source, codelist = (
        shared_data / "osha_sir_2015-01_to_2016-08.csv",
        shared_data / "oiics201_nature.csv",
    )
    result = ingest(source, tmp_path, CONFIG, codelist)
    assert result.rows_read == 16_654
    assert (result.train + result.test, result.codes_observed) == (4713, 102)
    assert abs(result.train - result.test) == 1
    assert (result.label_space, result.label_space_source) == (615, "codelist")
    assert result.report["dropped"]["rare_code"] == 39
    assert check_source(source, CONFIG, codelist) == pytest.approx(16_654, rel=0.1)
