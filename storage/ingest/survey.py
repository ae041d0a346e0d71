"""Surveys all rows without their texts: code, cohort, unit, and usability.

It stores about 20 to 60 bytes per row, so that any sample can be drawn before the first narrative
is read. It stores numbers for codes, days and units, and digests for ids, but never the ids of all
rows as objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.codelist import MAX_CODE, Code, describe_shape
from storage.errors import Contradiction, InputError, Missing, OutOfRange, Unknown, Unreadable
from storage.ingest.code_cells import CodeCells, Numbers, Respelling, numbered
from storage.ingest.config import IngestConfig
from storage.ingest.dates import NO_DAYS, Days, cohort_of, fitting
from storage.ingest.growing import GrowingArray
from storage.ingest.sampling import Digests, alike, digests
from storage.ingest.units import several_ids, unit_forms, unit_notes
from storage.narrative_look import LookBuilder, NarrativeLook
from storage.spelling import Spellings, above_finer, twins
from storage.tables.reader import MissingValues, Table

USABLE, NO_CODE, UNKNOWN_CODE, NO_CONTENT, NO_UNIT, OTHER_COHORT = range(6)
_REASONS = {
    NO_CODE: "no_code",
    UNKNOWN_CODE: "code_not_on_list",
    NO_CONTENT: "no_text",
    NO_UNIT: "no_unit",
    OTHER_COHORT: "cohort_not_declared",
}
ALL = "all"
"""The cohort of a source without dates."""


_RESPELT: dict[Respelling, str] = {
    "added": "codes were read without what a table program added, such as 111 for 111.0",
    "matched": "codes were read in the spelling of the list (unknown_codes=match)",
    "first": "cells have several codes, and the first was read (several_codes=first)",
    "cut": "codes are finer than the list, and were cut to its own (finer_codes=cut)",
    "restored": "codes got back zeros behind, as the list has them (lost_zeros=restore)",
}


@dataclass(frozen=True)
class Survey:
    """One entry per row of the source, or per code if each code makes a record."""

    state: NDArray[np.int8]
    numbers: NDArray[np.int64] | None
    """Source row of each entry, from 0, if rows with several codes are repeated; None if entries
    are rows.
    """
    codes: NDArray[np.int32]
    """Index into `code_names`, -1 without a code."""
    code_names: list[str]
    """The codes of the list, or the observed codes if there is no list."""
    unknown: Counter[str]
    """Number of rows by code that is missing in the list."""
    respelt: Counter[Respelling]
    """Number of cells with a differently spelled code, by how it was read."""
    cohorts: NDArray[np.int32]
    """Index into `cohort_names`, -1 without a date."""
    cohort_names: list[str]
    late: NDArray[np.bool_] | None
    """Rows dated on or after the day of the split; None without such a day."""
    units: NDArray[np.int32] | None
    """Number of the unit, the same for all spellings of its id; None if there are no units."""
    identities: Digests | None
    """Identities of the records, if the sampling depends on them."""
    unit_identities: Digests | None
    """Identities of the units by number, if all records of a unit are in one split."""
    notes: tuple[str, ...]
    """Sentences about ambiguous readings, without a value of a record."""
    look: NarrativeLook

    def dropped(self) -> dict[str, int]:
        counts = np.bincount(self.state, minlength=len(_REASONS) + 1)
        return {name: int(counts[state]) for state, name in _REASONS.items() if counts[state]}


_BLANK, _UNKNOWN = -2, -1
"""Marks of rows without a code, and of rows with a code that is missing in the list."""


class _Codes:
    """Reads the column of codes batch by batch."""

    def __init__(
        self, config: IngestConfig, listed: Mapping[str, int] | None, label: str, rows: int
    ) -> None:
        self._listed, self._place = listed is not None, dict(listed or {})
        self._cells = CodeCells(config, listed)
        self._label = label
        self._numbers = GrowingArray(np.int32, rows)
        self._known: dict[str, _Code] = {}
        self.unknown: Counter[str] = Counter()
        self.respelt: Counter[Respelling] = Counter()

    @property
    def numbers(self) -> NDArray[np.int32]:
        return self._numbers.values

    @property
    def names(self) -> list[str]:
        return list(self._place)

    def add(self, column: pa.Array) -> None:
        encoded = column.dictionary_encode()
        index = np.from_dlpack(encoded.indices)
        codes = [self._read(cell) for cell in encoded.dictionary.to_pylist()]
        counts = np.bincount(index, minlength=len(codes)).tolist()
        for code, count in zip(codes, counts, strict=True):
            if code.how is not None:
                self.respelt[code.how] += count
            if code.number == _UNKNOWN:
                self.unknown[code.name] += count
        self._numbers.append(np.array([code.number for code in codes], dtype=np.int32)[index])

    def _read(self, cell: str) -> _Code:
        code = self._known.get(cell)
        if code is None:
            code = self._known[cell] = self._of(cell)
        return code

    def _of(self, cell: str) -> _Code:
        if not cell:
            return _Code("", _BLANK, None)
        name, how = self._cells.read(cell)
        if self._listed and name not in self._place:
            return _Code(name, _UNKNOWN, how)
        if len(name) > MAX_CODE:
            raise OutOfRange(
                f"{self._label} has values of over {MAX_CODE} characters. Use the column of codes",
                kind="values-too-long",
            )
        return _Code(name, self._place.setdefault(name, len(self._place)), how)


@dataclass(frozen=True)
class _Code:
    name: str
    number: int
    how: Respelling | None


class _Read:
    """Reads the columns batch by batch, into one array each."""

    def __init__(
        self, config: IngestConfig, listed: Mapping[str, int] | None, label: str, rows: int
    ) -> None:
        self._config = config
        self.codes = _Codes(config, listed, f"{label}, column {config.label_column!r}", rows)
        self.days = None if config.dates_from is None else Days(config.date_format, rows)
        self.units: list[pa.DictionaryArray] = []
        self._lacking = GrowingArray(np.bool_, rows)
        self._blank_ids = GrowingArray(np.bool_, 0 if config.id_column is None else rows)
        self._identified = config.sampling == "per-record" or config.id_column is not None
        self._identities = GrowingArray("<u8", rows if self._identified else 0, (2,))
        self._rows = GrowingArray(np.int64, rows if config.several_codes == "each" else 0)
        self.look = LookBuilder()

    def add(self, batch: pa.RecordBatch, rows: Numbers) -> None:
        config = self._config
        trimmed = {
            name: pc.call_function("utf8_trim_whitespace", [batch.column(name)])
            for name in config.columns
        }
        self._lacking.append(
            np.logical_and.reduce([_blank(trimmed[name]) for name in config.text_columns])
        )
        self.codes.add(trimmed[config.label_column])
        if self.days is not None and config.dates_from is not None:
            self.days.add(trimmed[config.dates_from])
        if config.unit_column is not None:
            self.units.append(trimmed[config.unit_column].dictionary_encode())
        if config.id_column is not None:
            self._blank_ids.append(_blank(trimmed[config.id_column]))
            self._identities.append(digests([trimmed[config.id_column]]))
        elif self._identified:
            self._identities.append(digests([batch.column(n) for n in sorted(batch.schema.names)]))
        if config.several_codes == "each":
            self._rows.append(rows)
        self.look.add([trimmed[name] for name in config.text_columns])

    @property
    def lacking(self) -> NDArray[np.bool_]:
        return self._lacking.values

    @property
    def blank_ids(self) -> NDArray[np.bool_]:
        return self._blank_ids.values

    @property
    def identities(self) -> Digests | None:
        return self._identities.values if self._identified else None

    @property
    def lines(self) -> _Lines:
        return _Lines(self._rows.values if self._config.several_codes == "each" else None)


def _blank(column: pa.Array) -> NDArray[np.bool_]:
    return np.from_dlpack(pc.call_function("binary_length", [column])) == 0


def survey(
    records: Table,
    config: IngestConfig,
    listed: Sequence[Code] | None,
    marks: MissingValues,
    progress: Callable[[int], None] = lambda rows: None,
) -> Survey:
    place = places_of(listed)
    label, rows = records.source.label, 0
    read = _Read(config, place, label, records.rows)
    for batch, numbers in numbered(records.texts(config.columns, marks), config, place):
        read.add(batch, numbers)
        rows += batch.num_rows
        progress(rows)
    lines, coded = read.lines, read.codes.numbers
    if read.codes.unknown and config.unknown_codes != "drop":
        raise _not_listed(read.codes, f"{label}, column {config.label_column!r}", rows)
    lacking = read.lacking
    if lacking.any() and config.empty_text == "refuse":
        raise Missing(
            f"{label}: {lacking.sum()} records without text ({lines.named(lacking)}). Fill them "
            "in, or set "
            "data.ingest.empty_text=drop",
            kind="no-text",
        )
    units, notes = None, lines.notes()
    if config.unit_column is not None:
        units, more = _units(read.units, f"{label}, column {config.unit_column!r}", lines)
        read.units.clear()
        notes += more
    # The last reason assigned is the one reported, so the most serious one comes last.
    state = np.full(rows, USABLE, dtype=np.int8)
    if units is not None:
        state[units.blank] = NO_UNIT
    state[lacking] = NO_CONTENT
    state[coded < 0] = UNKNOWN_CODE
    state[coded == _BLANK] = NO_CODE
    notes += _respelt_notes(read.codes.respelt)
    names = read.codes.names
    by_code = _counts_of_codes(names, coded)
    notes += twins(by_code) if listed is None else _level_notes(by_code, listed)
    cohorts, cohort_names, late = np.zeros(rows, dtype=np.int32), [ALL], None
    if read.days is not None:
        cohorts, cohort_names, late, more = _dates(read.days, config, state, label, lines)
        notes += more
    if config.id_column is not None:
        _require_ids(
            read.blank_ids, read.identities, f"{label}, column {config.id_column!r}", lines
        )
    per_record = config.sampling == "per-record"
    unit_identities = None
    if units is not None and config.split_by_unit and per_record:
        unit_identities = digests([units.forms])
    overview = Survey(
        state=state,
        numbers=lines.numbers,
        codes=np.maximum(coded, _UNKNOWN, out=coded),
        code_names=names,
        unknown=read.codes.unknown,
        respelt=read.codes.respelt,
        cohorts=cohorts,
        cohort_names=cohort_names,
        late=late,
        units=None if units is None else units.index,
        identities=read.identities if per_record else None,
        unit_identities=unit_identities,
        notes=tuple(notes),
        look=read.look.result(),
    )
    _require_usable(overview, coded[state == USABLE], records, config)
    return overview


def places_of(listed: Sequence[Code] | None) -> dict[str, int] | None:
    """The position of each code in the list; None without a list."""
    return None if listed is None else {code.code: place for place, code in enumerate(listed)}


def _counts_of_codes(names: Sequence[str], coded: NDArray[np.int32]) -> dict[str, int]:
    counts = np.bincount(coded[coded >= 0], minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def _require_usable(
    overview: Survey, usable: NDArray[np.int32], records: Table, config: IngestConfig
) -> None:
    """Refuses records of which none is usable, or which all have the same code."""
    label, rows = records.source.label, len(overview.state)
    if not len(usable):
        reasons = ", ".join(f"{name} {count}" for name, count in overview.dropped().items())
        raise OutOfRange(
            f"{label}: none of {rows} records can be used ({reasons}). Check the columns",
            kind="unusable-records",
        )
    if (usable == usable[0]).all():
        raise OutOfRange(
            f"{label}, column {config.label_column!r}: all {len(usable)} usable "
            "records have the same code. Training needs records with at least two",
            kind="single-code",
            column=config.label_column,
        )


def _not_listed(codes: _Codes, label: str, rows: int) -> InputError:
    unknown, spellings = codes.unknown, Spellings(codes.names)
    hint = spellings.described(unknown)
    ways = [
        name
        for name, holds in (
            ("data.ingest.unknown_codes=match", spellings.match_padded),
            ("data.ingest.finer_codes=cut", spellings.coarser),
        )
        if all(map(holds, unknown))
    ]
    several = [spellings.is_several(code) for code in unknown]
    ways += ["data.ingest.several_codes=first (or each)"] if all(several) else []
    return Unknown(
        f"{label}: {unknown.total()} of {rows} records have a code that is not on "
        f"the code list ({describe_shape(unknown)}{f'; {hint}' if hint else ''}). "
        "Use the right list or column, or set "
        f"data.ingest.unknown_codes=drop{''.join(f' or {way}' for way in ways)}",
        kind="records-of-unlisted-codes",
    )


@dataclass(frozen=True)
class _Units:
    forms: pa.Array
    """The normalised id of each unit, shared by all its spellings."""
    index: NDArray[np.int32]
    """Number of each row's unit."""

    def per_row(self, of_units: pa.Array) -> NDArray[np.bool_]:
        return of_units.to_numpy(zero_copy_only=False)[self.index]

    @property
    def blank(self) -> NDArray[np.bool_]:
        return _blank(self.forms)[self.index]


def _units(
    chunks: Sequence[pa.DictionaryArray], label: str, lines: _Lines
) -> tuple[_Units, list[str]]:
    """The units by normalised id, and notes on the ids."""
    cells = pa.chunked_array(chunks).unify_dictionaries()
    # guard: test_an_id_in_another_spelling
    forms = unit_forms(cells.chunk(0).dictionary).dictionary_encode()
    place = np.from_dlpack(forms.indices)
    index = GrowingArray(np.int32, len(cells))
    for chunk in cells.chunks:
        index.append(place[np.from_dlpack(chunk.indices)])
    units = _Units(forms.dictionary, index.values)
    # guard: test_a_record_of_two_people
    several = several_ids(units.forms)
    shared = units.per_row(several)
    if shared.any():
        raise Contradiction(
            f"{label}: {shared.sum():,} ids combine several "
            f"({lines.named(shared)}), so one of these would be protected less than "
            "the claim says. Use one id per record, or leave the cell blank. "
            "Records with a blank id are dropped and counted",
            kind="ids-of-several",
        )
    spellings = np.where(_blank(units.forms), 0, np.bincount(place))
    return units, unit_notes(spellings, units.forms)


def _respelt_notes(respelt: Counter[Respelling]) -> list[str]:
    return [f"{count:,} {_RESPELT[how]}" for how, count in respelt.items()]


def _level_notes(counts: Mapping[str, int], listed: Sequence[Code]) -> list[str]:
    upper, zero = above_finer(counts, {code.code for code in listed})
    if not upper:
        return []
    lost = (
        f"; of {zero:,} the list has the code with a zero behind, which spreadsheets take off: "
        "--set data.ingest.lost_zeros=restore reads them so"
        if zero
        else ""
    )
    return [f"{upper:,} records have a code that has others below it on the list{lost}"]


def _dates(
    days: Days, config: IngestConfig, state: NDArray[np.int8], label: str, lines: _Lines
) -> tuple[NDArray[np.int32], list[str], NDArray[np.bool_] | None, list[str]]:
    label = f"{label}, column {config.dates_from!r}"
    _require_readable(days, config, state, label, lines)
    both = 0 if days.month_first else days.ambiguous
    if both and (config.cohort in ("quarter", "month") or config.train_before):
        raise Contradiction(
            f"{label}: all {both:,} dates with / can be read month first or day "
            "first. Set data.ingest.date_format=%m/%d/%Y or %d/%m/%Y",
            kind="ambiguous-dates",
        )
    names = days.each(lambda day: cohort_of(day, config.cohort) if config.dated_cohorts else ALL)
    if config.cohorts is not None:
        _leave_out_other_cohorts(names, days, config, state, label, lines)
    place = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    numbers = {number: np.int32(place[name]) for number, name in names.items()}
    cohorts = days.per_row(numbers, otherwise=np.int32(-1))
    first_late = config.train_before
    late = None if first_late is None else days.chosen(lambda day: day >= first_late)
    return cohorts, list(place), late, _date_notes(days, config, state == USABLE)


def _require_readable(
    days: Days, config: IngestConfig, state: NDArray[np.int8], label: str, lines: _Lines
) -> None:
    """Refuses usable records without a readable date."""
    bad = (days.numbers < 0) & (state == USABLE)
    if bad.any():
        formats = fitting(days.unread, month_first=days.month_first)
        also = " and no data.ingest.train_before" if config.train_before else ""
        raise Unreadable(
            f"{label}: {bad.sum()} dates are missing or do not read as "
            f"{config.date_format or '2015-01-31 or 1/31/2015'} "
            f"({lines.named(bad)}{formats}){days.causes(bad)}. Correct them, set "
            "data.ingest.date_format (such as %m/%d/%y if years have two digits), "
            f"or set data.ingest.cohort=none{also}",
            kind="unreadable-dates",
        )


def _leave_out_other_cohorts(
    names: Mapping[int, str],
    days: Days,
    config: IngestConfig,
    state: NDArray[np.int8],
    label: str,
    lines: _Lines,
) -> None:
    """Marks usable records of undeclared cohorts, or refuses them."""
    declared = {number: name in (config.cohorts or ()) for number, name in names.items()}
    outside = ~days.per_row(declared, otherwise=True) & (state == USABLE)
    if outside.any() and config.outside_cohorts == "refuse":
        raise Unknown(
            f"{label}: {outside.sum()} records are of a {config.cohort} that "
            "data.ingest.cohorts does not declare "
            f"({lines.named(outside)}). Correct their dates, declare it, or set "
            "data.ingest.outside_cohorts=drop",
            kind="undeclared-cohort",
        )
    state[outside] = OTHER_COHORT


def _date_notes(days: Days, config: IngestConfig, usable: NDArray[np.bool_]) -> list[str]:
    notes: list[str] = []
    today = date.today()
    coming = int((days.chosen(lambda day: day > today) & usable).sum())
    if coming:
        pivot = (
            "; %y reads the years 00 to 68 as 2000 to 2068, so give them four digits"
            if "%y" in (config.date_format or "")
            else ""
        )
        notes.append(f"{coming:,} dates lie in the future{pivot}")
    nothing = int((days.chosen(NO_DAYS.__contains__) & usable).sum())
    if nothing:
        notes.append(
            f"{nothing:,} dates are the first day of 1900, 1901 or 1970, which programs "
            "write where there is none"
        )
    if days.ambiguous and not days.month_first:
        notes.append(
            f"every one of {days.ambiguous:,} dates with / reads both ways, and was read month "
            "first; where days come first set data.ingest.date_format=%d/%m/%Y"
        )
    return notes


def _require_ids(
    blank: NDArray[np.bool_], identities: Digests | None, label: str, lines: _Lines
) -> None:
    assert identities is not None
    if blank.any():
        raise Missing(
            f"{label}: {blank.sum()} ids are blank ({lines.named(blank)}). Fill them in",
            kind="blank-ids",
        )
    rows = lines.first
    repeated = alike(identities if rows is None else identities[rows])
    if len(repeated):
        doubled = np.zeros(len(blank), np.bool_)
        doubled[repeated if rows is None else rows[repeated]] = True
        raise Contradiction(
            f"{label}: {doubled.sum()} records share an id with another "
            f"({lines.named(doubled)}). Each record needs its own id",
            kind="shared-ids",
        )


@dataclass(frozen=True)
class _Lines:
    """The positions of survey rows in the file."""

    numbers: NDArray[np.int64] | None
    """File row of each entry, from 0, if some file rows are repeated; None if entries are rows."""

    def named(self, rows: NDArray[np.bool_]) -> str:
        places = np.flatnonzero(rows) if self.numbers is None else np.unique(self.numbers[rows])
        more = f" and {len(places) - 10} more" if len(places) > 10 else ""
        word = "row" if len(places) == 1 else "rows"
        return f"{word} {', '.join(map(str, (places[:10] + 1).tolist()))}{more}"

    @property
    def first(self) -> NDArray[np.int64] | None:
        """The first entry of each row of the file; None if entries are rows."""
        if self.numbers is None:
            return None
        return np.flatnonzero(np.r_[True, self.numbers[1:] != self.numbers[:-1]])

    def notes(self) -> list[str]:
        if self.numbers is None:
            return []
        counts = np.bincount(self.numbers)
        several = int((counts > 1).sum())
        return (
            [
                f"{several:,} cells have several codes, and each is a record of its own: "
                f"{len(self.numbers) - len(counts):,} records more (several_codes=each)"
            ]
            if several
            else []
        )
