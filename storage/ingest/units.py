"""Reads the ids of privacy units. All spellings of an id are one unit, and a cell must contain one
id.

Merging two units by mistake only costs records. Treating one unit as two would allow it twice the
records of the claim, so ids are compared more loosely than codes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.codelist import normalise_code
from storage.tables.source import to_arrow

_NUMBER = re.compile(r"\d+([.,]\d+)?[eE]\+?(\d{1,2})", re.ASCII)
_ZEROS_BEHIND = re.compile(r"^(\d+)[.,]0+$", re.ASCII)
_BETWEEN = re.compile(r"\s*[;|,&+/]\s*")
"""Separators between several ids in one cell."""
_BLANKS_TOO = re.compile(r"[;|,&+/\s]+")
_LISTED = re.compile(r"\s*[;|]\s*")
"""Separators that occur in lists but not inside ids."""
_JOINTS = r"[\s.,\-\x{2013}_/]+"


def unit_form(cell: str) -> str:
    """The form that all spellings of an id share: normalised like a code, in one Unicode form
    (NFKC, Unicode 3.13 D146), case-folded, without leading zeros, and with the exponent of a
    number expanded.
    """
    form = _ZEROS_BEHIND.sub(r"\1", _without_case(normalise_code(cell)))
    if number := _NUMBER.fullmatch(form):
        digits, places = re.sub(r"[.,]|e.*", "", form), len(number[1] or ",") - 1
        form = digits + "0" * max(int(number[2]) - places, 0)
    return form.lstrip("0") or form[-1:]


def _without_case(code: str) -> str:
    """The code in compatibility form and case-folded, however its letters are composed."""
    form = unicodedata.normalize("NFD", code).casefold()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", form).casefold())


_PLAIN = r"^[A-Za-z0-9_\-#][A-Za-z0-9_\-# ]*$"
_EXPONENT = r"^[0-9]+[eE][0-9]+$"
"""Cells whose form is lower case without leading zeros, except for numbers with an exponent."""


def unit_forms(cells: pa.Array) -> pa.Array:
    """`unit_form` of each cell, which must have no outer whitespace. Most cells are processed
    vectorised.
    """
    odd = _matches(cells, _EXPONENT)
    plain = pc.call_function("and", [_matches(cells, _PLAIN), pc.call_function("invert", [odd])])
    lower = pc.call_function("ascii_lower", [cells])
    forms = pc.call_function("ascii_ltrim", [lower], pc.TrimOptions("0"))
    nothing, zero = to_arrow(["", "0"])  # Python strings would import pandas
    empty = pc.call_function("equal", [forms, nothing])
    zeros = pc.call_function("and", [empty, pc.call_function("not_equal", [cells, nothing])])
    forms = pc.call_function("if_else", [zeros, zero, forms])
    remaining = pc.call_function("invert", [plain])
    read = [unit_form(cell) if cell else "" for cell in cells.filter(remaining).to_pylist()]
    return pc.call_function("replace_with_mask", [forms, remaining, to_arrow(read)])


def _matches(cells: pa.Array, pattern: str) -> pa.Array:
    return pc.call_function("match_substring_regex", [cells], pc.MatchSubstringOptions(pattern))


def several_ids(forms: pa.Array) -> pa.Array:
    """Whether each of the distinct ids combines several: ids that also occur alone in other cells,
    or list items with the same shape.
    """
    listed = _matches(forms, r"[;|,&+/\s]")
    suspects = forms.filter(listed).to_pylist()
    parts = {part for form in suspects for split in _splits(form) for part in split}
    candidates = to_arrow(sorted(parts))
    standalone = set(
        candidates.filter(
            pc.call_function("is_in", [candidates], pc.SetLookupOptions(forms))
        ).to_pylist()
    )
    several = np.array([_is_several(form, standalone) for form in suspects], np.bool_)
    return pc.call_function("replace_with_mask", [listed, listed, to_arrow(several)])


def _splits(form: str) -> Iterator[list[str]]:
    for between in (_BETWEEN, _BLANKS_TOO):
        yield [unit_form(part) for part in between.split(form) if part.strip()]


def _is_several(form: str, known: set[str]) -> bool:
    for parts in _splits(form):
        if len(parts) > 1 and all(part in known for part in parts):
            return True
    listed = [part for part in _LISTED.split(form) if part]
    return len(listed) > 1 and len({_shape(part) for part in listed}) == 1 and "9" in _shape(form)


def _shape(part: str) -> str:
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", part))


def unit_notes(cells: NDArray[np.int64], forms: pa.Array) -> list[str]:
    """Counts ids with several spellings, and ids that differ only in punctuation, as sentences.

    Args:
        cells: number of distinct cells of each form.
    """
    joined = pc.call_function(
        "replace_substring_regex", [forms], pc.ReplaceSubstringOptions(_JOINTS, "")
    )
    alike = np.bincount(np.from_dlpack(joined.dictionary_encode().indices))
    notes = []
    if (spelt := cells[cells > 1]).size:
        notes.append(
            f"{spelt.sum():,} ids of units differ in .0, leading zeros, case or Unicode form "
            f"alone, and count as {spelt.size:,} units"
        )
    if (together := alike[alike > 1]).size:
        notes.append(
            f"{together.sum():,} ids of units would be {together.size:,} without blanks, "
            "points and hyphens; they count as different: where they are not, write them alike"
        )
    return notes
