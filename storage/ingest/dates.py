"""Reads the dates of records and their cohorts. No message contains a date."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.ingest.config import Cohort
from storage.ingest.growing import GrowingArray

T = TypeVar("T")

_YEARS = range(1900, 2101)
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ].*)?", re.ASCII)
SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[T ].*)?", re.ASCII)
"""A date with slashes, which is read month first if no format is set."""
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
"""Days that programs write for a missing date."""
_TRIED, _REMEMBERED = 1000, 100_000
"""Number of cells with which formats are tried, and number of cells whose day is cached."""
_WIDTHS: Final = {"Y": 4, "y": 2, "m": 2, "d": 2, "j": 3, "H": 2, "M": 2, "S": 2}


def day_of(cell: str, date_format: str | None) -> date | None:
    """The day in a cell; None if it has no day between 1900 and 2100."""
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
    """Checks the widths of adjacent numbers. If a leading zero was lost, strptime with %m%d%Y would
    read 1012020 as a date in October.
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


_MARKS = _NO_DAY, _FAR, _NARROW = -1, -2, -3
"""Marks for cells without a usable day: no date, year out of range, or wrong width for the
format.
"""


class Days:
    """Reads a column of dates batch by batch and stores the number of each day."""

    first: Final = date(_YEARS[0], 1, 1).toordinal()

    def __init__(self, date_format: str | None, rows: int) -> None:
        self._format = date_format
        self._numbers = GrowingArray(np.int32, rows)
        self.month_first = False
        """Whether some date with slashes cannot be read day first."""
        self.ambiguous = 0
        """Number of dates with slashes that can be read both month first and day first."""
        self.unread: dict[str, None] = {}
        """Examples of cells without a usable day."""
        self._known: dict[str, int] = {}

    @property
    def numbers(self) -> NDArray[np.int32]:
        """Days since the first possible one; negative if a cell has no usable day."""
        return self._numbers.values

    def add(self, column: pa.Array) -> None:
        encoded = column.dictionary_encode()
        cells, index = encoded.dictionary.to_pylist(), np.from_dlpack(encoded.indices)
        self._numbers.append(np.array([self._number(cell) for cell in cells], np.int32)[index])
        if self._format is None:
            self._look_at_slashes(cells, np.bincount(index, minlength=len(cells)).tolist())

    def _number(self, cell: str) -> int:
        cached = self._known.get(cell)
        if cached is not None:
            return cached
        number = self._read(cell)
        if number < 0 and cell and len(self.unread) < _TRIED:
            self.unread[cell] = None
        if len(self._known) < _REMEMBERED:
            self._known[cell] = number
        return number

    def _read(self, cell: str) -> int:
        day = _parsed(cell, self._format)
        if day is not None:
            return day.toordinal() - self.first if day.year in _YEARS else _FAR
        narrow = cell and self._format and not _fits(cell, self._format)
        return _NARROW if narrow else _NO_DAY

    def _look_at_slashes(self, cells: Sequence[str], counts: Sequence[int]) -> None:
        for cell, count in zip(cells, counts, strict=True):
            if match := SLASHED.fullmatch(cell):
                month, day = int(match[1]), int(match[2])
                self.month_first = self.month_first or day > 12 >= month
                self.ambiguous += count * (month != day)

    def each(self, name: Callable[[date], T]) -> dict[int, T]:
        """A value for each day that occurs, by the number of the day."""
        present = np.flatnonzero(np.bincount(self.numbers[self.numbers >= 0]))
        return {number: name(self.day(number)) for number in present.tolist()}

    def chosen(self, holds: Callable[[date], bool]) -> NDArray[np.bool_]:
        """The rows with a day for which the predicate holds."""
        return self.per_row(self.each(holds), otherwise=False)

    def per_row(self, values: Mapping[int, Any], *, otherwise: Any) -> NDArray[Any]:
        """The value of each row's day, or `otherwise` if it has none."""
        by_number = np.full(len(_YEARS) * 366 + len(_MARKS), otherwise)
        for number, value in values.items():
            by_number[number] = value
        return by_number[self.numbers]  # negative marks index the end of the array

    @classmethod
    def day(cls, number: int) -> date:
        return date.fromordinal(cls.first + number)

    def causes(self, rows: NDArray[np.bool_]) -> str:
        """How many of these rows have an unusable date for a known reason, as text."""
        causes = []
        if far := int((self.numbers[rows] == _FAR).sum()):
            causes.append(f"{far:,} have a year before {_YEARS[0]} or after {_YEARS[-1]}")
        if narrow := int((self.numbers[rows] == _NARROW).sum()):
            causes.append(
                f"{narrow:,} have another length than {self._format} writes, so that they read in "
                "two ways: a leading zero may have been lost"
            )
        return "".join(f"; {sentence}" for sentence in causes)


def fitting(unread: Collection[str], *, month_first: bool) -> str:
    """The formats that read all of the cells, as text; empty if there are none."""
    cells = [re.split(r"[T ]", cell)[0] if ":" in cell else cell for cell in unread]
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
