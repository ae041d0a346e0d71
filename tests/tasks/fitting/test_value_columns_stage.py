"""Columns of public values as part of the features: of every kind of model that can read them, and worth it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
import torch
from csv_files import rows_of, write_csv
from pydantic import ValidationError

from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, TokenInputs
from mechanisms.model.valued_text import ValuedText, values_of
from storage.artifacts import ArtifactRef
from storage.datasets import load_table
from tasks.auditing import pool
from tasks.fitting import data
from tasks.fitting.ingest import ingest_records
from tasks.fitting.model_inputs import build, load_inputs, texts_of
from tasks.fitting.prior import lexicon_of
from tasks.parameters import DataParameters, RetrainParameters
from tasks.releasing.claims import method_digest, public_inputs
from tasks.running.stage import Context, run_step

LISTS = {"State": ["OHIO", "TEXAS"], "Hospitalized": ["0", "1"]}
WIDTH = 3 + 3


def model(encoder: Path, **changed: object) -> ModelConfig:
    base = {"encoder": str(encoder), "trainable": "head", "pooling": "mean", "max_length": 32}
    return ModelConfig.model_validate(base | changed)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return tiny_jobs.workspace(tmp_path / "home")


def chosen(folder: Path, lists: dict[str, Any]) -> DataParameters:
    data = tiny_jobs.demo(folder, 120, population="demo", ingest={"value_columns": lists})
    return DataParameters.model_validate(data)


def prepared(context: Context, config: ModelConfig, dataset: ArtifactRef) -> Any:
    return load_inputs(run_step(context, data.prepare(config, dataset, seed=1)).path, "train")


@pytest.mark.parametrize("lexical", ["none", "titles", "hashed"])
def test_features_end_with_the_values(context: Context, tiny_bert: Path, tmp_path: Path, lexical: str) -> None:
    """Encoder, words, then a one for each record's value; the head reads all, and titles start it at no value."""
    dataset = run_step(context, ingest_records(chosen(tmp_path, LISTS)))
    config = model(tiny_bert, lexical=lexical, prior="titles")
    lexicon = lexicon_of(context, config, dataset.path)
    assert lexicon is not None
    inputs, _ = prepared(context, config, dataset)
    assert isinstance(inputs, FeatureInputs)
    texts = texts_of(dataset.path, load_table(dataset.path, "train"))
    rows = {row["Final Narrative"].strip(): row for row in rows_of(tmp_path / "injuries.csv")}
    for text, row in zip(texts, inputs.features[:, -WIDTH:] > 0, strict=True):
        cell = rows[text]
        state = [cell["State"] == "OHIO", cell["State"] == "TEXAS", cell["State"] not in LISTS["State"]]
        assert row.tolist() == [*state, cell["Hospitalized"] == "0", cell["Hospitalized"] == "1", False]
    assert torch.equal(inputs.features[:, 16:], lexicon.words(texts) * lexicon.word_scale)
    head: Any = build(context, config, dataset.path, seed=1).whole
    assert head.head.in_features == inputs.features.shape[1] == 16 + lexicon.columns
    assert torch.count_nonzero(head.head.weight[:, -WIDTH:]) == 0


def test_adapters_read_them_with_the_tokens(context: Context, tiny_bert: Path, tmp_path: Path) -> None:
    """`lora` has the same block next to its tokens."""
    dataset = run_step(context, ingest_records(chosen(tmp_path, LISTS)))
    inputs, _ = prepared(context, model(tiny_bert, trainable="lora"), dataset)
    assert isinstance(inputs, TokenInputs)
    assert inputs.words is not None
    assert inputs.words.shape == (len(inputs), WIDTH)
    assert set(inputs.words.count_nonzero(1).tolist()) == {2}
    assert build(context, model(tiny_bert, trainable="lora"), dataset.path, seed=1).head_parameters[0].shape[1] == 22


def test_values_that_no_record_has_and_that_no_list_has_change_no_width(
    context: Context, tiny_bert: Path, tmp_path: Path
) -> None:
    """The features are as many as the public list says."""
    dataset = run_step(context, ingest_records(chosen(tmp_path, {"State": ["ATLANTIS"], "City": ["x"]})))
    inputs, _ = prepared(context, model(tiny_bert), dataset)
    assert inputs.features.shape[1] == 16 + 2 + 2
    assert (inputs.features[:, -4:] > 0).unique(dim=0).tolist() == [[False, True, False, True]]


def test_a_list_by_file_or_in_place_is_one_data_set(context: Context, tmp_path: Path) -> None:
    """Its values count, wherever they stand; other values make another data set and another method."""
    (tmp_path / "states.csv").write_text("value\nOHIO\nTEXAS\n")
    inline, by_file = ({"State": given} for given in (["OHIO", "TEXAS"], str(tmp_path / "states.csv")))
    ones = [chosen(tmp_path, lists) for lists in (inline, by_file, {"State": ["OHIO"]}, {})]
    assert len({ingest_records(one).key(context.store) for one in ones}) == 3
    config: Any = {"pooling": "mean", "trainable": "head"}
    methods = [
        method_digest(RetrainParameters.model_validate({"data": one.model_dump(mode="json"), "model": config}))
        for one in ones
    ]
    assert methods[0] == methods[1]
    assert len(set(methods)) == 3


def test_the_statement_names_the_lists_as_public(context: Context, tmp_path: Path) -> None:
    dataset = run_step(context, ingest_records(chosen(tmp_path, LISTS)))
    lines = public_inputs(ModelConfig(), context.store.figures(dataset))
    assert "the list of 2 values of the column `State`, declared public: the features next to the narrative" in lines
    assert len(lines) == 2


def test_a_model_that_reads_no_values_is_refused() -> None:
    """Before any record is read."""
    for config in ({"trainable": "full"}, {"trainable": "head", "pooling": "first"}):
        with pytest.raises(ValidationError, match=r"model\.pooling=mean"):
            data = {"source": "x.csv", "population": "p", "ingest": {"value_columns": LISTS}}
            RetrainParameters.model_validate({"data": data, "model": config})


def test_a_decisive_column_is_learned(context: Context, tiny_bert: Path, tmp_path: Path) -> None:
    """All narratives are alike and the column decides the code: with it a fit is right, without it by chance."""
    lines = (["Employee was hurt.", str(111 + n % 4), f"sector {n % 4}"] for n in range(400))
    source = write_csv(tmp_path / "in.csv", ["Final Narrative", "Nature", "Industry"], lines)
    rates = {}
    for name, lists in {"with": {"Industry": [f"sector {n}" for n in range(4)]}, "without": {}}.items():
        ingest = {"value_columns": lists, "date_column": None}
        records = DataParameters.model_validate({"source": str(source), "population": "p", "ingest": ingest})
        dataset = run_step(context, ingest_records(records))
        config = model(tiny_bert)
        inputs, labels = prepared(context, config, dataset)
        classifier = build(context, config, dataset.path, seed=1)
        optimiser = torch.optim.SGD(classifier.parameters, lr=1.0)
        for _ in range(30):
            optimiser.zero_grad()
            (-classifier.log_likelihood({"features": inputs.features}, labels).mean()).backward()
            optimiser.step()
        test, right = load_inputs(run_step(context, data.prepare(config, dataset, seed=1)).path, "test")
        rates[name] = float((classifier.predict(test).argmax(1) == right).float().mean())
    assert rates["with"] == 1
    assert rates["without"] < 0.5


def test_an_audits_twin_has_its_records_values(context: Context, tiny_bert: Path, tmp_path: Path) -> None:
    """A second report of a case has its columns, or else the attack would be on another record."""
    text = ValuedText("He fell down.", {"State": "OHIO"})
    assert values_of(pool._altered(text)) == {"State": "OHIO"}
    dataset = run_step(context, ingest_records(chosen(tmp_path, LISTS)))
    config = model(tiny_bert, lexical="titles")
    ready = run_step(context, data.prepare(config, dataset, seed=1))
    step = pool.pool(config, canaries=8, seed=1, dataset=dataset, prepared=ready)
    made = pool.Pool.load(run_step(context, step).path)
    assert isinstance(made.inputs, FeatureInputs)
    ones = (made.inputs.features[:, -WIDTH:] > 0).sum(1)
    assert set(ones[made.family == pool.FAMILIES.index("near-duplicate")].tolist()) == {2}
    assert set(ones[made.family == pool.FAMILIES.index("rare-token")].tolist()) == {0}
