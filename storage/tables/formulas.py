"""Escapes cells that spreadsheet programs would interpret as formulas."""

import re

_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)*([eE][+-]?\d+)?%?")


def escape_formula(text: str) -> str:
    """Puts an apostrophe before a cell that begins like a formula, so that no spreadsheet program
    evaluates it.

    Plain numbers such as `-5` are unchanged. The rule is OWASP's (CSV injection): = + - @, tab,
    carriage return, including after spaces and in the full-width forms of Asian keyboards.
    """
    start = text.lstrip(" \n")[:1]
    if start and start in "=+-@\t\r＝＋－＠" and not _NUMBER.fullmatch(text.strip(" \n")):
        return "'" + text
    return text


def quote(text: str) -> str:
    """Escapes a formula so that `unquote` can restore every text."""
    return "'" + text if text.startswith("'") or escape_formula(text) != text else text


def unquote(cell: str) -> str:
    """Restores the text of a cell that `quote` escaped; leaves any other cell unchanged."""
    return cell[1:] if cell[:1] == "'" and quote(cell[1:]) == cell else cell
