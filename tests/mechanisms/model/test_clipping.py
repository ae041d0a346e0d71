"""Clipped sums against plain autograd and against Opacus, for every trainable part."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import of_kind
from small_heads import clipped_sum, head_of
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import classifier as classifiers
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.custom_module import CustomModule
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
        loss = -classifier.log_likelihood(
            inputs.batch(index, classifier.device), labels[index]
        ).sum()
        parts = torch.autograd.grad(loss, classifier.parameters, allow_unused=True)
        zeros = (torch.zeros_like(p) for p in classifier.parameters)
        rows.append(
            torch.cat(
                [(z if g is None else g).flatten() for g, z in zip(parts, zeros, strict=True)]
            )
        )
    return torch.stack(rows)


def clipped(classifier: Classifier, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(norms, clipped sum) of all records in one micro-batch."""
    return clipped_sum(
        classifier, inputs.batch(torch.arange(len(labels)), classifier.device), labels, clip
    )


def assert_same(got: tuple[Tensor, Tensor], per_record: Tensor) -> None:
    norms = per_record.double().norm(dim=1)
    torch.testing.assert_close(got[0], norms, rtol=1e-4, atol=1e-6)
    # inputs of the closed form are rounded to 2^-15 of their length
    torch.testing.assert_close(
        got[1], (per_record * clip(norms)[:, None]).sum(0), rtol=1e-4, atol=5e-5
    )


def make(
    folder: Path, config: dict[str, Any], texts: list[str]
) -> tuple[Classifier, Inputs, Tensor]:
    model = ModelConfig(encoder=str(folder), max_length=32, lora_rank=2, **config)
    made = classifiers.build(model, num_labels=LABELS, seed=0)
    with torch.no_grad():  # adapters start at zero, where half their gradient vanishes
        made.flat.add_(
            torch.randn(made.flat.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05
        )
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
    family: str,
    config: dict[str, Any],
    request: pytest.FixtureRequest,
    narratives: Callable[..., list[str]],
) -> None:
    """Narratives of uneven length: norms and clipped sums to float precision, padding and shared
    positions included.
    """
    made, inputs, labels = make(request.getfixturevalue(family), config, narratives(9))
    assert_same(clipped(made, inputs, labels), by_autograd(made, inputs, labels))


@pytest.mark.filterwarnings("ignore")
def test_a_head_equals_opacus(tiny_roberta: Path, narratives: Callable[..., list[str]]) -> None:
    """Per-record gradients of Opacus's hooks on RoBERTa's two-layer head: the same norms, the same
    clipped sum.
    """
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
    ("part", "refusal"),
    [
        (_Scaled(), of_kind("no-sampler", saying="head (_Scaled)")),
        (
            nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, LABELS)),
            of_kind("no-sampler", saying="1 (PReLU)"),
        ),
        (
            nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, LABELS)),
            of_kind("batch-normalisation", saying="1 (BatchNorm1d)"),
        ),
        (_Tied(), of_kind("shared-weights")),
        (_Twice(), of_kind("shared-weights")),
    ],
    ids=["parameter", "prelu", "batch norm", "tied", "twice"],
)
def test_unsupported_layers_are_refused_by_name(part: nn.Module, refusal: of_kind) -> None:
    """A gradient norm that leaves a parameter or a use out would break the sensitivity silently."""
    with pytest.raises(MechanismError, check=refusal):
        clipped(head_of(part), FeatureInputs(torch.randn(4, 3)), torch.arange(4))


MAGNITUDES = torch.tensor([1e-45, 1e-38, 1e-30, 1e-3, 1.0, 3.3, 1e10, 1e17, 1e30])
WAYS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "closed form": lambda: (nn.Linear(40, 5), torch.randn(9, 40)),
    "closed form without bias": lambda: (nn.Linear(40, 5, bias=False), torch.randn(9, 40)),
    "all in a coordinate": lambda: (nn.Linear(40, 1), torch.eye(9, 40)),
    "sampled": lambda: (nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6)), torch.randn(9, 5, 8)),
    "looked up": lambda: (nn.Embedding(7, 6), torch.arange(45).view(9, 5) % 7),
    "together": lambda: (
        nn.Sequential(
            nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.Flatten(), nn.Linear(20, 3)
        ),
        torch.arange(45).view(9, 5) % 7,
    ),
}


def scaled_by_target(output: Tensor, target: Tensor) -> Tensor:
    slopes = torch.linspace(0.1, 1.7, output[0].numel())
    return ((output.flatten(1) * slopes).sum(1) * MAGNITUDES[target]).sum() + 1e38


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [4, 30, 60])
def test_no_record_adds_more_than_its_clip(way: str, bits: int) -> None:
    """In the arithmetic of integers, on a coarse grid and on one as fine as float64, for gradients
    of any size: those that float32 rounds to nothing, and those beyond it. It adds nearly as much
    where the grid lets it.
    """
    torch.manual_seed(0)
    module, x = WAYS[way]()
    model = CustomModule(module, scaled_by_target, device=torch.device("cpu"))
    for record, target in enumerate(torch.arange(len(MAGNITUDES)).split(1)):
        norms, total = clipped_sum(
            model, {"features": x[record : record + 1]}, target, clip, bits=bits
        )
        length = sum((Fraction(value) ** 2 for value in total.tolist()), Fraction(0))
        assert length <= Fraction(CLIP) ** 2
        if bits > 4 and 1e-3 < float(norms) < 1e18:
            assert float(length) ** 0.5 > 0.99 * min(float(norms), CLIP)


def test_no_order_of_records_moves_a_bit() -> None:
    """Records one by one forwards, backwards and in the parts of two ranks: the same integers."""
    torch.manual_seed(0)
    model = head_of(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, LABELS)))
    x, y = torch.randn(40, 8), torch.arange(40) % LABELS

    def total(records: range) -> Tensor:
        each = [
            clipped_sum(model, {"features": x[i : i + 1]}, y[i : i + 1], clip)[1] for i in records
        ]
        return torch.stack(each).cumsum(0)[-1]

    whole = total(range(40))
    assert torch.equal(total(range(39, -1, -1)), whole)
    assert torch.equal(total(range(0, 40, 2)) + total(range(1, 40, 2)), whole)
