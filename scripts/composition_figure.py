"""Draws docs/composition.svg: epsilon of n releases of (1, 1e-6), added up and composed exactly, under a cap of 10."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from storage.ledger.composition import Loss, gaussian_loss, total

COUNT, CAP, DELTA = 120, 10, Decimal("0.001")


def main() -> None:
    """Writes the picture."""
    one = gaussian_loss(Decimal(1), Decimal("0.000001"))
    numbers = range(1, COUNT + 1)
    exact = [float(total(Loss().plus(one, n), rule="gaussian", delta=DELTA)) for n in numbers]
    matplotlib.rcParams["svg.hashsalt"] = "composition"
    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, *numbers], [0.0, *exact], label="exact: 108 releases fit")
    axes.plot([0, COUNT], [0, COUNT], linestyle="--", label="basic: 10 releases fit")
    axes.axhline(CAP, color="black", linewidth=0.8)
    axes.annotate("cap", (1, CAP), xytext=(0, 3), textcoords="offset points")
    axes.set(xlim=(0, COUNT), ylim=(0, 15), xlabel="releases of ε 1 (δ 1e-6)", ylabel="ε of all (δ 1e-3)")
    axes.legend(loc="lower right")
    FigureCanvasSVG(figure).print_svg(Path("docs/composition.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
