"""Divides a coded table into strata by code and score, and the hours of the human coders among them.

A row's error moves a count only if the codes differ. With chance e of an error, spread over many codes, the difference
of the human's and the model's code has the variance e (2 - e), summed over codes. Neyman's allocation (1934) gives a
stratum rows in proportion to its size times that standard deviation; e is one minus the mean score.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.errors import InputError
from storage.tables.reader import survey

_BANDS = (0.5, 0.9)
"""Scores at which strata end."""
_FEWEST_ROWS = 20
"""Of a code with strata; rarer codes share theirs."""
_FEWEST_DRAWN = 2
"""Of a stratum, so that its variance can be estimated."""
_SMALLEST_ERROR = 0.01


@dataclass(frozen=True)
class Stratum:
    """Holds some rows of a table and the number of them to draw."""

    rows: list[int]
    size: int

    @property
    def weight(self) -> float:
        """Returns one over the probability that a row is drawn."""
        return len(self.rows) / self.size if self.size else 1.0


def stratify(coded: Path, rows: Sequence[int], *, prefix: str, size: int) -> list[Stratum]:
    """Divides these rows of a coded table into strata, with `size` rows to draw from all.

    Raises:
        InputError: a score is missing, or too few rows are to be drawn.
    """
    columns = [f"{prefix}code", f"{prefix}score"]
    codes, scores = [], []
    for number, (code, score) in enumerate(survey(coded, text_columns=columns).text_rows(columns), start=1):
        codes.append(code)
        try:
            scores.append(float(score) if code else 0.0)
        except ValueError:
            raise InputError(f"CODED: {coded}, row {number}: the score is not a number.") from None
    counts = Counter(codes[at] for at in rows)
    apart = max(0, size // (2 * _FEWEST_DRAWN * (len(_BANDS) + 1)) - 1)
    frequent = {code for code, count in counts.most_common(apart) if count >= _FEWEST_ROWS}
    members: defaultdict[tuple[str | None, int], list[int]] = defaultdict(list)
    for at in rows:
        members[codes[at] if codes[at] in frequent else None, sum(scores[at] >= band for band in _BANDS)].append(at)
    strata = [members[key] for key in sorted(members, key=str)]
    if size < min(len(rows), _FEWEST_DRAWN * len(strata)):
        raise InputError(f"--hours: they allow {size} rows besides those of sensitive codes, too few. Give more hours.")
    errors = [1 - sum(scores[at] for at in stratum) / len(stratum) for stratum in strata]
    spreads = [math.sqrt(error * (2 - error)) for error in (max(_SMALLEST_ERROR, one) for one in errors)]
    drawn = allocate([len(stratum) for stratum in strata], spreads, size)
    return [Stratum(stratum, number) for stratum, number in zip(strata, drawn, strict=True)]


def allocate(sizes: Sequence[int], spreads: Sequence[float], total: int) -> list[int]:
    """Returns the rows to draw from each stratum: Neyman's n_h = n N_h S_h / sum N S, at least 2 and at most N_h."""
    total = min(total, sum(sizes))
    lowest = [min(_FEWEST_DRAWN, size) for size in sizes]
    drawn: dict[int, int] = {}
    while len(drawn) < len(sizes):
        free = [at for at in range(len(sizes)) if at not in drawn]
        left, mass = total - sum(drawn.values()), sum(sizes[at] * spreads[at] for at in free)
        ideal = {at: left * sizes[at] * spreads[at] / mass for at in free}
        # those at a bound are settled, the smallest first, so that the total suffices: the others share what is left
        settled = {at: lowest[at] for at in free if ideal[at] <= lowest[at]}
        settled = settled or {at: sizes[at] for at in free if ideal[at] >= sizes[at]}
        if not settled:
            settled = {at: int(ideal[at]) for at in free}
            by_remainder = sorted(free, key=lambda at: int(ideal[at]) - ideal[at])
            for at in by_remainder[: left - sum(settled.values())]:
                settled[at] += 1
        drawn |= settled
    return [drawn[at] for at in range(len(sizes))]
