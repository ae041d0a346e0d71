"""Draws figures as SVG for pages in a common style, with the colours of Okabe and Ito."""

from __future__ import annotations

import io
from typing import Any

BLUE, ORANGE, GREEN, BLACK = "#0072B2", "#E69F00", "#009E73", "#000000"


def figure_of(title: str, *, height: float = 3.6) -> tuple[Any, Any]:
    """Returns a figure in the common style, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    return figure, axes


def svg(figure: Any) -> str:
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "autocoder", "svg.fonttype": "path"}):
        figure.savefig(
            out, format="svg", facecolor="white", metadata={"Date": None, "Creator": None}
        )
    text = out.getvalue()
    return text[text.index("<svg") :]
