"""Formats ε and δ consistently for display: ε 5, δ 1e-5."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from mechanisms.privacy.numerics import epsilon_text


def left_text(value: Decimal) -> str:
    """A remaining epsilon, rounded down."""
    return epsilon_text(value, rounding=ROUND_FLOOR)


def delta_text(value: Decimal | float, *, rounding: str = ROUND_CEILING) -> str:
    """A delta with three digits, rounded up if it is spent: 1e-5, 0.001."""
    exact = Decimal(repr(value) if isinstance(value, float) else value)
    return re.sub(r"e-0*", "e-", f"{float(Context(prec=3, rounding=rounding).plus(exact)):g}")


def one_line(text: str) -> str:
    """Text with a space instead of every line break and tab. In Markdown a lone carriage return
    also ends a line.
    """
    return re.sub(r"[^\S ]", " ", text)


def escape(cell: str) -> str:
    """Escapes text for a Markdown table or paragraph, so that it creates no markup, cell or
    line.
    """
    text = one_line(cell).replace("\\", "\\\\").replace("<", "&lt;")
    for mark in "|*_`[]~":
        text = text.replace(mark, "\\" + mark)
    return text
