"""Estimates counts by code, group and period from the model's codes of all rows and the human's codes of a sample.

The estimate is prediction-powered: L F + sum of w (y - L f) (Angelopoulos et al. 2023). y and f are 1 where the human's
and the model's code are this one, F is the model's count, w a row's design weight. It is unbiased however the model
errs. L between 0 and 1 minimises the variance (Angelopoulos, Duchi and Zrnic 2023, "PPI++", section 6; the difference
estimator of survey sampling). The variance is that of a stratified sample from this table, with finite population
correction. Rows of one weight form a stratum: coarser ones than were drawn, so that the variance is rather too large.
One disagreement of each kind is added to it, as Agresti and Coull (1998) do for a share: few rows do not look certain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.durable import replace_atomically
from storage.errors import InputError
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.writer import open_writer, output_kind
from tasks.coding.quality import DoubleCoded, read_double_coded

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOTAL = "_T"
"""Value of a group that stands for all."""
_Z = 1.959964
_FEW = 5
"""Rows of the sample with a code, by human or model, below which its estimate is marked."""
_MOST_GROUPS = 3


@dataclass(frozen=True)
class Interval:
    """An estimate of a count with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """The estimate of one code in one group."""

    group: tuple[str, ...]
    code: str
    rows: int
    """Of the group, of any code."""
    machine: int
    sampled: int
    """Rows of the sample with this code, by human or model."""
    estimate: Interval | None
    """None if the sample has no such row."""

    @property
    def note(self) -> Literal["", "few", "none"]:
        return "none" if not self.sampled else "few" if self.sampled < _FEW else ""


@dataclass(frozen=True)
class Sample:
    """The sampled rows with both codes, as numbers, and the weights."""

    human: Ints
    model: Ints
    weights: Floats
    strata: Ints

    @cached_property
    def corrections(self) -> Floats:
        """Returns (1 - n/N) n / (n - 1) by stratum, the factor of the weighted squares."""
        drawn = np.bincount(self.strata).astype(float)
        total = np.maximum(np.bincount(self.strata, weights=self.weights), drawn)
        return (1 - drawn / total) * drawn / np.maximum(drawn - 1, 1)

    @cached_property
    def disagreement(self) -> float:
        """Returns the squares that one row of difference 1 adds, in proportion to the strata's weights."""
        total = np.bincount(self.strata, weights=self.weights)
        sizes = np.bincount(self.strata)
        return float((self.corrections * total / total.sum() * (total / sizes) ** 2).sum())

    def covariance(self, a: Floats, b: Floats) -> float:
        """Returns the design's covariance of the weighted sums of a and b."""
        x, y = self.weights * a, self.weights * b
        size = np.bincount(self.strata)
        products, left, right = (np.bincount(self.strata, weights=sums) for sums in (x * y, x, y))
        return float((self.corrections * (products - left * right / size)).sum())


def strata_of(weights: Floats) -> Ints:
    """Returns the rows of one weight as a stratum; a single row joins the stratum of the nearest lower weight."""
    values, strata, sizes = np.unique(weights.round(6), return_inverse=True, return_counts=True)
    enough = sizes > 1
    place = np.maximum(np.cumsum(enough) - 1, 0) if enough.any() else np.zeros(len(values), dtype=np.int64)
    return place[strata].astype(np.int64)


def predicted(sample: Sample, y: Floats, f: Floats, count: int, usual: float) -> Interval:
    """Returns the prediction-powered estimate of a count.

    Args:
        y: 1 for a sampled row with the code by the human, in the group.
        f: the same by the model.
        count: rows with the model's code.
        usual: L where the sample has no row with the model's code.
    """
    of_y, of_f, of_both = sample.covariance(y, y), sample.covariance(f, f), sample.covariance(y, f)
    power = min(1.0, max(0.0, of_both / of_f)) if of_f > 0 else usual
    value = power * count + float((sample.weights * (y - power * f)).sum())
    variance = max(0.0, of_y - 2 * power * of_both + power**2 * of_f) + sample.disagreement * (1 + power**2)
    half = _Z * variance**0.5
    return Interval(value, value - half, value + half)


@dataclass(frozen=True)
class Estimates:
    """All estimates of a table's field, the total first."""

    by: tuple[str, ...]
    titles: Mapping[str, str]
    sampled: int
    missing: int
    """Rows of the sample without a code. Those with codes of the same weight stand for them."""
    every: tuple[Estimate, ...]
    people: str = ""
    """Account of the human's codes: on the list, not on it, missing."""

    @property
    def totals(self) -> tuple[Estimate, ...]:
        return tuple(one for one in self.every if set(one.group) <= {TOTAL})

    def as_dict(self) -> dict[str, Any]:
        counts = [
            asdict(one) | {"group": dict(zip(self.by, one.group, strict=True)), "note": one.note} for one in self.every
        ]
        facts = {name: getattr(self, name) for name in ("people", "sampled", "missing")}
        return {**facts, "confidence": 0.95, "counts": counts}

    def warnings(self) -> list[str]:
        """Returns what the sample does not say, in words."""
        lines: list[str] = []
        if self.missing:
            lines.append(
                f"{self.missing:,} rows of the sample have no code: others stand for them, which is wrong if they "
                "differ"
            )
        if without := [one for one in self.totals if one.note == "none"]:
            most = max(without, key=lambda one: one.machine)
            lines.append(
                f"the sample says nothing of {len(without)} codes ({sum(one.machine for one in without):,} rows by the "
                f"model; the largest is {most.code}): they have no estimate. Sample more rows, or with --sensitive"
            )
        if few := sum(one.note == "few" for one in self.totals):
            lines.append(f"the sample has under {_FEW} rows of each of {few} codes: their intervals are rough")
        return lines


def estimate(
    coded: Path,
    sample: Path,
    *,
    by: Sequence[str] = (),
    prefix: str = "",
    listed: Collection[str] = (),
    allow_unlisted: bool = False,
    read: ReadOptions = AS_IT_LOOKS,
) -> Estimates:
    """Estimates the counts of every code, of the whole table and of each group.

    Args:
        by: columns of the coded table; groups are their values, each alone and together.
        sample, prefix, listed, allow_unlisted, read: as in `read_double_coded`.

    Raises:
        InputError: a column is missing, the sample is not of this table, or has no codes.
    """
    if len(by) > _MOST_GROUPS or len(set(by)) < len(by):
        raise InputError(f"--by: name at most {_MOST_GROUPS} different columns.")
    table = read_double_coded(
        coded, sample, by=by, prefix=prefix, listed=listed, allow_unlisted=allow_unlisted, read=read
    )
    weights = _adjusted(table, sample)
    names, numbers = np.unique([*table.codes, *table.human], return_inverse=True)
    model = numbers[: len(table.codes)]
    drawn = Sample(numbers[len(model) :], model[table.rows], weights, strata_of(weights))
    cells = Counter(zip(table.groups, model.tolist(), strict=True))
    of_rows = [table.groups[row] for row in table.rows]
    levels = [level for size in range(len(by) + 1) for level in combinations(range(len(by)), size)]
    every = [one for level in levels for one in _of_level(drawn, cells, of_rows, level, names.tolist())]
    return Estimates(tuple(by), table.titles, len(table.rows), len(table.missing), tuple(every), table.people)


def _of_level(
    sample: Sample,
    cells: Mapping[tuple[tuple[str, ...], int], int],
    of_rows: Sequence[tuple[str, ...]],
    level: Sequence[int],
    names: Sequence[str],
) -> Iterator[Estimate]:
    def at_level(group: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(value if place in level else TOTAL for place, value in enumerate(group))

    machine: defaultdict[tuple[str, ...], Ints] = defaultdict(lambda: np.zeros(len(names), dtype=np.int64))
    for (group, code), count in cells.items():
        machine[at_level(group)][code] += count
    usual = float(np.average(sample.human == sample.model, weights=sample.weights))
    levels = [at_level(group) for group in of_rows]
    for group in sorted(machine):
        inside, rows = np.array([one == group for one in levels], dtype=float), int(machine[group].sum())
        for code, name in enumerate(names):
            y, f = inside * (sample.human == code), inside * (sample.model == code)
            count, sampled = int(machine[group][code]), int(np.maximum(y, f).sum())
            if not name or not (count or sampled):
                continue
            interval = predicted(sample, y, f, count, usual)
            # what the human's codes leave possible
            possible = np.clip([interval.value, interval.low, interval.high], y.sum(), rows - (inside - y).sum())
            yield Estimate(group, name, rows, count, sampled, Interval(*possible.tolist()) if sampled else None)


def _adjusted(table: DoubleCoded, sample: Path) -> Floats:
    """Returns weights in which rows with codes stand for those of the same weight that came back without."""
    weights, missing, rows = table.weights, table.missing, len(table.codes)
    total = float(weights.sum() + missing.sum())
    if abs(total - rows) > max(1.0, 0.01 * rows):
        raise InputError(
            f"--sample: {sample}: its weights add up to {total:,.0f} rows, and the table has {rows:,}. Give the table "
            "from which it was drawn."
        )
    new = weights.copy()
    for weight in np.unique(missing):
        same = np.isclose(weights, weight)
        new[same] *= 1 + np.isclose(missing, weight).sum() / max(1, same.sum())
    return new * total / new.sum()


def write_table(estimates: Estimates, out: Path) -> None:
    """Writes a row per group and code: counts with their intervals, and shares of the group's rows."""
    intervals = [f"{name}{end}" for name in ("estimate", "share") for end in ("", "_low", "_high")]
    schema = pa.schema(
        [
            *((name, pa.string()) for name in (*estimates.by, "code", "title")),
            *((name, pa.int64()) for name in ("rows", "machine", "sampled")),
            *((name, pa.float64()) for name in intervals),
            ("note", pa.string()),
        ]
    )
    rows = []
    for one in estimates.every:
        counts = (None, None, None) if one.estimate is None else (*asdict(one.estimate).values(),)
        rows.append(
            (
                *(*one.group, one.code, estimates.titles.get(one.code, "")),
                *(one.rows, one.machine, one.sampled),
                *(None if count is None else round(count, 1) for count in counts),
                *(None if count is None else round(count / one.rows, 6) for count in counts),
                one.note or None,
            )
        )
    with replace_atomically(out) as fresh, open_writer(fresh, output_kind(out), schema) as write:
        write(rows)


def plot(estimates: Estimates, path: Path, *, most: int = 20) -> None:
    """Draws the largest codes of the whole table: the model's counts, and the estimates with their intervals."""
    from matplotlib.figure import Figure

    shown = sorted((one for one in estimates.totals if one.estimate), key=lambda one: -one.machine)[:most]
    figure = Figure(figsize=(9, 1.5 + 0.32 * len(shown)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(shown))
    bars = [(one.estimate.value, one.estimate.low, one.estimate.high) for one in shown if one.estimate]
    value, low, high = np.array(bars).T
    spread, label = [value - low, high - value], "estimate, 95 % interval"
    axes.errorbar(value, places, xerr=spread, fmt="o", color="#1d4ed8", label=label, capsize=3)
    axes.plot([one.machine for one in shown], places, "x", color="#b45309", label="count of the model's codes")
    labels = [f"{one.code}  {estimates.titles.get(one.code, '')[:40]}" for one in shown]
    axes.set(yticks=places, yticklabels=labels, xlabel="rows", xlim=(0, None))
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(path, dpi=120)
