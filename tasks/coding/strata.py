"""Divides a coded table into strata by code and score, and allocates the sampled rows to them.

The model's error on a row changes a count only if the codes differ. With error probability e,
spread over many codes, the difference between the manual and the model's code has variance e (2 -
e), summed over codes. Neyman's allocation (1934) gives a stratum rows in proportion to its size
times the standard deviation. e is one minus the mean score.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import OutOfRange
from storage.tables.reader import Table

_BANDS = (0.5, 0.9)
"""Scores at which strata end."""
_FEWEST_ROWS = 20
"""Fewest rows of a code that has strata of its own; rarer codes share strata."""
_FEWEST_DRAWN = 2
"""Fewest rows drawn from a stratum, so that its variance can be estimated."""
_SMALLEST_ERROR = 0.01


@dataclass(frozen=True)
class Stratum:
    rows: list[int]
    size: int

    @property
    def weight(self) -> float:
        """One over the probability that a row is drawn."""
        return len(self.rows) / self.size if self.size else 1.0


def scores_of(table: Table, prefix: str) -> tuple[list[str], list[float]]:
    """Returns code and score of every row of a coded table. The score of a row
    without a code is 0.
    """
    codes: list[str] = []
    scores: list[float] = []
    for number, (code, score) in enumerate(
        table.text_rows([f"{prefix}code", f"{prefix}score"]), start=1
    ):
        try:
            value = float(score) if code.strip() else 0.0
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise OutOfRange(
                f"{table.source.label}, row {number}: the score is not a number from 0 to 1.",
                kind="score-not-a-number",
                row=number,
            )
        codes.append(code.strip())
        scores.append(value)
    return codes, scores


def stratify(
    codes: Sequence[str], scores: Sequence[float], rows: Sequence[int], *, size: int
) -> list[Stratum]:
    """Divides these rows of a coded table into strata, from which `size` rows are
    drawn in total.
    """
    frequent = _frequent_codes([codes[row] for row in rows], size=size)
    members: defaultdict[tuple[str | None, int], list[int]] = defaultdict(list)
    for row in rows:
        own_code = codes[row] if codes[row] in frequent else None
        band = sum(scores[row] >= start for start in _BANDS)
        members[own_code, band].append(row)
    strata = [members[key] for key in sorted(members, key=str)]
    if size < min(len(rows), _FEWEST_DRAWN * len(strata)):
        raise OutOfRange(
            f"--rows: {size} in addition to those of sensitive codes are too few. Use more.",
            kind="sample-too-small",
        )
    errors = np.array([_expected_error([scores[row] for row in stratum]) for stratum in strata])
    deviations = np.sqrt(errors * (2 - errors))
    drawn = allocate(list(map(len, strata)), deviations.tolist(), size)
    return list(map(Stratum, strata, drawn))


def _frequent_codes(codes: Iterable[str], *, size: int) -> set[str]:
    """Returns the codes that have strata of their own, as many as the number of draws allows."""
    most = max(0, size // (2 * _FEWEST_DRAWN * (len(_BANDS) + 1)) - 1)
    counts = Counter(codes).most_common(most)
    return {code for code, count in counts if count >= _FEWEST_ROWS}


def _expected_error(scores: Sequence[float]) -> float:
    return max(_SMALLEST_ERROR, 1 - float(np.mean(scores)))


def allocate(sizes: Sequence[int], spreads: Sequence[float], total: int) -> list[int]:
    """Returns the number of rows to draw from each stratum: Neyman's n_h = n N_h S_h / sum N S, at
    least 2 and at most N_h.
    """
    most, mass = np.array(sizes), np.array(sizes) * np.array(spreads)
    least, total = np.minimum(_FEWEST_DRAWN, most), min(total, int(most.sum()))
    # find the factor at which the bounded strata add up to the total, by bisection
    low, high = 0.0, float((most / mass).max())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.clip(middle * mass, least, most).sum() < total else (low, middle)
        )
    ideal = np.clip(high * mass, least, most)
    drawn = np.floor(ideal + 1e-9).astype(int)
    for place in np.argsort(drawn - ideal, kind="stable")[: total - int(drawn.sum())]:
        drawn[place] += 1
    return drawn.tolist()
