"""The privacy statement for people: what is promised, to whom, and what is not, without a formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.pages.render import render


def statement_page(statement: Mapping[str, Any]) -> str:
    """The statement as a page of Markdown; every figure in it is in `privacy_statement.json`."""
    return render("statement.md", statement=statement)
