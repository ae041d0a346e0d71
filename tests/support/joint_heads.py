"""A small head of three fields, and records that lack some of them."""

from __future__ import annotations

import torch
from small_heads import head_of
from torch import Tensor, nn

from mechanisms.model.classifier import Classifier
from mechanisms.model.fields import Fields

WIDTH = 8
FIELDS = Fields((4, 3, 5))
N = 60


def start() -> Tensor:
    """Weights that a public prior might have given, [classes, width]."""
    return 3 * torch.randn(FIELDS.classes, WIDTH, generator=torch.Generator().manual_seed(1))


def untrained(fields: Fields = FIELDS) -> Classifier:
    """A head that starts there."""
    part = nn.Linear(WIDTH, fields.classes)
    with torch.no_grad():
        part.weight.copy_(start()[: fields.classes])
        part.bias.zero_()
    built = head_of(part)
    built.fields = fields if len(fields.sizes) > 1 else None
    return built


def problem(n: int = N, *, seed: int = 0, lacking: float = 0.3) -> tuple[Tensor, Tensor]:
    """Features [n, width] and labels [n, fields], of which some are lacking, but never all of a record."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.stack([torch.randint(size, (n,), generator=g) for size in FIELDS.sizes], 1)
    where = torch.stack([start()[span][own] for span, own in zip(FIELDS.spans, labels.unbind(1), strict=True)]).sum(0)
    gone = torch.rand(labels.shape, generator=g) < lacking
    gone[torch.arange(n), torch.randint(len(FIELDS.sizes), (n,), generator=g)] = False
    return where / 6 + 0.3 * torch.randn(n, WIDTH, generator=g), torch.where(gone, -1, labels)
