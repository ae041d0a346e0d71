"""Paper 003, section 3.1: cap a code, drop codes with too few records, split what is left by code.

Every record has a rank: a keyed hash of its id, or of its content where there is no id. Ranks are as good as random
and belong to the record, so the sample depends on neither the order of the rows nor how many are read at a time.
"""

from __future__ import annotations

import numpy as np

TRAIN, TEST, HOLDOUT = 0, 1, 2
SPLITS = ("train", "test", "holdout")
"""Names of the splits, by their number."""


def rank_within(groups: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Place of each record within its group, int64 [n], 0 the first, by ranks uint64 [n, 2]."""
    order = np.lexsort((ranks[:, 1], ranks[:, 0], groups))
    grouped = groups[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]]) if len(grouped) else np.empty(0, dtype=np.int64)
    sizes = np.diff(np.r_[starts, len(grouped)])
    places = np.empty(len(groups), dtype=np.int64)
    places[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return places


def group_numbers(keys: np.ndarray) -> np.ndarray:
    """Number the distinct rows of uint64 [n, 2]: int64 [n]."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    new = np.r_[False, (ordered[1:] != ordered[:-1]).any(axis=1)] if len(keys) else np.empty(0, dtype=bool)
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = np.cumsum(new)
    return numbers


def repeats(keys: np.ndarray) -> np.ndarray:
    """Which records have a key, uint64 [n, 2], that an earlier record has: bool [n]."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: the earliest of equal keys comes first
    ordered = keys[order]
    found = np.zeros(len(keys), dtype=bool)
    if len(keys):
        found[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return found


def allocate(sizes: np.ndarray, *, test_share: float, holdout_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Records of each code for testing and for the hold-out: two int64 [codes], given sizes >= 2.

    Shares are rounded cumulatively over the codes, so that both halves come out even over all, and every code keeps at
    least one record to train on and one to test. The hold-out takes its share from what is then left.
    """
    test = np.clip(_cumulative(sizes, test_share), 1, sizes - 1)
    holdout = np.clip(_cumulative(sizes, holdout_share), 0, sizes - test - 1)
    return test, holdout


def _cumulative(sizes: np.ndarray, share: float) -> np.ndarray:
    ends = np.floor(np.cumsum(sizes) * share + 0.5).astype(np.int64)
    return np.diff(ends, prepend=0)


def assign(labels: np.ndarray, ranks: np.ndarray, *, codes: int, test_share: float, holdout_share: float) -> np.ndarray:
    """Split of each sampled record, int8 [n]: `TRAIN`, `TEST` or `HOLDOUT`. Every code present has two or more."""
    sizes = np.bincount(labels, minlength=codes)
    present = np.flatnonzero(sizes)
    test = np.zeros(codes, dtype=np.int64)
    holdout = np.zeros(codes, dtype=np.int64)
    test[present], holdout[present] = allocate(sizes[present], test_share=test_share, holdout_share=holdout_share)
    places = rank_within(labels, ranks)
    kinds = np.full(len(labels), TRAIN, dtype=np.int8)
    kinds[places < (test + holdout)[labels]] = HOLDOUT
    kinds[places < test[labels]] = TEST
    return kinds
