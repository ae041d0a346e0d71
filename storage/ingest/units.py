"""Reads the ids of privacy units: an id is one unit in whatever spelling, and a cell has one id.

Two units that are taken for one cost records. One unit that is taken for two would have twice the
records that the claim allows, so that an id is read more loosely than a code.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from storage.codelist import normalise_code

_NUMBER = re.compile(r"\d+([.,]\d+)?[eE]\+?(\d{1,2})", re.ASCII)
_ZEROS_BEHIND = re.compile(r"^(\d+)[.,]0+$", re.ASCII)
_BETWEEN = re.compile(r"\s*[;|,&+/]\s*")
"""Signs between several ids in one cell."""
_BLANKS_TOO = re.compile(r"[;|,&+/\s]+")
_LISTED = re.compile(r"\s*[;|]\s*")
"""Signs that no id has inside it, but a list has."""
_JOINTS = re.compile(r"[\s.,\-\u2013_/]+")


def unit_form(cell: str) -> str:
    """Returns the form that all spellings of an id share: as a code's, without case and without
    leading zeros, and a number with an exponent as its digits.
    """
    form = _ZEROS_BEHIND.sub(r"\1", normalise_code(cell)).casefold()
    if number := _NUMBER.fullmatch(form):
        digits, places = re.sub(r"[.,]|e.*", "", form), len(number[1] or ",") - 1
        form = digits + "0" * max(int(number[2]) - places, 0)
    return form.lstrip("0") or form[-1:]


def several_ids(forms: Collection[str]) -> set[str]:
    """Returns the ids that are made of several: of ids that other cells have alone, or of parts
    with one shape between the signs of a list.
    """
    known = set(forms)
    return {form for form in known if _is_several(form, known)}


def _is_several(form: str, known: set[str]) -> bool:
    if _BLANKS_TOO.search(form) is None:
        return False
    for between in (_BETWEEN, _BLANKS_TOO):
        parts = [unit_form(part) for part in between.split(form) if part.strip()]
        if len(parts) > 1 and all(part in known for part in parts):
            return True
    listed = [part for part in _LISTED.split(form) if part]
    return len(listed) > 1 and len({_shape(part) for part in listed}) == 1 and "9" in _shape(form)


def _shape(part: str) -> str:
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", part))


def unit_notes(cells: Sequence[str], forms: Sequence[str]) -> list[str]:
    """Says how many ids have several spellings, and how many would without their joints.

    Args:
        cells: different ones, with the form of each in `forms`.
    """
    spelt = _groups(zip(forms, cells, strict=True))
    respelt = [group for group in spelt.values() if len(group) > 1]
    joined = [
        group
        for group in _groups((_JOINTS.sub("", form), form) for form in spelt).values()
        if len(group) > 1
    ]
    notes = []
    if respelt:
        notes.append(
            f"{sum(map(len, respelt)):,} ids of units differ in .0, leading zeros or case alone, "
            f"and count as {len(respelt):,} units"
        )
    if joined:
        notes.append(
            f"{sum(map(len, joined)):,} ids of units would be {len(joined):,} without blanks, "
            "points and hyphens; they count as different: where they are not, write them alike"
        )
    return notes


def _groups(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = defaultdict(set)
    for form, value in pairs:
        groups[form].add(value)
    return groups
