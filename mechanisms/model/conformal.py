"""Prediction sets that contain the right code with the requested coverage (split conformal
prediction).

A code is in a record's set if its probability is at least a limit: the k-th largest probability
that n calibration records gave to their right codes, with k = ceil((n + 1) coverage) (Vovk et al.
2005; Angelopoulos and Bates 2023, section 1). For a new record that is exchangeable with them, the
set then contains the right code with probability at least `coverage`. A code with enough records
has its own limit, computed only from its records, and the other codes share one (Mondrian; Vovk
2012, section 4). The guarantee then holds for each such code and for the others together.

This guarantee is on average over calibrations. Limits from the noisy table of held-out
records (`mechanisms.privacy.stated_accuracy`) have a different one: they meet their coverage with a
specified confidence over records and noise (a tolerance region; Vovk 2012, section 3), with one
limit for all codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.model.scorer import softmax
from mechanisms.thresholds_file import SetLimit, SetLimits

COVERAGES = (0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
_ROUNDING = 1 - 1e-5
"""Factor for limits, so that float32 rounding excludes no code that is exactly on the limit."""
_FEWEST_OF_CODE = 10


def limit(right: NDArray[np.float64], coverage: float) -> float:
    """The lowest probability of a code in a set; 0 (every code is in the set) if there are too few
    records.

    Args:
        right: probabilities of the right codes, one per record; 0 if the model lacks the code.
    """
    rank = math.ceil((len(right) + 1) * coverage - 1e-9)
    return float(np.sort(right)[-rank]) * _ROUNDING if rank <= len(right) else 0.0


def sets_for(
    logits: ArrayLike,
    labels: ArrayLike,
    codes: Sequence[str],
    *,
    temperature: float,
    chosen: NDArray[np.bool_],
) -> SetLimits:
    """The limits at each of `COVERAGES`, as the `sets` of a thresholds file.

    Args:
        logits: float [n, codes].
        labels: int64 [n], index of the right code; -1 if the model lacks it.
        chosen: bool [n], the records that fitted the temperature. They determine which codes get
            their own limit but do not enter any limit, so that both are fixed before the other
            records are used.
    """
    label, used = np.asarray(labels), ~chosen
    probabilities = softmax(np.asarray(logits, np.float64) / temperature)
    coded = label >= 0
    right = np.where(coded, np.take_along_axis(probabilities, label.clip(0)[:, None], 1)[:, 0], 0.0)
    earlier = np.bincount(label[chosen & coded], minlength=len(codes))
    entries: list[SetLimit] = []
    for coverage in COVERAGES:
        frequent = np.flatnonzero(
            earlier >= max(_FEWEST_OF_CODE, math.ceil(1 / (1 - coverage) - 1e-9))
        )
        rest = used & ~np.isin(label, frequent)
        entries.append(
            {
                "coverage": coverage,
                "limit": limit(right[rest], coverage),
                "records": int(rest.sum()),
                "codes": {
                    codes[place]: limit(right[used & (label == place)], coverage)
                    for place in frequent.tolist()
                },
            }
        )
    return {"records": int(used.sum()), "coverages": entries}


def interval(records: int, coverage: float) -> tuple[float, float]:
    """The interval that contains 95 % of the coverages over calibrations with n records: Beta(k, n
    + 1 - k), with k as above (Vovk 2012, proposition 2a). Both ends are 1 if there are too few
    records.
    """
    from scipy.stats import beta

    rank = math.ceil((records + 1) * coverage - 1e-9)
    if rank > records:
        return 1.0, 1.0
    tail = (1 - 0.95) / 2
    low, high = beta.ppf([tail, 1 - tail], rank, records + 1 - rank)
    return float(low), float(high)


@dataclass(frozen=True)
class Sets:
    coverage: float
    limit: float
    records: int
    codes: Mapping[str, float]
    confidence: float | None = None
    """Confidence that the coverage is met, including noise. None: the coverage holds on average
    over calibrations.
    """

    @classmethod
    def of(cls, entry: SetLimit) -> Sets:
        """Parses an entry of a file. A damaged entry raises ValueError, KeyError, TypeError or
        AttributeError.
        """
        codes = {str(code): float(share) for code, share in entry["codes"].items()}
        coverage, limit, records = entry["coverage"], entry["limit"], entry["records"]
        confidence = entry.get("confidence")
        sets = cls(
            float(coverage),
            float(limit),
            int(records),
            codes,
            None if confidence is None else float(confidence),
        )
        shares = (sets.limit, *codes.values(), sets.confidence or 0.0)
        if not 0 < sets.coverage < 1 or not all(0 <= share <= 1 for share in shares):
            raise ValueError("a coverage, a limit or a confidence is outside 0 to 1")
        return sets

    def members(self, scores: NDArray[Any], codes: Sequence[str]) -> list[list[int]]:
        """Indices of the codes in each set, most probable first, for scores [n, codes].

        The most probable code is always included, which cannot lower the coverage.
        """
        scores = scores.astype(np.float64)
        inside = scores >= np.array([self.codes.get(code, self.limit) for code in codes])
        order = np.argsort(-scores, axis=1, kind="stable")
        np.put_along_axis(inside, order[:, :1], True, 1)
        return [
            row[keep].tolist()
            for row, keep in zip(order, np.take_along_axis(inside, order, 1), strict=True)
        ]

    @property
    def statement(self) -> str:
        if self.confidence is not None:
            return (
                f"Sets of the codes with a probability of {self.limit:g} or more hold the right "
                f"code for {self.coverage:.0%} or more of texts like the agency's, with "
                f"{self.confidence:.0%} confidence, noise included; texts of rare codes have it "
                "less often."
            )
        low, high = interval(self.records, self.coverage)
        of_codes = (
            f" A limit for each of {len(self.codes)} codes keeps it for their records."
            if self.codes
            else ""
        )
        rest = "other " if self.codes else ""
        if (low, high) == (1.0, 1.0):
            return (
                f"{self.records} {rest}records are too few for {self.coverage:.0%}: every "
                f"{rest}code is in every set."
            ) + of_codes
        return (
            f"Of the {rest}rows taken together, {self.coverage:.0%} or more have the right code "
            "in their set, if they "
            "are sampled like the calibration's; rows of rare codes have it less "
            f"often.{of_codes} With these "
            f"{self.records} {rest}records the share is {low:.1%} to {high:.1%}, with 95% "
            "confidence."
        )
