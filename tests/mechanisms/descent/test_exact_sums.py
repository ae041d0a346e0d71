"""Exact sums: a record adds its own clipped term, to the last bit, and the terms are the float
gradient's.
"""

import pytest
import torch
from refusals import of_kind
from torch import Tensor

from mechanisms.descent import exact_sums
from mechanisms.descent.exact_sums import (
    FEATURE_BITS,
    RESIDUAL_BITS,
    SUM_BITS,
    GridRecords,
    clipped_sum,
    cut,
    on_grid,
)
from mechanisms.descent.grid import require_room
from mechanisms.errors import MechanismError

RECORDS, WIDTH, CLASSES = 300, 23, 7


def records(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features on the grid, labels and rows; some records are long, so that the clip binds."""
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(RECORDS, WIDTH, generator=g) * torch.logspace(-2, 0.5, RECORDS)[:, None]
    return (
        on_grid(features),
        torch.randint(CLASSES, (RECORDS,), generator=g),
        torch.randn(CLASSES, WIDTH + 1, generator=g),
    )


def gradient(features: Tensor, labels: Tensor, rows: Tensor, *, clip: float = 1.0) -> Tensor:
    total = torch.zeros(rows.shape, dtype=torch.float64)
    clipped_sum(GridRecords(features, labels), rows, norm=clip, out=total)
    return total


def product_by_product(grid: Tensor, labels: Tensor, rows: Tensor, clip: float) -> Tensor:
    """The same sum as it is defined, by one dense product for the scores and one for the sum."""
    values, record = grid.double(), torch.arange(len(labels))
    scores = values @ rows.double().mul(2.0**20).round().T
    below = (scores.amax(1, keepdim=True) - scores) * 2.0 ** (12 - FEATURE_BITS - 20)
    table = torch.arange((22 << 12) + 1, dtype=torch.float64).mul(-(2.0**-12)).exp()
    table = table.mul(2.0**30).round().scatter(0, torch.tensor([22 << 12]), 0.0)
    shares = table[below.clamp(max=22 << 12).long()]
    left = (shares / shares.sum(1, keepdim=True) * 2.0**RESIDUAL_BITS).trunc()
    left[record, labels] -= 2.0**RESIDUAL_BITS
    lengths = left.square().sum(1).sqrt() * values.square().sum(1).sqrt()
    most = clip * 2.0**SUM_BITS * (1 - 2.0**-40)
    factors = torch.where(lengths > most, most / lengths, 1.0)
    return (left * factors[:, None]).trunc().T @ values


def test_it_is_the_clipped_gradient() -> None:
    """Against float64 softmax residuals: the grid moves the sum by less than a hundredth of its
    norm.
    """
    features, labels, rows = records()
    z = features.double() * 2.0**-FEATURE_BITS
    residual = (z @ rows.double().T).softmax(1)
    residual[torch.arange(RECORDS), labels] -= 1
    norms = residual.norm(dim=1) * z.norm(dim=1)
    wanted = (residual * (1 / norms.clamp(min=1))[:, None]).T @ z
    exact = gradient(features, labels, rows) * 2.0**-SUM_BITS
    assert float((exact - wanted).norm() / wanted.norm()) < 0.01
    unclipped = residual.T @ z
    assert float((exact - unclipped).norm() / unclipped.norm()) > 0.1


def test_sums_do_not_depend_on_order_or_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another order, in blocks of 7, and as a sum over two parts: equal, not close."""
    features, labels, rows = records()
    whole = gradient(features, labels, rows)
    assert torch.equal(whole, whole.round())
    order = torch.randperm(RECORDS)
    assert torch.equal(gradient(features[order], labels[order], rows), whole)
    parts = [
        gradient(features[part], labels[part], rows) for part in (slice(0, 101), slice(101, None))
    ]
    assert torch.equal(parts[0] + parts[1], whole)
    monkeypatch.setattr(exact_sums, "_BLOCK", 7)
    assert torch.equal(gradient(features, labels, rows), whole)


def test_one_record_moves_a_sum_by_its_own_term_below_the_clip() -> None:
    """Without record i the sum lacks what i alone adds, whose norm is at most the clip, and comes
    near it.
    """
    features, labels, rows = records()
    whole, largest = gradient(features, labels, rows), 0.0
    for i in range(0, RECORDS, 13):
        kept = torch.arange(RECORDS) != i
        moved = whole - gradient(features[kept], labels[kept], rows)
        assert torch.equal(moved, gradient(features[i : i + 1], labels[i : i + 1], rows))
        largest = max(largest, float(moved.norm()) * 2.0**-SUM_BITS)
    assert 0.999 < largest <= 1


@pytest.mark.parametrize(
    ("width", "words", "classes", "share", "centred"),
    [
        (23, 0, 7, 0.0, False),  # nothing but dense columns
        (16, 40, 9, 0.01, True),
        (16, 40, 9, 0.01, False),
        (0, 30, 5, 0.02, True),  # nothing but words
        (5, 3, 2, 0.5, True),  # words that most records have
        (8, 12, 300, 0.0, True),  # words that no record has
    ],
)
def test_columns_of_zeros_apart_change_no_bit(
    width: int, words: int, classes: int, share: float, centred: bool
) -> None:
    """Against one dense product, on 1,500 records, more than a block: equal, not close."""
    g, n = torch.Generator().manual_seed(2), 1_500
    lit = torch.rand(n, words, generator=g) * (torch.rand(n, words, generator=g) < share)
    dense = torch.randn(n, width, generator=g) * torch.logspace(-2, 1, n)[:, None]
    features = torch.cat([dense, lit], 1)
    features[::97] *= 1e4  # cut to the grid
    centre = features.mean(0).mul(2.0**FEATURE_BITS).round() if centred else None
    grid, labels = on_grid(features, centre), torch.randint(classes, (n,), generator=g)
    rows = 3 * torch.randn(classes, width + words + 1, generator=g)
    for clip in (1.0, 1e4):
        total = torch.zeros(rows.shape, dtype=torch.float64)
        clipped_sum(GridRecords(grid, labels, centre), rows, norm=clip, out=total)
        assert torch.equal(total, product_by_product(grid, labels, rows, clip))


def test_no_outer_product_exceeds_the_clip() -> None:
    """Random and extreme integers, squared norms compared as integers of any size."""
    g = torch.Generator().manual_seed(1)
    for clip in (1.0, 0.3, 7.7):
        left = torch.randint(-(1 << 19), 1 << 19, (40, 5), generator=g).double()
        right = torch.randint(-(1 << 15), 1 << 15, (40, 9), generator=g).double()
        kept = cut(left.clone(), right.square().sum(1).sqrt(), norm=clip)
        for i in range(40):
            squared = sum(
                int(a) ** 2 * int(b) ** 2 for a in kept[i].tolist() for b in right[i].tolist()
            )
            assert squared <= (clip * 2**SUM_BITS) ** 2


def test_a_total_is_exact_beyond_what_float64_holds() -> None:
    """Parts whose sum float64 would round: each counts to the last unit. Beyond what noise is added
    to, two totals are cut, and come no further apart.
    """
    g = torch.Generator().manual_seed(0)
    parts = [torch.randint(-(1 << 50), 1 << 50, (4, 3), generator=g) for _ in range(40)]
    parts += [-part for part in parts[1:]] + [torch.full((4, 3), (1 << 50) + 1)]
    total, out = exact_sums.Total(torch.zeros(4, 3)), torch.ones(4, 3, dtype=torch.float64)
    for part in parts:
        total.add(part.double())
    total.settle(out)
    assert torch.equal(out, (parts[0] + (1 << 50) + 1 + 1).clamp(max=(1 << 51) + 1).double())

    settled = []
    for moved in (0, 5):
        total, out = exact_sums.Total(torch.zeros(2)), torch.zeros(2, dtype=torch.float64)
        for _ in range(3):
            total.add(torch.tensor([2.0**50, -(2.0**50)], dtype=torch.float64))
        total.add(torch.tensor([moved, moved], dtype=torch.float64))
        total.settle(out)
        settled.append(out)
    assert settled[0].tolist() == [2.0**51, -(2.0**51)]
    assert float((settled[1] - settled[0]).abs().max()) <= 5


def test_too_many_records_are_refused() -> None:
    """By what a float sum holds, and by what a total holds: some four thousand million."""
    require_room(1_000_000, 1.0)
    with pytest.raises(MechanismError, check=of_kind("too-many-records")):
        require_room(10_000_000, 1.0)
    require_room(1_000_000_000, 1.0, bits=62)
    with pytest.raises(MechanismError, check=of_kind("too-many-records")):
        require_room(5_000_000_000, 1.0, bits=62)
