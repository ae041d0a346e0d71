"""Results of studies: a CSV from which a stopped run resumes, figures with two
standard errors, tables and plots.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mechanisms.errors import MechanismError

Row = dict[str, Any]
Values = Sequence[float] | np.ndarray | pd.Series
Lines = Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]]
"""By name: positions, and the values at each."""
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")


def tell(text: str) -> None:
    """Prints on stderr, unbuffered, what a study is doing."""
    print(text, file=sys.stderr, flush=True)


def load(file: Path) -> list[Row]:
    """Returns the rows of a CSV, with numbers parsed and empty cells as None. Empty
    if there is no file.
    """
    if not file.is_file():
        return []
    frame: Any = pd.read_csv(file)
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


@cache
def commit() -> str:
    """Returns the commit of this code, with a plus if files differ from it, or
    `unknown` outside a checkout.
    """

    def git(*words: str) -> str:
        here = Path(__file__).parent
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "--short=8", "HEAD") or "unknown"
    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", ":/studies", ":/mechanisms"
    )
    return f"{found}+" if changed else found


def save(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    pd.DataFrame(list(rows)).to_csv(partial, index=False, float_format="%.6g", lineterminator="\n")
    partial.replace(file)


def fill(
    file: Path, wanted: Sequence[Row], measure: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> list[Row]:
    """Measures every wanted key that is missing in the file, one row after another, and returns the
    rows of all wanted keys.

    Each row is saved as soon as it is measured, with the commit that measured it, so that the same
    call resumes after a kill, and rows from other code are visible.
    """
    if not wanted:
        raise MechanismError(
            "no fit was requested: these systems and sets never run together. Choose other ones",
            kind="nothing-to-fit",
        )
    asked = [tuple(cell.values()) for cell in wanted]
    done = {tuple(row[name] for name in wanted[0]): row for row in load(file)}
    missing = sum(key not in done for key in asked)
    tell(f"{file.name}: {missing} of {len(asked)} rows to measure")
    began, measured = time.monotonic(), 0
    for number, (cell, key) in enumerate(zip(wanted, asked, strict=True), start=1):
        if key not in done:
            done[key] = {**cell, **measure(cell), "commit": commit()}
            save(file, list(done.values()))
            measured += 1
            seconds = (time.monotonic() - began) / measured * (missing - measured)
            place = " ".join(str(v) for v in key if v is not None)
            tell(f"{number}/{len(asked)} {place}, about {seconds:,.0f} s left")
    return [done[key] for key in asked]


def grid(
    axes: Mapping[str, Iterable[Any]],
    epsilons: Sequence[float],
    seeds: int,
    *,
    plain: Container[Any],
) -> list[Row]:
    """Returns every cell, with the seed outermost. A value of the last axis that is
    `plain` takes no epsilon.
    """
    return [
        dict(zip(axes, values, strict=True)) | {"epsilon": epsilon, "seed": seed}
        for seed, *values in product(range(seeds), *axes.values())
        for epsilon in ([None] if values[-1] in plain else epsilons)
    ]


def by_seed(values: Iterable[tuple[int, float]]) -> list[float]:
    """Returns the mean of each seed's values, for the seeds with the most values."""
    seeds = (
        pd.DataFrame(values, columns=["seed", "value"])
        .groupby("seed")["value"]
        .agg(["mean", "size"])
    )
    return seeds["mean"][seeds["size"] == seeds["size"].max()].tolist()


def two_errors(values: Values) -> float:
    """Returns two standard errors of a mean, the only rule by which a gap counts
    here. NaN for a single value.
    """
    return (
        2 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    )


def figure(values: Values) -> str:
    if not len(values) or any(map(pd.isna, values)):
        return "–"
    return f"{np.mean(values):.3f}" + (f" ± {two_errors(values):.3f}" if len(values) > 1 else "")


def verdict(gaps: Values) -> str:
    """Returns whether a mean gap over seeds exceeds two standard errors: `holds`, `within the
    error`, `does not hold`.
    """
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
    lines: Lines,
    *,
    title: str,
    x: str,
    y: str,
    log: str = "x",
) -> None:
    """Writes an SVG of lines by name, with the mean and two standard errors at each position. A
    line without values at a position is left out.
    """
    drawing = empty(7.2, 4.2)
    axes = drawing.add_subplot()
    _draw_lines(axes, lines)
    axes.set(title=title, xlabel=x, ylabel=y, **{f"{log}scale": "log"})
    axes.legend(fontsize=7)
    write_svg(drawing, file)


def panels(
    file: Path,
    parts: Mapping[str, Lines],
    *,
    title: str,
    x: str,
    columns: int = 2,
    log: bool = False,
    made_at: str | None = None,
) -> None:
    """Writes an SVG of plots side by side, by title, with a common legend.

    Args:
        made_at: the commits of the rows; None for the current one.
    """
    rows = -(-len(parts) // columns)
    drawing = empty(3.6 * columns, 2.6 * rows + 0.9)
    drawing.suptitle(title, fontsize=11)
    legend: dict[str, Any] = {}
    for number, (name, lines) in enumerate(parts.items(), start=1):
        axes = drawing.add_subplot(rows, columns, number)
        _draw_lines(axes, lines)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(x, fontsize=8)
        axes.tick_params(labelsize=7)
        if log:
            axes.set_xscale("log")
            places = sorted({place for at, _ in lines.values() for place in at})
            axes.set_xticks(places, [f"{place:g}" for place in places])
            axes.minorticks_off()
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    if len(legend) > 1:
        drawing.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=3, fontsize=7
        )
    write_svg(drawing, file, made_at=made_at)


def empty(width: float, height: float) -> Any:
    """Returns a Matplotlib figure of this size in inches, for `write_svg`."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(drawing)
    return drawing


def _draw_lines(axes: Any, lines: Lines) -> None:
    complete = {name: line for name, line in lines.items() if all(line[1])}
    for number, (name, (places, values)) in enumerate(complete.items()):
        style, colour = "-o" if number < len(COLOURS) else "--s", COLOURS[number % len(COLOURS)]
        means, errors = (
            [np.mean(sample) for sample in values],
            np.nan_to_num([two_errors(sample) for sample in values]),
        )
        axes.errorbar(
            places, means, yerr=errors, fmt=style, color=colour, label=name, markersize=3, capsize=2
        )


def write_svg(drawing: Any, file: Path, *, made_at: str | None = None) -> None:
    """Writes a Matplotlib figure with the commit as its description, and with text as text."""
    import matplotlib as mpl

    file.parent.mkdir(parents=True, exist_ok=True)
    about = {"Date": None, "Description": made_at or commit()}
    with mpl.rc_context({"svg.fonttype": "none"}):
        drawing.savefig(file, format="svg", metadata=about)


def commits(of_rows: Iterable[Any]) -> str:
    """Returns the commits that measured these rows, each once, in order."""
    return " ".join(sorted({str(commit_id) for commit_id in of_rows if not pd.isna(commit_id)}))
