"""A released folder in plain libraries: the same scores, codes as labels, nothing of where it was
made.
"""

import json
import shutil
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from refusals import of_kind
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import classifier, export, lexicon
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.lexicon import Lexicon
from storage.egress.allow_list import CONTENT

CODES = ("1110", "062", "*R 7", "9999", "140")
STANDARD = [("full", "first"), ("lora", "first"), ("head", "first")]
POOLED = [("full", "mean"), ("lora", "mean"), ("head", "mean")]


@pytest.fixture(params=["tiny_roberta", "tiny_bert"])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "home-of-jdoe" / "encoder"
    shutil.copytree(request.getfixturevalue(request.param), folder)
    return folder


@pytest.fixture
def released(
    encoder: Path, tmp_path: Path, narratives: Any
) -> Callable[..., tuple[Path, Classifier, list[str], Tensor]]:
    """Make a folder of a classifier whose trainable parameters were moved, its texts and their
    scores before.
    """

    def make(trainable: Any, pooling: Any) -> tuple[Path, Classifier, list[str], Tensor]:
        config = ModelConfig(
            encoder=str(encoder), trainable=trainable, pooling=pooling, max_length=32, lora_rank=2
        )
        made = classifier.build(config, num_labels=len(CODES), seed=0)
        made.flat.add_(
            0.3 * torch.randn(made.num_parameters, generator=torch.Generator().manual_seed(1))
        )
        texts = narratives(6)
        tokens = classifier.tokenize(config, texts)
        assert int(tokens.lengths.max()) == 32, "a text must be cut"
        # One by one, as plain libraries do with single texts.
        scores = made.predict(made.encode(tokens) if trainable == "head" else tokens, batch_size=1)
        folder = tmp_path / "released"
        folder.mkdir()
        export.save(made, folder, codes=CODES)
        return folder, made, texts, scores

    return make


@pytest.mark.parametrize(("trainable", "pooling"), STANDARD)
def test_transformers_pipeline(released: Any, trainable: str, pooling: str) -> None:
    """`pipeline("text-classification", folder)` answers every code with the scores that the
    classifier gave. To float32 rounding: weights lie elsewhere in memory there, and `lora`'s are
    merged.
    """
    from transformers import pipeline

    folder, _, texts, scores = released(trainable, pooling)
    pipe: Any = pipeline("text-classification", model=str(folder), device="cpu")
    answers = [pipe(text, top_k=None, function_to_apply="none", truncation=True) for text in texts]
    got = torch.tensor(
        [[next(a["score"] for a in one if a["label"] == c) for c in CODES] for one in answers]
    )
    torch.testing.assert_close(got, scores, rtol=1e-5, atol=2e-6)
    plain = pipe(texts[0], truncation=True)[0]
    assert plain["label"] == CODES[int(scores[0].argmax())]
    assert plain["score"] == pytest.approx(float(scores[0].softmax(0).max()), abs=1e-5)


@pytest.mark.parametrize(("trainable", "pooling"), POOLED)
def test_sentence_transformers(released: Any, trainable: str, pooling: str) -> None:
    """`SentenceTransformer(folder).encode(texts)` gives the scores; modules are named as every
    version knows them.
    """
    from sentence_transformers import SentenceTransformer

    folder, _, texts, scores = released(trainable, pooling)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # of the older module names, which the folder uses on purpose
        model = SentenceTransformer(str(folder), device="cpu")
    got = torch.cat(
        [model.encode([text], convert_to_tensor=True, show_progress_bar=False) for text in texts]
    )
    torch.testing.assert_close(got.cpu(), scores, rtol=1e-5, atol=1e-6)
    assert json.loads((folder / export.LABELS).read_text())["codes"] == list(CODES)


def test_it_is_written_without_the_library(released: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    folder, _, _, _ = released("head", "mean")
    assert (folder / "modules.json").is_file()


@pytest.mark.parametrize(("trainable", "pooling"), POOLED)
def test_a_library_that_cannot_use_it_fails(released: Any, trainable: str, pooling: str) -> None:
    """Plain transformers makes up no head for a mean-pooled model, and beside its encoder no codes
    are named.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

    folder, _, _, _ = released(trainable, pooling)
    for load in (
        partial(pipeline, "text-classification"),
        AutoModelForSequenceClassification.from_pretrained,
    ):
        with pytest.raises((OSError, ValueError)):
            load(str(folder))
    named: Any = AutoConfig.from_pretrained(folder / export.ENCODER)
    assert not set(named.id2label.values()) & set(CODES)


@pytest.mark.parametrize(("trainable", "pooling"), STANDARD + POOLED)
def test_loaded_here(released: Any, trainable: str, pooling: str) -> None:
    """`load` gives codes, length and scores back, in the texts' order whatever the batch; no texts,
    no scores.
    """
    folder, made, texts, scores = released(trainable, pooling)
    back = export.load(folder)
    assert back.codes == CODES
    assert back.max_length == made.config.max_length
    torch.testing.assert_close(back.logits(texts), scores, rtol=1e-4, atol=1e-5)
    assert back.logits([]).shape == (0, len(CODES))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(key)
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


@pytest.mark.parametrize(("trainable", "pooling"), STANDARD + POOLED)
def test_nothing_of_where_it_was_made(
    released: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainable: str, pooling: str
) -> None:
    """No file holds the folder, the user or the host; no setting is an absolute path. And no file
    is there that the release's allow-list does not know.
    """
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "jdoe")
    monkeypatch.setattr(socket, "gethostname", lambda: "host-of-jdoe")
    folder, _, _, _ = released(trainable, pooling)
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    assert set(files) <= CONTENT
    for name, path in files.items():
        content = path.read_bytes()
        for secret in (str(tmp_path), "jdoe", str(Path.home()) + "/"):
            assert secret.encode() not in content, (name, secret)
        if path.suffix == ".json" and path.name not in {
            "tokenizer.json",
            "vocab.json",
        }:  # vocabularies hold "/" as a token
            assert not [s for s in strings(json.loads(content)) if s.startswith(("/", "~"))], name


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_release_holds_only_inference_weights(released: Any, pooling: str) -> None:
    """`lora` leaves merged: no adapter, no copy of the untrained head."""
    folder, _, _, _ = released("lora", pooling)
    from safetensors import safe_open

    names: list[str] = []
    for weights in folder.rglob("*.safetensors"):
        with safe_open(weights, framework="pt") as file:
            names += file.keys()
    assert names
    assert not [n for n in names if "lora" in n or "original_module" in n or "base_layer" in n]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("empty", "not-a-released-model"),
        ("no codes", "not-a-released-model"),
        ("no weights", "no-model"),
        ("gap in the codes", "not-a-released-model"),
    ],
)
def test_no_released_folder(released: Any, tmp_path: Path, damage: str, kind: str) -> None:
    folder, _, _, _ = released("full", "first")
    config = json.loads((folder / "config.json").read_text())
    if damage == "empty":
        folder = tmp_path / "empty"
        folder.mkdir()
    elif damage == "no codes":
        del config["id2label"]
        (folder / "config.json").write_text(json.dumps(config))
    elif damage == "gap in the codes":
        del config["id2label"]["2"]
        (folder / "config.json").write_text(json.dumps(config))
    else:
        (folder / "model.safetensors").unlink()
    with pytest.raises(MechanismError, check=of_kind(kind, saying=folder.name)):
        export.load(folder)


def worded(encoder: Path, kind: str) -> tuple[Classifier, Lexicon]:
    """A head that reads words next to its encoder, with parameters that a release could have."""
    config = ModelConfig.model_validate(
        {
            "encoder": str(encoder),
            "trainable": "head",
            "pooling": "mean",
            "max_length": 32,
            "lexical": kind,
        }
    )
    vocabulary = lexicon.vocabulary_of(["fractured wrist", "burns", "strained back"])
    features = torch.ones(2, 16)
    words = lexicon.build(
        cast(Any, kind),
        vocabulary=vocabulary,
        texts=["fractured wrist", "burns"],
        features=features,
    )
    made = classifier.build(config, num_labels=len(CODES), seed=0, lexicon=words)
    made.flat.add_(
        0.3 * torch.randn(made.num_parameters, generator=torch.Generator().manual_seed(1))
    )
    return made, words


@pytest.mark.parametrize("kind", ["titles", "hashed"])
def test_words_next_to_the_encoder(
    tiny_bert: Path, tmp_path: Path, narratives: Any, kind: str
) -> None:
    """`load` gives the scores back. sentence-transformers would leave out the words, and finds no
    model.
    """
    made, words = worded(tiny_bert, kind)
    texts = narratives(6)
    features = made.encode(classifier.tokenize(made.config, texts)).features
    scores = made.predict(FeatureInputs(words.join(features, words.words(texts))))
    shapes = export.save(made, tmp_path, codes=CODES)
    width = 16 + words.columns
    dense = [shape["linear.weight"][1] for name, shape in shapes.items() if "2_Dense" in name]
    assert dense == [width]
    back = export.load(tmp_path)
    torch.testing.assert_close(back.logits(texts), scores, rtol=1e-4, atol=1e-5)
    assert not (tmp_path / "modules.json").exists()
    assert back.logits([]).shape == (0, len(CODES))


def test_a_head_without_its_words_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    """A classifier is not built without its lexicon, and a damaged one is named."""
    made, _ = worded(tiny_bert, "titles")
    with pytest.raises(MechanismError, check=of_kind("lexicon-missing")):
        classifier.build(made.config, num_labels=2, seed=0)
    export.save(made, tmp_path, codes=CODES)
    (tmp_path / lexicon.FILE).write_text('{"kind": "titles"}')
    with pytest.raises(MechanismError, check=of_kind("damaged-lexicon", saying="lexicon.json")):
        export.load(tmp_path)
