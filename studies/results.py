"""Results of studies: a CSV that a stopped run continues from, figures with two standard errors, tables and plots."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")


def load(file: Path) -> list[Row]:
    """Returns the rows of a CSV, numbers as numbers and empty cells as None; none where there is no file."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as source:
        return [{name: _value(cell) for name, cell in row.items()} for row in csv.DictReader(source)]


def _value(cell: str) -> Any:
    if cell == "":
        return None
    try:
        number = float(cell)
    except ValueError:
        return cell
    return int(number) if number.is_integer() and "." not in cell and "e" not in cell.lower() else number


def save(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(
            target, fieldnames=list(dict.fromkeys(n for row in rows for n in row)), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    partial.replace(file)


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def fill(
    file: Path, wanted: Iterable[Mapping[str, Any]], measure: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> list[Row]:
    """Measures every wanted key that the file lacks, one row after another; returns the rows of all wanted ones.

    Each row is saved when it is measured, so that the same call continues after a kill.
    """
    rows = load(file)

    def key(row: Mapping[str, Any], names: Iterable[str]) -> tuple[Any, ...]:
        return tuple(row[name] for name in names)

    asked = list(wanted)
    names = list(asked[0]) if asked else []
    done = {key(row, names): row for row in rows}
    for number, one in enumerate(asked, start=1):
        if key(one, names) not in done:
            row = dict(one) | dict(measure(one))
            rows.append(row)
            done[key(one, names)] = row
            save(file, rows)
            print(f"{number}/{len(asked)} {' '.join(str(v) for v in one.values() if v is not None)}", flush=True)
    return [done[key(one, names)] for one in asked]


def by_seed(values: Iterable[tuple[int, float]]) -> list[float]:
    """Returns the mean of each seed's values, of the seeds that have as many as any other."""
    own: dict[int, list[float]] = {}
    for seed, value in values:
        own.setdefault(seed, []).append(value)
    most = max(map(len, own.values()), default=0)
    return [float(np.mean(each)) for _, each in sorted(own.items()) if len(each) == most]


def two_errors(values: Sequence[float]) -> float:
    """Two standard errors of a mean: the one rule by which a gap counts here. NaN for a single value."""
    return 2 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def figure(values: Sequence[float]) -> str:
    if not values or any(map(math.isnan, values)):
        return "–"
    return f"{np.mean(values):.3f}" + (f" ± {two_errors(values):.3f}" if len(values) > 1 else "")


def verdict(gaps: Sequence[float]) -> str:
    """Says whether a mean gap over seeds exceeds two standard errors: `holds`, `within the error`, `does not hold`."""
    if len(gaps) < 2:
        return "not answered: fewer than two seeds"
    mean, error = float(np.mean(gaps)), two_errors(gaps)
    word = "within the error" if abs(mean) <= error else "holds" if mean > 0 else "does not hold"
    return f"{word} ({mean:+.3f} ± {error:.3f})"


def show(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def plot(
    file: Path,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
    *,
    title: str,
    x: str,
    y: str,
    log: str = "x",
) -> None:
    """Writes an SVG of lines by name: places, means, and what is above and below each (two standard errors)."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasSVG(drawing)
    axes = drawing.add_subplot()
    for number, (name, (places, means, errors)) in enumerate(lines.items()):
        style, colour = "-o" if number < len(COLOURS) else "--s", COLOURS[number % len(COLOURS)]
        axes.errorbar(places, means, yerr=errors, fmt=style, color=colour, label=name, markersize=3, capsize=2)
    axes.set(title=title, xlabel=x, ylabel=y)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    axes.legend(fontsize=7)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, format="svg", metadata={"Date": None})
