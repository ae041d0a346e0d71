"""Clipped sums over records in integers: what one record adds is a function of that record alone, to the last bit.

Features, weights and residuals lie on grids, so that every product and every sum is an integer below 2^53, which
float64 holds exactly in any order of summation, on any processor, over any division of the records. A residual is

    p_j = T[(max_k s_k - s_j) / unit] / sum_k T[...],    e = p - onehot(y)

with s the integer scores and T a table of exp, rounded to integers; division, square root and product are those of IEEE
754, which rounds each correctly. So removing a record changes a sum by that record's own term and by nothing else, and
the clip, which is checked in integers, bounds its norm without an allowance for rounding. This starts at the features:
that an encoder gives a record the same ones, to the last bit, whoever shares its batch, is assumed.

Units: a feature counts 2^-FEATURE_BITS, a residual 2^-RESIDUAL_BITS, a sum of their products 2^-SUM_BITS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import GaussianReleaseEvent
from mechanisms.privacy.noise import SecretStream

FEATURE_BITS = 11
RESIDUAL_BITS = 19
SUM_BITS = FEATURE_BITS + RESIDUAL_BITS
_WEIGHT_BITS = 20
_SCORE_BITS = 12
"""Of a difference of scores, in nats, in the table of exp."""
_TABLE_BITS = 30
_REACH = 22
"""Nats below the largest score at which a class counts nothing: exp(-22) is below a unit of the table."""
_LARGEST_FEATURE = (1 << 15) - 1
_INSIDE = 1 - 2.0**-40
"""Keeps a clipped norm below the clip after the last rounding of its factor, which is below 2^-50."""
_BLOCK = 4096


def on_grid(features: Tensor, *, bits: int = FEATURE_BITS) -> Tensor:
    """Returns features as integers int16, each coordinate cut to what 16 bits hold; one that is not finite is 0."""
    scaled = torch.nan_to_num(features.double(), nan=0.0, posinf=0.0, neginf=0.0).mul_(2.0**bits).round_()
    return scaled.clamp_(-_LARGEST_FEATURE, _LARGEST_FEATURE).to(torch.int16)


def clipped_feature_sum(features: Tensor, *, norm: float) -> Tensor:
    """Returns the sum over records of features cut to a norm, in units of 2^-FEATURE_BITS, float64 of integers [width].

    Args:
        features: int16 [n, width], on the grid.
    """
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    for block in features.split(_BLOCK):
        values = block.double()
        total += (
            (values * clip_factors(_root(values.square().sum(1)), norm * 2.0**FEATURE_BITS)[:, None]).trunc().sum(0)
        )
    return total


def noisy_feature_sum(features: Tensor, event: GaussianReleaseEvent, stream: SecretStream) -> Tensor:
    """Returns `clipped_feature_sum` with the event's noise, once for each stream."""
    total = clipped_feature_sum(features, norm=event.l2_sensitivity)
    std = sum_std(event.noise_multiplier, event.l2_sensitivity, bits=FEATURE_BITS)
    return stream.add_rounded_normal_(total, std=std, purpose="mean", step=0)


def sum_std(noise_multiplier: float, norm: float, *, bits: int) -> Fraction:
    """Returns the noise's standard deviation in units of 2^-bits, as the rational number that the event states."""
    return Fraction(noise_multiplier) * Fraction(norm) * 2**bits


@dataclass(frozen=True)
class Scores:
    """The records' centred features on the grid, and their labels, block by block.

    features: int16 [n, width]. centre: float64 of integers [width], what is subtracted from each record.
    labels: int64 [n].
    """

    features: Tensor
    centre: Tensor
    labels: Tensor

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yields places, centred features and the constant 1, float64 of integers [b, width + 1], and labels."""
        for start in range(0, len(self.labels), _BLOCK):
            place = slice(start, start + _BLOCK)
            values = self.features[place].double() - self.centre
            values.clamp_(-_LARGEST_FEATURE, _LARGEST_FEATURE)
            constant = torch.full((len(values), 1), 2.0**FEATURE_BITS, dtype=torch.float64, device=values.device)
            yield place, torch.cat([values, constant], 1), self.labels[place]


class Residuals:
    """Residuals of a softmax over rows of which some never change.

    rows: float [classes, width + 1], bias last. active: bool [classes], the rows that a descent moves; the scores
    of the others are computed once.
    """

    def __init__(self, scores: Scores, rows: Tensor, active: Tensor | None = None) -> None:
        self._scores, device = scores, rows.device
        self._table = _exp_table(device)
        self.active = torch.ones(len(rows), dtype=torch.bool, device=device) if active is None else active
        places = torch.full((len(rows),), -1, dtype=torch.int64, device=device)
        places[self.active] = torch.arange(int(self.active.sum()), device=device)
        self._place_of = places
        rest = rows[~self.active]
        self._rest = None
        if len(rest):
            weights = _weights_on_grid(rest)
            largest, mass = list[Tensor](), list[Tensor]()
            for _, values, _ in scores.blocks():
                products = values @ weights.T
                top = products.amax(1, keepdim=True)
                largest.append(top)
                mass.append(self._lookup(top - products).sum(1, keepdim=True))
            self._rest = torch.cat(largest), torch.cat(mass)

    def blocks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yields (residuals, features, losses) of blocks: integers [b, active], [b, width + 1]; nats [b].

        Args:
            rows: the active ones [active, width + 1].
        """
        weights = _weights_on_grid(rows)
        for place, values, labels in self._scores.blocks():
            products = values @ weights.T
            top = products.amax(1, keepdim=True)
            below = None
            if self._rest is not None:
                largest, mass = (part[place] for part in self._rest)
                top = torch.maximum(top, largest)
                # a product of two integers below 2^53 each is rounded once, then divided: a function of the record
                below = mass * self._lookup(top - largest) * 2.0**-_TABLE_BITS
            shares = self._lookup(top - products)
            total = shares.sum(1, keepdim=True)
            shares /= total if below is None else total + below
            columns = self._place_of[labels]
            own = columns >= 0
            residual = shares.mul_(2.0**RESIDUAL_BITS).trunc_()
            record = torch.nonzero(own)[:, 0]
            share = residual[record, columns[record]]
            residual[record, columns[record]] = share - 2.0**RESIDUAL_BITS
            losses = torch.zeros(len(labels), dtype=torch.float64, device=rows.device)
            losses[record] = -share.clamp(min=1.0).log() + RESIDUAL_BITS * math.log(2)
            yield residual, values, losses

    def _lookup(self, differences: Tensor) -> Tensor:
        unit = 2.0 ** (_SCORE_BITS - FEATURE_BITS - _WEIGHT_BITS)
        return self._table[(differences * unit).clamp_(max=len(self._table) - 1).long()]


def clipped_outer_sum(left: Tensor, right: Tensor, *, norm: float, out: Tensor) -> None:
    """Adds the sum over records of left_i right_i', each cut to a norm in units of 2^-SUM_BITS, to `out` [l, r].

    Args:
        left: float64 of integers [b, l], in units of 2^-RESIDUAL_BITS; it is cut, towards zero.
        right: float64 of integers [b, r], in units of 2^-FEATURE_BITS.
    """
    lengths = _root(left.square().sum(1)) * _root(right.square().sum(1))
    out.addmm_((left * clip_factors(lengths, norm * 2.0**SUM_BITS)[:, None]).trunc_().T, right)


def require_room(records: int, norm: float) -> None:
    """Refuses more records than a sum in float64 is exact for.

    Raises:
        MechanismError: they are too many.
    """
    if records * norm * 2.0**SUM_BITS >= 2.0**51:
        raise MechanismError(f"{records} records are more than exact sums hold: lower the clip, or split the records")


def _weights_on_grid(rows: Tensor) -> Tensor:
    return rows.double().mul(2.0**_WEIGHT_BITS).round_()


def _root(squares: Tensor) -> Tensor:
    """Returns correctly rounded square roots: torch's own on a processor may be its maths library's, which are not."""
    if squares.device.type == "cpu":
        return torch.from_numpy(np.sqrt(squares.numpy()))
    return squares.sqrt()


def clip_factors(lengths: Tensor, norm: float) -> Tensor:
    """Returns what cuts vectors of these lengths to a norm, from their exact squares' correctly rounded roots."""
    return torch.where(lengths > norm * _INSIDE, norm * _INSIDE / lengths, torch.ones_like(lengths))


def _exp_table(device: torch.device) -> Tensor:
    steps = torch.arange((_REACH << _SCORE_BITS) + 1, dtype=torch.float64)
    table = steps.mul_(-(2.0**-_SCORE_BITS)).exp_().mul_(2.0**_TABLE_BITS).round_()
    table[-1] = 0.0
    return table.to(device)
