"""Spells ε and δ, in one way wherever a person reads them: ε 5, δ 1e-5."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_FOUR = Decimal("0.0001")


def epsilon_text(value: Decimal | float, *, rounding: str = ROUND_CEILING) -> str:
    """Writes an epsilon with at most four decimals, rounded up; with ROUND_FLOOR, of what remains,
    down.
    """
    shown = format(
        Decimal(repr(value) if isinstance(value, float) else value).quantize(
            _FOUR, rounding=rounding
        ),
        "f",
    )
    return shown.rstrip("0").rstrip(".")


def left_text(value: Decimal) -> str:
    """Writes an epsilon that remains, rounded down."""
    return epsilon_text(value, rounding=ROUND_FLOOR)


def delta_text(value: Decimal | float, *, rounding: str = ROUND_CEILING) -> str:
    """Writes a delta with three digits, rounded up where it is spent: 1e-5, 0.001."""
    given = Decimal(repr(value) if isinstance(value, float) else value)
    return re.sub(r"e-0*", "e-", f"{float(Context(prec=3, rounding=rounding).plus(given)):g}")


def one_line(text: str) -> str:
    """Returns text with a space for every line break and tab: a carriage return alone ends a line
    of Markdown too.
    """
    return re.sub(r"[^\S ]", " ", text)


def escape(cell: str) -> str:
    """Return text that stays text inside a Markdown table or paragraph: no markup, no new cell, no
    new line.
    """
    text = one_line(cell).replace("\\", "\\\\").replace("<", "&lt;")
    for mark in "|*_`[]~":
        text = text.replace(mark, "\\" + mark)
    return text
