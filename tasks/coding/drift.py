"""Whether a period's codes and scores still look like those of a reference period.

| measure | of | what it is |
|---|---|---|
| PSI | codes | sum (p - q) ln(p / q), in which rare codes are pooled; its expectation without any drift is taken off |
| JS | codes | Jensen-Shannon divergence, base 2, in [0, 1] |
| KS | scores | largest distance between the two distribution functions, in [0, 1] |

Each comes with the probability of so large a value if nothing had changed, from permuting the rows of both periods. The
verdict wants both: a difference that chance does not explain, and one large enough to matter (PSI over 0.1 or 0.25, the
usual marks of credit scoring; KS over 0.1 or 0.2). A million rows make any difference significant, fifty make none.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from storage.bundle.folder import GOLDEN
from storage.errors import InputError
from storage.tables.reading import survey
from tasks.coding.names import TEMPERATURE, code_column, fields_of, score_column, temperature_of

Verdict = Literal["stable", "look", "drift"]

_FEWEST = 40
_POOLED_BELOW = 5
"""Expected rows of a code in the smaller period; rarer codes are one category."""
_PERMUTATIONS = 500
_CHANCE = 0.01
_PSI, _KS = (0.1, 0.25), (0.1, 0.2)
_MOST = 200_000
"""Rows of a period that are compared: a random sample of more."""
_VERSION = ("classification", "classification_version")


@dataclass(frozen=True)
class Period:
    """Codes and scores of a coded table."""

    codes: NDArray[np.str_]
    scores: NDArray[np.float64]
    version: str
    model: str
    temperature: str = ""
    """What its logits were divided by; "" where its table is of before that was told."""


def fields_in(path: Path, option: str) -> tuple[str, ...]:
    """The fields that a table was coded in; "" for the only one.

    Raises:
        InputError: it cannot be read.
    """
    return fields_of(survey(path, text_columns=[], option=option), option=option)


def read_period(path: Path, option: str, *, field: str = "") -> Period:
    """The coded rows of a table that `autocoder code` wrote; rows without a code are left out.

    Args:
        field: of several, the one whose codes and scores are read.

    Raises:
        InputError: too few rows, a missing column, a score that is no number, or more than one model or version in it.
    """
    wanted = [code_column(field), score_column(field), "model", *_VERSION]
    table = survey(path, text_columns=wanted, option=option)
    wanted += [TEMPERATURE] if TEMPERATURE in table.columns else []
    codes: list[str] = []
    scores: list[float] = []
    origins: Counter[tuple[str, ...]] = Counter()
    for number, cells in enumerate(table.text_rows(wanted), start=1):
        code, score, *origin = (cell.strip() for cell in cells)
        if not code:
            continue
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{option}: {path}, row {number}: the score is no number")
        scores.append(value)
        codes.append(code)
        model, name, version, *temperature = origin
        origins[model, name, version, temperature_of("".join(temperature), field)] += 1
    if len(codes) < _FEWEST:
        raise InputError(f"{option}: {path} has {len(codes)} coded rows; a comparison needs {_FEWEST}")
    if len(origins) > 1:
        raise InputError(
            f"{option}: {path} holds rows of {len(origins)} models, versions or temperatures; compare one with one"
        )
    ((model, name, version, temperature),) = origins
    return Period(np.array(codes), np.array(scores), f"{name} {version}", model, temperature)


@dataclass(frozen=True)
class Drift:
    """How far two periods lie apart."""

    rows: int
    reference_rows: int
    psi: float
    """Without what chance alone would give; 0 at least."""
    psi_chance: float
    """Probability of such a PSI without drift."""
    js: float
    ks: float
    ks_chance: float
    verdict: Verdict
    moved: tuple[tuple[str, float, float], ...]
    """Codes that moved most: code, share in the reference, share now."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @property
    def line(self) -> str:
        """The verdict in one line."""
        why = {
            "stable": "no difference that chance does not explain, or none that matters",
            "look": "a real difference: look at the codes that moved, and draw a QA sample",
            "drift": "a large and real difference: do not rely on the scores before a QA sample says that they hold",
        }[self.verdict]
        return (
            f"{self.verdict.upper()}: {why} (codes: PSI {self.psi:.3f}, chance {self.psi_chance:.3f}; scores: KS "
            f"{self.ks:.3f}, chance {self.ks_chance:.3f})"
        )


def compare(now: Period, reference: Period) -> Drift:
    """Compare two periods.

    Raises:
        InputError: they were coded by other models or versions, or with other thresholds files, whose temperature moves
            every score: that difference would not be the narratives'.
    """
    if (now.version, now.model) != (reference.version, reference.model):
        what = "another release" if now.model != reference.model else "the codes of another version"
        raise InputError(f"the periods are not alike: one was coded with {what}; code both with one bundle")
    if now.temperature and reference.temperature and now.temperature != reference.temperature:
        raise InputError(
            f"the periods are not alike: scores of one have temperature {now.temperature}, of the other "
            f"{reference.temperature}; code both with the same thresholds (--thresholds of `autocoder code`)"
        )
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
    most = np.argsort(-np.abs(shares[0] - shares[1]), kind="stable")[:5]
    return Drift(
        rows=len(now.codes),
        reference_rows=len(reference.codes),
        psi=round(excess, 4),
        psi_chance=round(psi_chance, 4),
        js=round(js, 4),
        ks=round(ks, 4),
        ks_chance=round(ks_chance, 4),
        verdict=_verdict(excess, psi_chance, ks, ks_chance),
        moved=tuple((names[at], round(float(shares[1][at]), 4), round(float(shares[0][at]), 4)) for at in most),
    )


def _verdict(psi: float, psi_chance: float, ks: float, ks_chance: float) -> Verdict:
    codes = psi if psi_chance <= _CHANCE else 0.0
    scores = ks if ks_chance <= _CHANCE else 0.0
    if codes > _PSI[1] or scores > _KS[1]:
        return "drift"
    return "look" if codes > _PSI[0] or scores > _KS[0] else "stable"


def _at_most(period: Period, rng: np.random.Generator) -> Period:
    if len(period.codes) <= _MOST:
        return period
    pick = rng.choice(len(period.codes), _MOST, replace=False)
    return Period(period.codes[pick], period.scores[pick], period.version, period.model)


def _pooled(now: NDArray[np.str_], reference: NDArray[np.str_]) -> tuple[list[str], NDArray[np.int64]]:
    """Codes of both periods as numbers, rare ones as one category."""
    both = np.concatenate([now, reference])
    names, at, counts = np.unique(both, return_inverse=True, return_counts=True)
    frequent = counts * min(len(now), len(reference)) / len(both) >= _POOLED_BELOW
    new = np.where(frequent, np.cumsum(frequent) - 1, frequent.sum())
    rare = [] if frequent.all() else ["rare codes"]
    return [*names[frequent].tolist(), *rare], new[at]


def _code_distances(codes: NDArray[np.int64], split: int, names: int) -> tuple[float, float]:
    """PSI and JS of the first `split` codes against the rest; half a row is added to each category."""
    p, q = ((np.bincount(side, minlength=names) + 0.5) for side in (codes[:split], codes[split:]))
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2
    js = 0.5 * float((p * np.log2(p / middle)).sum() + (q * np.log2(q / middle)).sum())
    return float(((p - q) * np.log(p / q)).sum()), js


def _ks(scores: NDArray[np.float64], split: int) -> float:
    order = np.argsort(scores, kind="stable")
    first = order < split
    rises = np.where(first, 1 / split, -1 / (len(scores) - split)).cumsum()
    ends = np.append(np.diff(scores[order]) > 0, True)  # within equal scores the functions have not risen yet
    return float(np.abs(rises[ends]).max())


def plot(now: Period, reference: Period, drift: Drift, path: Path) -> None:
    """Draw both periods: the scores' distribution functions and the codes that moved most."""
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


def golden_periods(folder: Path, option: str, *, like: Mapping[str, Period]) -> dict[str, Period]:
    """A bundle's golden texts, coded with it, by field: a coarse reference, for they are nobody's records.

    Args:
        like: periods to compare them with, whose temperatures they are coded at.

    Raises:
        InputError: the folder is no bundle, or has no golden texts.
    """
    from tasks.coding.joint import open_bundle

    opened, found = open_bundle(folder), {}
    for name, own in opened.fields.items():
        temperature = like[name].temperature if name in like else ""
        coder = own.at(float(temperature)) if temperature else own
        file = folder / name / GOLDEN
        try:
            texts = [str(json.loads(line)["text"]) for line in file.read_text(encoding="utf-8").splitlines() if line]
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(f"{option}: {file} cannot be read") from None
        answers = [coding.answers[0] for coding in coder.code(texts) if coding.answers]
        codes, scores = np.array([answer.code for answer in answers]), np.array([answer.score for answer in answers])
        version = f"{opened.classification} {opened.version}"
        found[name] = Period(codes, scores, version, opened.release, temperature)
    return found
