"""Surveys each row without its text: code, cohort, unit, and whether it can be used.

It takes some 20 to 40 bytes per row, so that any sample can be drawn before a single narrative is read.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.codelist import MAX_CODE, Code, describe_shape, normalise_code
from storage.errors import InputError
from storage.ingest.config import Cohort, IngestConfig
from storage.ingest.identity import Digests, digests
from storage.ingest.record_content import Content, Faults, blank, trim
from storage.spelling import Spellings, twins
from storage.tables.source import Source

USABLE, NO_CODE, UNKNOWN_CODE, NO_CONTENT, NO_UNIT, OTHER_COHORT = range(6)
REASONS = {
    NO_CODE: "no_code",
    UNKNOWN_CODE: "code_not_on_list",
    NO_CONTENT: "no_text",
    NO_UNIT: "no_unit",
    OTHER_COHORT: "cohort_not_declared",
}
ALL = "all"
"""The cohort of a source without dates."""

_YEARS = range(1900, 2101)
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ].*)?", re.ASCII)
_US = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[T ].*)?", re.ASCII)


_FORMATS = (
    *("%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y%m%d", "%d/%m/%y", "%m/%d/%y", "%d-%b-%Y"),
    *("%d.%m.%y", "%d%b%Y", "%b %d, %Y", "%d %B %Y"),
)
_TRIED = 1000


@dataclass
class _Slashed:
    """Counts different dates like 1/2/2015, by the ways in which they read, and keeps the first that do not read."""

    both: int = 0
    month_first: int = 0
    unread: list[str] = dataclasses.field(default_factory=list)

    def take(self, cell: str, *, read: bool) -> None:
        match = _US.fullmatch(cell)
        if not read:
            if cell and len(self.unread) < _TRIED:
                self.unread.append(cell)
        elif match and int(match[2]) > 12:
            self.month_first += 1
        elif match and match[1] != match[2]:
            self.both += 1

    @property
    def ambiguous(self) -> bool:
        return bool(self.both and not self.month_first)

    def fitting(self) -> str:
        """Returns the formats that every date without a reading has, in words; of / day first only without others."""
        cells = [re.split(r"[T ]", cell)[0] if ":" in cell else cell for cell in self.unread]
        formats = [one for one in _FORMATS if cells and all(_day(cell, one) for cell in cells)]
        if "%d/%m/%Y" in formats and self.month_first:
            return ""
        return " or ".join(formats)

    def notes(self) -> list[str]:
        if not self.ambiguous:
            return []
        return [
            f"every one of {self.both:,} dates with / reads both ways, and was read month first; where days come first "
            "set data.ingest.date_format=%d/%m/%Y"
        ]


class CodeSurvey:
    """Collects the codes, batch by batch."""

    def __init__(self, source: Source, column: str, codelist: Sequence[Code] | None, *, matched: bool = False) -> None:
        self.column = column
        self.label = f"{source.label}, column {column!r}"
        self.blank = 0
        """Rows whose cell is empty."""
        self.respelt = 0
        """Cells whose code was written otherwise, such as 111.0."""
        self.unknown: Counter[str] = Counter()
        """Rows by code that the list lacks."""
        self._code_at = {code.code: at for at, code in enumerate(codelist or ())}
        self._fixed = codelist is not None
        self._spellings = Spellings(self._code_at) if matched else None
        self._parts: list[NDArray[np.int32]] = []

    @cached_property
    def codes(self) -> NDArray[np.int32]:
        """Returns, after all batches, each row's index into `code_names`, -1 where there is none."""
        return np.concatenate(self._parts)

    @cached_property
    def code_names(self) -> list[str]:
        """Returns, after all batches, the codes of the list, or those observed without one."""
        return list(self._code_at)

    def take(self, column: pa.Array) -> NDArray[np.int8]:
        """Collects a batch's codes; returns for each row `USABLE`, `NO_CODE` or `UNKNOWN_CODE`."""
        encoded = column.dictionary_encode()
        raw = encoded.dictionary.to_pylist()
        indices = np.asarray(encoded.indices)
        counts = np.bincount(indices, minlength=len(raw))
        codes = np.full(len(raw), -1, dtype=np.int32)
        reason = np.full(len(raw), USABLE, dtype=np.int8)
        for at, cell in enumerate(raw):
            if not cell:
                reason[at] = NO_CODE
                self.blank += int(counts[at])
                continue
            code = normalise_code(cell, self._code_at if self._fixed else ())
            if self._spellings is not None and code not in self._code_at:
                code = self._spellings.match(code) or code
            self.respelt += int(counts[at]) * (code != cell)
            if self._fixed and code not in self._code_at:
                reason[at] = UNKNOWN_CODE
                self.unknown[code] += int(counts[at])
                continue
            if len(code) > MAX_CODE:
                raise InputError(f"{self.label} has values of over {MAX_CODE} characters. Give the column of codes")
            codes[at] = self._code_at.setdefault(code, len(self._code_at))
        self._parts.append(codes[indices])
        return reason[indices]

    def described(self) -> tuple[str, bool]:
        """Says how the unknown codes would be on the list, after a semicolon, and whether each would be one of it."""
        spellings = Spellings(self._code_at)
        hint = spellings.described(self.unknown)
        return f"; {hint}" if hint else "", all(map(spellings.match, self.unknown))

    def notes(self) -> list[str]:
        """Says which codes were read in another spelling, and which of those without a list look like one code."""
        notes = [f"{self.respelt:,} codes were read in another spelling, such as 111 for 111.0"] if self.respelt else []
        if not self._fixed:
            counts = np.bincount(self.codes[self.codes >= 0], minlength=len(self._code_at))
            notes += twins(dict(zip(self._code_at, counts.tolist(), strict=True)))
        return notes


@dataclass(frozen=True)
class Survey:
    """Holds one entry per row of the source."""

    state: NDArray[np.int8]
    coded: CodeSurvey
    cohorts: NDArray[np.int32]
    """Index into `cohort_names`, -1 without a date."""
    units: NDArray[np.uint64] | None
    """Hash of the unit; None where there are no units."""
    late: NDArray[np.bool_] | None
    """Rows dated on or after the day of the split; None without such a day."""
    identities: Digests | None
    """Identities of the records, where their use follows from them."""
    unit_identities: Digests | None
    """Identities of the records' units, where all records of a unit go to the same split."""
    cohort_names: list[str]
    notes: tuple[str, ...]
    """What was read in one of several ways, in sentences without a value of a record."""

    @property
    def codes(self) -> NDArray[np.int32]:
        """Returns each row's index into `coded.code_names`, -1 where there is none."""
        return self.coded.codes

    def dropped(self) -> dict[str, int]:
        """Returns the dropped rows by reason, reasons without rows left out."""
        counts = Counter(self.state.tolist())
        return {name: counts[state] for state, name in REASONS.items() if counts[state]}


class Surveyor:
    """Takes the batches of a source in order; `finish` refuses them or returns the survey."""

    def __init__(self, source: Source, config: IngestConfig, codelist: Sequence[Code] | None, content: Content) -> None:
        self._source, self._config, self._content = source, config, content
        matched = config.unknown_codes == "match"
        self._coded = CodeSurvey(source, config.label_column, codelist, matched=matched)
        self._cohort_at: dict[str, int] = {} if config.dated_cohorts else {ALL: 0}
        self._parts: dict[str, list[NDArray[Any]]] = defaultdict(list)
        self._bad_dates, self._no_content, self._no_id, self._outside = Faults(), Faults(), Faults(), Faults()
        self._slashed = _Slashed()
        self.rows = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Surveys the rows of a batch."""
        config, n = self._config, batch.num_rows
        state = np.full(n, USABLE, dtype=np.int8)
        rows = np.arange(self.rows, self.rows + n)
        self.rows += n
        # The last reason written is the one that counts, so the gravest comes last.
        if config.unit_column is not None:
            units = trim(batch, config.unit_column)
            state[blank(units)] = NO_UNIT
            self._parts["units"].append(_hashes(units))
        lacking = self._content.lacking(batch)
        self._no_content.add(rows[lacking])
        state[lacking] = NO_CONTENT
        reasons = self._coded.take(trim(batch, config.label_column))
        state = np.where(reasons != USABLE, reasons, state)
        cohorts = np.zeros(n, dtype=np.int32)
        if config.dates_from is not None:
            cohorts, late, outside = self._dates(trim(batch, config.dates_from))
            self._bad_dates.add(rows[(cohorts < 0) & (state == USABLE)])
            outside &= state == USABLE
            self._outside.add(rows[outside])
            state[outside] = OTHER_COHORT
            self._parts["late"].append(late)
        if config.id_column is not None:
            ids = trim(batch, config.id_column)
            self._no_id.add(rows[blank(ids)])
            # Two keys make 128 bits, at which two ids of a billion rows meet with a probability below 1e-20.
            self._parts["ids"].append(np.stack([_hashes(ids), _hashes(ids, key="fedcba9876543210")], axis=1))
        if config.sampling == "per-record":
            named = [batch.column(name) for name in sorted(batch.schema.names)]
            identity_columns = named if config.id_column is None else [trim(batch, config.id_column)]
            self._parts["identities"].append(digests(identity_columns))
            if config.unit_column is not None and config.split_by_unit:
                self._parts["unit_identities"].append(digests([trim(batch, config.unit_column)]))
        for name, values in (("state", state), ("cohorts", cohorts)):
            self._parts[name].append(values)

    def finish(self) -> Survey:
        """Returns the survey of all rows.

        Refuses a source without records, codes not on the list, records without text, bad dates or ids, a single code.
        """
        source, config = self._source, self._config
        if self.rows == 0:
            raise InputError(f"{source.label} has a header and no records. Give a file of records")
        state, cohorts = (np.concatenate(self._parts[name]) for name in ("state", "cohorts"))
        column = f"{source.label}, column"
        coded = self._coded
        if coded.unknown and config.unknown_codes != "drop":
            hint, matching = coded.described()
            raise InputError(
                f"{coded.label}: {coded.unknown.total()} of {self.rows} records have a code that "
                f"the code list lacks ({describe_shape(coded.unknown)}{hint}). Give the right list or column, or set "
                f"data.ingest.unknown_codes=drop{' (or =match: in the spelling of the list)' * matching}"
            )
        if self._no_content.count and config.empty_text == "refuse":
            raise InputError(
                f"{source.label}: {self._no_content.count} records without text ({self._no_content}). Fill "
                "them in, or set data.ingest.empty_text=drop"
            )
        if self._bad_dates.count:
            fitting = self._slashed.fitting()
            hint = f"; every one of the others reads as {fitting}" if fitting else ""
            raise InputError(
                f"{column} {config.date_column!r}: {self._bad_dates.count} dates are missing or do not read as "
                f"{config.date_format or '2015-01-31 or 1/31/2015'} ({self._bad_dates}{hint}). Correct them, set "
                "data.ingest.date_format (such as %m/%d/%y where years have two digits), or set data.ingest.cohort=none"
                f"{' and no data.ingest.train_before' if config.train_before else ''}"
            )
        if self._slashed.ambiguous and (config.cohort in ("quarter", "month") or config.train_before):
            raise InputError(
                f"{column} {config.date_column!r}: every one of {self._slashed.both:,} dates with / reads month first "
                "and day first. Set data.ingest.date_format=%m/%d/%Y or %d/%m/%Y"
            )
        if self._outside.count and config.outside_cohorts == "refuse":
            raise InputError(
                f"{column} {config.date_column!r}: {self._outside.count} records are of a {config.cohort} that "
                f"data.ingest.cohorts does not declare ({self._outside}). Correct their dates, declare it, or set "
                "data.ingest.outside_cohorts=drop"
            )
        if self._no_id.count:
            raise InputError(
                f"{column} {config.id_column!r}: {self._no_id.count} ids are blank ({self._no_id}). Fill them in"
            )
        self._check_ids()
        survey = self._survey(state, cohorts)
        if not (state == USABLE).any():
            reasons = ", ".join(f"{name} {count}" for name, count in survey.dropped().items())
            raise InputError(f"{source.label}: none of {self.rows} records can be used ({reasons}). Check the columns")
        usable = coded.codes[state == USABLE]
        if (usable == usable[0]).all():
            raise InputError(
                f"{coded.label}: all {len(usable)} usable records have the same code. Give records with two or more"
            )
        return survey

    def _survey(self, state: NDArray[np.int8], cohorts: NDArray[np.int32]) -> Survey:
        return Survey(
            state=state,
            coded=self._coded,
            cohorts=cohorts,
            units=self._all("units"),
            late=self._all("late") if self._config.train_before is not None else None,
            identities=self._all("identities"),
            unit_identities=self._all("unit_identities"),
            cohort_names=list(self._cohort_at),
            notes=(*self._coded.notes(), *self._slashed.notes()),
        )

    def _all(self, name: str) -> NDArray[Any] | None:
        return np.concatenate(self._parts[name]) if self._parts[name] else None

    def _dates(self, column: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Returns for each row the cohort's index (-1: no date), if it is after the split's day, and if undeclared."""
        config, encoded = self._config, column.dictionary_encode()
        indices = np.full(len(encoded.dictionary), -1, dtype=np.int32)
        late, outside = np.zeros((2, len(indices)), dtype=np.bool_)
        for at, cell in enumerate(encoded.dictionary.to_pylist()):
            day = _day(cell, config.date_format)
            if config.date_format is None:
                self._slashed.take(cell, read=day is not None)
            if day is None:
                continue
            cohort = _cohort(day, config.cohort) if config.dated_cohorts else ALL
            indices[at] = self._cohort_at.setdefault(cohort, len(self._cohort_at))
            late[at] = config.train_before is not None and day >= config.train_before
            outside[at] = config.cohorts is not None and cohort not in config.cohorts
        rows = np.asarray(encoded.indices)
        return indices[rows], late[rows], outside[rows]

    def _check_ids(self) -> None:
        hashes = self._all("ids")
        if hashes is None:
            return
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
    import pandas as pd

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


def _cohort(day: date, cohort: Cohort) -> str:
    if cohort == "month":
        return f"{day.year}-{day.month:02}"
    return f"{day.year}-Q{(day.month + 2) // 3}" if cohort == "quarter" else str(day.year)
