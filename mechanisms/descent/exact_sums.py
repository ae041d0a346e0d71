"""Clipped sums in integer arithmetic: a record's contribution depends only on that record, to the
last bit.

Features, weights and residuals are rounded to grids, so that every product and every sum is an
integer below 2^53. float64 represents these exactly for any order of summation, on any processor,
and for any partition of the records. A residual is

  p_j = T[(max_k s_k - s_j) / unit] / sum_k T[...],    e = p - onehot(y)

with integer scores s and a table T of exp, rounded to integers. Division, square root and product
are those of IEEE 754, which are correctly rounded. Removing a record therefore changes a sum by
exactly that record's term. The clip is checked in integers, so it bounds the norm of the term
without an allowance for rounding. This argument starts at the features: it assumes that an encoder
gives a record the same features, to the last bit, whatever else is in its batch.

The units are defined in `mechanisms.descent.grid`.
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
"""Fractional bits of a score difference, in nats, in the table of exp."""
_TABLE_BITS = 30
_REACH = 22
"""In nats. A class that is further below the largest score counts as zero: exp(-22) is below one
unit of the table.
"""
_LARGEST_FEATURE = (1 << 15) - 1
_INSIDE = 1 - 2.0**-40
"""Keeps a clipped norm below the clip despite the last rounding of its factor, which is below
2^-50.
"""
_LARGEST_SUM = 1 << 51
_BLOCK = 1024
_FEW = 1 / 16
"""A column with a smaller fraction of non-zero features is faster as a sparse column."""
_MOST = 1 << 17
"""Largest number of records: a residual below 2^19 times a feature of 17 bits, summed this often,
is below 2^53.
"""
_LITTLE_NOISE = 8
"""In clips. Larger noise uses a coarser grid, because the share of roundings that need further bits
grows with the noise in grid units.
"""


def on_grid(features: Tensor, centre: Tensor | None = None) -> Tensor:
    """Features and the constant 1 as integers, int16 [n, width + 1].

    Each coordinate is clipped to 16 bits before and after the centre is subtracted. Non-finite
    coordinates become 0.

    Args:
        features: float [n, width].
        centre: integers [width]; None means zeros.
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
    """Standard deviation of the noise in units of 2^-bits, as the exact rational number in the
    event.
    """
    return Fraction(noise_multiplier) * Fraction(norm) * Fraction(2) ** bits


def bits_of(segment: NoiseSegment) -> int:
    """Number of fractional bits for which a clip is just below 2^31 units; fewer if the noise is
    much larger than the clip.
    """
    return (
        31
        - math.frexp(segment.l2_clip_norm * max(1.0, segment.noise_multiplier / _LITTLE_NOISE))[1]
    )


class GridRecords:
    """Features on the grid (`on_grid`) and labels of a set of records.

    On a CPU, columns in which nearly every feature is 0, such as word columns, are stored
    separately: as the grid value of a 0, which is the same for all records, and sparse rows of
    differences from it. All values are integers, so a product computed in two parts has the same
    bits as the product in one (`_require_exact_products`).

    Attributes:
        lengths: norms of the features with the constant, float64 [n].
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
        """Yields blocks of 1,024 records."""
        for start in range(0, len(self.labels), _BLOCK):
            at = slice(start, start + _BLOCK)
            yield _Block(
                self._dense[at].double(),
                None if self._apart is None else csr_array(self._apart[at]),
                self.labels[at],
                self.lengths[at],
            )

    def weights(self, weights: Tensor) -> _Weights:
        """Weights [classes, width + 1] split into dense and sparse columns."""
        apart = weights[:, self._apart_at]
        return _Weights(weights[:, self._dense_at], apart.T.contiguous(), apart @ self._zero)

    def add(self, sums: _Weights, out: Tensor) -> None:
        """Adds sums over blocks to `out` [classes, width + 1]."""
        out.index_add_(1, self._dense_at, sums.dense)
        apart = sums.apart.T + sums.constant[:, None] * self._zero
        out.index_add_(1, self._apart_at, apart)


@dataclass(frozen=True)
class _Weights:
    """Weights or sums split by the columns of `GridRecords`: dense [classes, d], sparse [a,
    classes], and the constant part of the sparse columns [classes].
    """

    dense: Tensor
    apart: Tensor
    constant: Tensor


@dataclass(frozen=True)
class _Block:
    """A block of `GridRecords`: integers as float64 [b, d], sparse [b, a], labels, and lengths."""

    dense: Tensor
    apart: csr_array | None
    labels: Tensor
    lengths: Tensor

    def scores(self, weights: _Weights) -> Tensor:
        """Features times weights, integers as float64 [b, classes]."""
        scores = torch.addmm(weights.constant, self.dense, weights.dense.T)
        if self.apart is not None:
            scores += torch.from_numpy(self.apart @ weights.apart.numpy())
        return scores

    def add_outer(self, left: Tensor, sums: _Weights) -> None:
        """Adds the sum over records of left_i right_i', with left [b, classes] and the features as
        right.
        """
        sums.dense.addmm_(left.T, self.dense)
        if self.apart is not None:
            sums.apart.add_(torch.from_numpy(self.apart.T @ left.numpy()))
            sums.constant.add_(left.sum(0))


def clipped_sum(records: GridRecords, rows: Tensor, *, norm: float, out: Tensor) -> Tensor:
    """Adds the sum of clipped per-record gradients to `out`, in units of 2^-SUM_BITS.

    Args:
        rows: weights of a linear softmax, float [classes, width + 1], bias last.
        norm: largest norm of a record's gradient.
        out: integers as float64 [classes, width + 1].

    Returns:
        The losses in nats [n].
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
    """Residuals, integers as float64 [b, classes], and losses in nats [b]. Overwrites the scores.

    Scores and shares are multiplied only by powers of two, which is exact.
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

    The weights already contain their noise, so that refusing them reveals nothing about a record. A
    difference from the grid value of 0, plus that value, is at most three times the largest
    feature.
    """
    largest = float(weights.abs().sum(1).max()) * 3 * (_LARGEST_FEATURE + 1)
    if not largest < 2.0**53:
        raise MechanismError(
            "the weights of the head grew beyond what exact sums can hold. Lower the learning rate "
            "(`weight_noise`).",
            kind="inexact-products",
        )


def cut(left: Tensor, lengths: Tensor, *, norm: float) -> Tensor:
    """Scales rows in place, rounding towards zero, so that the outer product of each row and a
    vector of the corresponding length has at most this norm.

    Args:
        left: integers as float64 [b, l], in units of 2^-RESIDUAL_BITS.
        lengths: lengths of the right-hand vectors, float64 [b], in units of 2^-FEATURE_BITS.
        norm: largest norm, in units of 1.
    """
    factors = clip_factors(_lengths(left) * lengths, norm * 2.0**SUM_BITS)
    return left.mul_(factors[:, None]).trunc_()


class Total:
    """Accumulates any number of exact float64 sums in int64."""

    def __init__(self, like: Tensor) -> None:
        self._total = torch.zeros_like(like, dtype=torch.int64)

    def add(self, part: Tensor) -> None:
        """Adds a sum of integers, float64, and resets it to zero."""
        self._total.add_(part.long())
        part.zero_()

    def settle(self, out: Tensor) -> None:
        """Adds the total to a float64 tensor, clamped per entry to the range in which noise can be
        added exactly.

        Clamping never moves two totals further apart, so it does not increase the sensitivity.
        """
        out.add_(self._total.clamp_(-_LARGEST_SUM, _LARGEST_SUM).double())


def _lengths(rows: Tensor) -> Tensor:
    """Correctly rounded lengths. On a CPU, torch's square root may be that of its maths library,
    which is not correctly rounded.
    """
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sqrt(np.einsum("ij,ij->i", rows.numpy(), rows.numpy())))
    return rows.square().sum(1).sqrt()


def clip_factors(lengths: Tensor, norm: float) -> Tensor:
    """Factors that clip vectors of these lengths to a norm; the lengths are correctly rounded roots
    of exact squares.
    """
    return torch.where(lengths > norm * _INSIDE, norm * _INSIDE / lengths, torch.ones_like(lengths))


@lru_cache(maxsize=2)
def _exp_table(device: torch.device) -> Tensor:
    steps = torch.arange((_REACH << _SCORE_BITS) + 1, dtype=torch.float64)
    table = steps.mul_(-(2.0**-_SCORE_BITS)).exp_().mul_(2.0**_TABLE_BITS).round_()
    table[-1] = 0.0
    return table.to(device)
