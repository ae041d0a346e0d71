"""Passes without padding: the features of transformers' own forward pass, whatever stands in a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mechanisms.model import encoders, export, packed
from mechanisms.model.classifier import mean_pool
from mechanisms.model.config import Precision
from mechanisms.model.inputs import TokenInputs
from mechanisms.model.packed import PackedEncoder

CPU = torch.device("cpu")
DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def tokens(lengths: list[int]) -> TokenInputs:
    """Random ids (5 to 99) of these lengths."""
    g = torch.Generator().manual_seed(0)
    return TokenInputs.from_lists([torch.randint(5, 100, (k,), generator=g).tolist() for k in lengths], pad_id=1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("family", ["tiny_bert", "tiny_roberta"])
@pytest.mark.parametrize("lengths", [[3], [16, 16], [1, 17, 40, 2], [48, 47, 33], list(range(1, 41))])
def test_features_are_transformers(
    family: str,
    lengths: list[int],
    pooling: str,
    tiled: bool,
    precision: Precision,
    request: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that are full, short and of one token; layers with weights and biases that all differ; in any order."""
    if tiled and not packed._tileable(DTYPES[precision]):
        pytest.skip("needs a CPU with AVX-512 and oneDNN")
    if not tiled:
        monkeypatch.setattr(packed, "_tileable", lambda dtype: False)
    encoder = encoders.load_encoder(str(request.getfixturevalue(family))).eval()
    with torch.no_grad():
        g = torch.Generator().manual_seed(1)
        for weight in encoder.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=g))
    made = PackedEncoder.of(encoder, precision)
    assert made is not None
    inputs = tokens(lengths)
    index = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(2))
    batch = inputs.batch(index, CPU)
    with torch.inference_mode():
        whole = mean_pool(encoder, **batch) if pooling == "mean" else encoder(**batch).last_hidden_state[:, 0]
        ours = made.features(made.batch(inputs, index), pooling=pooling)
    assert ours.dtype == torch.float32
    cosine, close = (0.999, 0.05) if precision == "bfloat16" else (0.999999, 1e-5)
    assert float(torch.cosine_similarity(ours, whole).min()) > cosine
    torch.testing.assert_close(ours, whole, rtol=close, atol=close)


def test_a_record_has_the_same_features_in_any_company(tiny_bert: Path) -> None:
    """What a neighbour says, and how long, is not seen: to rounding, since products run in another order."""
    made = PackedEncoder.of(encoders.load_encoder(str(tiny_bert)).eval(), "bfloat16")
    assert made is not None
    inputs = tokens([7, 40, 12, 30])
    together = made.features(made.batch(inputs, torch.arange(4)), pooling="mean")
    alone = torch.cat([made.features(made.batch(inputs, torch.tensor([at])), pooling="mean") for at in range(4)])
    torch.testing.assert_close(together, alone, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("other", [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}])
def test_another_layout_is_not_guessed_at(tiny_bert: Path, other: dict[str, str]) -> None:
    """Such an encoder is left to transformers; so is one of another family."""
    from transformers import DistilBertConfig, DistilBertModel

    encoder: Any = encoders.load_encoder(str(tiny_bert))
    for name, value in other.items():
        setattr(encoder.config, name, value)
    assert PackedEncoder.of(encoder, "bfloat16") is None
    family = DistilBertModel(DistilBertConfig(vocab_size=100, dim=16, n_layers=1, n_heads=2, hidden_dim=32))
    assert PackedEncoder.of(family, "bfloat16") is None


def test_near_ties_are_float32s(tiny_bundle: Path, narratives: Any) -> None:
    """A code differs from float32's nowhere within the band of near ties, and outside of it only if rounding is wider.

    With a band over all, every score is float32's; with none, rounding shows: the band is what makes the difference.
    """
    exact = export.load(tiny_bundle)
    quick = replace(exact, precision="bfloat16")
    texts = narratives(200)
    truth, rough = exact.logits(texts), quick.logits_in("bfloat16", texts)
    off = (truth - rough).abs().amax(-1)
    assert float(off.max()) > 0, "bfloat16 did not run"
    best = rough.topk(2, dim=-1).values
    margin = best[:, 0] - best[:, 1]
    band = float(margin.median())
    scores = replace(quick, near_tie=band).logits(texts)
    near = margin < band
    torch.testing.assert_close(scores[near], truth[near], rtol=1e-4, atol=1e-5)
    assert torch.equal(scores[~near], quick.logits_in("bfloat16", texts)[~near])
    wrong = scores.argmax(-1) != truth.argmax(-1)
    assert not bool((wrong & (near | (margin > 2 * off))).any())
