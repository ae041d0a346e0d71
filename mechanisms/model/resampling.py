"""Resamples held-out records (Efron's bootstrap) to estimate the standard error of F1, in addition
to its variation over seeds.

Every classifier is scored on the same resamples. The standard deviation of a difference over them
is its standard error, without the variation that the classifiers share on the same records (a
paired bootstrap).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse

RESAMPLES = 2000
_CELLS = 1 << 22
"""Limits the memory: number of cells (resamples times records) that are processed at once."""


def resampled_f1(
    labels: np.ndarray, predicted: np.ndarray, *, resamples: int = RESAMPLES
) -> dict[str, np.ndarray]:
    """Weighted and macro F1 (`metrics`) on resamples of n held-out records, drawn with replacement.

    The draws depend only on n, so that all classifiers of the same records are scored on the same
    resamples.

    Args:
        labels: int64 [n].
        predicted: int64 [n].

    Returns:
        `weighted_f1` and `macro_f1`, float64 [resamples].
    """
    n = len(labels)
    codes = np.unique(labels)
    true = _indicators(labels, np.ones(n, dtype=bool), codes)
    chosen = _indicators(predicted, np.isin(predicted, codes), codes)
    right = _indicators(labels, labels == predicted, codes)
    random = np.random.default_rng(0)
    rows = max(1, _CELLS // n)
    blocks: list[np.ndarray] = []
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        picks = random.integers(n, size=(size, n))
        first_cells = np.arange(size)[:, None] * n
        cells = (picks + first_cells).ravel()
        counted = np.bincount(cells, minlength=size * n)
        counts = counted.reshape(size, n).astype(np.float64)
        # each [codes, size]
        occurs = true.T @ counts.T
        assigned = chosen.T @ counts.T
        both = right.T @ counts.T
        f1 = 2 * both / np.maximum(occurs + assigned, 1)
        weighted_f1 = (occurs * f1).sum(0) / n
        has_records = occurs > 0
        macro_f1 = np.where(has_records, f1, 0).sum(0) / has_records.sum(0)
        blocks.append(np.array([weighted_f1, macro_f1]))
    weighted, macro = np.concatenate(blocks, axis=1)
    return {"weighted_f1": weighted, "macro_f1": macro}


def _indicators(of: np.ndarray, rows: np.ndarray, codes: np.ndarray) -> sparse.csr_matrix:
    from scipy import sparse  # takes as long as a dry run's own work

    (places,) = np.nonzero(rows)
    columns = np.searchsorted(codes, of[places])
    ones = np.ones(len(places))
    return sparse.csr_matrix((ones, (places, columns)), shape=(len(of), len(codes)))
