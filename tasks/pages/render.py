"""The templates of every page, filled. What a page says stands in `templates/`; Python brings the figures.

HTML is escaped by itself; Markdown is where the filter `text` is used. A name that a template knows and nobody gave is
an error.
"""

from __future__ import annotations

import base64
import csv
import io
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from storage.ledger.amounts import brief, short
from storage.ledger.report import escape

TEMPLATES = Path(__file__).with_name("templates")

Table = tuple[list[str], list[list[str]]]
"""Head and rows."""


def render(template: str, **values: Any) -> str:
    """One of `templates/`, by its name without `.j2`, filled with these values."""
    return _environment().get_template(f"{template}.j2").render(**values)


def amount(value: str | None) -> str:
    """An exact amount for people: rounded up to six decimals."""
    return "–" if value is None else brief(Decimal(value))


def notes_beside(page: Path) -> str:
    """What a person adds to a generated page: the text of `results.notes.md` for `results.md`, or nothing."""
    notes = page.with_suffix(".notes.md")
    return notes.read_text(encoding="utf-8") if notes.is_file() else ""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "amount": amount,
        "csv_address": _csv_address,
        "exact": lambda value: short(Decimal(value)),
        "figure": lambda value: "none" if value is None else f"{value:.4g}",
        "own_ids": _own_ids,
        "short": short,
        "spoken": _spoken,
        "text": escape,
    }
    return environment


def _own_ids(svg: str, name: str) -> Markup:
    """Make the ids of one picture its own, since all are in one document."""
    renamed = svg.replace('id="', f'id="{name}-').replace('href="#', f'href="#{name}-')
    return Markup(renamed.replace("url(#", f"url(#{name}-"))


def _spoken(text: str) -> Markup:
    """Plain words as HTML, with what stands between backticks as code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # one is open: leave it as it is
        return Markup.escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else Markup.escape(part) for i, part in enumerate(parts)
    )


def _csv_address(table: Table) -> str:
    """A table as CSV in a `data:` address."""
    text = io.StringIO()
    csv.writer(text).writerows([table[0], *table[1]])
    return f"data:text/csv;base64,{base64.b64encode(text.getvalue().encode()).decode()}"
