"""Small real models for tests, as fixtures: a RoBERTa and a BERT of a few thousand parameters, and
sentences.
"""

import csv
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_WHO = ("employee", "worker", "driver", "roofer", "nurse", "technician")
_DID = ("fell from", "slipped on", "was struck by", "was caught in", "lifted", "touched")
_WHAT = (
    "a ladder",
    "the wet floor",
    "a forklift",
    "the conveyor belt",
    "a heavy box",
    "a hot pipe",
    "a saw",
)
_HURT = (
    "fractured the wrist",
    "suffered burns",
    "lost a fingertip",
    "strained the back",
    "cut the hand",
)


def _narratives(n: int, *, seed: int = 0) -> list[str]:
    pick = random.Random(seed)
    sentence = "The {} {} {} and {}".format
    return [
        ". ".join(
            sentence(pick.choice(_WHO), pick.choice(_DID), pick.choice(_WHAT), pick.choice(_HURT))
            for _ in range(pick.choice((1, 1, 1, 2, 3)))
        )
        for _ in range(n)
    ]


@pytest.fixture(scope="session")
def tiny_roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a RoBERTa as `distilroberta-base` comes from the hub: a language model, byte-level
    BPE, no head.
    """
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaForMaskedLM, RobertaTokenizer

    folder = tmp_path_factory.mktemp("encoders") / "tiny-roberta"
    bpe = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(
        _narratives(200), vocab_size=320, special_tokens=specials, show_progress=False
    )
    folder.mkdir()
    bpe.save_model(str(folder))
    tokenizer = RobertaTokenizer.from_pretrained(str(folder), model_max_length=64)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=66,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return _save(RobertaForMaskedLM, config, tokenizer, folder)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a bare BERT encoder with a word-piece tokenizer, as MiniLM is."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("encoders") / "tiny-bert"
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(_narratives(200), vocab_size=200, show_progress=False)
    folder.mkdir()
    pieces.save_model(str(folder))
    tokenizer = BertTokenizer.from_pretrained(str(folder), model_max_length=64)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    return _save(BertModel, config, tokenizer, folder)


def _save(kind: Any, config: Any, tokenizer: Any, folder: Path) -> Path:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def narratives() -> Callable[..., list[str]]:
    return _narratives


CODES = {
    "111": "Fractures",
    "132": "Cuts, lacerations",
    "1520": "Burns, unspecified",
    "1521": "",
    "1522": "",
    "1972": "",
}
"""Of the tiny bundle; 1520 to 1522 share a group."""


@pytest.fixture(scope="session")
def tiny_bundle(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A released folder of an untrained tiny model, with a code list of OIICS 2.01; neither signed
    nor in a ledger.
    """
    from mechanisms.model import classifier, export, onnx_graph
    from mechanisms.model.config import ModelConfig

    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    config = ModelConfig(encoder=str(tiny_bert), trainable="head", pooling="mean", max_length=32)
    made = classifier.build(config, num_labels=len(CODES), seed=1)
    made.flat.mul_(20)  # scores that differ from narrative to narrative
    folder.mkdir()
    export.save(made, folder, codes=list(CODES))
    (folder / "model.onnx").write_bytes(onnx_graph.graph(export.load(folder), folder))
    (folder / "privacy_statement.json").write_text('{"release_id": "tiny"}\n')
    with (folder / "codelist.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["code", "title", "classification", "version"])
        lines.writerows([code, title, "OIICS", "2.01"] for code, title in CODES.items())
    return folder


@pytest.fixture(scope="session")
def coder(tiny_bundle: Path) -> Any:
    from tasks.coding.coder import open_bundle

    return open_bundle(tiny_bundle)
