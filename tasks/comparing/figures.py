"""Draws the figures of a comparison as SVG. Colours are Okabe and Ito's, and no fact rests on colour alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.comparing.summary import BranchSummary
from tasks.pages.svg import BLACK, BLUE, GREEN, ORANGE, figure_of, svg
from tasks.releasing.recommendation import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KINDS = {"none": (BLACK, "s"), "asymptotic-local": (ORANGE, "o"), "formal": (BLUE, "^")}
_GAP = 0.045


def frontier(summaries: Sequence[BranchSummary]) -> str:
    """Draws weighted F1 against epsilon, with a marker per kind; branches without a guarantee are horizontal lines."""
    figure, axes = figure_of("Weighted F1 against ε, mean and spread over seeds", height=4.6)
    labelled: set[str] = set()
    points: list[tuple[float, float]] = []
    for one in sorted(summaries, key=lambda s: -s.mean["weighted_f1"]):
        colour, marker = _KINDS[one.guarantee_kind]
        score = one.mean["weighted_f1"]
        if one.epsilon is None:
            axes.axhline(score, color=colour, linestyle="--", label=f"{one.title}: no guarantee")
            continue
        label = None if one.guarantee_kind in labelled else one.guarantee_kind
        labelled.add(one.guarantee_kind)
        points.append((one.epsilon, score))
        axes.errorbar(
            one.epsilon,
            score,
            xerr=one.epsilon_spread,
            yerr=one.spread["weighted_f1"],
            color=colour,
            marker=marker,
            markersize=8,
            capsize=3,
            linestyle="none",
            label=label,
        )
        axes.plot([], [], " ", label=f"{len(points)}  {one.title}")
    for number, ((x, y), height) in enumerate(zip(points, _apart([y for _, y in points]), strict=True), start=1):
        axes.annotate(
            str(number),
            (x, y),
            xytext=(1.02, height),
            textcoords=("axes fraction", "data"),
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6},
        )
    axes.set_xlabel("ε (kinds are not comparable: see the table)")
    axes.set_ylabel("weighted F1, test half")
    axes.set_ylim(0, 1)
    _from_zero(axes, [x for x, _ in points])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    return svg(figure)


def losses(branches: Sequence[Figures], reference: Figures | None) -> str:
    """Draws weighted F1 of every claim against its epsilon, a line per branch."""
    figure, axes = figure_of("Weighted F1 against the ε that it costs", height=4.0)
    if reference is not None:
        score = reference.weighted_f1
        axes.axhline(score, color=BLACK, linestyle="--", label=f"{reference.title}: no guarantee")
    lines: dict[str, list[Figures]] = {}
    for one in branches:
        if one.epsilon is not None:
            lines.setdefault(one.title, []).append(one)
    for number, (title, points) in enumerate(lines.items()):
        points.sort(key=lambda one: one.epsilon or 0.0)
        colour, marker = _KINDS[points[0].kind]
        style = (":", "-", "-.", "--")[number % 4]
        refuted = any(one.audit == "contradicted" for one in points)
        label = f"{title} ({points[0].kind}{', refuted' if refuted else ''})"
        epsilons, scores = [one.epsilon for one in points], [one.weighted_f1 for one in points]
        spread = [one.spread for one in points]
        style_options = {"color": colour, "marker": "x" if refuted else marker, "linestyle": style, "capsize": 3}
        axes.errorbar(epsilons, scores, yerr=spread, label=label, **style_options)
    axes.set_xlabel("ε (formal and asymptotic-local are not comparable)")
    axes.set_ylabel("weighted F1, held-out records")
    axes.set_ylim(0, 1)
    _from_zero(axes, [one.epsilon for one in branches if one.epsilon is not None])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", fontsize=8, frameon=False, ncols=2)
    return svg(figure)


def _from_zero(axes: Axes, epsilons: Sequence[float]) -> None:
    """Begins the axis at 0: two that aim at one target differ in the seventh digit, which no axis should show."""
    if epsilons:
        axes.set_xlim(0, 1.15 * max(epsilons))


def _apart(heights: Sequence[float]) -> list[float]:
    """Places labels, given the heights of their points from the highest down, at least _GAP apart."""
    placed: list[float] = []
    for height in heights:
        placed.append(min(height, placed[-1] - _GAP) if placed else height)
    excess = max(0.0, _GAP / 2 - placed[-1]) if placed else 0.0
    return [height + excess for height in placed]


def class_distribution(sizes: Sequence[int]) -> str:
    """Draws figure 2 of the paper: test records per code, largest first."""
    figure, axes = figure_of("Class distribution")
    axes.bar(range(1, len(sizes) + 1), sorted(sizes, reverse=True), width=1.0, color=BLUE)
    axes.set_yscale("log")
    axes.set_xlabel("codes with test records, largest first")
    axes.set_ylabel("test records")
    return svg(figure)


def f1_by_size(codes: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Draws figure 3 of the paper: F1 of each code by its size, branches side by side."""
    figure, axes = figure_of("F1 by class size")
    styles = zip((ORANGE, BLUE, GREEN, BLACK, "#CC79A7", "#56B4E9"), ("o", "^", "D", "s", "v", "P"), strict=True)
    for (name, rows), (colour, marker) in zip(codes.items(), styles, strict=False):
        axes.scatter(
            [row["size"] for row in rows],
            [row["f1"] for row in rows],
            c=colour,
            marker=marker,
            s=18,
            alpha=0.7,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_xlabel("test records of the code")
    axes.set_ylabel("F1")
    axes.legend(fontsize=8)
    return svg(figure)


def weight_density(top: np.ndarray, bottom: np.ndarray) -> str:
    """Draws figure 4 of the paper: risk weights of records in the largest and the smallest quarter of codes."""
    figure, axes = figure_of("Risk weights by quartile of class size")
    bins = np.linspace(0, 1, 41)
    axes.hist(top, bins=bins, density=True, color=BLUE, alpha=0.55, label="top quartile")
    axes.hist(bottom, bins=bins, density=True, histtype="step", linewidth=2, color=ORANGE, label="bottom quartile")
    axes.set_xlabel("risk weight α")
    axes.set_ylabel("density")
    axes.legend(fontsize=8)
    return svg(figure)


def running_maxima(series: Mapping[str, Sequence[float]]) -> str:
    """Draws Delta after each draw; still rising at the right means too few draws."""
    figure, axes = figure_of("Δ's running maximum over draws")
    for (name, values), style in zip(series.items(), ("-", "--", ":"), strict=False):
        axes.step(range(1, len(values) + 1), values, where="post", linestyle=style, color=BLACK, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("draws taken")
    axes.set_ylabel("Δ so far (nats)")
    axes.legend(fontsize=8)
    return svg(figure)


def curves(series: Mapping[str, Sequence[float]]) -> str:
    """Draws the mean training loss per epoch, with line styles and colours."""
    figure, axes = figure_of("Training loss (first seed)")
    colours = (BLACK, BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#D55E00")
    for i, (name, losses) in enumerate(series.items()):
        style = ("-", "--", "-.", ":")[i // len(colours) % 4]
        axes.plot(range(1, len(losses) + 1), losses, color=colours[i % len(colours)], linestyle=style, label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean negative log-likelihood (nats)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    return svg(figure)
