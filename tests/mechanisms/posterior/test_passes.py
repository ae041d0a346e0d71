"""Log-likelihoods in bfloat16 are float32's except for rounding, at the current parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mechanisms.model import classifier
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.rounded import RoundedModel
from mechanisms.posterior.passes import Bfloat16, Float32

N, LABELS = 24, 5


def likelihoods(passes: Float32, size: int | None) -> Tensor:
    """Returns those of every record, in the records' order."""
    out, labels = torch.full((N,), torch.nan), torch.arange(N) % LABELS
    with torch.inference_mode():
        for index in passes.batches(size):
            out[index] = passes.log_likelihood(passes.batch(index), labels[index])
    return out


@pytest.mark.parametrize(
    ("trainable", "pooling", "rounds"), [("full", "mean", True), ("full", "first", True), ("lora", "mean", False)]
)
@pytest.mark.parametrize("family", ["tiny_bert", "tiny_roberta"])
def test_they_are_float32s_at_the_parameters_of_the_moment(
    family: str,
    trainable: Any,
    pooling: Any,
    rounds: bool,
    request: Any,
    narratives: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In batches of any size; other parameters count once they are reloaded. Adapters are left to autocast."""
    seen: list[object] = []
    plain = RoundedModel.logits
    monkeypatch.setattr(RoundedModel, "logits", lambda self, *given: (seen.append(given), plain(self, *given))[1])
    config = ModelConfig(
        encoder=str(request.getfixturevalue(family)), trainable=trainable, pooling=pooling, max_length=64
    )
    made: Classifier = classifier.build(config, num_labels=LABELS, seed=0)
    tokens = classifier.tokenize(config, narratives(N))
    exact, rough = Float32(made, tokens), Bfloat16(made, tokens)
    g = torch.Generator().manual_seed(0)
    for _ in range(2):
        made.flat.add_(0.05 * torch.randn(made.num_parameters, generator=g))
        rough.reload()
        truth = likelihoods(exact, 7)
        for size in (None, 1, 7):
            got = likelihoods(rough, size)
            assert 0 < float((got - truth).abs().max()) < 0.05
    assert bool(seen) == rounds
