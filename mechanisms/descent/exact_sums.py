"""Clipped sums over records in integers: what one record adds is a function only of that record, to
the last bit.

Features, weights and residuals are on grids, so that every product and every sum is an integer
below 2^53, which float64 holds exactly in any order of summation, on any processor, over any
division of the records. A residual is

    p_j = T[(max_k s_k - s_j) / unit] / sum_k T[...],    e = p - onehot(y)

with s the integer scores and T a table of exp, rounded to integers; division, square root and
product are those of IEEE 754, which rounds each correctly. So removing a record changes a sum by
that record's own term and by nothing else, and the clip, which is checked in integers, bounds its
norm without an allowance for rounding. This starts at the features: that an encoder gives a record
the same ones, to the last bit, whatever else is in its batch, is assumed.

Units: a feature counts 2^-FEATURE_BITS, a residual 2^-RESIDUAL_BITS, a sum of their products
2^-SUM_BITS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import NoiseSegment

FEATURE_BITS = 11
RESIDUAL_BITS = 19
SUM_BITS = FEATURE_BITS + RESIDUAL_BITS
_WEIGHT_BITS = 20
_SCORE_BITS = 12
"""Of a difference of scores, in nats, in the table of exp."""
_TABLE_BITS = 30
_REACH = 22
"""Nats below the largest score at which a class counts nothing: exp(-22) is below a unit of the
table.
"""
_LARGEST_FEATURE = (1 << 15) - 1
_INSIDE = 1 - 2.0**-40
"""Keeps a clipped norm below the clip after the last rounding of its factor, which is below 2^-50.
"""
_LARGEST_SUM = 1 << 51
_BLOCK = 512
_LITTLE_NOISE = 8
"""Clips; more noise is on a coarser grid: the larger it is in units, the more of its roundings need
further bits.
"""


def on_grid(features: Tensor, centre: Tensor | None = None) -> Tensor:
    """Returns features and the constant 1 as integers int16 [n, width + 1].

    Each coordinate is cut to what 16 bits hold, before and after the centre is subtracted; one that
    is not finite is 0.

    Args:
        centre: integers [width]; None: zeros.
    """
    scaled = (
        torch.nan_to_num(features.float(), nan=0.0, posinf=0.0, neginf=0.0)
        .mul_(2.0**FEATURE_BITS)
        .round_()
    )
    scaled.clamp_(-_LARGEST_FEATURE, _LARGEST_FEATURE)
    if centre is not None:
        scaled.sub_(centre).clamp_(-_LARGEST_FEATURE, _LARGEST_FEATURE)
    return torch.cat(
        [
            scaled.to(torch.int16),
            torch.full_like(scaled[:, :1], 1 << FEATURE_BITS, dtype=torch.int16),
        ],
        1,
    )


def sum_std(noise_multiplier: float, norm: float, *, bits: int) -> Fraction:
    """Returns the noise's standard deviation in units of 2^-bits, as the rational number that the
    event states.
    """
    return Fraction(noise_multiplier) * Fraction(norm) * Fraction(2) ** bits


def bits_of(segment: NoiseSegment) -> int:
    """Returns the bits for which a clip is below 2^31 units, and at least half of that unless noise
    is far larger.
    """
    return (
        31
        - math.frexp(segment.l2_clip_norm * max(1.0, segment.noise_multiplier / _LITTLE_NOISE))[1]
    )


@dataclass(frozen=True)
class Scores:
    """The records' features on the grid (`on_grid`), and their labels, block by block.

    labels: int64 [n].
    """

    features: Tensor
    labels: Tensor

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields features, float64 of integers [b, width + 1], and labels."""
        for start in range(0, len(self.labels), _BLOCK):
            yield (
                self.features[start : start + _BLOCK].double(),
                self.labels[start : start + _BLOCK],
            )


def residuals(scores: Scores, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields (residuals, features, losses) of blocks of records: integers [b, classes], [b, width +
    1]; nats [b].

    Args:
        rows: of a linear softmax, float [classes, width + 1], bias last.
    """
    table, weights = _exp_table(rows.device), rows.double().mul(2.0**_WEIGHT_BITS).round_()
    _require_exact_products(weights)
    unit = 2.0 ** (_SCORE_BITS - FEATURE_BITS - _WEIGHT_BITS)
    for values, labels in scores.blocks():
        products = values @ weights.T
        differences = products.neg_().sub_(products.amin(1, keepdim=True)).mul_(unit)
        shares = table[differences.clamp_(max=len(table) - 1).long()]
        shares /= shares.sum(1, keepdim=True)
        residual = shares.mul_(2.0**RESIDUAL_BITS).trunc_()
        record = torch.arange(len(labels), device=rows.device)
        share = residual[record, labels]
        residual[record, labels] = share - 2.0**RESIDUAL_BITS
        yield residual, values, -share.clamp(min=1.0).log() + RESIDUAL_BITS * math.log(2)


def _require_exact_products(weights: Tensor) -> None:
    """Raises an error if a product of features and weights might not be an exact float64 integer.

    The weights already have their noise, so that refusing them tells nothing about a record.
    """
    largest = float(weights.abs().sum(1).max()) * (_LARGEST_FEATURE + 1)
    if not largest < 2.0**53:
        raise MechanismError(
            "the weights of the head grew beyond what exact sums can hold. Lower the learning rate "
            "(`weight_noise`)."
        )


def clipped_outer_sum(left: Tensor, right: Tensor, *, norm: float, out: Tensor) -> None:
    """Adds the sum over records of left_i right_i', each cut to a norm in units of 2^-SUM_BITS, to
    `out` [l, r].

    Args:
        left: float64 of integers [b, l], in units of 2^-RESIDUAL_BITS; it is cut, towards zero.
        right: float64 of integers [b, r], in units of 2^-FEATURE_BITS.
    """
    lengths = _lengths(left) * _lengths(right)
    out.addmm_((left * clip_factors(lengths, norm * 2.0**SUM_BITS)[:, None]).trunc_().T, right)


class Total:
    """Adds up sums of any number of records: parts in float64, each exact, into int64."""

    def __init__(self, like: Tensor) -> None:
        self._total = torch.zeros_like(like, dtype=torch.int64)

    def add(self, part: Tensor) -> None:
        """Takes a sum of integers, float64, and leaves zeros."""
        self._total.add_(part.long())
        part.zero_()

    def settle(self, out: Tensor) -> None:
        """Adds the total to float64, cut entry by entry to what noise is added to without error.

        A cut brings two totals no further apart, so that it costs no sensitivity.
        """
        out.add_(self._total.clamp_(-_LARGEST_SUM, _LARGEST_SUM).double())


def require_room(records: int, norm: float, *, bits: int = 51) -> None:
    """Refuses more records than a sum holds: 51 bits in float64, 62 in a `Total`.

    Raises:
        MechanismError: they are too many.
    """
    if records * norm * 2.0**SUM_BITS >= 2.0**bits:
        raise MechanismError(
            f"{records} records are more than exact sums hold: lower clip or batch, or split the "
            "records"
        )


def _lengths(rows: Tensor) -> Tensor:
    """Returns correctly rounded square roots: torch's own on a processor may be its maths
    library's, which are not.
    """
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sqrt(np.einsum("ij,ij->i", rows.numpy(), rows.numpy())))
    return rows.square().sum(1).sqrt()


def clip_factors(lengths: Tensor, norm: float) -> Tensor:
    """Returns what cuts vectors of these lengths to a norm, from their exact squares' correctly
    rounded roots.
    """
    return torch.where(lengths > norm * _INSIDE, norm * _INSIDE / lengths, torch.ones_like(lengths))


@lru_cache(maxsize=2)
def _exp_table(device: torch.device) -> Tensor:
    steps = torch.arange((_REACH << _SCORE_BITS) + 1, dtype=torch.float64)
    table = steps.mul_(-(2.0**-_SCORE_BITS)).exp_().mul_(2.0**_TABLE_BITS).round_()
    table[-1] = 0.0
    return table.to(device)
