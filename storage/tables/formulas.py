"""Cells that a table program would take for formulas, made text."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)*([eE][+-]?\d+)?%?")


def harmless(text: str) -> str:
    """A cell that no table program takes for a formula: one that begins like a formula gets an apostrophe before it.

    Plain numbers stay, `-5` among them. The rule is OWASP's (CSV injection): = + - @, tab, carriage return, also behind
    blanks and in the full-width forms of Asian keyboards.
    """
    start = text.lstrip(" \n")[:1]
    if start and start in "=+-@\t\r＝＋－＠" and not _NUMBER.fullmatch(text.strip(" \n")):
        return "'" + text
    return text


def quoted(text: str) -> str:
    """`harmless`, in a form from which `unquoted` gets back every text."""
    return "'" + text if text.startswith("'") or harmless(text) != text else text


def unquoted(cell: str) -> str:
    """The text that `quoted` made a cell of; one that was written without it stays as it is."""
    return cell[1:] if cell[:1] == "'" and quoted(cell[1:]) == cell else cell
