#!/usr/bin/env python
"""Draws the diagrams of the documentation as SVG, from the boxes and arrows below, and the plot of
how budgets add up, from the ledger's own sums.

    python scripts/diagrams.py            # writes docs/pictures/*.svg
    python scripts/diagrams.py --check    # fails if a file differs

Boxes are placed on a grid, and an arrow joins the nearest sides of two boxes.
docs/pictures/commands.yaml lists the commands for all other pictures.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from decimal import Decimal
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLUMN, ROW = 196, 112
BOX = (164, 64)
MARGIN = 20

STYLE = """
  .box { stroke: #1f3a5f; stroke-width: 1.5; fill: #eef3f9; }
  .private { fill: #fdf3e3; stroke: #8a5a00; }
  .person { fill: #e9f5ec; stroke: #1d6b35; }
  .public { fill: #ffffff; stroke: #1f3a5f; stroke-dasharray: 5 3; }
  .title { font: 600 13px system-ui, sans-serif; fill: #14202e; }
  .note { font: 11px system-ui, sans-serif; fill: #3b4a5a; }
  .arrow { stroke: #3b4a5a; stroke-width: 1.4; fill: none; }
  .label { font: 11px system-ui, sans-serif; fill: #3b4a5a; }
  .ground { fill: #ffffff; }
"""


@dataclass(frozen=True)
class Box:
    """A box at a grid position; `note` may have two lines."""

    column: float
    row: float
    title: str
    note: str = ""
    kind: str = ""

    @property
    def left(self) -> float:
        return MARGIN + self.column * COLUMN

    @property
    def top(self) -> float:
        return MARGIN + self.row * ROW

    @property
    def centre(self) -> tuple[float, float]:
        return self.left + BOX[0] / 2, self.top + BOX[1] / 2


@dataclass(frozen=True)
class Arrow:
    start: str
    end: str
    label: str = ""


@dataclass(frozen=True)
class Diagram:
    """Boxes by name, and the arrows between them. Screen readers read `description`."""

    description: str
    boxes: dict[str, Box]
    arrows: tuple[Arrow, ...]


DIAGRAMS = {
    "life-of-a-release": Diagram(
        "Records are trained on, a plan is written, audited and approved, the budget is charged, "
        "a bundle is sealed, handed over, adopted by the partner, and used to code narratives.",
        {
            "train": Box(0, 0, "autocoder train", "records stay private|writes a plan", "private"),
            "audit": Box(
                1, 0, "autocoder audit", "attacks the model|bounds ε from below", "private"
            ),
            "approve": Box(
                2, 0, "autocoder approve", "an officer reads the|plan and signs it", "person"
            ),
            "release": Box(
                3, 0, "autocoder release", "charges the budget|seals the bundle", "private"
            ),
            "ledger": Box(3, 1, "ledger", "reserved, drawn,|committed or burned", "private"),
            "handover": Box(4, 0, "autocoder handover", "archive for one|named partner", ""),
            "adopt": Box(4, 1, "autocoder adopt", "verifies signature,|proof and model", "public"),
            "code": Box(4, 2, "autocoder code", "the partner's own|narratives", "public"),
            "revoke": Box(3, 2, "autocoder revoke", "partners refuse it|from then on", ""),
        },
        (
            Arrow("train", "audit"),
            Arrow("audit", "approve"),
            Arrow("approve", "release"),
            Arrow("release", "ledger"),
            Arrow("release", "handover"),
            Arrow("handover", "adopt"),
            Arrow("adopt", "code"),
            Arrow("revoke", "code"),
        ),
    ),
    "running-parts": Diagram(
        "Prefect's server hands runs to three workers with different rights. Training reads the "
        "records; releasing holds the signing key; upkeep verifies and backs up. All use the "
        "ledger database with roles of their own.",
        {
            "operator": Box(0, 0, "operator", "form, schedule|or terminal", "person"),
            "server": Box(1, 0, "Prefect server", "runs and states;|never a record", ""),
            "training": Box(2, 0, "worker: training", "records, features,|fits", "private"),
            "releasing": Box(2, 1, "worker: releasing", "signing key,|bundles", "private"),
            "upkeep": Box(2, 2, "worker: upkeep", "verify, backups,|alarms", ""),
            "store": Box(3, 0, "stage store", "private/stages|by digest", "private"),
            "ledger": Box(3, 1, "ledger database", "SQLite or|PostgreSQL", "private"),
            "officer": Box(0, 1, "disclosure officer", "signs a plan", "person"),
            "outbox": Box(3, 2, "bundles, outbox", "all that leaves", "public"),
        },
        (
            Arrow("operator", "server"),
            Arrow("server", "training"),
            Arrow("server", "releasing"),
            Arrow("server", "upkeep"),
            Arrow("officer", "server"),
            Arrow("training", "store"),
            Arrow("releasing", "ledger"),
            Arrow("upkeep", "ledger"),
            Arrow("releasing", "outbox"),
        ),
    ),
    "one-epsilon": Diagram(
        "A target ε fixes the noise. The event that ran gives the claim. The plan shows it, "
        "officers sign it, the ledger charges it, and the statement in the bundle repeats it.",
        {
            "target": Box(0, 0, "target ε, δ", "chosen by the|agency", "person"),
            "noise": Box(1, 0, "noise", "solved for the|planned steps", ""),
            "event": Box(2, 0, "event", "what really ran,|in numbers", ""),
            "claim": Box(3, 0, "claim", "ε, δ, unit, neighbours,|assumptions", ""),
            "plan": Box(3, 1, "plan", "claim and digests;|officers sign it", "person"),
            "audit": Box(2, 1, "audit", "lower bound on ε;|may contradict", ""),
            "account": Box(2, 2, "account", "adds releases of|the same records", "private"),
            "statement": Box(3, 2, "statement", "in the bundle, with|a ledger proof", "public"),
        },
        (
            Arrow("target", "noise"),
            Arrow("noise", "event"),
            Arrow("event", "claim"),
            Arrow("claim", "plan"),
            Arrow("audit", "plan"),
            Arrow("plan", "statement"),
            Arrow("account", "statement"),
        ),
    ),
}


def drawn(diagram: Diagram) -> str:
    """Draws one diagram as an SVG document."""
    boxes = diagram.boxes.values()
    width = max(box.left for box in boxes) + BOX[0] + MARGIN
    height = max(box.top for box in boxes) + BOX[1] + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img">',
        f"<title>{escape(diagram.description)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 Z" fill="#3b4a5a"/></marker></defs>',
        f'<rect class="ground" width="{width:g}" height="{height:g}"/>',
    ]
    parts += [
        _arrow(diagram.boxes[arrow.start], diagram.boxes[arrow.end]) for arrow in diagram.arrows
    ]
    for box in boxes:
        parts += _box(box)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(box: Box) -> list[str]:
    x, _ = box.centre
    lines = [
        f'<rect class="box {box.kind}" x="{box.left:g}" y="{box.top:g}" width="{BOX[0]}" '
        f'height="{BOX[1]}" rx="7"/>',
        f'<text class="title" x="{x:g}" y="{box.top + 20:g}" text-anchor="middle">'
        f"{escape(box.title)}</text>",
    ]
    for number, note in enumerate(box.note.split("|")):
        lines.append(
            f'<text class="note" x="{x:g}" y="{box.top + 37 + 15 * number:g}" '
            f'text-anchor="middle">{escape(note)}</text>'
        )
    return lines


def _arrow(start: Box, end: Box) -> str:
    """Draws a line between the nearest sides: sideways if the columns differ, else up or down."""
    (x1, y1), (x2, y2) = start.centre, end.centre
    if abs(end.column - start.column) > 0.5:
        side = BOX[0] / 2 if x2 > x1 else -BOX[0] / 2
        x1, x2 = x1 + side, x2 - side
        middle = (x1 + x2) / 2
        path = f"M{x1:g},{y1:g} C{middle:g},{y1:g} {middle:g},{y2:g} {x2:g},{y2:g}"
    else:
        side = BOX[1] / 2 if y2 > y1 else -BOX[1] / 2
        path = f"M{x1:g},{y1 + side:g} L{x2:g},{y2 - side:g}"
    return f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>'


def composition() -> str:
    """Plots the ε of up to 120 releases of ε 1 under a cap of ε 10, by both rules."""
    sys.path.insert(0, str(ROOT))
    from storage.ledger.composition import Loss, Rule, gaussian_loss, more, total
    from tasks.pages.svg import BLUE, ORANGE, figure_of, svg

    cap, delta = Decimal(10), Decimal("0.001")
    loss = gaussian_loss(Decimal(1), Decimal("0.000001"))
    figure, axes = figure_of("ε of many releases of the same records")
    for name, rule, colour in (("exact", "gaussian", BLUE), ("basic", "basic", ORANGE)):
        chosen: Rule = rule
        spent, line = Loss(), [0.0]
        for _ in range(120):
            spent = spent.plus(loss)
            line.append(float(total(spent, rule=chosen, delta=delta)))
        fit = more(Loss(), loss, rule=chosen, epsilon=cap, delta=delta)
        axes.plot(line, color=colour, label=f"{name}: {fit} releases fit")
    axes.axhline(float(cap), color="black", linewidth=1)
    axes.text(1, 10.2, "cap")
    axes.set(xlim=(0, 120), ylim=(0, 15))
    axes.set_xlabel("releases of ε 1 (δ 1e-6)")
    axes.set_ylabel("ε of all (δ 1e-3)")
    axes.legend(loc="lower right")
    return svg(figure)


def main() -> None:
    files = {PICTURES / f"{name}.svg": drawn(diagram) for name, diagram in DIAGRAMS.items()}
    files[PICTURES / "composition.svg"] = composition()
    if "--check" in sys.argv[1:]:
        stale = [
            file.name
            for file, text in files.items()
            if not file.is_file() or file.read_text(encoding="utf-8") != text
        ]
        sys.exit(f"stale: {', '.join(stale)}. Run scripts/diagrams.py" if stale else 0)
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
