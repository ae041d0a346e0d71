"""Reads codes that were written in another way than their list has them; no sentence here quotes a
value.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from storage.codelist import describe_shape, normalise_code
from storage.errors import InputError
from storage.tables.options import MARKS

_FORMS: Final[Mapping[str, Callable[[str], str]]] = {
    "without the text behind a dash": lambda code: re.split(r"\s+[-\u2013\u2014:]\s+|:\s|\t", code)[
        0
    ].strip(),
    "in another case": str.casefold,
    "with or without points, commas, hyphens and blanks": lambda code: re.sub(
        r"[.,\-\u2013/\s]", "", code
    ),
    "with other leading zeros": lambda code: code.lstrip("0") or code[-1:],
}
"""Forms that two spellings of one code share, in the order in which they are applied together."""
_SHEET_NUMBER = re.compile(r"\d([.,]\d+)?[eE]\+?\d+")
_SEVERAL = re.compile(r"[;,|/&+]|\s+")


def _together(code: str) -> str:
    for form in _FORMS.values():
        code = form(code)
    return code


_TOO_MANY = 10
"""Codes by people, none of which is among the model's: then the column has something else."""


class Spellings:
    """Finds the listed code that a value means, where its forms leave one alone."""

    def __init__(self, listed: Collection[str]) -> None:
        self._listed = set(listed)
        self._index = {name: _by_form(form, listed) for name, form in _FORMS.items()}
        self._all = _by_form(_together, listed)

    def match(self, value: str) -> str | None:
        """Returns the only listed code with the same forms."""
        matches = self._all.get(_together(value), ())
        return matches[0] if len(matches) == 1 else None

    def described(self, values: Mapping[str, int]) -> str:
        """Says how many records would have a listed code under each form; empty where none would."""
        total = sum(values.values())
        notes = []
        for name, form in _FORMS.items():
            if count := sum(
                n for value, n in values.items() if len(self._index[name].get(form(value), ())) == 1
            ):
                notes.append(f"{_of(count, total)} would be on the list {name}")
        together = sum(n for value, n in values.items() if self.match(value))
        if together and not notes:
            notes.append(
                f"{_of(together, total)} would be on the list with several of its forms changed"
            )
        several = sum(n for value, n in values.items() if self._is_several(value))
        return "; ".join(
            [
                *notes,
                *([f"{_of(several, total)} would be several listed codes"] if several else []),
                *odd(values),
            ]
        )

    def _is_several(self, value: str) -> bool:
        parts = [part for part in _SEVERAL.split(value) if part]
        return len(parts) > 1 and all(part in self._listed or self.match(part) for part in parts)


def _of(count: int, total: int) -> str:
    return "every one of them" if count == total else f"{count:,} of {total:,}"


def _by_form(form: Callable[[str], str], codes: Iterable[str]) -> dict[str, list[str]]:
    index: dict[str, list[str]] = defaultdict(list)
    for code in codes:
        index[form(code)].append(code)
    return index


def odd(values: Mapping[str, int]) -> list[str]:
    """Says how many records have a code that a spreadsheet turned into a number with an exponent."""
    numbers = sum(count for value, count in values.items() if _SHEET_NUMBER.fullmatch(value))
    return (
        [f"{numbers:,} are a spreadsheet's numbers with an exponent, whose digits are lost"]
        if numbers
        else []
    )


def twins(codes: Mapping[str, int]) -> list[str]:
    """Says, of codes without a list, which may be one code in several spellings, or several codes
    in one cell.

    Args:
        codes: records by code.
    """
    notes = []
    for name, form in _FORMS.items():
        groups = [group for group in _by_form(form, codes).values() if len(group) > 1]
        if groups:
            records = sum(codes[code] for group in groups for code in group)
            notes.append(
                f"{sum(map(len, groups)):,} codes of {records:,} records would be "
                f"{len(groups):,} codes {name}"
            )
    several = [
        code
        for code in codes
        if len(parts := _SEVERAL.split(code)) > 1 and all(part in codes for part in parts)
    ]
    if several:
        notes.append(
            f"{len(several):,} codes of {sum(codes[code] for code in several):,} records are "
            "made of other codes"
        )
    return [*notes, *(f"of the codes, {fault}" for fault in odd(codes))]


def human_codes(
    cells: Iterable[str],
    listed: Collection[str],
    *,
    place: str,
    allowed: bool = False,
    complete: bool = True,
    marks: Collection[str] = MARKS,
) -> tuple[list[str], str]:
    """Reads the codes that people gave, against a list; every cell is counted as listed, unlisted
    or missing.

    Other spellings count only where every cell that is not listed has a listed one.

    Args:
        place: option, file and column, for the message.
        allowed: unlisted codes count as codes of their own.
        complete: the list has every code; otherwise a code beside it may be right.

    Returns:
        a code for each cell, in the list's spelling, "" where it has none; and a sentence that
        accounts for all.

    Raises:
        InputError: a code is not on a complete list, or none of many is on any.
    """
    codes = [normalise_code(cell, listed) for cell in cells]
    codes = ["" if code in marks and code not in listed else code for code in codes]
    odd_ones = Counter(code for code in codes if code and code not in listed)
    spellings = Spellings(listed)
    matches = {code: spellings.match(code) for code in odd_ones}
    respelt, unlisted = 0, odd_ones.total()
    if all(matches.values()):
        respelt, unlisted = unlisted, 0
        codes = [matches.get(code) or code for code in codes]
    missing = codes.count("")
    given = len(codes) - missing
    where = "on the list" if complete else "among the model's codes of the file"
    if unlisted and not allowed and (complete or unlisted == given >= _TOO_MANY):
        hint = spellings.described(odd_ones)
        raise InputError(
            f"{place}: {unlisted:,} of {given:,} codes are not {where} ({describe_shape(odd_ones)}"
            f"{'; ' + hint if hint else ''}). Correct them, give the list that has them, or "
            "leave their cells blank: blank ones are counted. --allow-unlisted takes them as "
            "they are"
        )
    return codes, (
        f"{len(codes):,} rows coded by people: {given - unlisted:,} {where}"
        f"{f' ({respelt:,} in another spelling)' if respelt else ''}, {unlisted:,} not, "
        f"{missing:,} without a code"
    )
