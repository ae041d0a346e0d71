"""Rows of a table as a model with columns of values reads them, by whatever name the table has for each column."""

from __future__ import annotations

from pathlib import Path

import pytest
from csv_files import rows_of, write_csv

from mechanisms.model.valued_text import values_of
from storage.errors import InputError
from storage.tables.reader import survey
from tasks.bundle.thresholds import thresholds_on_table
from tasks.coding import shards
from tasks.coding.coder import Coder
from tasks.coding.columns import answer_columns
from tasks.coding.job import CodingJob, run
from tasks.coding.joint import open_bundle
from tasks.coding.records import Records, declared_columns, with_values
from tasks.coding.successor import answers


@pytest.fixture(scope="module")
def valued(valued_bundle: Path) -> Coder:
    return open_bundle(valued_bundle).fields[""]


def write(path: Path, *, industry: str = "Industry", rows: int = 12) -> Path:
    cells = ("Construction", " Mining ", "Fishing", "", "=1+1")
    lines = [
        ["He fell from a ladder.", cells[n % 5], ("under 25", "x")[n % 2], ("111", "132")[n % 2]] for n in range(rows)
    ]
    return write_csv(path, ["Text", industry, "Age", "Nature"], lines)


def test_columns_have_their_own_or_a_given_name() -> None:
    """NAME=COLUMN renames a declared column; any other text column may have such a sign in its name."""
    records = Records.of(("Industry", "Age"), ("Text", "Industry=Branche", "a=b"))
    assert records.columns == ("Text", "a=b", "Branche", "Age")
    (text,) = records.texts([("He fell.", "", " Mining ", "")])
    assert text == "He fell."
    assert values_of(text) == {"Industry": "Mining"}
    assert Records.of(("Industry",), (), usual="Final Narrative").columns == ("Final Narrative", "Industry")
    assert Records.restored(("Industry", "Age"), records.columns, None) == Records.of(
        ("Industry", "Age"), ("Text", "a=b", "Industry=Branche")
    )
    assert type(with_values("He fell.", {"Industry": "  "})) is str


def test_a_model_without_columns_reads_none(tiny_bundle: Path, valued_bundle: Path, tmp_path: Path) -> None:
    assert declared_columns(tiny_bundle) == ()
    assert declared_columns(valued_bundle) == ("Industry", "Age")
    (tmp_path / "lexicon.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        declared_columns(tmp_path)


def test_a_table_is_coded_by_its_values(valued: Coder, tmp_path: Path) -> None:
    """Each row as the coder codes its text and cells; under another name of the column the answers are the same."""
    coded = []
    for name, columns in (("Industry", ("Text",)), ("Branche", ("Text", "Industry=Branche"))):
        source, out = write(tmp_path / f"{name}.csv", industry=name), tmp_path / f"{name}.out.csv"
        records = Records.of(valued.model.value_columns, columns)
        table = survey(source, text_columns=records.columns)
        run(valued, CodingJob(table, out, records, answer_columns(valued, top_k=1, threshold=None)))
        coded.append([(row[name], row["Age"], row["code"], row["score"]) for row in rows_of(out)])
    assert coded[0] == coded[1]
    assert len({row[2:] for row in coded[0]}) > 2, "values move the answers"
    for industry, age, code, score in coded[0]:
        cells = {"Industry": industry.removeprefix("'"), "Age": age}
        (expected,) = valued.code([with_values("He fell from a ladder.", cells)])
        assert (code, float(score)) == (expected.answers[0].code, pytest.approx(expected.answers[0].score, abs=1e-5))


def test_workers_read_the_same_columns(valued: Coder, valued_bundle: Path, tmp_path: Path) -> None:
    """What a worker restores of a request is what the job had."""
    records = Records.of(valued.model.value_columns, ("Text", "Industry=Branche"))
    table = survey(write(tmp_path / "in.csv", industry="Branche"), text_columns=records.columns)
    job = CodingJob(table, tmp_path / "out.csv", records, answer_columns(valued, top_k=1, threshold=None))
    request = shards.pieces_of(valued, job, bundle=valued_bundle)
    assert Records.restored(valued.model.value_columns, request.columns, request.template) == records
    plain = shards.job_of(valued, table, out="out.csv", column="Text", top_k=1, threshold=None)
    assert plain.narratives.columns == ("Text", "Industry", "Age")


def test_calibration_and_a_successor_read_them(valued: Coder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of other values are other scores, so that a temperature and a comparison need them too."""
    source = write(tmp_path / "in.csv", rows=300)
    records = Records.of(valued.model.value_columns, ("Text",))
    fitted = thresholds_on_table(
        valued.model, source, columns=records.columns, join=records.texts, label="Nature", name="own"
    )
    assert fitted["records"] == 300
    texts: list[str] = []
    scores = Coder.scores
    monkeypatch.setattr(Coder, "scores", lambda self, given: texts.extend(given) or scores(self, given))
    compared = answers(valued, valued, source, records, option="--labelled", label="Nature")
    assert {values_of(text).get("Industry") for text in texts} == {"Construction", "Mining", "Fishing", None, "=1+1"}
    assert (compared.old == compared.new).all()
