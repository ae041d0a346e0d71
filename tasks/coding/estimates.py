"""Estimates counts by code, group and period from the model's codes of all rows and the human's codes of a sample.

| estimate | is |
|---|---|
| `machine` | the rows with the model's code: biased by its errors, without an interval |
| `sample` | the sample alone: sum of w y (Horvitz and Thompson 1952) |
| `estimate` | prediction-powered: L F + sum of w (y - L f) (Angelopoulos et al. 2023) |
| `corrected` | corrected for misclassification: sum over the model's codes j of F_j P(code given j) |

y and f are 1 where the human's and the model's code are this one, F is the model's count, w a row's design weight. L
between 0 and 1 minimises the variance (Angelopoulos, Duchi and Zrnic 2023, "PPI++", section 6; the difference estimator
of survey sampling). The variance is that of a stratified sample from this table, with finite population correction.
Rows of one weight form a stratum: coarser ones than were drawn, so that the variance is rather too large. One
disagreement of each kind is added to it, as Agresti and Coull (1998) do for a share: few rows do not look certain.

`estimate` is unbiased however the model errs in each group. `corrected` takes P from the whole sample, so that it is
narrower in small groups, and wrong if the model errs otherwise there.
"""

from __future__ import annotations

import re
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
from storage.spelling import HumanCodes
from storage.tables.reader import survey
from storage.tables.writer import open_writer, output_kind
from tasks.coding.quality import HUMAN, read_returned, unquoted

Floats = NDArray[np.float64]
Note = Literal["", "few", "none"]

TOTAL = "_T"
"""Value of a group that stands for all, as in SDMX."""
_Z = 1.959964
_FEW = 5
"""Rows of the sample with a code, by human or model, below which its estimate is marked."""
_MOST_GROUPS = 3


@dataclass(frozen=True)
class Interval:
    """Holds an estimate of a count with its 95 % interval."""

    value: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Interval:
        """Returns this interval cut to what the human's codes leave possible."""
        return Interval(*(float(min(max(one, least), most)) for one in (self.value, self.low, self.high)))


@dataclass(frozen=True)
class Estimate:
    """Holds the estimates of one code in one group."""

    group: tuple[str, ...]
    code: str
    rows: int
    """Of the group, of any code."""
    machine: int
    sampled: int
    """Rows of the sample with this code, by human or model."""
    estimate: Interval | None
    """None if the sample has no such row."""
    corrected: Interval
    sample: Interval

    @property
    def note(self) -> Note:
        """Returns `none` or `few` if the sample says nothing or little of the code."""
        return "none" if not self.sampled else "few" if self.sampled < _FEW else ""


@dataclass(frozen=True)
class Sample:
    """Holds the sampled rows with both codes, as numbers, and the weights."""

    human: NDArray[np.int64]
    model: NDArray[np.int64]
    weights: Floats
    strata: NDArray[np.int64]

    @cached_property
    def corrections(self) -> Floats:
        """Returns (1 - n/N) n / (n - 1) by stratum, the factor of the weighted squares."""
        drawn = np.bincount(self.strata).astype(float)
        total = np.maximum(np.bincount(self.strata, weights=self.weights), drawn)
        return (1 - drawn / total) * drawn / np.maximum(drawn - 1, 1)

    @property
    def disagreement(self) -> float:
        """Returns the squares that one row of difference 1 adds, in proportion to the strata's weights."""
        total = np.bincount(self.strata, weights=self.weights)
        sizes = np.bincount(self.strata)
        return float((self.corrections * total / total.sum() * (total / sizes) ** 2).sum())

    def covariance(self, a: Floats, b: Floats) -> float:
        """Returns the design's covariance of the weighted sums of a and b."""
        x, y = self.weights * a, self.weights * b
        size = np.bincount(self.strata)
        products, left, right = (np.bincount(self.strata, weights=one) for one in (x * y, x, y))
        return float((self.corrections * (products - left * right / size)).sum())


def strata_of(weights: Floats) -> NDArray[np.int64]:
    """Returns the rows of one weight as a stratum; one of a single row joins the next."""
    _, strata = np.unique(weights.round(6), return_inverse=True)
    for at in range(int(strata.max()), 0, -1):
        if (strata == at).sum() == 1:
            strata[strata == at] = at - 1
    if (strata == 0).sum() == 1 and strata.max() > 0:
        strata[strata == 0] = strata[strata > 0].min()
    return np.unique(strata, return_inverse=True)[1].astype(np.int64)


def predicted(sample: Sample, y: Floats, f: Floats, count: int, usual: float) -> tuple[Interval, Interval]:
    """Returns the prediction-powered estimate of a count and the sample's alone.

    Args:
        y: 1 for a sampled row with the code by the human, in the group.
        f: the same by the model.
        count: rows with the model's code.
        usual: L where the sample has no row with the model's code.
    """
    of_y, of_f, of_both = sample.covariance(y, y), sample.covariance(f, f), sample.covariance(y, f)
    power = min(1.0, max(0.0, of_both / of_f)) if of_f > 0 else usual
    pair = sample.disagreement
    intervals = []
    for tuned in (power, 0.0):
        value = tuned * count + float((sample.weights * (y - tuned * f)).sum())
        half = _Z * (max(0.0, of_y - 2 * tuned * of_both + tuned**2 * of_f) + pair * (1 + tuned**2)) ** 0.5
        intervals.append(Interval(value, value - half, value + half))
    return intervals[0], intervals[1]


@dataclass(frozen=True)
class Confusion:
    """Holds the probability of each code given the model's, from the sample.

    Codes of the model with under five sampled rows share the rate of right codes and the codes of the wrong ones.
    """

    given: Floats
    """[model's code, code]; zero for the rare ones."""
    sizes: Floats
    """Effective rows of each code of the model, (sum w)² / sum w²; 0 for the rare ones."""
    right: float
    others: Floats
    """Probability of each code for a row of a rare code of the model that is wrong."""
    rare_size: float

    @classmethod
    def of(cls, sample: Sample, codes: int) -> Confusion:
        """Estimates from a sample."""
        table = np.zeros((codes, codes))
        np.add.at(table, (sample.model, sample.human), sample.weights)
        frequent = np.bincount(sample.model, minlength=codes) >= _FEW
        squares = np.bincount(sample.model, weights=sample.weights**2, minlength=codes)
        mass = table.sum(1)
        given = np.divide(table, mass[:, None], out=np.zeros_like(table), where=frequent[:, None])
        sizes = np.divide(mass**2, squares, out=np.zeros(codes), where=frequent)
        rare = ~frequent[sample.model]
        rare = rare if rare.any() else np.ones_like(rare)
        weights, same = sample.weights[rare], (sample.human == sample.model)[rare]
        others = np.bincount(sample.human[rare], weights=weights * ~same, minlength=codes) / weights.sum()
        right = float(weights[same].sum() / weights.sum())
        return cls(given, sizes, right, others, float(weights.sum() ** 2 / (weights**2).sum()))

    def counts(self, machine: Floats) -> list[Interval]:
        """Returns the corrected count of each code for the model's counts of a group."""
        frequent = self.sizes > 0
        known, rare = np.where(frequent, machine, 0.0), np.where(frequent, 0.0, machine)
        wrong = rare.sum()
        value = known @ self.given + rare * self.right + wrong * self.others
        spread = self.given * (1 - self.given)
        # the error of the probabilities, and of the group's rows about them
        variance = (known**2 / np.maximum(self.sizes, 1)) @ (spread + 1 / np.maximum(self.sizes, 1)[:, None] ** 2)
        variance += known @ spread
        for rows, share in ((rare, self.right), (wrong, self.others)):
            variance += share * (1 - share) * (np.square(rows) / self.rare_size + rows)
        half = _Z * np.sqrt(variance)
        return [Interval(*map(float, row)) for row in zip(value, value - half, value + half, strict=True)]


@dataclass(frozen=True)
class Estimates:
    """Holds all estimates of a table's field, the total first."""

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
        """Returns the estimates of the whole table."""
        return tuple(one for one in self.every if set(one.group) <= {TOTAL})

    def as_dict(self) -> dict[str, Any]:
        """Returns the content for JSON."""
        counts = [
            asdict(one) | {"group": dict(zip(self.by, one.group, strict=True)), "note": one.note} for one in self.every
        ]
        return {
            "people": self.people,
            "sampled": self.sampled,
            "missing": self.missing,
            "confidence": 0.95,
            "counts": counts,
        }

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
                f"model; the largest is {most.code}): they have no estimate. Draw more rows, or with --sensitive"
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
) -> Estimates:
    """Estimates the counts of every code, of the whole table and of each group.

    Args:
        sample: of `autocoder qa draw`, with the human's codes.
        listed: every code that there is; empty: not known, and those of the table are known alone.
        allow_unlisted: counts codes that are not listed as codes of their own.
        by: columns of the coded table; groups are their values, each alone and together.

    Raises:
        InputError: a column is missing, the sample is not of this table, or has no codes.
    """
    if len(by) > _MOST_GROUPS or len(set(by)) < len(by):
        raise InputError(f"--by: name at most {_MOST_GROUPS} different columns.")
    title = f"{prefix}title"
    columns = [f"{prefix}code", *by]
    table = survey(coded, text_columns=columns)
    columns += [title] if title in table.columns else []
    codes: list[str] = []
    groups: list[tuple[str, ...]] = []
    titles: dict[str, str] = {}
    for code, *cells in table.text_rows(columns):
        codes.append(unquoted(code))
        groups.append(tuple(unquoted(cell) for cell in cells[: len(by)]))
        titles.setdefault(codes[-1], "".join(cells[len(by) :]))
    people = HumanCodes(listed or set(codes) - {""}, complete=bool(listed))
    human, missing = read_returned(sample, people, prefix=prefix, codes=codes)
    people.require_listed(f"--sample: {sample}, column {prefix + HUMAN!r}", allowed=allow_unlisted)
    rows = sorted(human)
    weights = _adjusted(np.array([human[at][1] for at in rows]), np.array(missing), len(codes), sample)
    names = sorted({*codes, *(code for code, _ in human.values())})
    place = {name: at for at, name in enumerate(names)}
    drawn = Sample(
        np.array([place[human[at][0]] for at in rows]),
        np.array([place[codes[at - 1]] for at in rows]),
        weights,
        strata_of(weights),
    )
    cells = Counter(zip(groups, codes, strict=True))
    of_rows = [groups[at - 1] for at in rows]
    every = [one for level in _levels(len(by)) for one in _of_level(drawn, cells, of_rows, level, names)]
    return Estimates(tuple(by), titles, len(rows), len(missing), tuple(every), people.sentence)


def _levels(columns: int) -> Iterator[tuple[int, ...]]:
    """Yields which columns a level keeps: none, each alone, then together."""
    for size in range(columns + 1):
        yield from combinations(range(columns), size)


def _of_level(
    sample: Sample,
    cells: Mapping[tuple[tuple[str, ...], str], int],
    of_rows: Sequence[tuple[str, ...]],
    level: Sequence[int],
    names: Sequence[str],
) -> Iterator[Estimate]:
    def at_level(group: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(value if at in level else TOTAL for at, value in enumerate(group))

    machine: defaultdict[tuple[str, ...], Floats] = defaultdict(lambda: np.zeros(len(names)))
    place = {name: at for at, name in enumerate(names)}
    for (group, code), count in cells.items():
        machine[at_level(group)][place[code]] += count
    confusion = Confusion.of(sample, len(names))
    wrong = (sample.human != sample.model).astype(float)
    usual = float(1 - (sample.weights * wrong).sum() / sample.weights.sum())
    levels = [at_level(group) for group in of_rows]
    for group in sorted(machine):
        inside = np.array([level == group for level in levels], dtype=float)
        corrected, rows = confusion.counts(machine[group]), int(machine[group].sum())
        for at, name in enumerate(names):
            y, f = inside * (sample.human == at), inside * (sample.model == at)
            count, sampled = int(machine[group][at]), int(np.maximum(y, f).sum())
            if not name or not (count or sampled):
                continue
            powered, alone = predicted(sample, y, f, count, usual)
            least, most = float(y.sum()), rows - float((inside - y).sum())
            yield Estimate(
                group,
                name,
                rows,
                count,
                sampled,
                powered.within(least, most) if sampled else None,
                corrected[at].within(least, most),
                alone.within(least, most),
            )


def _adjusted(weights: Floats, missing: Floats, rows: int, sample: Path) -> Floats:
    """Returns weights in which rows with codes stand for those of the same weight that came back without."""
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


_COUNTS = ("estimate", "corrected", "sample")


def write_table(estimates: Estimates, out: Path) -> None:
    """Writes a row per group and code: counts with their intervals, and shares of the group's rows."""
    numbers = ["rows", "machine", "sampled"]
    schema = pa.schema(
        [
            *((name, pa.string()) for name in (*estimates.by, "code", "title")),
            *((name, pa.int64()) for name in numbers),
            *((f"{name}{end}", pa.float64()) for name in _COUNTS for end in ("", "_low", "_high")),
            *((f"share{end}", pa.float64()) for end in ("", "_low", "_high")),
            ("note", pa.string()),
        ]
    )
    rows = []
    for one in estimates.every:
        counts = [_numbers(interval, 1, 1) for interval in (one.estimate, one.corrected, one.sample)]
        rows.append(
            (
                *(*one.group, one.code, estimates.titles.get(one.code, "")),
                *(one.rows, one.machine, one.sampled),
                *(number for three in counts for number in three),
                *_numbers(one.estimate, one.rows, 6),
                one.note or None,
            )
        )
    with replace_atomically(out) as fresh, open_writer(fresh, output_kind(out), schema) as write:
        write(rows)


def _numbers(interval: Interval | None, rows: int, digits: int) -> tuple[float | None, ...]:
    if interval is None:
        return (None, None, None)
    return tuple(round(one / rows, digits) for one in (interval.value, interval.low, interval.high))


def write_sdmx(estimates: Estimates, out: Path, *, dataflow: str) -> None:
    """Writes the estimates as SDMX-CSV 2.0: an observation per group, code and measure (count, share).

    Raises:
        InputError: the dataflow is not of the form AGENCY:ID(1.0).
    """
    if not re.fullmatch(r"[A-Za-z][\w.-]*:[\w@$-]+\(\d+(\.\d+)*\)", dataflow, flags=re.ASCII):
        raise InputError(f"--dataflow: {dataflow} is not of the form AGENCY:ID(1.0).")
    dimensions = [re.sub(r"\W", "_", name, flags=re.ASCII).upper() for name in estimates.by]
    names = ["STRUCTURE", "STRUCTURE_ID", "ACTION", *dimensions, "CODE", "MEASURE", "OBS_VALUE"]
    names += ["LOWER_95", "UPPER_95", "OBS_STATUS"]
    schema = pa.schema([(name, pa.string()) for name in names])
    rows = []
    for one in estimates.every:
        for measure, whole, digits in (("COUNT", 1, 1), ("SHARE", one.rows, 6)):
            values = [
                "" if number is None else f"{number:.{digits}f}" for number in _numbers(one.estimate, whole, digits)
            ]
            status = "E" if one.estimate else "O"  # CL_OBS_STATUS: estimated, missing
            rows.append(("dataflow", dataflow, "I", *one.group, one.code, measure, *values, status))
    with replace_atomically(out) as fresh, open_writer(fresh, "csv", schema) as write:
        write(rows)


def plot(estimates: Estimates, path: Path, *, most: int = 20) -> None:
    """Draws the largest codes of the whole table: the model's counts, and the estimates with their intervals."""
    from matplotlib.figure import Figure

    shown = sorted((one for one in estimates.totals if one.estimate), key=lambda one: -one.machine)[:most]
    figure = Figure(figsize=(9, 1.5 + 0.32 * len(shown)), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(shown))
    bars = [(one.estimate.value, one.estimate.low, one.estimate.high) for one in shown if one.estimate]
    value, low, high = np.array(bars).T
    spread, label = [value - low, high - value], "estimate, 95 % interval"
    axes.errorbar(value, at, xerr=spread, fmt="o", color="#1d4ed8", label=label, capsize=3)
    axes.plot([one.machine for one in shown], at, "x", color="#b45309", label="count of the model's codes")
    labels = [f"{one.code}  {estimates.titles.get(one.code, '')[:40]}" for one in shown]
    axes.set(yticks=at, yticklabels=labels, xlabel="rows", xlim=(0, None))
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(path, dpi=120)
