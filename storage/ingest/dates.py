"""Reads the dates of records and the cohorts that they belong to; no message has a date."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Final

from storage.ingest.config import Cohort

_YEARS = range(1900, 2101)
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ].*)?", re.ASCII)
SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[T ].*)?", re.ASCII)
"""A date with slashes, which is read month first where no format is given."""
_FORMATS = (
    *(
        "%d/%m/%Y",
        "%d.%m.%Y",
        "%d-%m-%Y",
        "%m-%d-%Y",
        "%Y/%m/%d",
        "%Y%m%d",
        "%d/%m/%y",
        "%m/%d/%y",
        "%d-%b-%Y",
    ),
    *("%d.%m.%y", "%d%b%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%Y", "%Y-%m", "%m/%Y"),
)
NO_DAYS: Final = frozenset(date(year, 1, 1) for year in (1900, 1901, 1970))
"""Days that programs write where there is no date."""
_TRIED = 1000
_WIDTHS: Final = {"Y": 4, "y": 2, "m": 2, "d": 2, "j": 3, "H": 2, "M": 2, "S": 2}


def day_of(cell: str, date_format: str | None) -> date | None:
    """Returns the day that a cell names; None where it names none between 1900 and 2100."""
    day = _parsed(cell, date_format)
    return day if day is not None and day.year in _YEARS else None


def _parsed(cell: str, date_format: str | None) -> date | None:
    try:
        if date_format is not None:
            if not _fits(cell, date_format):
                return None
            return datetime.strptime(cell, date_format).date()
        if match := _ISO.fullmatch(cell):
            return date(int(match[1]), int(match[2]), int(match[3]))
        if match := SLASHED.fullmatch(cell):
            return date(int(match[3]), int(match[1]), int(match[2]))
    except ValueError:
        pass
    return None


def _fits(cell: str, date_format: str) -> bool:
    """Checks the widths of numbers that nothing separates: strptime reads 1012020 by %m%d%Y as
    October, where a leading zero was lost.
    """
    widths = _fixed_widths(date_format)
    return widths is None or widths.fullmatch(cell) is not None


@lru_cache(maxsize=64)
def _fixed_widths(date_format: str) -> re.Pattern[str] | None:
    numbers = re.compile(rf"(?:%[{''.join(_WIDTHS)}]){{2,}}")
    if not numbers.search(date_format):
        return None
    place, pattern = 0, ""
    for run in numbers.finditer(date_format):
        pattern += _between(date_format[place : run.start()])
        pattern += "".join(rf"\d{{{_WIDTHS[sign]}}}" for sign in run[0][1::2])
        place = run.end()
    return re.compile(pattern + _between(date_format[place:]), re.ASCII)


def _between(part: str) -> str:
    return "".join(
        ".+?" if piece.startswith("%") else r"\s*" if piece.isspace() else re.escape(piece)
        for piece in re.findall(r"%.|\s+|[^%\s]", part)
    )


def causes(unread: Sequence[tuple[str, int]], date_format: str | None) -> str:
    """Says how many records have a date that cannot be used for a reason that is known.

    Args:
        unread: cells that name no day, with their records.
    """
    far = sum(
        count
        for cell, count in unread
        if (day := _parsed(cell, date_format)) is not None and day.year not in _YEARS
    )
    narrow = sum(
        count for cell, count in unread if cell and date_format and not _fits(cell, date_format)
    )
    said = []
    if far:
        said.append(f"{far:,} have a year before {_YEARS[0]} or after {_YEARS[-1]}")
    if narrow:
        said.append(
            f"{narrow:,} have another length than {date_format} writes, so that they read in two "
            "ways: a leading zero may have been lost"
        )
    return "".join(f"; {sentence}" for sentence in said)


def fitting(unread: Sequence[str], *, month_first: bool) -> str:
    """Says which formats read every one of the cells; empty where none does."""
    cells = [
        re.split(r"[T ]", cell)[0] if ":" in cell else cell
        for cell in filter(None, unread[:_TRIED])
    ]
    if cells and all(re.fullmatch(r"[2-6]\d{4}", cell, re.ASCII) for cell in cells):
        return (
            "; they are a spreadsheet's numbers of days: give that column the format of a "
            "date and save it again"
        )
    formats = [form for form in _FORMATS if cells and all(day_of(cell, form) for cell in cells)]
    if not formats or ("%d/%m/%Y" in formats and month_first):
        return ""
    return f"; every one of the others reads as {' or '.join(formats)}"


def cohort_of(day: date, cohort: Cohort) -> str:
    if cohort == "month":
        return f"{day.year}-{day.month:02}"
    return f"{day.year}-Q{(day.month + 2) // 3}" if cohort == "quarter" else str(day.year)
