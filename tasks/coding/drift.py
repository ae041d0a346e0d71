"""Compares the codes and scores of two periods.

| of | distance | test |
|---|---|---|
| codes | PSI: sum (p - q) ln(p / q), rare codes pooled, less its expectation | chi-squared |
| scores | KS: largest distance between the two distribution functions | Kolmogorov-Smirnov |

The verdict requires a significant difference that is also large enough to matter (PSI over 0.1 or
0.25, the usual limits in credit scoring; KS over 0.1 or 0.2). With a million rows any difference
is significant; with fifty, hardly any.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage.errors import Contradiction, OutOfRange
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import survey
from tasks.coding.strata import scores_of

Verdict = Literal["stable", "investigate", "drift"]

_FEWEST = 40
_POOLED_BELOW = 5
"""Expected rows in the smaller period below which codes are pooled into one category."""
_CHANCE = 0.01
_PSI, _KS = (0.1, 0.25), (0.1, 0.2)
_NOT_COVERED = (
    "The coverage of the sets does not hold: these records are not exchangeable with the "
    "calibration's. Fit the sets "
    "again on records of this period"
)


@dataclass(frozen=True)
class Period:
    codes: NDArray[np.str_]
    scores: NDArray[np.float64]
    origin: tuple[str, ...] = ()
    """Model, classification, its version and the temperature of the scores."""
    has_sets: bool = False
    """Whether the rows have conformal sets."""
    titles: dict[str, str] | None = None


def read_period(
    path: Path, option: str, *, prefix: str = "", read: ReadOptions = AS_IT_LOOKS
) -> Period:
    """Reads the coded rows of a table from `autocoder code`. Rows without a code are skipped."""
    origin = [
        f"{prefix}{name}"
        for name in ("model", "classification", "classification_version", "score_temperature")
    ]
    columns = [f"{prefix}code", f"{prefix}title", f"{prefix}score", *origin]
    table = survey(path, text_columns=columns, option=option, read=read)
    codes, scores = map(np.array, scores_of(table, prefix))
    coded = codes != ""
    if coded.sum() < _FEWEST:
        raise OutOfRange(
            f"{option}: {path} has {coded.sum()} coded rows. A comparison needs "
            f"at least {_FEWEST}.",
            kind="too-few-coded-rows",
        )
    origins = {cells for has, cells in zip(coded, table.text_rows(origin), strict=True) if has}
    if len(origins) > 1:
        raise Contradiction(
            f"{option}: {path} contains rows of {len(origins)} models, versions or temperatures. "
            "Compare rows of a single model, version and temperature.",
            kind="mixed-origins",
        )
    titles = {code: title for code, title in table.text_rows([f"{prefix}code", f"{prefix}title"])}
    return Period(
        codes[coded], scores[coded], origins.pop(), f"{prefix}set" in table.columns, titles
    )


@dataclass(frozen=True)
class Drift:
    rows: int
    reference_rows: int
    psi: float
    """PSI minus its expectation by chance, at least 0."""
    psi_chance: float
    """p-value of the chi-squared test of the codes."""
    ks: float
    ks_chance: float
    verdict: Verdict
    moved: tuple[tuple[str, float, float], ...]
    """Codes with the largest changes: code, share in the reference, share now."""
    covers: bool | None = None
    """False if the sets' coverage does not hold because a difference was found. None if there are
    no sets or no difference.
    """

    @property
    def line(self) -> str:
        why = {
            "stable": "codes and scores are as in the reference",
            "investigate": "a real difference. Check the codes that moved and take a QA sample",
            "drift": (
                "a large and real difference. Do not rely on the scores until a QA sample "
                "confirms them"
            ),
        }[self.verdict]
        return (
            f"{self.verdict.upper()}: {why} (codes: PSI {self.psi:.3f}, p {self.psi_chance:.3f}; "
            "scores: KS "
            f"{self.ks:.3f}, p {self.ks_chance:.3f})"
            + (f". {_NOT_COVERED}" if self.covers is False else "")
        )


def compare(now: Period, reference: Period) -> Drift:
    from scipy.stats import chi2_contingency, ks_2samp

    _require_same_origin(now, reference)
    names, counts = _pooled(now.codes, reference.codes)
    shares = counts / counts.sum(axis=1, keepdims=True)
    psi_chance = 1.0
    if len(names) > 1:
        psi_chance = float(chi2_contingency(counts, correction=False).pvalue)
    psi = _stability_index(counts)
    scores = ks_2samp(now.scores, reference.scores)
    ks, ks_chance = float(scores.statistic), float(scores.pvalue)
    sure_psi = psi if psi_chance <= _CHANCE else 0.0
    sure_ks = ks if ks_chance <= _CHANCE else 0.0
    level = max(_level(sure_psi, _PSI), _level(sure_ks, _KS))
    verdict: Verdict = ("stable", "investigate", "drift")[level]
    most = np.argsort(-np.abs(shares[0] - shares[1]), kind="stable")[:5].tolist()
    now_shares, before = shares.tolist()
    return Drift(
        rows=len(now.codes),
        reference_rows=len(reference.codes),
        psi=round(psi, 4),
        psi_chance=round(psi_chance, 4),
        ks=round(ks, 4),
        ks_chance=round(ks_chance, 4),
        verdict=verdict,
        covers=False if now.has_sets and verdict != "stable" else None,
        moved=tuple(
            (names[code], round(before[code], 4), round(now_shares[code], 4)) for code in most
        ),
    )


def _require_same_origin(now: Period, reference: Period) -> None:
    names = ("release", "classification", "version of the classification", "temperature")
    pairs = zip(names, now.origin, reference.origin, strict=True)
    differing = [name for name, value, earlier in pairs if value != earlier]
    if differing:
        raise Contradiction(
            "the periods are not comparable: they were coded with another "
            f"{' and '.join(differing)}. Code both with "
            "one bundle and the same thresholds.",
            kind="incomparable-periods",
        )


def _stability_index(counts: NDArray[np.int64]) -> float:
    """Returns the population stability index minus its expectation by chance, for
    counts of codes [2, codes].
    """
    smoothed = counts + 0.5
    p, q = smoothed / smoothed.sum(axis=1, keepdims=True)
    # the expectation of PSI is that of chi-squared times 1/n + 1/m, to first order (Yurdakul and
    # Naranjo 2020)
    by_chance = (counts.shape[1] - 1) * float((1 / counts.sum(axis=1)).sum())
    return max(0.0, float(((p - q) * np.log(p / q)).sum()) - by_chance)


def _level(size: float, limits: Sequence[float]) -> int:
    return sum(size > limit for limit in limits)


def _pooled(
    now: NDArray[np.str_], reference: NDArray[np.str_]
) -> tuple[list[str], NDArray[np.int64]]:
    both = np.concatenate([now, reference])
    names, code = np.unique(both, return_inverse=True)
    period = np.repeat([0, 1], [len(now), len(reference)])
    counts = np.bincount(period * len(names) + code, minlength=2 * len(names)).reshape(2, -1)
    frequent = counts.sum(axis=0) * min(len(now), len(reference)) / len(both) >= _POOLED_BELOW
    if frequent.all():
        return names.tolist(), counts
    rare = counts[:, ~frequent].sum(axis=1, keepdims=True)
    return [*names[frequent].tolist(), "rare codes"], np.hstack([counts[:, frequent], rare])
