"""What each row is, without its text: code, cohort, unit, and whether it can be used.

Some 20 to 40 bytes a row are kept, so that a sample of any kind can be drawn before a single narrative is read.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from storage.codelist import MAX_CODE, Code, normalise_code, shape
from storage.errors import InputError
from storage.ingest.cells import Faults, blank, trimmed
from storage.ingest.config import Cohort, IngestConfig
from storage.ingest.content import Content
from storage.ingest.identity import Digests, digests
from storage.tables.source import Source

USABLE, NO_CODE, UNKNOWN_CODE, NO_CONTENT, NO_UNIT, OTHER_COHORT = range(6)
REASONS = {
    NO_CODE: "no_code",
    UNKNOWN_CODE: "code_not_on_list",
    NO_UNIT: "no_unit",
    OTHER_COHORT: "cohort_not_declared",
}
ALL = "all"
"""The cohort of a source without dates."""

_YEARS = range(1900, 2101)
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ].*)?", re.ASCII)
_US = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[T ].*)?", re.ASCII)


@dataclass(frozen=True)
class FieldSurvey:
    """The codes of one field, one entry a row of the source."""

    name: str
    """Empty where there is one field."""
    column: str
    codes: NDArray[np.int32]
    """Index into `code_names`, -1 where there is none."""
    code_names: list[str]
    blank: int
    """Rows whose cell is empty."""
    unknown: Counter[str]
    """Rows by code that the field's list lacks."""
    respelt: int
    """Cells whose code was written otherwise, such as 111.0."""


@dataclass(frozen=True)
class Survey:
    """One entry a row of the source."""

    state: NDArray[np.int8]
    fields: tuple[FieldSurvey, ...]
    """One; of several fields, each."""
    cohorts: NDArray[np.int32]
    """Index into `cohort_names`, -1 where not looked at."""
    units: NDArray[np.uint64] | None
    late: NDArray[np.bool_] | None
    """Whether dated on the day that the split is made by, or after; None without such a day."""
    identities: Digests | None
    """Of each record, where its use follows from them."""
    unit_identities: Digests | None
    """Of each record's unit, where all records of a unit go the same way by it."""
    cohort_names: list[str]
    missing: str
    """What records without content lack."""

    @property
    def codes(self) -> NDArray[np.int32]:
        """Those of a single field, or of the first."""
        return self.fields[0].codes

    def dropped(self) -> dict[str, int]:
        """Rows a reason, those with none left out."""
        counts = Counter(self.state.tolist())
        reasons = REASONS | {NO_CONTENT: self.missing}
        return {name: counts[state] for state, name in reasons.items() if counts[state]}


class Surveyor:
    """Takes the batches of a source in order; `finish` refuses or returns the survey."""

    def __init__(
        self, source: Source, config: IngestConfig, codelists: Mapping[str, Sequence[Code] | None], content: Content
    ) -> None:
        self._source, self._config, self._content = source, config, content
        self._fields = [_Field(source, name, column, codelists[name]) for name, column in config.label_columns.items()]
        self._cohort_at: dict[str, int] = {} if config.dated_cohorts else {ALL: 0}
        self._kept: dict[str, list[NDArray[Any]]] = defaultdict(list)
        self._bad_dates, self._no_content, self._no_id, self._outside = Faults(), Faults(), Faults(), Faults()
        self._inner_records: dict[int, list[tuple[int, str]]] = {}
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
        found = [field.take(trimmed(batch, field.column)) for field in self._fields]
        # A record that lacks some of its codes is kept for those that it has.
        none = np.logical_and.reduce([reason != USABLE for reason in found])
        state[none] = np.maximum.reduce(found)[none]
        cohorts = np.zeros(n, dtype=np.int32)
        if config.dates_from is not None:
            cohorts, late, outside = self._dates(trimmed(batch, config.dates_from))
            self._bad_dates.add(rows[(cohorts < 0) & (state == USABLE)])
            outside &= state == USABLE
            self._outside.add(rows[outside])
            state[outside] = OTHER_COHORT
            self._kept["late"].append(late)
        if config.id_column is not None:
            ids = trimmed(batch, config.id_column)
            self._no_id.add(rows[blank(ids)])
            # Two keys make 128 bits, at which two ids of a billion rows meet with a probability below 1e-20.
            self._kept["ids"].append(np.stack([_hashes(ids), _hashes(ids, key="fedcba9876543210")], axis=1))
        if config.sampling == "per-record":
            named = [batch.column(name) for name in sorted(batch.schema.names)]
            known_by = named if config.id_column is None else [trimmed(batch, config.id_column)]
            self._kept["identities"].append(digests(known_by))
            if config.unit_column is not None and config.split_by_unit:
                self._kept["unit_identities"].append(digests([trimmed(batch, config.unit_column)]))
        for name, values in (("state", state), ("cohorts", cohorts)):
            self._kept[name].append(values)

    def look_into(self, row: int, cells: tuple[str, ...]) -> None:
        """Judge a row of several lines: a quote left open that meets another one swallows rows into one sound cell.

        Its lines then have as many fields as the header, a date and a code at their places. Whether the code is one is
        known at the end only.
        """
        config, columns = self._config, self._source.columns
        lines = self._source.delimiter.join(cells).splitlines()
        split = [line.split(self._source.delimiter) for line in lines]
        codes: list[tuple[int, str]] = []
        whole = records = 0
        for at, fields in enumerate(split):
            if len(fields) != len(columns):
                continue
            there = [(n, fields[columns.index(field.column)]) for n, field in enumerate(self._fields)]
            coded = [(n, normalise_code(code)) for n, code in there if 0 < len(code) <= MAX_CODE]
            dated = config.dates_from is None or _day(fields[columns.index(config.dates_from)], config.date_format)
            if dated and coded:
                codes += coded
                records += 1
                whole += 0 < at < len(split) - 1
        # The first and the last line alone have the cells beside the broken one, so either says nothing by itself.
        if whole or records > 1:
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
            if any(code in self._fields[at].code_at for at, code in inner):
                lines = Counter(at for at, _ in inner).most_common(1)[0][1]
                raise InputError(
                    f"{source.label}, row {row}: a cell with line breaks, of which {lines} lines would read "
                    "as records of their own; is a quote left open there? Close it, or take the line breaks out"
                )
        self._content.check()
        state, cohorts = (np.concatenate(self._kept[name]) for name in ("state", "cohorts"))
        column = f"{source.label}, column"
        for field in self._fields:
            if field.unknown and config.unknown_codes == "refuse":
                listed = f"its code list (data.ingest.fields.{field.name}.codelist)" if field.name else "the code list"
                raise InputError(
                    f"{field.told}: {field.unknown.total()} of {self.rows} records have a code that "
                    f"{listed} lacks ({shape(field.unknown)}); give the right list or column, or set "
                    "data.ingest.unknown_codes=drop"
                )
        if self._no_content.count and config.empty_text == "refuse":
            what = "text" if config.kind == "text" else "a value in every column"
            raise InputError(
                f"{source.label}: {self._no_content.count} records without {what} ({self._no_content}); fill "
                "them, or set data.ingest.empty_text=drop"
            )
        if self._bad_dates.count:
            raise InputError(
                f"{column} {config.date_column!r}: {self._bad_dates.count} dates are missing or do not read as "
                f"{config.date_format or '2015-01-31 or 1/31/2015'} ({self._bad_dates}); correct them, set "
                "data.ingest.date_format (such as %m/%d/%y where years have two digits), or set data.ingest.cohort=none"
                f"{' and no data.ingest.train_before' if config.train_before else ''}"
            )
        if self._outside.count and config.outside_cohorts == "refuse":
            raise InputError(
                f"{column} {config.date_column!r}: {self._outside.count} records are of a {config.cohort} that "
                f"data.ingest.cohorts does not declare ({self._outside}); correct their dates, declare it, or set "
                "data.ingest.outside_cohorts=drop"
            )
        if self._no_id.count:
            raise InputError(f"{column} {config.id_column!r}: {self._no_id.count} ids are blank ({self._no_id})")
        self._check_ids()
        survey = self._survey(state, cohorts)
        if not (state == USABLE).any():
            reasons = ", ".join(f"{name} {count}" for name, count in survey.dropped().items())
            raise InputError(f"{source.label}: none of {self.rows} records can be used ({reasons})")
        for field, found in zip(self._fields, survey.fields, strict=True):
            usable = found.codes[(state == USABLE) & (found.codes >= 0)]
            if len(usable) == 0:
                raise InputError(f"{field.told}: no usable record has a code; check the column, or leave the field out")
            if (usable == usable[0]).all():
                raise InputError(f"{field.told}: all {len(usable)} usable records have one code; a coder needs two")
        return survey

    def _survey(self, state: NDArray[np.int8], cohorts: NDArray[np.int32]) -> Survey:
        return Survey(
            state=state,
            fields=tuple(field.survey() for field in self._fields),
            cohorts=cohorts,
            units=self._all("units"),
            late=self._all("late") if self._config.train_before is not None else None,
            identities=self._all("identities"),
            unit_identities=self._all("unit_identities"),
            cohort_names=list(self._cohort_at),
            missing=self._content.missing,
        )

    def _all(self, name: str) -> NDArray[Any] | None:
        return np.concatenate(self._kept[name]) if self._kept[name] else None

    def _dates(self, column: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Of each row: the cohort's index (-1: no date), whether it is past the day of the split, or not declared."""
        config, encoded = self._config, column.dictionary_encode()
        found = np.full(len(encoded.dictionary), -1, dtype=np.int32)
        late, outside = np.zeros((2, len(found)), dtype=np.bool_)
        for at, cell in enumerate(encoded.dictionary.to_pylist()):
            day = _day(cell, config.date_format)
            if day is None:
                continue
            cohort = _cohort(day, config.cohort) if config.dated_cohorts else ALL
            found[at] = self._cohort_at.setdefault(cohort, len(self._cohort_at))
            late[at] = config.train_before is not None and day >= config.train_before
            outside[at] = config.cohorts is not None and cohort not in config.cohorts
        rows = np.asarray(encoded.indices)
        return found[rows], late[rows], outside[rows]

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


class _Field:
    """The codes of one field, batch by batch."""

    def __init__(self, source: Source, name: str, column: str, codelist: Sequence[Code] | None) -> None:
        self.name, self.column = name, column
        self.told = f"{source.label}, {f'field `{name}`, ' if name else ''}column {column!r}"
        self.code_at = {code.code: at for at, code in enumerate(codelist or ())}
        self.unknown: Counter[str] = Counter()
        self._fixed = codelist is not None
        self._respelt = self._blank = 0
        self._kept: list[NDArray[np.int32]] = []

    def take(self, column: pa.Array) -> NDArray[np.int8]:
        """Keep a batch's codes; return for each row `USABLE`, `NO_CODE` or `UNKNOWN_CODE`."""
        encoded = column.dictionary_encode()
        raw = encoded.dictionary.to_pylist()
        indices = np.asarray(encoded.indices)
        counts = np.bincount(indices, minlength=len(raw))
        found = np.full(len(raw), -1, dtype=np.int32)
        reason = np.full(len(raw), USABLE, dtype=np.int8)
        for at, cell in enumerate(raw):
            if not cell:
                reason[at] = NO_CODE
                self._blank += int(counts[at])
                continue
            code = normalise_code(cell, self.code_at if self._fixed else ())
            self._respelt += int(counts[at]) * (code != cell)
            if self._fixed and code not in self.code_at:
                reason[at] = UNKNOWN_CODE
                self.unknown[code] += int(counts[at])
                continue
            if len(code) > MAX_CODE:
                raise InputError(f"{self.told} holds values of over {MAX_CODE} characters; is it the narrative?")
            found[at] = self.code_at.setdefault(code, len(self.code_at))
        self._kept.append(found[indices])
        return reason[indices]

    def survey(self) -> FieldSurvey:
        """All batches together."""
        return FieldSurvey(
            name=self.name,
            column=self.column,
            codes=np.concatenate(self._kept),
            code_names=list(self.code_at),
            blank=self._blank,
            unknown=self.unknown,
            respelt=self._respelt,
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


def _cohort(day: date, cohort: Cohort) -> str:
    if cohort == "month":
        return f"{day.year}-{day.month:02}"
    return f"{day.year}-Q{(day.month + 2) // 3}" if cohort == "quarter" else str(day.year)
