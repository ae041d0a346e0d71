"""Splits fixed-width files into columns, and knows the layouts of lists that are published without
a header.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

CUT: Final = "\x1f"
"""Separates the columns of a split line; does not occur in texts."""


class Cut:
    """Splits lines at fixed positions. Outer whitespace of cells is removed, and the last cell
    takes the rest.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        ends: list[int | None] = [*accumulate(widths[:-1])]
        self._places = [slice(start, end) for start, end in pairwise([0, *ends, None])]

    def line(self, line: str) -> str:
        return CUT.join(line[place].strip().replace(CUT, " ") for place in self._places)


@dataclass(frozen=True)
class _Layout:
    line: re.Pattern[str]
    names: tuple[str, ...]
    widths: tuple[int, ...] = ()
    separator: str | None = None


_PUBLISHED = (
    # the order file of ICD-10-CM and ICD-10-PCS
    _Layout(
        re.compile(r"\d{5} [A-Z0-9]{3,7} {1,5}[01] \S.{59} \S.*"),
        ("order", "code", "is_code", "short_description", "title"),
        widths=(6, 8, 2, 61, 400),
    ),
    # code lists of ICD-10-CM and ICD-10-PCS
    _Layout(
        re.compile(r"(?=.{7} [A-Z0-9])[A-Z0-9]{3,7} {1,5}\S.*"), ("code", "title"), widths=(8, 400)
    ),
    # the WHO's codes of ICD-10
    _Layout(
        re.compile(r"[3-6];[NT];[XS];\d\d;[A-Z]\d\d[^;]*(;[^;]*){8,}"),
        (
            *("depth", "place", "kind", "chapter", "block", "code_with_signs", "code"),
            *("code_without_point", "title", "title_3", "title_4", "title_5"),
            *("mortality_1", "mortality_2", "mortality_3", "mortality_4", "morbidity"),
        ),
        separator=";",
    ),
    # MedDRA's terms and groups of terms
    _Layout(re.compile(r"\d{8}\$[^$]+(\$[^$]*){3,11}"), ("code", "title"), separator="$"),
)
_LINES = 20


def published_layout(text: str) -> dict[str, Any]:
    """The options for reading a published list without a header, recognised by its first lines."""
    lines = [line for line in text.splitlines()[:_LINES] if line.strip()]
    if len(lines) < 2:
        return {}
    for layout in _PUBLISHED:
        if all(layout.line.fullmatch(line) for line in lines[:-1]):
            fields = lines[0].count(layout.separator) + 1 if layout.separator else 0
            names = layout.names[:fields] if fields else layout.names
            more = tuple(f"column_{n}" for n in range(len(names) + 1, fields + 1))
            return {
                "names": (*names, *more),
                "widths": layout.widths,
                "separator": layout.separator,
            }
    return {}
