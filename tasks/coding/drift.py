"""Compares a period's codes and scores with those of a reference period.

| measure | of | definition |
|---|---|---|
| PSI | codes | sum (p - q) ln(p / q), rare codes pooled, minus its expectation without drift |
| JS | codes | Jensen-Shannon divergence, base 2, in [0, 1] |
| KS | scores | largest distance between the two distribution functions, in [0, 1] |

Each has a p-value from permuting the rows of both periods. The verdict requires a significant difference that is also
large enough to matter (PSI over 0.1 or 0.25, the usual limits in credit scoring; KS over 0.1 or 0.2). With a million
rows any difference is significant, with fifty none is.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage.bundle.folder import GOLDEN
from storage.errors import InputError
from storage.tables.reader import survey
from tasks.coding.coded_table import TEMPERATURE

Verdict = Literal["stable", "investigate", "drift"]

_FEWEST = 40
_POOLED_BELOW = 5
"""Expected rows of a code in the smaller period. Rarer codes form one category."""
_PERMUTATIONS = 500
_CHANCE = 0.01
_PSI, _KS = (0.1, 0.25), (0.1, 0.2)
_MOST = 200_000
"""Compared rows of a period; a random sample if there are more."""
_NOT_COVERED = (
    "The coverage of the sets does not hold: these records are not exchangeable with the calibration's. Fit the sets "
    "again on records of this period"
)
_VERSION = ("classification", "classification_version")


@dataclass(frozen=True)
class Period:
    """Holds codes and scores of a coded table."""

    codes: NDArray[np.str_]
    scores: NDArray[np.float64]
    version: str
    model: str
    temperature: str = ""
    """Divisor of its logits; "" if the table lacks it."""
    has_sets: bool = False
    """Whether its rows have conformal sets."""


def titles_of(path: Path, prefix: str) -> dict[str, str]:
    """Returns the titles of the codes in a coded table; none where it has no such column."""
    title = f"{prefix}title"
    table = survey(path, text_columns=[])
    if title not in table.columns:
        return {}
    return {code.strip(): name.strip() for code, name in table.text_rows([f"{prefix}code", title])}


def read_period(path: Path, option: str, *, prefix: str = "") -> Period:
    """Reads the coded rows of a table from `autocoder code`; skips rows without a code.

    Raises:
        InputError: too few rows, a missing column, a score that is not a number, or several models or versions.
    """
    columns = [f"{prefix}{name}" for name in ("code", "score", "model", *_VERSION)]
    table = survey(path, text_columns=columns, option=option)
    columns += [f"{prefix}{TEMPERATURE}"] if f"{prefix}{TEMPERATURE}" in table.columns else []
    codes: list[str] = []
    scores: list[float] = []
    origins: Counter[tuple[str, ...]] = Counter()
    for number, cells in enumerate(table.text_rows(columns), start=1):
        code, score, *origin = (cell.strip() for cell in cells)
        if not code:
            continue
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{option}: {path}, row {number}: the score is not a number.")
        scores.append(value)
        codes.append(code)
        model, name, version, *temperature = origin
        origins[model, name, version, "".join(temperature).strip()] += 1
    if len(codes) < _FEWEST:
        raise InputError(f"{option}: {path} has {len(codes)} coded rows. A comparison needs {_FEWEST}.")
    if len(origins) > 1:
        raise InputError(
            f"{option}: {path} contains rows of {len(origins)} models, versions or temperatures. Compare one with one."
        )
    ((model, name, version, temperature),) = origins
    has_sets = f"{prefix}set" in table.columns
    return Period(np.array(codes), np.array(scores), f"{name} {version}", model, temperature, has_sets)


@dataclass(frozen=True)
class Drift:
    """Holds the differences of two periods."""

    rows: int
    reference_rows: int
    psi: float
    """PSI minus its expectation by chance, at least 0."""
    psi_chance: float
    """p-value of the PSI."""
    js: float
    ks: float
    ks_chance: float
    verdict: Verdict
    moved: tuple[tuple[str, float, float], ...]
    """Codes that moved most: code, share in the reference, share now."""
    covers: bool | None = None
    """False if the sets' coverage does not hold: a difference was found. None without sets, or without a difference."""

    @property
    def line(self) -> str:
        """Returns the verdict in one line."""
        why = {
            "stable": "codes and scores are as in the reference",
            "investigate": "a real difference. Check the codes that moved and draw a QA sample",
            "drift": "a large and real difference. Do not rely on the scores until a QA sample confirms them",
        }[self.verdict]
        return (
            f"{self.verdict.upper()}: {why} (codes: PSI {self.psi:.3f}, p {self.psi_chance:.3f}; scores: KS "
            f"{self.ks:.3f}, p {self.ks_chance:.3f})" + (f". {_NOT_COVERED}" if self.covers is False else "")
        )


def compare(now: Period, reference: Period) -> Drift:
    """Compares two periods.

    Raises:
        InputError: they were coded with different models, versions or temperatures, which move every score.
    """
    if (now.version, now.model) != (reference.version, reference.model):
        what = "another release" if now.model != reference.model else "the codes of another version"
        raise InputError(f"the periods are not comparable: one was coded with {what}. Code both with one bundle.")
    if now.temperature and reference.temperature and now.temperature != reference.temperature:
        raise InputError(
            f"the periods are not comparable: their temperatures are {now.temperature} and {reference.temperature}. "
            "Code both with the same thresholds (--thresholds of `autocoder code`)."
        )
    has_sets = now.has_sets
    rng = np.random.default_rng(0)
    now, reference = _at_most(now, rng), _at_most(reference, rng)
    names, codes = _pooled(now.codes, reference.codes)
    scores = np.concatenate([now.scores, reference.scores])
    split = len(now.codes)
    psi, js, ks = *_code_distances(codes, split, len(names)), _ks(scores, split)
    chance: list[tuple[float, float]] = []
    for _ in range(_PERMUTATIONS):
        order = rng.permutation(len(codes))
        chance.append((_code_distances(codes[order], split, len(names))[0], _ks(scores[order], split)))
    psis, distances = np.array(chance).T
    # One is added to both: the observed order is one of the permutations (Davison and Hinkley 1997, section 4.2).
    psi_chance = float((1 + (psis >= psi).sum()) / (1 + _PERMUTATIONS))
    ks_chance = float((1 + (distances >= ks).sum()) / (1 + _PERMUTATIONS))
    excess = max(0.0, psi - float(psis.mean()))
    shares = [np.bincount(side, minlength=len(names)) / len(side) for side in (codes[:split], codes[split:])]
    verdict = _verdict(excess, psi_chance, ks, ks_chance)
    most = np.argsort(-np.abs(shares[0] - shares[1]), kind="stable")[:5]
    return Drift(
        rows=len(now.codes),
        reference_rows=len(reference.codes),
        psi=round(excess, 4),
        psi_chance=round(psi_chance, 4),
        js=round(js, 4),
        ks=round(ks, 4),
        ks_chance=round(ks_chance, 4),
        verdict=verdict,
        covers=False if has_sets and verdict != "stable" else None,
        moved=tuple((names[at], round(float(shares[1][at]), 4), round(float(shares[0][at]), 4)) for at in most),
    )


def _verdict(psi: float, psi_chance: float, ks: float, ks_chance: float) -> Verdict:
    codes = psi if psi_chance <= _CHANCE else 0.0
    scores = ks if ks_chance <= _CHANCE else 0.0
    if codes > _PSI[1] or scores > _KS[1]:
        return "drift"
    return "investigate" if codes > _PSI[0] or scores > _KS[0] else "stable"


def _at_most(period: Period, rng: np.random.Generator) -> Period:
    if len(period.codes) <= _MOST:
        return period
    pick = rng.choice(len(period.codes), _MOST, replace=False)
    return Period(period.codes[pick], period.scores[pick], period.version, period.model)


def _pooled(now: NDArray[np.str_], reference: NDArray[np.str_]) -> tuple[list[str], NDArray[np.int64]]:
    """Returns the codes of both periods as numbers, with rare ones as one category."""
    both = np.concatenate([now, reference])
    names, at, counts = np.unique(both, return_inverse=True, return_counts=True)
    frequent = counts * min(len(now), len(reference)) / len(both) >= _POOLED_BELOW
    new = np.where(frequent, np.cumsum(frequent) - 1, frequent.sum())
    rare = [] if frequent.all() else ["rare codes"]
    return [*names[frequent].tolist(), *rare], new[at]


def _code_distances(codes: NDArray[np.int64], split: int, names: int) -> tuple[float, float]:
    """Returns PSI and JS of the first `split` codes against the rest; adds half a row to each category."""
    p, q = ((np.bincount(side, minlength=names) + 0.5) for side in (codes[:split], codes[split:]))
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2
    js = 0.5 * float((p * np.log2(p / middle)).sum() + (q * np.log2(q / middle)).sum())
    return float(((p - q) * np.log(p / q)).sum()), js


def _ks(scores: NDArray[np.float64], split: int) -> float:
    order = np.argsort(scores, kind="stable")
    first = order < split
    rises = np.where(first, 1 / split, -1 / (len(scores) - split)).cumsum()
    ends = np.append(np.diff(scores[order]) > 0, True)  # compare only after equal scores
    return float(np.abs(rises[ends]).max())


def plot(now: Period, reference: Period, drift: Drift, path: Path) -> None:
    """Draws both periods: the scores' distribution functions and the codes that moved most."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for period, name, colour in ((reference, "reference", "#6b7280"), (now, "now", "#1d4ed8")):
        left.ecdf(period.scores, label=f"{name} (n = {len(period.scores):,})", color=colour)
    left.set(xlabel="score", ylabel="share of rows at or below", title=f"scores, KS {drift.ks:.3f}")
    left.legend(loc="upper left")
    names = [code for code, _, _ in drift.moved]
    at = np.arange(len(names))
    right.barh(at + 0.2, [100 * before for _, before, _ in drift.moved], 0.4, label="reference", color="#6b7280")
    right.barh(at - 0.2, [100 * share for _, _, share in drift.moved], 0.4, label="now", color="#1d4ed8")
    right.set(yticks=at, yticklabels=names, xlabel="% of rows", title=f"codes that moved most, PSI {drift.psi:.3f}")
    right.invert_yaxis()
    right.legend()
    figure.suptitle(drift.verdict.upper(), fontweight="bold")
    figure.savefig(path, dpi=120)


def golden_period(folder: Path, *, temperature: str) -> Period:
    """Codes a bundle's golden texts at this temperature: a coarse reference, since they are not records.

    Raises:
        InputError: the folder is not a bundle, or has no golden texts.
    """
    from tasks.coding.coder import open_bundle

    coder, file = open_bundle(folder), folder / GOLDEN
    coder = coder.with_temperature(float(temperature)) if temperature else coder
    try:
        texts = [str(json.loads(line)["text"]) for line in file.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"--bundle: {file} cannot be read") from None
    answers = [coding.answers[0] for coding in coder.code(texts) if coding.answers]
    codes, scores = np.array([answer.code for answer in answers]), np.array([answer.score for answer in answers])
    return Period(codes, scores, f"{coder.classification} {coder.version}", coder.release, temperature)
