"""A transformer for tables (Gorishniy et al. 2021) by class-weighted DP-SGD (Rosenblatt et al.
2025, algorithm 4).

Numbers and categories are tokens of `rtdl_revisiting_models.FTTransformer`. `torch.func` computes
each record's gradient separately; it is clipped, and multiplied by the weight of its class, which
is at most 1 and follows from private counts. Dropout is off, because a mask would depend on a
record's position among the others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rtdl_revisiting_models import FTTransformer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechanisms.model.seeding import derive_seed, seeded
from mechanisms.privacy.events import ComposedEvent, descent_of
from mechanisms.privacy.noise import SecretStream, new_key
from studies import accounting
from studies.balance import balanced
from studies.linear import class_weights, weighted_descent
from studies.tables import Columns, Fit, Table

_BLOCK = 128
"""Number of records with gradients in memory at once."""


class Network(nn.Module):
    """Maps features float [n, d] in [0, 1], column by column, to logits float32 [n, 2]."""

    def __init__(
        self, columns: Columns, *, depth: int, width: int, heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self._widths = list(columns.widths)
        drops: dict[str, Any] = {
            "attention_dropout": dropout,
            "ffn_dropout": dropout,
            "residual_dropout": 0.0,
        }
        self.network = FTTransformer(
            n_cont_features=sum(width == 1 for width in columns.widths),
            cat_cardinalities=[width for width in columns.widths if width > 1],
            d_out=2,
            n_blocks=depth,
            d_block=width,
            attention_n_heads=heads,
            ffn_d_hidden=None,
            ffn_d_hidden_multiplier=4 / 3,
            **drops,
        )
        self.eval()

    def forward(self, features: Tensor) -> Tensor:
        """Computes the logits. Numbers in [-1, 1] and codes of categories are tokens."""
        parts = features.split(self._widths, dim=1)
        numbers = [2 * part.float() - 1 for part in parts if part.shape[1] == 1]
        codes = [part.argmax(1)[:, None] for part in parts if part.shape[1] > 1]
        return self.network(
            torch.cat(numbers, dim=1) if numbers else None,
            torch.cat(codes, dim=1) if codes else None,
        )


@dataclass(frozen=True)
class FtTransformer:
    """Width, depth, heads and epochs are the paper's. Counts have `counts_factor`
    times a step's noise.
    """

    width: int = 32
    depth: int = 6
    heads: int = 8
    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    clip: float = 1.0
    counts_factor: float = 5.0

    def event(self, noise: float, records: int) -> ComposedEvent:
        prob = min(1.0, self.batch_size / records)
        steps, counts_noise = max(1, math.ceil(self.epochs / prob)), self.counts_factor * noise
        return weighted_descent(counts_noise, prob=prob, steps=steps, noise=noise, clip=self.clip)

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        records = len(train)
        event = self.event(
            accounting.noise_for(lambda noise: self.event(noise, records), epsilon, delta), records
        )
        descent, stream = descent_of(event), SecretStream(new_key())
        (segment,) = descent.segments
        with seeded(seed, "ft-transformer"):
            network = Network(train.columns, depth=self.depth, width=self.width, heads=self.heads)
        weights = class_weights(event, train.labels, stream)[0][train.labels]
        features, parameters = train.features.float(), list(network.parameters())
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        for step in range(segment.steps):
            index = stream.poisson_sample(
                records, prob=descent.sampling_prob, purpose="sample", step=step
            )
            total = clipped_sum(
                network, features, train.labels, index, weights, clip=segment.l2_clip_norm
            )
            std = segment.noise_multiplier * segment.l2_clip_norm
            total += std * stream.normal_(
                torch.empty_like(total), purpose="gradient noise", step=step
            )
            total /= descent.sampling_prob * records
            parts = total.split([parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter).float()
            optimiser.step()

        return Fit(scores_of(network), accounting.of_event(event, delta))


def scores_of(network: Network) -> Callable[[Tensor], Tensor]:
    """Returns a function for the log-probabilities float64 [n, 2] of features [n, d]."""

    def scores(table: Tensor) -> Tensor:
        with torch.no_grad():
            logits = [network(part) for part in table.clamp(0, 1).split(4096)]
        return torch.cat(logits).double().log_softmax(-1)

    return scores


@dataclass(frozen=True)
class PlainTransformer:
    """The same model without protection, weighted by the classes' inverse frequencies.

    Width, depth, heads, dropout and the largest number of epochs are the paper's. A tenth of the
    training records determines when to stop: `patience` epochs after the smallest weighted loss.
    The network with that loss is kept.
    """

    width: int = 32
    depth: int = 6
    heads: int = 8
    dropout: float = 0.1
    epochs: int = 100
    patience: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        weights = balanced(train, "weights", seed=seed)[1].float()
        features, labels = train.features.float(), train.labels
        kept, held = (
            torch.from_numpy(part)
            for part in train_test_split(
                np.arange(len(train)),
                test_size=0.1,
                stratify=labels.numpy(),
                random_state=derive_seed(seed, "held out") % (1 << 32),
            )
        )
        with seeded(seed, "plain-ft-transformer"):
            network = Network(
                train.columns,
                depth=self.depth,
                width=self.width,
                heads=self.heads,
                dropout=self.dropout,
            )
            optimiser = torch.optim.AdamW(network.parameters(), lr=self.learning_rate)

            def loss(rows: Tensor) -> Tensor:
                losses = nn.functional.cross_entropy(
                    network(features[rows]), labels[rows], reduction="none"
                )
                return (weights[rows] * losses).mean()

            least, best, since = math.inf, copy.deepcopy(network.state_dict()), 0
            for _ in range(self.epochs):
                network.train()
                for rows in kept[torch.randperm(len(kept))].split(self.batch_size):
                    optimiser.zero_grad()
                    loss(rows).backward()
                    optimiser.step()
                network.eval()
                with torch.no_grad():
                    now = float(loss(held))
                since += 1
                if now < least:
                    least, best, since = now, copy.deepcopy(network.state_dict()), 0
                if since == self.patience:
                    break
        network.load_state_dict(best)
        return Fit(scores_of(network), accounting.nothing())


def clipped_sum(
    network: Network,
    features: Tensor,
    labels: Tensor,
    index: Tensor,
    weights: Tensor,
    *,
    clip: float,
) -> Tensor:
    """Returns the sum float64 [P] of weight x clipped gradient of the records at `index`, a block
    at a time.

    A record with a gradient that is not finite adds nothing, because an infinite norm cannot be
    clipped.
    """
    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def loss(given: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            functional_call(network, given, (record[None],)), label[None]
        )

    total = torch.zeros(sum(p.numel() for p in parameters.values()), dtype=torch.float64)
    for block in index.split(_BLOCK):
        if not len(block):
            continue
        with sdpa_kernel(SDPBackend.MATH):
            gradients = vmap(grad(loss), (None, 0, 0))(parameters, features[block], labels[block])
        flat = torch.cat([part.flatten(1) for part in gradients.values()], dim=1).double()
        norms = flat.norm(dim=1)
        factors = torch.where(norms.isfinite(), weights[block] * clip / norms.clamp(min=clip), 0.0)
        total += factors @ flat.nan_to_num(0.0, 0.0, 0.0)
    return total
