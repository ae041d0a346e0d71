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

Units are those of `mechanisms.descent.grid`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from mechanisms.descent.grid import FEATURE_BITS, RESIDUAL_BITS, SUM_BITS
from mechanisms.errors import MechanismError
from mechanisms.privacy.events import NoiseSegment

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
_BLOCK = 1024
_FEW = 1 / 16
"""Of a column's features, that are not 0: then its products are faster as sparse ones."""
_MOST = 1 << 17
"""Records: a residual below 2^19 times a feature of 17 bits, so often, is below 2^53."""
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


class GridRecords:
    """Holds the features of some records on the grid (`on_grid`), and their labels.

    On a processor, columns in which nearly every feature is 0, such as those of words, lie apart:
    as what a 0 adds, which is the same for all records, and sparse rows of what differs from it.
    All are integers, so that products in two parts have the bits of one
    (`_require_exact_products`).

    lengths: of the features and the constant, float64 [n].
    """

    def __init__(self, grid: Tensor, labels: Tensor, centre: Tensor | None = None) -> None:
        assert len(labels) <= _MOST  # sums of residuals before the clip are exact too
        self.labels = labels
        self.lengths = torch.cat([_lengths(block.double()) for block in grid.split(_BLOCK)])
        zero = on_grid(torch.zeros_like(grid[:1, :-1]), centre)[0]
        apart = (grid != zero).sum(0) < _FEW * len(grid)
        if grid.device.type != "cpu":
            apart.zero_()
        self._dense_at, self._apart_at = ((apart == side).nonzero()[:, 0] for side in (False, True))
        self._dense, self._zero = grid[:, self._dense_at], zero[self._apart_at].double()
        self._apart: csr_array | None = None
        if len(self._apart_at):
            differing = grid[:, self._apart_at].int() - zero[self._apart_at].int()
            self._apart = csr_array(differing.numpy().astype(np.float64))

    def blocks(self) -> Iterator[_Block]:
        """Yields a thousand records at a time."""
        for start in range(0, len(self.labels), _BLOCK):
            at = slice(start, start + _BLOCK)
            yield _Block(
                self._dense[at].double(),
                None if self._apart is None else csr_array(self._apart[at]),
                self.labels[at],
                self.lengths[at],
            )

    def weights(self, weights: Tensor) -> _Weights:
        """Returns weights [classes, width + 1] as blocks take them."""
        apart = weights[:, self._apart_at]
        return _Weights(weights[:, self._dense_at], apart.T.contiguous(), apart @ self._zero)

    def add(self, sums: _Weights, out: Tensor) -> None:
        """Adds sums over blocks to `out` [classes, width + 1]."""
        out.index_add_(1, self._dense_at, sums.dense)
        apart = sums.apart.T + sums.constant[:, None] * self._zero
        out.index_add_(1, self._apart_at, apart)


@dataclass(frozen=True)
class _Weights:
    """Holds what belongs to the columns of `GridRecords`: dense [classes, d], apart [a, classes],
    and what zeros apart add [classes].
    """

    dense: Tensor
    apart: Tensor
    constant: Tensor


@dataclass(frozen=True)
class _Block:
    """Holds records of `GridRecords`: float64 of integers [b, d], sparse [b, a],
    labels, lengths.
    """

    dense: Tensor
    apart: csr_array | None
    labels: Tensor
    lengths: Tensor

    def scores(self, weights: _Weights) -> Tensor:
        """Returns features times weights, float64 of integers [b, classes]."""
        scores = torch.addmm(weights.constant, self.dense, weights.dense.T)
        if self.apart is not None:
            scores += torch.from_numpy(self.apart @ weights.apart.numpy())
        return scores

    def add_outer(self, left: Tensor, sums: _Weights) -> None:
        """Adds the sum over records of left_i right_i', left [b, classes], right the features."""
        sums.dense.addmm_(left.T, self.dense)
        if self.apart is not None:
            sums.apart.add_(torch.from_numpy(self.apart.T @ left.numpy()))
            sums.constant.add_(left.sum(0))


def clipped_sum(records: GridRecords, rows: Tensor, *, norm: float, out: Tensor) -> Tensor:
    """Adds the sum over records of their gradients, each cut to a norm, to `out`, in units of
    2^-SUM_BITS; returns losses in nats [n].

    Args:
        rows: of a linear softmax, float [classes, width + 1], bias last.
        out: float64 of integers [classes, width + 1].
    """
    grid = rows.double().mul(2.0**_WEIGHT_BITS).round_()
    _require_exact_products(grid)
    weights, sums = records.weights(grid), records.weights(torch.zeros_like(grid))
    losses = [grid.new_zeros(0)]
    for block in records.blocks():
        residuals, loss = _residuals(block.scores(weights), block.labels)
        block.add_outer(cut(residuals, block.lengths, norm=norm), sums)
        losses.append(loss)
    records.add(sums, out)
    return torch.cat(losses)


def _residuals(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns residuals, float64 of integers [b, classes], and losses in nats [b]; takes the place
    of the scores.

    Scores and shares are multiplied by powers of two alone, which rounds nothing.
    """
    table, unit = _exp_table(scores.device), 2.0 ** (_SCORE_BITS - FEATURE_BITS - _WEIGHT_BITS)
    below = scores.mul_(-unit)
    below.sub_(below.amin(1, keepdim=True)).clamp_(max=len(table) - 1)
    shares = table.index_select(0, below.int().view(-1)).view(below.shape)
    residual = shares.div_(shares.sum(1, keepdim=True).mul_(2.0**-RESIDUAL_BITS)).trunc_()
    record = torch.arange(len(labels), device=scores.device)
    share = residual[record, labels]
    residual[record, labels] = share - 2.0**RESIDUAL_BITS
    return residual, RESIDUAL_BITS * math.log(2) - share.clamp(min=1.0).log()


def _require_exact_products(weights: Tensor) -> None:
    """Raises an error if a product of features and weights might not be an exact float64 integer.

    The weights already have their noise, so that refusing them tells nothing about a record. A
    feature less what a 0 adds, and that apart, are together at most three times the largest.
    """
    largest = float(weights.abs().sum(1).max()) * 3 * (_LARGEST_FEATURE + 1)
    if not largest < 2.0**53:
        raise MechanismError(
            "the weights of the head grew beyond what exact sums can hold. Lower the learning rate "
            "(`weight_noise`).",
            kind="inexact-products",
        )


def cut(left: Tensor, lengths: Tensor, *, norm: float) -> Tensor:
    """Cuts rows in place, towards zero, so that the outer product of each with one of its length
    has at most a norm, in units of 2^-SUM_BITS.

    Args:
        left: float64 of integers [b, l], in units of 2^-RESIDUAL_BITS.
        lengths: of right, float64 [b], of integers in units of 2^-FEATURE_BITS.
    """
    factors = clip_factors(_lengths(left) * lengths, norm * 2.0**SUM_BITS)
    return left.mul_(factors[:, None]).trunc_()


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
