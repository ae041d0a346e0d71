"""What each row is, without its text: code, cohort, unit, and whether it can be used.

Some 20 to 40 bytes a row are kept, so that a sample of any kind can be drawn before a single narrative is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from storage.codelist import MAX_CODE, Code, normalise_code, shape
from storage.errors import InputError
from storage.ingest.cells import Faults, blank, trimmed
from storage.ingest.config import IngestConfig
from storage.ingest.content import Content
from storage.tables.source import Source

USABLE, NO_CODE, UNKNOWN_CODE, NO_CONTENT, NO_UNIT = range(5)
REASONS = {NO_CODE: "no_code", UNKNOWN_CODE: "code_not_on_list", NO_UNIT: "no_unit"}
ALL = "all"
"""The cohort of a source without dates."""

_YEARS = range(1900, 2101)
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ].*)?", re.ASCII)
_US = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[T ].*)?", re.ASCII)


@dataclass(frozen=True)
class Survey:
    """One entry a row of the source."""

    state: NDArray[np.int8]
    codes: NDArray[np.int32]
    """Index into `code_names`, -1 where there is none."""
    cohorts: NDArray[np.int32]
    """Index into `cohort_names`, -1 where not looked at."""
    units: NDArray[np.uint64] | None
    code_names: list[str]
    cohort_names: list[str]
    unknown: Counter[str]
    respelt: int
    """Cells whose code was written otherwise, such as 111.0."""
    missing: str
    """What records without content lack."""

    def dropped(self) -> dict[str, int]:
        """Rows a reason, those with none left out."""
        counts = Counter(self.state.tolist())
        reasons = REASONS | {NO_CONTENT: self.missing}
        return {name: counts[state] for state, name in reasons.items() if counts[state]}


class Surveyor:
    """Takes the batches of a source in order; `finish` refuses or returns the survey."""

    def __init__(self, source: Source, config: IngestConfig, codelist: Sequence[Code] | None, content: Content) -> None:
        self._source, self._config, self._content = source, config, content
        self._fixed = codelist is not None
        self._code_at = {code.code: at for at, code in enumerate(codelist or ())}
        self._cohort_at: dict[str, int] = {} if config.dates_from else {ALL: 0}
        self._unknown: Counter[str] = Counter()
        self._respelt = 0
        self._kept: dict[str, list[NDArray[Any]]] = {name: [] for name in ("state", "codes", "cohorts", "units", "ids")}
        self._bad_dates, self._no_content, self._no_id = Faults(), Faults(), Faults()
        self._inner_records: dict[int, list[str]] = {}
        self.rows = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Judge the rows of a batch."""
        config, n = self._config, batch.num_rows
        state = np.full(n, USABLE, dtype=np.int8)
        rows = np.arange(self.rows, self.rows + n)
        self.rows += n
        # The last reason written is the one that counts, so the gravest comes last.
        if config.unit_column is not None:
            units = trimmed(batch, config.unit_column)
            state[blank(units)] = NO_UNIT
            self._kept["units"].append(_hashes(units))
        lacking = self._content.lacking(batch, int(rows[0]))
        self._no_content.add(rows[lacking])
        state[lacking] = NO_CONTENT
        codes = self._codes(trimmed(batch, config.label_column), state)
        cohorts = np.zeros(n, dtype=np.int32)
        if config.dates_from is not None:
            cohorts = self._cohorts(trimmed(batch, config.dates_from))
            self._bad_dates.add(rows[(cohorts < 0) & (state == USABLE)])
        if config.id_column is not None:
            ids = trimmed(batch, config.id_column)
            self._no_id.add(rows[blank(ids)])
            # Two keys make 128 bits, at which two ids of a billion rows meet with a probability below 1e-20.
            self._kept["ids"].append(np.stack([_hashes(ids), _hashes(ids, key="fedcba9876543210")], axis=1))
        for name, values in (("state", state), ("codes", codes), ("cohorts", cohorts)):
            self._kept[name].append(values)

    def look_into(self, row: int, cells: tuple[str, ...]) -> None:
        """Judge a row of several lines: a quote left open that meets another one swallows rows into one sound cell.

        Its lines then have as many fields as the header, a date and a code at their places. Whether the code is one is
        known at the end only.
        """
        config, columns = self._config, self._source.columns
        lines = self._source.delimiter.join(cells).splitlines()
        split = [line.split(self._source.delimiter) for line in lines]
        codes: list[str] = []
        whole = 0
        for at, fields in enumerate(split):
            if len(fields) != len(columns):
                continue
            code = fields[columns.index(config.label_column)]
            dated = config.dates_from is None or _day(fields[columns.index(config.dates_from)], config.date_format)
            if dated and 0 < len(code) <= MAX_CODE:
                codes.append(normalise_code(code))
                whole += 0 < at < len(split) - 1
        # The first and the last line alone have the cells beside the broken one, so either says nothing by itself.
        if whole or len(codes) > 1:
            self._inner_records[row] = codes

    def finish(self) -> Survey:
        """All rows together.

        Raises:
            InputError: no records, codes not on the list, records without text, bad dates or ids, one code only.
        """
        source, config = self._source, self._config
        if self.rows == 0:
            raise InputError(f"{source.label} has a header and no records")
        for row, inner in self._inner_records.items():
            if any(code in self._code_at for code in inner):
                raise InputError(
                    f"{source.label}, row {row}: a cell with line breaks, of which {len(inner)} lines would read "
                    "as records of their own; is a quote left open there? Close it, or take the line breaks out"
                )
        self._content.check()
        state, codes, cohorts = (np.concatenate(self._kept[name]) for name in ("state", "codes", "cohorts"))
        column = f"{source.label}, column"
        if self._unknown and config.unknown_codes == "refuse":
            raise InputError(
                f"{column} {config.label_column!r}: {self._unknown.total()} of {self.rows} records have a code that "
                f"the code list lacks ({shape(self._unknown)}); give the right list or column, or set "
                "unknown_codes=drop"
            )
        if self._no_content.count and config.empty_text == "refuse":
            what = "text" if config.kind == "text" else "a value in every column"
            raise InputError(
                f"{source.label}: {self._no_content.count} records without {what} ({self._no_content}); fill "
                "them, or set empty_text=drop"
            )
        if self._bad_dates.count:
            raise InputError(
                f"{column} {config.date_column!r}: {self._bad_dates.count} dates are missing or do not read as "
                f"{config.date_format or '2015-01-31 or 1/31/2015'} ({self._bad_dates}); correct them, set "
                "date_format, or set cohort=none"
            )
        if self._no_id.count:
            raise InputError(f"{column} {config.id_column!r}: {self._no_id.count} ids are blank ({self._no_id})")
        self._check_ids()
        usable = codes[state == USABLE]
        if len(usable) == 0:
            reasons = ", ".join(
                f"{name} {count}" for name, count in self._survey(state, codes, cohorts).dropped().items()
            )
            raise InputError(f"{source.label}: none of {self.rows} records can be used ({reasons})")
        if (usable == usable[0]).all():
            raise InputError(
                f"{column} {config.label_column!r}: all {len(usable)} usable records have one code; a coder needs two"
            )
        return self._survey(state, codes, cohorts)

    def _survey(self, state: NDArray[np.int8], codes: NDArray[np.int32], cohorts: NDArray[np.int32]) -> Survey:
        return Survey(
            state=state,
            codes=codes,
            cohorts=cohorts,
            units=np.concatenate(self._kept["units"]) if self._kept["units"] else None,
            code_names=list(self._code_at),
            cohort_names=list(self._cohort_at),
            unknown=self._unknown,
            respelt=self._respelt,
            missing=self._content.missing,
        )

    def _codes(self, column: pa.Array, state: NDArray[np.int8]) -> NDArray[np.int32]:
        encoded = column.dictionary_encode()
        raw = encoded.dictionary.to_pylist()
        indices = np.asarray(encoded.indices)
        counts = np.bincount(indices, minlength=len(raw))
        found = np.full(len(raw), -1, dtype=np.int32)
        reason = np.full(len(raw), USABLE, dtype=np.int8)
        for at, cell in enumerate(raw):
            if not cell:
                reason[at] = NO_CODE
                continue
            code = normalise_code(cell, self._code_at if self._fixed else ())
            self._respelt += int(counts[at]) * (code != cell)
            if self._fixed and code not in self._code_at:
                reason[at] = UNKNOWN_CODE
                self._unknown[code] += int(counts[at])
                continue
            if len(code) > MAX_CODE:
                raise InputError(
                    f"{self._source.label}, column {self._config.label_column!r} holds values of over {MAX_CODE} "
                    "characters; is it the narrative?"
                )
            found[at] = self._code_at.setdefault(code, len(self._code_at))
        faults = reason[indices]
        state[faults != USABLE] = faults[faults != USABLE]
        return found[indices]

    def _cohorts(self, column: pa.Array) -> NDArray[np.int32]:
        encoded = column.dictionary_encode()
        found = np.empty(len(encoded.dictionary), dtype=np.int32)
        for at, cell in enumerate(encoded.dictionary.to_pylist()):
            day = _day(cell, self._config.date_format)
            cohort = None if day is None else _cohort(day, self._config.cohort)
            found[at] = -1 if cohort is None else self._cohort_at.setdefault(cohort, len(self._cohort_at))
        return found[np.asarray(encoded.indices)]

    def _check_ids(self) -> None:
        if not self._kept["ids"]:
            return
        hashes = np.concatenate(self._kept["ids"])
        order = np.lexsort((hashes[:, 1], hashes[:, 0]))
        same = np.flatnonzero((hashes[order[1:]] == hashes[order[:-1]]).all(axis=1))
        if len(same) == 0:
            return
        doubled = Faults()
        doubled.add(np.unique(np.r_[order[same], order[same + 1]]))
        raise InputError(
            f"{self._source.label}, column {self._config.id_column!r}: {doubled.count} records share an id with "
            f"another ({doubled}); an id must name one record"
        )


def _hashes(column: pa.Array, key: str = "0123456789abcdef") -> NDArray[np.uint64]:
    cells = column.to_numpy(zero_copy_only=False).astype(object)
    return pd.util.hash_array(cells, hash_key=key, categorize=False)


def _day(cell: str, date_format: str | None) -> date | None:
    try:
        if date_format is not None:
            day = datetime.strptime(cell, date_format).date()
        elif match := _ISO.fullmatch(cell):
            day = date(int(match[1]), int(match[2]), int(match[3]))
        elif match := _US.fullmatch(cell):
            day = date(int(match[3]), int(match[1]), int(match[2]))
        else:
            return None
    except ValueError:
        return None
    return day if day.year in _YEARS else None


def _cohort(day: date, cohort: Literal["year", "quarter", "month", "none"]) -> str:
    if cohort == "month":
        return f"{day.year}-{day.month:02}"
    return f"{day.year}-Q{(day.month + 2) // 3}" if cohort == "quarter" else str(day.year)
