"""Would win: a value of one record that adds a feature or reaches a bundle unread, columns that outweigh a record's
narrative, a narrative that names its own columns, a cell that stops or leaves the coding, and records made new by a
move of their text to a column."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sealed_bundle import Sealed

from mechanisms.model import lexicon
from mechanisms.model.valued_text import ValueColumn, ValuedText, values_of
from storage.datasets import load_cells
from storage.ingest.cell_digests import cell_digests
from storage.tables.reader import survey
from tasks.bundle.texts import own_texts
from tasks.coding.columns import answer_columns
from tasks.coding.job import CodingJob, run
from tasks.coding.joint import open_bundle
from tasks.coding.records import Records, with_values
from tasks.fitting.ingest import ingest_records
from tasks.fitting.prior import lexicon_of
from tasks.parameters import DataParameters
from tasks.running.stage import Context, run_step

DECLARES = (
    (
        "a column next to the narrative tells no more of a record than its place on a public list",
        "a rare value, a name and a narrative in the column; a list made of narratives; 50 columns at once; narratives "
        "that are written like values; cells with formulas, escape sequences, 100,000 letters; a text moved to a "
        "column of values",
        "that a list owes nothing to the records: nobody can see that of a list, so each of its values is in the plan "
        "to read and sign, and the statement names the list as declared public",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

SECRET = "Jane Roe of 12 Mill Lane lost her thumb"
LIST = ["Construction", "Mining"]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    made = Context(home=str(tmp_path / "home"), device="cpu")
    made.workspace.create()
    return made


def ingested(context: Context, folder: Path, industry: str, **changed: Any) -> Any:
    """Ingests 20 records, of which the last has this industry."""
    folder.mkdir(exist_ok=True)
    with (folder / "in.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["ID", "Text", "Code", "Industry"])
        lines.writerows([f"r{n}", f"He fell {n} times.", str(n % 2), LIST[n % 2]] for n in range(19))
        lines.writerow(["r19", "He fell.", "1", industry])
    ingest = {"text_columns": "Text", "label_column": "Code", "id_column": "ID", "date_column": None}
    ingest |= {"sampling": "per-record", "value_columns": {"Industry": LIST}} | changed
    given = {"source": str(folder / "in.csv"), "population": "p", "ingest": ingest}
    return run_step(context, ingest_records(DataParameters.model_validate(given)))


def test_a_rare_value_adds_no_feature(context: Context, tmp_path: Path, tiny_bert: Path) -> None:
    """Whatever the last record's cell says, the data set is the same byte for byte, and so are lexicon and features."""
    from mechanisms.model.config import ModelConfig

    model = ModelConfig(encoder=str(tiny_bert), trainable="head", pooling="mean", max_length=32)
    made, widths = set(), set()
    for number, industry in enumerate(("Fishing", SECRET, "construction", "Construction\u200b", "not on the list")):
        dataset = ingested(context, tmp_path / str(number), industry)
        words = lexicon_of(context, model, dataset.path)
        assert words is not None
        made.add((words.model_dump_json(), context.store.figures(dataset)["fingerprint"]))
        widths.add(words.words([with_values("He fell.", {"Industry": industry})]).tolist()[0].index(1))
        files = [file.read_bytes() for file in dataset.path.glob("*") if file.name != "report.json"]
        assert not any(SECRET.encode() in content for content in files)
    assert len(made) == 1
    assert widths == {2}


def test_a_list_made_of_narratives_is_read_and_signed(sealed: Sealed) -> None:
    """It cannot be told from another list; each of its values stands in the texts that the plan lists."""
    facts = {"value_columns": {"Industry": [SECRET, "Construction"]}}
    listed = own_texts({}, facts, sealed.candidate.model.encoder)
    assert f"value of Industry: {SECRET}" in listed
    assert "value of Industry: Construction" in listed


@pytest.mark.parametrize("kind", ["none", "titles", "hashed"])
def test_many_columns_weigh_no_more_than_one(kind: lexicon.Lexical) -> None:
    """50 columns have the norm of one block together, so that no clip was set for other features."""
    titles = ["Fractures", "Burns"]
    features = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    norms = []
    for count in (1, 2, 50):
        columns = tuple(ValueColumn(name=f"c{n}", values=("a",)) for n in range(count))
        made = lexicon.build(
            kind,
            vocabulary=lexicon.vocabulary_of(titles) if kind == "titles" else (),
            texts=titles,
            features=features,
            value_columns=columns,
        )
        text = ValuedText("He fell.", {column.name: "a" for column in columns})
        norms.append(float((made.words([text])[0, made.word_columns :] * made.word_scale).norm()))
    bound = float(features.square().sum(1).mean().sqrt()) * math.sqrt(1 / (2 if kind == "none" else 3))
    assert norms == pytest.approx([bound] * 3, rel=1e-4)


@pytest.mark.parametrize(
    "text", ["Industry=Mining", "He fell. Industry: Mining", '{"Industry": "Mining"}', "He fell.\x1fMining", "Mining"]
)
def test_a_narrative_names_no_columns(valued_bundle: Path, text: str) -> None:
    """Values come from the columns alone; what a text says is text."""
    coder = open_bundle(valued_bundle).fields[""]
    (read,) = Records.of(coder.model.value_columns, ("Text",)).texts([(text, "", "")])
    assert values_of(read) == {}
    words_of = coder.model.model.lexicon
    assert isinstance(words_of, lexicon.Lexicon)
    assert torch.count_nonzero(words_of.words([read])[0, -6:]) == 0


def test_hostile_cells_are_one_other_value(valued_bundle: Path, tmp_path: Path) -> None:
    """Every row is coded, as any value on no list is; the cells go through as a CSV's other cells do."""
    cells = [
        "Fishing",
        "=HYPERLINK(1)",
        "\x1b[2J",
        "other",
        "x" * 100_000,
        "__class__",
        "Mining\u202e",
        "Mining,Construction",
    ]
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["Text", "Industry", "Age"])
        lines.writerows(["He fell from a ladder.", cell, ""] for cell in cells)
    coder = open_bundle(valued_bundle).fields[""]
    records = Records.of(coder.model.value_columns, ("Text",))
    table = survey(source, text_columns=records.columns)
    run(coder, CodingJob(table, out, records, answer_columns(coder, top_k=1, threshold=None)))
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(cells)
    assert len({(row["code"], row["score"]) for row in rows}) == 1
    assert rows[1]["Industry"].startswith("'=")


def test_a_text_that_moves_to_a_column_is_the_same_record(context: Context, tmp_path: Path) -> None:
    """Records whose texts are short are marked by their values too, so that a constant in the text's place hides none;
    a text that names its record is marked alone, or else all of an industry would be one record."""
    assert set(marks("nurse")) <= set(marks("a report", "nurse"))
    assert marks("He fell from a ladder at the north dock", "Construction and extraction occupations") == marks(
        "He fell from a ladder at the north dock"
    )
    titles = {"Text": [f"He fell {n} times." for n in range(19)]}
    swapped: Any = {"text_columns": ["Code"], "label_column": "Industry", "value_columns": titles}
    moved = ingested(context, tmp_path / "moved", "Mining", **swapped)
    plain = ingested(context, tmp_path / "plain", "Mining", value_columns={})
    shared = set(load_cells(plain.path)) & set(load_cells(moved.path))
    assert len(shared) >= 19


def marks(*cells: str) -> list[bytes]:
    digests = cell_digests(cells[:1], cells[1:])
    return [digests[at : at + 16] for at in range(0, len(digests), 16)]
