"""Resamples test records (Efron's bootstrap), so that F1 has an error besides its spread over seeds.

Every classifier is scored on the same resamples: the standard deviation over them of a difference is its standard
error, with what the classifiers have in common on the same records taken out (a paired bootstrap).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

RESAMPLES = 2000
_CELLS = 1 << 22
"""Numbers of a block of resamples by records; bounds the memory."""


def resampled_f1(labels: np.ndarray, predicted: np.ndarray, *, resamples: int = RESAMPLES) -> dict[str, np.ndarray]:
    """Computes weighted and macro F1 (`metrics`) on resamples of n test records, drawn with replacement.

    The draws depend on n alone, so that two classifiers of the same records meet the same resamples.

    Args:
        labels: int64 [n], or [n, fields] with -1 where a record lacks the field; F1 is then the mean over fields.
        predicted: int64 of the same shape.

    Returns:
        `weighted_f1` and `macro_f1`, float64 [resamples].
    """
    n = len(labels)
    columns = [_Field(*pair) for pair in zip(labels.reshape(n, -1).T, predicted.reshape(n, -1).T, strict=True)]
    random, rows = np.random.default_rng(0), max(1, _CELLS // n)
    blocks: list[np.ndarray] = []
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        places = random.integers(n, size=(size, n)) + np.arange(size)[:, None] * n
        counts = np.bincount(places.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
        by_field = np.array([column.f1(counts) for column in columns])  # [fields, 2, size]
        weights = ~np.isnan(by_field)  # a resample without a record of some field has no F1 of it
        blocks.append(np.where(weights, by_field, 0).sum(0) / np.maximum(weights.sum(0), 1))
    weighted, macro = np.concatenate(blocks, axis=1)
    return {"weighted_f1": weighted, "macro_f1": macro}


class _Field:
    """Holds one field's labels and predictions as sparse indicators [n, codes] of the codes that occur."""

    def __init__(self, labels: np.ndarray, predicted: np.ndarray) -> None:
        codes = np.unique(labels[labels >= 0])
        known = labels >= 0
        self._true = _indicators(labels, known, codes)
        self._predicted = _indicators(predicted, known & np.isin(predicted, codes), codes)
        self._right = _indicators(labels, known & (labels == predicted), codes)

    def f1(self, counts: np.ndarray) -> np.ndarray:
        """Returns weighted and macro F1 [2, resamples], where counts [resamples, n] says how often a record occurs."""
        size, chosen, right = (each.T @ counts.T for each in (self._true, self._predicted, self._right))
        f1 = 2 * right / np.maximum(size + chosen, 1)  # [codes, resamples]; 0 where a code does not occur
        with np.errstate(invalid="ignore"):
            return np.array([(size * f1).sum(0) / size.sum(0), np.where(size > 0, f1, 0).sum(0) / (size > 0).sum(0)])


def _indicators(of: np.ndarray, rows: np.ndarray, codes: np.ndarray) -> sparse.csr_matrix:
    (places,) = np.nonzero(rows)
    cells = (np.ones(len(places)), (places, np.searchsorted(codes, of[places])))
    return sparse.csr_matrix(cells, shape=(len(of), len(codes)))
