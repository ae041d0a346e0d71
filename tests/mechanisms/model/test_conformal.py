"""Conformal sets: exchangeable records are covered as often as is promised, and a quantile a rank
off is rejected.
"""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mechanisms.model.conformal import Sets, interval, limit, sets_for
from mechanisms.thresholds_file import SetLimit, SetLimits

COVERAGE = 0.9


def covered_of(quantile: float, rank: int, fits: int = 20_000, records: int = 9) -> int:
    """How often a new record reaches the rank-th largest of others, were `quantile`
    the coverage.
    """
    rng = np.random.default_rng(0)
    right = rng.random((fits, records + 1))
    return int((right[:, -1] >= np.sort(right[:, :-1])[:, -rank]).sum())


def test_the_rank_counts_the_new_record_too() -> None:
    """Of nine records at 90 % the ninth largest is the limit, which covers exactly 90 %; of eight
    none is. Four standard deviations of 20,000 draws are 0.85 points: without + 1 the coverage is
    80.0 %, which is rejected.
    """
    assert limit(np.linspace(0.1, 0.9, 9), COVERAGE) == pytest.approx(0.1, rel=1e-4)
    assert limit(np.linspace(0.1, 0.9, 8), COVERAGE) == 0.0, (
        "eight records never give 90 %: all codes"
    )
    spread = 4 * math.sqrt(20_000 * 0.9 * 0.1)
    assert abs(covered_of(COVERAGE, math.ceil(10 * COVERAGE)) - 18_000) < spread
    wrong = math.ceil(9 * COVERAGE) - 1  # floor(n x coverage), the plain quantile
    assert covered_of(COVERAGE, wrong) < 18_000 - spread


def records(rng: np.random.Generator, count: int, codes: int = 12) -> tuple[Tensor, Tensor]:
    """Logits and right codes, of which the first is easy and frequent and the second hard and
    frequent.
    """
    share = np.array([0.3, 0.3, *[0.4 / (codes - 2)] * (codes - 2)])
    labels = rng.choice(codes, count, p=share)
    logits = rng.normal(size=(count, codes))
    logits[np.arange(count), labels] += np.where(labels == 0, 4.0, np.where(labels == 1, 1.0, 2.0))
    return torch.tensor(logits), torch.tensor(labels)


def entry_of(sets: SetLimits) -> SetLimit:
    return next(entry for entry in sets["coverages"] if entry["coverage"] == COVERAGE)


def coverage_of(sets: Sets, logits: Tensor, labels: Tensor) -> NDArray[np.bool_]:
    codes = [f"c{at}" for at in range(logits.shape[1])]
    members = sets.members(logits.softmax(-1).float().numpy(), codes)
    return np.array([label in row for label, row in zip(labels.tolist(), members, strict=True)])


def test_exchangeable_records_are_covered_code_by_code() -> None:
    """60 calibrations, 400 new records each: all of them, the hard frequent code and the rest are
    covered. A standard error of the mean over the calibrations is 0.3 points of all records, 0.5 of
    a code; four are allowed. One limit for all codes leaves the hard code at some 80 %, which the
    bound rejects.
    """
    rng = np.random.default_rng(1)
    chosen = np.arange(400) % 4 == 0
    codes = [f"c{at}" for at in range(12)]
    of_all, of_hard, plain = [], [], []
    for _ in range(60):
        logits, labels = records(rng, 400)
        sets = Sets.of(entry_of(sets_for(logits, labels, codes, temperature=1.0, chosen=chosen)))
        assert {"c0", "c1"} <= set(sets.codes)
        new, right = records(rng, 400)
        covered = coverage_of(sets, new, right)
        of_all.append(covered.mean())
        of_hard.append(covered[right.numpy() == 1].mean())
        every = logits.softmax(-1).gather(1, labels[:, None])[:, 0].numpy()
        one = Sets(COVERAGE, limit(every[~chosen], COVERAGE), 300, {})
        plain.append(coverage_of(one, new, right)[right.numpy() == 1].mean())
    assert np.mean(of_all) > COVERAGE - 0.012
    assert np.mean(of_all) < COVERAGE + 0.04
    assert np.mean(of_hard) > COVERAGE - 0.02
    assert np.mean(plain) < COVERAGE - 0.04, "the test has no power"


def test_a_calibration_s_share_follows_beta() -> None:
    """The interval has the values of Vovk's Beta: 0.9 of 499 records, k = 450, mean 0.9, deviation
    0.0134.
    """
    low, high = interval(499, COVERAGE)
    assert (low, high) == pytest.approx((0.9 - 1.96 * 0.0134, 0.9 + 1.96 * 0.0134), abs=0.002)
    assert interval(8, COVERAGE) == (1.0, 1.0)
    assert "8 records are too few for 90%" in Sets(COVERAGE, 0.0, 8, {}).statement


def test_sets_are_ordered_and_never_empty() -> None:
    """The most probable code first; a code that the model lacks is in no set and counts as not
    covered.
    """
    scores = torch.tensor([[0.2, 0.5, 0.3], [0.34, 0.33, 0.33]])
    assert Sets(COVERAGE, 0.25, 100, {"c0": 0.1}).members(scores.numpy(), ["c0", "c1", "c2"]) == [
        [1, 2, 0],
        [0, 1, 2],
    ]
    assert Sets(COVERAGE, 0.9, 100, {}).members(scores.numpy(), ["c0", "c1", "c2"]) == [[1], [0]]
    logits, chosen = torch.zeros(40, 2), np.zeros(40, dtype=bool)
    labels = torch.tensor([-1] * 5 + [0] * 35)
    entry = entry_of(sets_for(logits, labels, ["a", "b"], temperature=1.0, chosen=chosen))
    assert entry["limit"] == 0.0, "an eighth of the records has codes that no set holds"


def test_limits_of_a_table_state_their_confidence() -> None:
    """Not an average over calibrations; a confidence outside 0 to 1 is refused."""
    entry: SetLimit = {
        "coverage": 0.9,
        "limit": 0.02,
        "records": 3000,
        "codes": {},
        "confidence": 0.95,
    }
    assert "95% confidence, noise included" in Sets.of(entry).statement
    with pytest.raises(ValueError, match="confidence"):
        Sets.of({**entry, "confidence": 1.5})
