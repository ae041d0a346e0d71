"""Estimates counts by code, group and period from the model's codes of all rows and manual codes of
a sample.

An estimate is the model's count, minus the rows that it coded wrongly with this code, plus the rows
with this code that it missed. Both terms are weighted shares of the sampled rows with, or without,
the model's code, times the number of all such rows (post-stratification; Little 1993). The model's
codes of all rows narrow the interval, and its errors do not bias it. The interval of each term is a
beta interval on effective counts (Korn and Graubard 1998) after adding half an error: with the
weight of one row, or less if errors are rarer in the whole sample. The two intervals are combined
by their distances from the estimate (Zou and Donner 2008), so they are not symmetric.
`benchmarks/estimates.py` measures their coverage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import betaincinv

from storage.durable import replace_atomically
from storage.errors import Contradiction
from storage.json_values import Json
from storage.tables.writer import open_writer, output_kind
from tasks.coding.quality import DoubleCoded

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

TOTAL = "_T"
"""Value of a group column that stands for all groups."""
_ENDS, _TINY = (0.025, 0.975), 1e-9
_FEW = 5
"""Sampled rows with a code, manual or by the model, below which it gets no estimate."""


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    group: tuple[str, ...]
    code: str
    rows: int
    """Number of rows of the group, with any code."""
    machine: int
    sampled: int
    """Number of sampled rows with this code, manual or by the model."""
    estimate: Interval | None
    """None if there are too few sampled rows."""

    @property
    def note(self) -> Literal["", "few"]:
        return "few" if self.estimate is None else ""


@dataclass(frozen=True)
class Sample:
    """The sampled rows with both codes, as numbers, and the weights."""

    human: Ints
    model: Ints
    weights: Floats

    @cached_property
    def strata(self) -> Ints:
        """The rows with equal weight, as strata that are coarser than the drawn ones. A single row
        joins the stratum with the nearest lower weight.
        """
        values, strata, sizes = np.unique(
            self.weights.round(6), return_inverse=True, return_counts=True
        )
        enough = sizes > 1
        place = (
            np.maximum(np.cumsum(enough) - 1, 0)
            if enough.any()
            else np.zeros(len(values), dtype=np.int64)
        )
        return place[strata].astype(np.int64)

    @cached_property
    def corrections(self) -> Floats:
        """Returns (1 - n/N) n / (n - 1) by stratum, the factor of the weighted squares."""
        drawn = np.bincount(self.strata).astype(float)
        total = np.maximum(np.bincount(self.strata, weights=self.weights), drawn)
        return (1 - drawn / total) * drawn / np.maximum(drawn - 1, 1)

    @cached_property
    def agreement(self) -> float:
        return float(np.average(self.human == self.model, weights=self.weights))

    def variance(self, values: Floats) -> float:
        x, size = self.weights * values, np.bincount(self.strata)
        squares, sums = (np.bincount(self.strata, weights=terms) for terms in (x * x, x))
        return float((self.corrections * (squares - sums**2 / size)).sum())

    def count(self, code: int, inside: Flags, *, machine: int, rows: int) -> Interval:
        """Estimates how many rows of a group have a code.

        Args:
            inside: the sampled rows of the group.
            machine: number of the group's rows with the model's code.
            rows: number of the group's rows.
        """
        human, machine_coded = inside & (self.human == code), inside & (self.model == code)
        usual = (1 - self.agreement) * machine
        wrong = self._errors(
            machine_coded & ~human, machine_coded, machine, usual=usual
        ) or Interval(usual, 0.0, machine)
        hits = machine - wrong.value
        usual = hits * (1 - self.agreement) / max(self.agreement, _TINY)
        missed = self._errors(
            human & ~machine_coded, inside & ~machine_coded, rows - machine, usual=usual
        ) or Interval(0.0, 0.0, 0.0)
        low = float(np.hypot(wrong.high - wrong.value, missed.value - missed.low))
        high = float(np.hypot(wrong.value - wrong.low, missed.high - missed.value))
        value, least, most = (
            hits + missed.value,
            int(human.sum()),
            rows - int((inside & ~human).sum()),
        )
        return Interval(*(min(max(end, least), most) for end in (value, value - low, value + high)))

    def _errors(self, errors: Flags, among: Flags, total: int, *, usual: float) -> Interval | None:
        """Estimates how many of `total` rows are errors if some of them are sampled; `usual` is the
        share in the whole sample.
        """
        weight = float(self.weights[among].sum())
        if not weight or not total:
            return None
        share = float(self.weights[errors].sum()) / weight
        if share > 0.5 + _TINY:
            right = self._errors(among & ~errors, among, total, usual=usual)
            return right and Interval(total - right.value, total - right.high, total - right.low)
        value = total * share
        half = min(total, 1 / (among.sum() / total + 1 / max(2 * max(value, usual), _TINY)))
        variance = (
            self.variance(among * (errors.astype(float) - share)) * (total / weight) ** 2
            + half**2 / 2
        )
        expected = (value + half / 2) / (total + half)
        size = expected * (1 - expected) * total**2 / variance
        ends = total * betaincinv(expected * size, (1 - expected) * size, _ENDS)
        return Interval(
            value, min(value, float(ends[0])) if value else 0.0, max(value, float(ends[1]))
        )


@dataclass(frozen=True)
class Estimates:
    """All estimates for one code column of a table, the total first."""

    by: tuple[str, ...]
    titles: Mapping[str, str]
    sampled: int
    missing: int
    """Sampled rows without a manual code. Rows of the same weight with codes represent them."""
    every: tuple[Estimate, ...]
    people: str = ""
    """Summary of the manual codes: listed, unlisted, missing."""

    @property
    def totals(self) -> tuple[Estimate, ...]:
        return tuple(estimate for estimate in self.every if set(estimate.group) <= {TOTAL})

    def as_dict(self) -> dict[str, Json]:
        counts = [
            asdict(estimate)
            | {"group": dict(zip(self.by, estimate.group, strict=True)), "note": estimate.note}
            for estimate in self.every
        ]
        facts = {name: getattr(self, name) for name in ("people", "sampled", "missing")}
        return {**facts, "confidence": 0.95, "counts": counts}

    def warnings(self) -> list[str]:
        lines: list[str] = []
        if self.missing:
            lines.append(
                f"{self.missing:,} rows of the sample have no code. Other rows represent them, "
                "which is wrong if they differ"
            )
        if few := [total for total in self.totals if total.note]:
            most = max(few, key=lambda total: total.machine)
            lines.append(
                f"{len(few)} codes have fewer than {_FEW} rows in the sample, and get no estimate "
                f"({sum(total.machine for total in few):,} rows by the model; the largest is "
                f"{most.code}). Sample more rows, or use --sensitive"
            )
        return lines


def estimate(table: DoubleCoded) -> Estimates:
    """Estimates the counts of every code, for the whole table and for each group: the values of
    `by` separately and combined.
    """
    by = table.by
    weights = _adjusted(table)
    names, numbers = np.unique([*table.codes, *table.human], return_inverse=True)
    model = numbers[: len(table.codes)]
    drawn = Sample(numbers[len(model) :], model[table.rows], weights)
    cells = Counter(zip(table.groups, model.tolist(), strict=True))
    of_rows = [table.groups[row] for row in table.rows]
    levels = [level for size in range(len(by) + 1) for level in combinations(range(len(by)), size)]
    estimates = [
        estimate
        for level in levels
        for estimate in _of_level(drawn, cells, of_rows, level, names.tolist())
    ]
    return Estimates(
        by, table.titles, len(table.rows), len(table.missing), tuple(estimates), table.people
    )


def _of_level(
    sample: Sample,
    cells: Mapping[tuple[tuple[str, ...], int], int],
    of_rows: Sequence[tuple[str, ...]],
    level: Sequence[int],
    names: Sequence[str],
) -> Iterator[Estimate]:
    def at_level(group: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(value if place in level else TOTAL for place, value in enumerate(group))

    machine: defaultdict[tuple[str, ...], Ints] = defaultdict(
        lambda: np.zeros(len(names), dtype=np.int64)
    )
    for (group, code), count in cells.items():
        machine[at_level(group)][code] += count
    levels = [at_level(group) for group in of_rows]
    for group in sorted(machine):
        inside, rows = np.array([name == group for name in levels]), int(machine[group].sum())
        for code, name in enumerate(names):
            count = int(machine[group][code])
            sampled = int((inside & ((sample.human == code) | (sample.model == code))).sum())
            if not name or not (count or sampled):
                continue
            counted = (
                sample.count(code, inside, machine=count, rows=rows) if sampled >= _FEW else None
            )
            yield Estimate(group, name, rows, count, sampled, counted)


def _adjusted(table: DoubleCoded) -> Floats:
    """Returns weights with which rows with codes represent the rows of the same
    weight that were returned without.
    """
    weights, missing, rows = table.weights, table.missing, len(table.codes)
    total = float(weights.sum() + missing.sum())
    if abs(total - rows) > max(1.0, 0.01 * rows):
        raise Contradiction(
            f"--sample: its weights add up to {total:,.0f} rows, but the table "
            f"has {rows:,}. Use the table from which it was taken.",
            kind="weights-of-another-table",
        )
    new = weights.copy()
    for weight in np.unique(missing):
        same = np.isclose(weights, weight)
        new[same] *= 1 + np.isclose(missing, weight).sum() / max(1, same.sum())
    return new * total / new.sum()


def write_table(estimates: Estimates, out: Path) -> None:
    """Writes a row per group and code with counts, their intervals, and shares of
    the group's rows.
    """
    texts = [*estimates.by, "code", "title"]
    figures = ["estimate", "estimate_low", "estimate_high", "share", "share_low", "share_high"]
    schema = pa.schema(
        [
            *_fields(texts, pa.string()),
            *_fields(["rows", "machine", "sampled"], pa.int64()),
            *_fields(figures, pa.float64()),
            *_fields(["note"], pa.string()),
        ]
    )
    rows = [_table_row(estimate, estimates.titles) for estimate in estimates.every]
    with replace_atomically(out) as fresh, open_writer(fresh, output_kind(out), schema) as write:
        write(rows)


def _fields(names: Sequence[str], kind: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


def _table_row(estimate: Estimate, titles: Mapping[str, str]) -> tuple[Any, ...]:
    counts: list[float | None] = [None] * 3
    shares: list[float | None] = [None] * 3
    if estimate.estimate is not None:
        ends = asdict(estimate.estimate).values()
        counts = [round(count, 1) for count in ends]
        shares = [round(count / estimate.rows, 6) for count in ends]
    return (
        *estimate.group,
        estimate.code,
        titles.get(estimate.code, ""),
        estimate.rows,
        estimate.machine,
        estimate.sampled,
        *counts,
        *shares,
        estimate.note or None,
    )


def plot(estimates: Estimates, path: Path, *, most: int = 20) -> None:
    """Plots the largest codes of the whole table: the model's counts, and the
    estimates with their intervals.
    """
    from matplotlib.figure import Figure

    shown = sorted(
        (total for total in estimates.totals if total.estimate), key=lambda total: -total.machine
    )[:most]
    figure = Figure(figsize=(9, 1.5 + 0.32 * len(shown)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(shown))
    bars = [
        (total.estimate.value, total.estimate.low, total.estimate.high)
        for total in shown
        if total.estimate
    ]
    value, low, high = np.array(bars).T
    errors, label = [value - low, high - value], "estimate, 95% interval"
    axes.errorbar(value, places, xerr=errors, fmt="o", color="#1d4ed8", label=label, capsize=3)
    axes.plot(
        [total.machine for total in shown],
        places,
        "x",
        color="#b45309",
        label="model's count",
    )
    labels = [f"{total.code}  {estimates.titles.get(total.code, '')[:40]}" for total in shown]
    axes.set(yticks=places, yticklabels=labels, xlabel="rows", xlim=(0, None))
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(path, dpi=120)
