"""Renders the template of every page. The text of a page is in `templates/`; Python supplies the
figures.

HTML is escaped automatically; Markdown needs the filter `text`. An undefined name in a template is
an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mechanisms.privacy.numerics import epsilon_text, upper_text
from storage.bundle.stated import clear_scores, errs_in_rare_groups, lacks_groups
from storage.figures import delta_text, escape, one_line
from storage.ledger.amounts import brief, short

TEMPLATES = Path(__file__).with_name("templates")

Table = tuple[list[str], list[list[str]]]
"""Header and rows."""


def render(template: str, **values: Any) -> str:
    return _environment().get_template(f"{template}.j2").render(**values)


def amount(value: str | None) -> str:
    """Formats an exact amount for readers: rounded up to six decimals."""
    return "–" if value is None else brief(Decimal(value))


def odds(epsilon: str | float) -> str:
    """Formats e^epsilon, rounded up, with two digits below ten and three above."""
    value = math.exp(min(float(epsilon), 700.0))
    if value >= 1e9:
        return "more than a billion"
    text = upper_text(value, 2 if value < 10 else 3)
    return f"{int(text):,}" if text.isdigit() else text


def one_in(probability: str | float) -> str:
    """Returns n such that the probability is at most one in n."""
    return f"{math.floor(1 / float(probability) * (1 + 1e-12)):,}"


def percent(share: float) -> str:
    """Formats a share as a percentage with one decimal."""
    return f"{100 * share:.1f}%"


def share_with_ends(figure: Mapping[str, float]) -> str:
    """Formats a share with the bounds of its interval."""
    low, high = 100 * figure["low"], 100 * figure["high"]
    return f"{percent(figure['estimate'])} ({low:.1f} to {high:.1f})"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and name.endswith((".html.j2", ".svg.j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "amount": amount,
        "clear_scores": clear_scores,
        "delta": lambda value: delta_text(Decimal(str(value))),
        "epsilon": lambda value: epsilon_text(Decimal(str(value))),
        "errs_in_rare_groups": errs_in_rare_groups,
        "exact": lambda value: short(Decimal(value)),
        "lacks_groups": lacks_groups,
        "figure": lambda value: "none" if value is None else upper_text(value),
        "odds": odds,
        "one_in": one_in,
        "percent": percent,
        "share_with_ends": share_with_ends,
        "inline_code": _inline_code,
        "text": escape,
        "text_and_code": _text_and_code,
    }
    environment.filters |= filters
    return environment


def _inline_code(text: str) -> Markup:
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick: leave the text as it is
        return Markup.escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else Markup.escape(part)
        for i, part in enumerate(parts)
    )


def _text_and_code(text: str) -> str:
    parts = text.split("`")
    if len(parts) % 2 == 0 or "" in parts[1::2]:  # an unpaired backtick: leave the text as it is
        return escape(text)
    # even inside code, a bar ends a table cell
    codes = [one_line(part).replace("|", "\\|") for part in parts[1::2]]
    texts = [escape(part) for part in parts[::2]]
    return texts[0] + "".join(
        f"`{code}`{after}" for code, after in zip(codes, texts[1:], strict=True)
    )
