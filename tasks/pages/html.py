"""What the private pages share: style sheet, figures as SVG, tables. Colours are Okabe and Ito's."""

from __future__ import annotations

import html
import io
from typing import Any

Table = tuple[list[str], list[list[str]]]
"""Head and rows."""

BLUE, ORANGE, GREEN, BLACK = "#0072B2", "#E69F00", "#009E73", "#000000"

STYLE = """
:root{color-scheme:light dark;--fg:#1b1b1b;--bg:#fff;--line:#c4c4c4;--warn:#fff3d6;--link:#00558a}
@media(prefers-color-scheme:dark){:root{--fg:#e8e8e8;--bg:#171717;--line:#4a4a4a;--warn:#453500;--link:#7cc4ff}}
@media print{:root{--fg:#000;--bg:#fff;--line:#999;--warn:#fff}details{break-inside:auto}a.csv{display:none}
figure,tr{break-inside:avoid}h2,h3{break-after:avoid}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:70rem;margin:2rem auto;
padding:0 1rem}a{color:var(--link)}.warn{background:var(--warn);border:2px solid #d55e00;padding:.7rem 1rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.25rem .6rem;text-align:right;white-space:nowrap}
th{white-space:normal;vertical-align:bottom}td:first-child,th:first-child{text-align:left}
td.long{white-space:normal;min-width:11rem}
figure{margin:1rem 0;background:#fff;padding:.4rem;max-width:48rem}svg{max-width:100%;height:auto}
@page{size:A4 landscape;margin:12mm}
@media print{body{max-width:none;margin:0}.wide{overflow:visible}table{width:100%;font-size:8.5px}
th,td{padding:.15rem .3rem;white-space:normal}td.long{min-width:6rem}}
"""
"""Light, dark and print; figures stay on white."""


def figure_of(title: str, *, height: float = 3.6) -> tuple[Any, Any]:
    """A figure of the house style, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    return figure, axes


def svg(figure: Any) -> str:
    """A figure as an SVG element, the same bytes for the same figure."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "autocoder", "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def own_ids(svg: str, name: str) -> str:
    """Make the ids of one picture its own, since all are in one document."""
    return svg.replace('id="', f'id="{name}-').replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")


_LONG = 26


def _cell(text: str) -> str:
    return f"<td{' class=long' if len(text) > _LONG else ''}>{html.escape(text)}</td>"


def html_table(table: Table) -> str:
    """A table whose first column is text."""
    head, rows = table
    cells = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
