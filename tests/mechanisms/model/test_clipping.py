"""Clipped sums against plain autograd and against Opacus, for every trainable part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_heads import head_of
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import classifier as classifiers
from mechanisms.model.classifier import Classifier
from mechanisms.model.clipping import RecordClipping
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, Inputs

CLIP = 0.7
LABELS = 5


def clip(norms: Tensor) -> Tensor:
    return (CLIP / norms).clamp(max=1)


def by_autograd(classifier: Classifier, inputs: Inputs, labels: Tensor) -> Tensor:
    """Per-record gradients of -l_i, float32 [n, P], one backward pass a record."""
    rows = []
    for i in range(len(labels)):
        index = torch.tensor([i])
        loss = -classifier.log_likelihood(inputs.batch(index, classifier.device), labels[index]).sum()
        parts = torch.autograd.grad(loss, classifier.parameters, allow_unused=True)
        zeros = (torch.zeros_like(p) for p in classifier.parameters)
        rows.append(torch.cat([(z if g is None else g).flatten() for g, z in zip(parts, zeros, strict=True)]))
    return torch.stack(rows)


def clipped(classifier: Classifier, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(norms, clipped sum) of all records in one micro-batch."""
    out = torch.zeros_like(classifier.flat)
    with RecordClipping(classifier) as clipper:
        batch = inputs.batch(torch.arange(len(labels)), classifier.device)
        norms, _ = clipper.add_clipped_sum(batch, labels, coefficients=clip, out=out)
    return norms, out


def assert_same(got: tuple[Tensor, Tensor], per_record: Tensor) -> None:
    norms = per_record.norm(dim=1)
    torch.testing.assert_close(got[0], norms, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got[1], (per_record * clip(norms)[:, None]).sum(0), rtol=1e-4, atol=1e-5)


def make(folder: Path, config: dict[str, Any], texts: list[str]) -> tuple[Classifier, Inputs, Tensor]:
    model = ModelConfig(encoder=str(folder), max_length=32, lora_rank=2, **config)
    made = classifiers.build(model, num_labels=LABELS, seed=0)
    with torch.no_grad():  # adapters start at zero, where half their gradient vanishes
        made.flat.add_(torch.randn(made.flat.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05)
    tokens = classifiers.tokenize(model, texts)
    inputs = made.encode(tokens) if config["trainable"] == "head" else tokens
    return made, inputs, torch.arange(len(texts)) % LABELS


PARTS = [
    {"trainable": "full"},
    {"trainable": "full", "pooling": "mean"},
    {"trainable": "lora"},
    {"trainable": "head"},
    {"trainable": "head", "pooling": "mean"},
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("config", PARTS, ids=lambda c: "-".join(c.values()))
@pytest.mark.parametrize("family", ["tiny_bert", "tiny_roberta"])
def test_norms_and_sums_equal_autograd(
    family: str, config: dict[str, Any], request: pytest.FixtureRequest, narratives: Callable[..., list[str]]
) -> None:
    """Narratives of uneven length: norms and clipped sums to float precision, padding and shared positions included."""
    made, inputs, labels = make(request.getfixturevalue(family), config, narratives(9))
    assert_same(clipped(made, inputs, labels), by_autograd(made, inputs, labels))


@pytest.mark.filterwarnings("ignore")
def test_a_head_equals_opacus(tiny_roberta: Path, narratives: Callable[..., list[str]]) -> None:
    """Per-record gradients of Opacus's hooks on RoBERTa's two-layer head: the same norms, the same clipped sum."""
    from opacus.grad_sample import GradSampleModule

    made, inputs, labels = make(tiny_roberta, {"trainable": "head"}, narratives(9))
    got = clipped(made, inputs, labels)
    batch = inputs.batch(torch.arange(len(labels)), made.device)
    for module in made.part.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # Opacus works in training mode only
    wrapped = GradSampleModule(made.part.train(), loss_reduction="sum")
    nn.functional.cross_entropy(wrapped(batch["features"]), labels, reduction="sum").backward()
    samples = [getattr(p, "grad_sample").flatten(1) for p in made.parameters]  # noqa: B009
    assert_same(got, torch.cat(samples, dim=1))


class _Scaled(nn.Module):
    """A head with a parameter of its own, outside any known layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.out = nn.Linear(3, LABELS)

    def forward(self, features: Tensor) -> Tensor:
        return self.out(features * self.scale)


class _Twice(nn.Module):
    """A head that runs one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(3, 3), nn.Linear(3, LABELS)

    def forward(self, features: Tensor) -> Tensor:
        return self.out(self.inner(self.inner(features)))


class _Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, LABELS)
        self.b.weight = self.a.weight

    def forward(self, features: Tensor) -> Tensor:
        return self.out(self.b(self.a(features)))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (_Scaled(), r"no sampler for layer `head \(_Scaled\)`"),
        (nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, LABELS)), r"1 \(PReLU\)"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, LABELS)), "1 .BatchNorm1d.` mixes records"),
        (_Tied(), "share a weight"),
        (_Twice(), "runs twice"),
    ],
    ids=["parameter", "prelu", "batch norm", "tied", "twice"],
)
def test_unsupported_layers_are_refused_by_name(part: nn.Module, said: str) -> None:
    """A gradient norm that leaves a parameter or a use out would break the sensitivity silently."""
    with pytest.raises(MechanismError, match=said):
        clipped(head_of(part), FeatureInputs(torch.randn(4, 3)), torch.arange(4))
