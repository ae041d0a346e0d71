"""Counts earlier fits on the same records in this process, because a search over settings also
costs privacy.

A grid search fits many models and keeps the one with the best score. Epsilon covers each fit
separately but not the choice among them. The claim of a fit therefore mentions the fits before it.
"""

import hashlib
import secrets

import numpy as np
from numpy.typing import NDArray

_KEY = secrets.token_bytes(32)
"""Makes digests of records useless outside this process."""
_FITS: list[NDArray[np.uint64]] = []


def count_and_add(features: NDArray[np.float32]) -> int:
    """Returns the number of earlier fits that used at least one of these records, and registers
    this fit.

    Args:
        features: float32 [n, width]. Equal rows count as the same record.
    """
    rows = np.ascontiguousarray(features)
    digests = np.unique([_digest(row.tobytes()) for row in rows])
    shared = sum(bool(np.isin(digests, earlier).any()) for earlier in _FITS)
    _FITS.append(digests)
    return shared


def forget() -> None:
    """Forgets all fits, for records that are public or synthetic."""
    _FITS.clear()


def _digest(record: bytes) -> np.uint64:
    return np.frombuffer(hashlib.blake2b(record, digest_size=8, key=_KEY).digest(), np.uint64)[0]
