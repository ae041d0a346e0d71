"""Says how far apart two branches are, beside both errors that a difference has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import BaseModel

Resampled = Mapping[str, np.ndarray]
"""A branch's mean over seeds of each score, by its name, on resamples of the test records that all branches share."""


class Difference(BaseModel, frozen=True):
    """Holds the mean score of one branch minus another's.

    A conclusion needs more than twice both errors: fits with another seed move it, and so do other test records.
    """

    gap: float
    of_seeds: float
    """Root of both variances over seeds; 0 for one seed each."""
    of_records: float | None = None
    """Standard error over test records, paired; None where the branches were not scored on the same ones."""

    @property
    def conclusive(self) -> bool:
        """Checks whether the difference exceeds twice both errors."""
        return abs(self.gap) > 2 * max(self.of_seeds, self.of_records or 0.0)

    @property
    def reading(self) -> str:
        """Returns which is ahead, or that neither is."""
        return ("ahead" if self.gap > 0 else "behind") if self.conclusive else "within the error"

    @property
    def errors(self) -> str:
        """Returns both errors in words."""
        records = "" if self.of_records is None else f"test records {self.of_records:.3f}, "
        return f"{records}seeds {self.of_seeds:.3f}"
