"""Passes in bfloat16: the features of transformers' own forward pass except for rounding, in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mechanisms.model import encoders
from mechanisms.model.classifier import MeanPooled, mean_pool
from mechanisms.model.inputs import TokenInputs
from mechanisms.model.rounded import RoundedModel

CPU = torch.device("cpu")


def tokens(lengths: list[int]) -> TokenInputs:
    """Random ids (5 to 99) of these lengths."""
    g = torch.Generator().manual_seed(0)
    return TokenInputs.from_lists([torch.randint(5, 100, (k,), generator=g).tolist() for k in lengths], pad_id=1)


def varied(family: Path) -> Any:
    """An encoder whose weights and biases all differ."""
    encoder = encoders.load_encoder(str(family)).eval()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=g))
    return encoder


@pytest.mark.parametrize("own", [True, False], ids=["own", "transformers"])
@pytest.mark.parametrize("family", ["tiny_bert", "tiny_roberta"])
@pytest.mark.parametrize("lengths", [[3], [16, 16], [1, 17, 40, 2], list(range(1, 41))])
def test_features_are_transformers(family: str, lengths: list[int], own: bool, request: Any) -> None:
    """Of rows that are full, short and of one token, by the encoder that is read without transformers and by its own;
    after other weights were loaded, theirs."""
    folder = request.getfixturevalue(family)
    truth = varied(folder)
    encoder = encoders.load_frozen(str(folder)) if own else encoders.load_encoder(str(folder)).eval()
    made = RoundedModel.of(MeanPooled(encoder, encoders.width(encoder), 2).eval())
    assert made is not None
    batch = tokens(lengths).batch(torch.arange(len(lengths)), CPU)
    with torch.inference_mode():
        exact, before = mean_pool(truth, **batch), made.features(batch)
        encoder.load_state_dict(truth.state_dict())
        made.reload()
        got = made.features(batch)
    assert got.dtype == torch.float32
    assert float(torch.cosine_similarity(got, exact).min()) > 0.999
    torch.testing.assert_close(got, exact, rtol=0.05, atol=0.05)
    assert float(torch.cosine_similarity(before, exact).min()) < 0.99


def test_a_record_has_the_same_features_in_any_company(tiny_bert: Path) -> None:
    """What a neighbour says, and how long, is not seen: to rounding, since products run in another order."""
    encoder = encoders.load_frozen(str(tiny_bert))
    made = RoundedModel.of(MeanPooled(encoder, encoders.width(encoder), 2).eval())
    assert made is not None
    inputs = tokens([7, 40, 12, 30])
    together = made.features(inputs.batch(torch.arange(4), CPU))
    alone = torch.cat([made.features(inputs.batch(torch.tensor([at]), CPU)) for at in range(4)])
    torch.testing.assert_close(together, alone, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("other", [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}])
def test_another_layout_is_not_guessed_at(tiny_bert: Path, other: dict[str, str]) -> None:
    """Such an encoder is left to autocast; so is one of another family."""
    from transformers import DistilBertConfig, DistilBertModel

    encoder: Any = encoders.load_encoder(str(tiny_bert))
    for name, value in other.items():
        setattr(encoder.config, name, value)
    assert RoundedModel.of(MeanPooled(encoder, 32, 2)) is None
    family = DistilBertModel(DistilBertConfig(vocab_size=100, dim=16, n_layers=1, n_heads=2, hidden_dim=32))
    assert RoundedModel.of(MeanPooled(family, 16, 2)) is None
