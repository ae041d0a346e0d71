"""Words next to the encoder as part of the features: only from public texts, for all fields,
resumed after a kill.
"""

from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
import torch
from datasets import Dataset
from pydantic import ValidationError
from torch import nn

from mechanisms.model import classifier
from mechanisms.model import lexicon as lexicons
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import HASHED_COLUMNS, ModelConfig
from mechanisms.model.inputs import FeatureInputs
from storage.artifacts import ArtifactRef
from storage.datasets import load_codes, load_split
from storage.demo_data import write_demo_data
from tasks.branches.branch import ComparisonSettings, choose
from tasks.comparing import run as comparison
from tasks.fitting import data, distinct_texts, prior
from tasks.fitting.ingest import ingest_records
from tasks.fitting.model_inputs import build, load_inputs
from tasks.fitting.prior import lexicon_of
from tasks.method import standard_methods
from tasks.parameters import DataParameters
from tasks.running.stage import Context, run_step


def model(encoder: Path, **changed: object) -> ModelConfig:
    base = {
        "encoder": str(encoder),
        "trainable": "head",
        "pooling": "mean",
        "max_length": 32,
        "lexical": "titles",
    }
    return ModelConfig.model_validate(base | changed)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return tiny_jobs.workspace(tmp_path / "home")


def records(tmp_path: Path, *, codelist: bool = True) -> DataParameters:
    """120 synthetic records."""
    written = write_demo_data(tmp_path, records=120, seed=3)
    chosen: dict[str, Any] = {"source": str(written.csv), "population": "demo", "ingest": {}}
    if codelist:
        chosen["codelist"] = str(written.codelist)
    return DataParameters.model_validate(chosen)


def ingested(context: Context, tmp_path: Path, *, codelist: bool = True) -> ArtifactRef:
    """Returns a data set of 120 synthetic records."""
    return run_step(context, ingest_records(records(tmp_path, codelist=codelist)))


def features_of(context: Context, config: ModelConfig, dataset: ArtifactRef) -> torch.Tensor:
    inputs, _ = load_inputs(run_step(context, data.prepare(config, dataset)).path, "train")
    assert isinstance(inputs, FeatureInputs)
    return inputs.features


def test_features_have_both_blocks(context: Context, tiny_bert: Path, tmp_path: Path) -> None:
    """The encoder's features, scaled, then a column for each stem of the titles; the untrained head
    reads all of it.
    """
    dataset = ingested(context, tmp_path)
    config = model(tiny_bert, prior="titles", prior_sentence="An employee suffered {}.")
    words = lexicon_of(context, config, load_codes(dataset.path))
    assert words is not None
    features, plain = (
        features_of(context, config, dataset),
        features_of(context, config.frozen(), dataset),
    )
    torch.testing.assert_close(features[:, : plain.shape[1]], plain * words.encoder_scale)
    texts = list(load_split(dataset.path, "train")["text"])
    assert torch.equal(features[:, plain.shape[1] :], words.words(texts) * words.word_scale)
    assert "suffer" not in words.vocabulary
    codes = load_codes(dataset.path)
    titles = {stem for code in codes for stem in lexicons.stems_of(code.title)}
    assert set(words.vocabulary) <= titles
    head = build(context, config, dataset.path, seed=1).whole.head
    assert isinstance(head, nn.Linear)
    assert head.in_features == features.shape[1]
    block = head.weight[:, plain.shape[1] :]
    at = words.vocabulary.index(lexicons.stems_of("Fractures")[0])
    fractures = next(n for n, code in enumerate(codes) if "racture" in code.title)
    assert block[fractures, at] > block[:, at].mean(), "the prior starts in the joint space"


def test_hashed_words_need_no_code_list(context: Context, tiny_bert: Path, tmp_path: Path) -> None:
    """Their scale comes from synthetic narratives, the same for every data set."""
    dataset = ingested(context, tmp_path, codelist=False)
    config = model(tiny_bert, lexical="hashed")
    words = lexicon_of(context, config, load_codes(dataset.path))
    assert words is not None
    assert (words.kind, words.vocabulary, words.columns) == ("hashed", (), HASHED_COLUMNS)
    assert features_of(context, config, dataset).shape[1] == 16 + HASHED_COLUMNS
    (step,) = prior.stages(config, records(tmp_path, codelist=False))
    assert step.find(context.store) is not None, "a run plans what the lexicon computed"


def test_titles_without_a_code_list(context: Context, tiny_bert: Path, tmp_path: Path) -> None:
    """Codes that are names are their own titles; and without names, the packaged titles of injuries
    give the words.
    """
    written = write_demo_data(tmp_path, records=120, seed=3)
    ingest = {"label_column": "NatureTitle", "codes_are_names": True}
    given = {"source": str(written.csv), "population": "demo", "ingest": ingest}
    named = run_step(context, ingest_records(DataParameters.model_validate(given)))
    codes = load_codes(named.path)
    assert all(code.title == code.code for code in codes)
    words = lexicon_of(context, model(tiny_bert, prior="titles"), load_codes(named.path))
    assert words is not None
    assert "fractur" in words.vocabulary
    unnamed = ingested(context, tmp_path, codelist=False)
    of_injuries = lexicon_of(
        context, model(tiny_bert, lexical_titles="injuries"), load_codes(unnamed.path)
    )
    assert of_injuries is not None
    assert of_injuries.columns == len(of_injuries.vocabulary) > 500


@pytest.mark.parametrize(
    ("changed", "stages"),
    [
        ({"lexical": "none"}, 0),
        ({"lexical": "hashed"}, 2),
        ({}, 3),
        ({"prior_sentence": "An employee suffered {}."}, 3),
        ({"lexical_titles": "injuries"}, 2),
    ],
)
def test_the_stages_of_a_lexicon_are_named_before_it_is_made(
    context: Context, tiny_bert: Path, tmp_path: Path, changed: dict[str, str], stages: int
) -> None:
    """They are those that making it computes, no more: of titles or narratives, of the unit, and of
    the words.
    """
    codes = load_codes(ingested(context, tmp_path).path)
    config = model(tiny_bert, **changed)
    public = prior.public_of_lexicon(config, codes)
    named = set() if public is None else {step.key(context.store) for step in public.steps}
    assert len(named) == stages
    made = lexicon_of(context, config, codes)
    assert (made is None) == (public is None)
    computed = context.workspace.private / "stages" / "titles"
    assert named == ({stage.name for stage in computed.iterdir()} if computed.exists() else set())


def test_another_vocabulary_is_another_stage(
    context: Context, tiny_bert: Path, tmp_path: Path
) -> None:
    """Kind, language and sentence change the features; a model without words keeps its stage
    whatever they are.
    """
    dataset = ingested(context, tmp_path)
    changes = (
        {},
        {"lexical": "hashed"},
        {"lexical_language": "german"},
        {"lexical_titles": "injuries"},
        {"prior_sentence": "It was {}."},
    )
    keys = {data.prepare(model(tiny_bert, **one), dataset).key(context.store) for one in changes}
    assert len(keys) == 5
    plain = {
        data.prepare(model(tiny_bert, **one).frozen(), dataset).key(context.store)
        for one in changes
    }
    assert len(plain) == 1
    assert not plain & keys


def test_killed_it_resumes(
    context: Context, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved parts hold the encoder's features alone; the words join them once, at the end."""
    dataset, config = ingested(context, tmp_path), model(tiny_bert)
    monkeypatch.setattr(data, "PART", 16)
    encode, encoded = Classifier.encode, list[int]()

    def killed(self: Classifier, tokens: Any, **options: Any) -> Any:
        if encoded == [16, 16]:
            raise KeyboardInterrupt
        encoded.extend([len(tokens)] if len(tokens) <= data.PART else [])  # not the titles
        return encode(self, tokens, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "encode", killed)
        with pytest.raises(KeyboardInterrupt):
            features_of(context, config, dataset)
        encoded.clear()
        resumed = features_of(context, config, dataset)
    other = tiny_jobs.workspace(tmp_path / "other")
    unbroken = features_of(other, config, ingested(other, tmp_path))
    torch.testing.assert_close(resumed, unbroken, rtol=0, atol=0)


def test_texts_encoded_once(
    context: Context, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record has the features of its text, in parts of any size; no text passes the encoder
    twice.
    """
    texts = [
        "fell from a ladder",
        "burns",
        "fell from a ladder",
        "",
        "burns",
        "cut by a saw",
        "burns",
    ]
    config, dataset = model(tiny_bert).frozen(), ingested(context, tmp_path)
    split = Dataset.from_dict({"text": texts})
    monkeypatch.setattr(data, "load_split", lambda *_: split)
    monkeypatch.setattr(distinct_texts, "load_split", lambda *_: split)
    monkeypatch.setattr(data, "load_labels", lambda *_: [0] * len(texts))
    whole = (
        classifier.build(config, num_labels=2, seed=1)
        .encode(classifier.tokenize(config, texts))
        .features
    )
    encode, encoded = Classifier.encode, list[int]()

    def counted(self: Classifier, tokens: Any, **options: Any) -> Any:
        encoded.append(len(tokens))
        return encode(self, tokens, **options)

    monkeypatch.setattr(Classifier, "encode", counted)
    monkeypatch.setattr(data, "PART", 2)
    torch.testing.assert_close(features_of(context, config, dataset), whole, rtol=0, atol=0)
    assert encoded == [2, 2] * 2, "the distinct texts of either half"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pooling": "first"}, "pooling `mean`"),
        ({"trainable": "full"}, "trainable part `head` or `lora`"),
        ({"lexical_language": "klingon"}, "does not know `klingon`"),
    ],
)
def test_what_cannot_read_words_is_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model(Path("encoder"), **changed)


def test_every_kind_of_branch_reads_both_blocks(
    context: Context, tiny_bert: Path, tmp_path: Path
) -> None:
    """SWAG-PPM, DP-SGD and prior descent fit, score and claim; the claim names the
    words as public.
    """
    run = tiny_jobs.retrain(
        tiny_jobs.demo(tmp_path, 120), tiny_bert, model={"lexical": "titles"}, epochs=(2, 2)
    )
    settings = ComparisonSettings(target_epsilon=6, delta=1e-5, epochs=2)
    branches = choose("swag-ppm,dp-sgd-tuned,prior-descent", run, standard_methods())
    groups = comparison.run(
        context, run, settings, branches, run_step=lambda step: run_step(context, step)
    )
    assert len(groups) == 3
    for outcome in (group.outcomes[0] for group in groups):
        assert any("vocabulary" in line for line in outcome.claim.assumptions), outcome.branch.name
