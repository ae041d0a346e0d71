"""Small classifiers for the tests of the mechanisms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_heads import Fresh, MakeLinear, head_of
from torch import Tensor, nn

from mechanisms.model import classifier
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, TokenInputs


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Models this small only wait for a second thread; on a busy machine twenty times as long as
    they work.
    """
    torch.set_num_threads(1)


@pytest.fixture
def linear() -> MakeLinear:
    """Make a linear classifier on n random features with labels: small enough to check everything
    manually.
    """

    def make(
        n: int = 12, *, width: int = 3, labels: int = 4, seed: int = 0
    ) -> tuple[Classifier, FeatureInputs, Tensor]:
        g = torch.Generator().manual_seed(seed)
        part = nn.Linear(width, labels)
        with torch.no_grad():
            part.weight.normal_(generator=g)
            part.bias.normal_(generator=g)
        features = torch.randn(n, width, generator=g)
        return (
            head_of(part),
            FeatureInputs(features=features),
            torch.randint(labels, (n,), generator=g),
        )

    return make


@pytest.fixture
def fresh(tiny_roberta: Path, narratives: Callable[..., list[str]]) -> Fresh:
    """Make a newly built classifier on the tiny RoBERTa, and n records in the form that its
    trainable part reads.
    """

    def make(
        trainable: Any,
        n: int = 20,
        *,
        pooling: Any = "first",
        encoder: Path = tiny_roberta,
        labels: int = 5,
    ) -> tuple[Classifier, FeatureInputs | TokenInputs, Tensor]:
        config = ModelConfig(
            encoder=str(encoder),
            trainable=trainable,
            pooling=pooling,
            max_length=64,
            lora_rank=2,
            lora_dropout=0.1,
        )
        made = classifier.build(config, num_labels=labels, seed=0)
        tokens = classifier.tokenize(config, narratives(n))
        given = torch.randint(labels, (n,), generator=torch.Generator().manual_seed(1))
        return made, made.encode(tokens) if trainable == "head" else tokens, given

    return make
