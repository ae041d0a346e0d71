"""Features of public texts are computed once per encoder, and give the scores that
the model gives.
"""

from __future__ import annotations

from dataclasses import replace

import generated_features
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from mechanisms.model import checkpoint, encoders
from mechanisms.model.classifier import MeanPooled
from mechanisms.model.export import Released
from tasks.bundle import public_features, thresholds

TEXTS = ("fell from a ladder", "cut a finger", "fell", "burned by hot oil in the kitchen")


@pytest.fixture
def released() -> Released:
    """A mean-pooled model with random weights."""
    words = sorted({word for text in TEXTS for word in text.split()})
    tokenizer = Tokenizer(
        WordLevel(
            {word: at for at, word in enumerate(["[PAD]", "[UNK]", *words])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(words) + 2,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = MeanPooled(BertModel(config, add_pooling_layer=False), 16, 3).eval()
    return Released(model=model, tokenizer=fast, codes=("a", "b", "c"), max_length=16)


def test_they_give_the_models_own_scores_and_are_computed_once(
    released: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another head takes the same features; the encoder runs once."""
    model = released.model
    assert isinstance(model, MeanPooled)
    runs: list[int] = []
    encode = Released.logits
    monkeypatch.setattr(Released, "logits", lambda *these: runs.append(1) or encode(*these))
    first = public_features.logits(released, TEXTS)
    computed = len(runs)
    assert torch.equal(public_features.logits(released, TEXTS), first)
    with torch.no_grad():
        model.head.weight.neg_()
    other = public_features.logits(released, TEXTS)
    assert len(runs) == computed == 1
    assert not torch.equal(other, first)
    torch.testing.assert_close(other, released.logits(TEXTS))


@pytest.mark.parametrize("change", ["encoder", "texts", "length"])
def test_another_encoder_or_text_has_features_apart(released: Released, change: str) -> None:
    """Whatever they depend on is in their key."""
    public_features.logits(released, TEXTS)
    model, texts = released.model, TEXTS
    assert isinstance(model, MeanPooled)
    if change == "encoder":
        with torch.no_grad():
            next(model.encoder.parameters()).mul_(2)
    elif change == "texts":
        texts = TEXTS[::-1]
    else:
        released = replace(released, max_length=3)
    changed = public_features.logits(released, texts)
    torch.testing.assert_close(changed, released.logits(texts))


def test_those_of_the_packaged_encoder_come_with_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file is of today's generator, encoder and tokenizer; 40 of its 800 rows are computed here
    again.
    """
    released, texts = generated_features.packaged(), thresholds.generated_narratives()
    shipped, described = checkpoint.load(public_features.PACKAGED)
    encoder = public_features.encoder_digest(released)
    assert described["public"] == public_features.key_of_packaged(texts, encoder), (
        "run scripts/generated_features.py"
    )
    tokens = encoders.token_inputs(released.tokenizer, texts, max_length=released.max_length)
    assert described["tokens"] == int(tokens.lengths.max())
    some = slice(0, len(texts), 20)
    torch.testing.assert_close(
        shipped["features"][some], public_features.compute(released, texts[some]), rtol=0, atol=2e-5
    )
    model = released.model
    assert isinstance(model, MeanPooled)
    monkeypatch.delattr(public_features, "compute")
    scores = public_features.logits(released, texts)
    torch.testing.assert_close(scores, model.scores(shipped["features"], None))


def test_a_model_that_cuts_narratives_does_not_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of cut texts are others."""
    released = replace(
        generated_features.packaged(),
        max_length=checkpoint.load(public_features.PACKAGED)[1]["tokens"],
    )
    computed: list[int] = []

    def compute(released: Released, texts: list[str]) -> torch.Tensor:
        computed.append(released.max_length)
        return torch.zeros(len(texts), 384)

    monkeypatch.setattr(public_features, "compute", compute)
    texts = thresholds.generated_narratives()
    public_features.logits(released, texts)
    assert not computed
    shorter = released.max_length - 1
    public_features.logits(replace(released, max_length=shorter), texts)
    assert computed == [shorter]
