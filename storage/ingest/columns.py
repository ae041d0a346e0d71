"""From the cells of a batch to what a record is: its text, label, cohort, unit and rank in the sampling."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.codelist import MAX_CODE_LENGTH, CodeList, normalise_code, showable
from storage.errors import InputError
from storage.ingest.config import Cohort, IngestConfig

NO_CODE, UNKNOWN = -1, -2
"""Labels of records without a code and of those whose code the list lacks."""
BAD_DATE = -1
ONE_COHORT = "all"
NOT_SHOWN = "(not shown: does not look like a code)"

_MAX_CODES = 100_000
_MAX_UNKNOWN = 10_000
_DATE_CACHE = 100_000
_US_FORMATS = ("%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M %p")

Batch = dict[str, pa.Array]


def texts(batch: Batch, config: IngestConfig) -> pa.Array:
    """The text of each record: columns joined as the template says; empty where all of them are blank."""
    cells = {name: _clean(batch[name]) for name in config.text_columns}
    if len(cells) == 1 and config.template is None:
        return next(iter(cells.values()))
    blank = {name: pc.equal(column, "") for name, column in cells.items()}
    if config.template is None:
        null = pa.scalar(None, pa.string())
        present = [pc.if_else(blank[name], null, column) for name, column in cells.items()]
        return pc.binary_join_element_wise(*present, "\n", null_handling="skip")
    parts: list[pa.Array | pa.Scalar] = []
    for literal, name in config.template_parts:
        parts.append(pa.scalar(literal))
        if name is not None:
            parts.append(cells[name])
    joined = _clean(pc.binary_join_element_wise(*parts, ""))
    all_blank = blank[config.text_columns[0]]
    for column in blank.values():
        all_blank = pc.and_(all_blank, column)
    return pc.if_else(all_blank, "", joined)


def _clean(column: pa.Array) -> pa.Array:
    """Blanks at the ends cut, line breaks as one character, so that CSVs from two systems give the same text."""
    return pc.utf8_trim_whitespace(pc.replace_substring(column, "\r\n", "\n"))


@dataclass
class Labels:
    """Codes met so far. With a code list an index is its place there; without, the order of appearance."""

    codelist: CodeList | None
    codes: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    normalised: int = 0

    def __post_init__(self) -> None:
        if self.codelist is not None:
            self.codes = [entry.code for entry in self.codelist.codes]
        self._index = {code: index for index, code in enumerate(self.codes)}

    def indices(self, column: pa.Array, *, before: int) -> np.ndarray:
        """Label of each record, int32 [n]; `NO_CODE` and `UNKNOWN` are negative. `before` rows went before these.

        Raises:
            InputError: without a code list, values that cannot be codes.
        """
        encoded = pc.dictionary_encode(column)
        raw = encoded.dictionary.to_pylist()
        place = encoded.indices.to_numpy(zero_copy_only=False)
        counts = np.bincount(place, minlength=len(raw))
        index = np.empty(len(raw), dtype=np.int32)
        for at, value in enumerate(raw):
            code = normalise_code(value)
            if code != value and code:
                self.normalised += int(counts[at])
            found = self._index.get(code)
            if found is None and not code:
                found = NO_CODE
            elif found is None and self.codelist is not None:
                found = self._note_unknown(code, int(counts[at]))
            elif found is None:
                found = self._add(code, row=before + 1 + int((place == at).argmax()))
            index[at] = found
        return index[place] if len(raw) else np.empty(0, dtype=np.int32)

    def _note_unknown(self, code: str, records: int) -> int:
        shown = showable(code) and (code in self.unknown or len(self.unknown) < _MAX_UNKNOWN)
        self.unknown[code if shown else NOT_SHOWN] += records
        return UNKNOWN

    def _add(self, code: str, *, row: int) -> int:
        problem = ""
        if len(code) > MAX_CODE_LENGTH or "\n" in code:
            problem = (
                f"row {row}: the label column holds a text longer than {MAX_CODE_LENGTH} characters, or of two lines"
            )
        elif len(self.codes) >= _MAX_CODES:
            problem = f"row {row}: the label column holds more than {_MAX_CODES:,} different values"
        if problem:
            raise InputError(f"{problem}; name the column that holds the code, or pass a code list")
        self._index[code] = len(self.codes)
        self.codes.append(code)
        return self._index[code]


@dataclass
class Cohorts:
    """Reference periods met so far, by index."""

    period: Cohort
    date_format: str | None
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._index: dict[str, int] = {}
        self._cache: dict[str, int] = {}

    def indices(self, column: pa.Array) -> np.ndarray:
        """Cohort of each record, int32 [n]; `BAD_DATE` where the date is empty or unreadable."""
        encoded = pc.dictionary_encode(column)
        index = np.array([self._of(value) for value in encoded.dictionary.to_pylist()], dtype=np.int32)
        return index[encoded.indices.to_numpy(zero_copy_only=False)] if len(index) else index

    def all_in_one(self, rows: int) -> np.ndarray:
        """The same cohort for every record: int32 [rows]."""
        return np.full(rows, self._place(ONE_COHORT), dtype=np.int32)

    def _of(self, value: str) -> int:
        known = self._cache.get(value)
        if known is not None:
            return known
        day = parse_date(value.strip(), self.date_format)
        found = BAD_DATE if day is None else self._place(period_of(day, self.period))
        if len(self._cache) < _DATE_CACHE:
            self._cache[value] = found
        return found

    def _place(self, name: str) -> int:
        if name not in self._index:
            self._index[name] = len(self.names)
            self.names.append(name)
        return self._index[name]


def parse_date(text: str, date_format: str | None) -> date | None:
    """The day a cell names, or None; years outside 1900 to 2100 count as unreadable."""
    day = _strptime(text, date_format) if date_format is not None else _iso(text)
    if day is None and date_format is None:
        day = next((found for f in _US_FORMATS if (found := _strptime(text, f)) is not None), None)
    return day if day is not None and 1900 <= day.year <= 2100 else None


def _iso(text: str) -> date | None:
    if len(text) < 10 or text[4] != "-":
        return None
    try:
        return datetime.fromisoformat(text).date()
    except ValueError:
        return None


def _strptime(text: str, date_format: str) -> date | None:
    try:
        return datetime.strptime(text, date_format).date()
    except ValueError:
        return None


def period_of(day: date, period: Cohort) -> str:
    """`2015`, `2015Q1`, `2015-01` or `all`."""
    match period:
        case "year":
            return f"{day.year}"
        case "quarter":
            return f"{day.year}Q{(day.month + 2) // 3}"
        case "month":
            return f"{day.year}-{day.month:02d}"
        case "none":
            return ONE_COHORT


def cells(column: pa.Array) -> list[bytes]:
    """Cells with the blanks at their ends cut, as UTF-8."""
    return pc.utf8_trim_whitespace(column).cast(pa.binary()).to_pylist()


def digests(values: list[bytes], *, seed: int | None) -> np.ndarray:
    """BLAKE2b of each value, 16 bytes as two big-endian words: uint64 [n, 2]. Keyed by `seed` if there is one."""
    key = b"" if seed is None else seed.to_bytes(8, "big")
    whole = b"".join(blake2b(value, digest_size=16, key=key).digest() for value in values)
    return np.frombuffer(whole, dtype=">u8").astype(np.uint64).reshape(-1, 2)
