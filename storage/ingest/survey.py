"""Surveys all rows without their texts: code, cohort, unit, and whether each can be used.

It keeps some 20 to 60 bytes a row, so that any sample can be drawn before a single narrative is
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.codelist import MAX_CODE, Code, describe_shape
from storage.errors import InputError
from storage.ingest.code_cells import CodeCells, Respelling, numbered
from storage.ingest.config import IngestConfig
from storage.ingest.dates import NO_DAYS, SLASHED, causes, cohort_of, day_of, fitting
from storage.ingest.sampling import Digests, digests
from storage.ingest.units import several_ids, unit_form, unit_notes
from storage.narrative_look import Looking, NarrativeLook
from storage.spelling import Spellings, above_finer, twins
from storage.tables.reader import Marks, Table
from storage.tables.source import to_arrow

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
    """Holds one entry per row of the source, or per code where each makes a record."""

    state: NDArray[np.int8]
    numbers: NDArray[np.int64] | None
    """Row of the source of each, from 0, where a row of several codes is several; None: the same."""
    codes: NDArray[np.int32]
    """Index into `code_names`, -1 without a code."""
    code_names: list[str]
    """The codes of the list, or those observed without one."""
    unknown: Counter[str]
    """Rows by code that the list lacks."""
    respelt: Counter[Respelling]
    """Cells whose code was written otherwise, by what it took to read them."""
    cohorts: NDArray[np.int32]
    """Index into `cohort_names`, -1 without a date."""
    cohort_names: list[str]
    late: NDArray[np.bool_] | None
    """Rows dated on or after the day of the split; None without such a day."""
    units: NDArray[np.int32] | None
    """Number of the unit, one for all spellings of its id; None where there are no units."""
    identities: Digests | None
    """Identities of the records, where their use follows from them."""
    unit_identities: Digests | None
    """Identities of the records' units, where all records of a unit go to the same split."""
    notes: tuple[str, ...]
    """What was read in one of several ways, in sentences without a value of a record."""
    look: NarrativeLook

    def dropped(self) -> dict[str, int]:
        counts = np.bincount(self.state, minlength=len(_REASONS) + 1)
        return {name: int(counts[state]) for state, name in _REASONS.items() if counts[state]}


@dataclass(frozen=True)
class _Column:
    different: pa.Array
    """Its different values."""
    index: NDArray[Any]
    """Place of each row's value among them."""

    @classmethod
    def of(cls, chunks: Sequence[pa.DictionaryArray]) -> _Column:
        whole = pa.chunked_array(chunks).unify_dictionaries()
        index = np.concatenate([np.from_dlpack(chunk.indices) for chunk in whole.chunks])
        return cls(whole.chunk(0).dictionary, index)

    @cached_property
    def values(self) -> list[str]:
        return self.different.to_pylist()

    def spread(self, each: Iterable[bool]) -> NDArray[np.bool_]:
        return np.fromiter(each, np.bool_, len(self.values))[self.index]

    @property
    def blank(self) -> NDArray[np.bool_]:
        lengths = pc.call_function("binary_length", [self.different])
        return (np.from_dlpack(lengths) == 0)[self.index]


def survey(
    records: Table,
    config: IngestConfig,
    listed: Sequence[Code] | None,
    marks: Marks,
    progress: Callable[[int], None] = lambda rows: None,
) -> Survey:
    named = (config.label_column, config.dates_from, config.unit_column, config.id_column)
    chunks: dict[str, list[pa.DictionaryArray]] = {name: [] for name in named if name is not None}
    empty: list[NDArray[np.bool_]] = []
    identities: list[Digests] = []
    place = None if listed is None else {code.code: n for n, code in enumerate(listed)}
    rows, looking, numbers = 0, Looking(), []
    for batch, of_batch in numbered(records.texts(config.columns, marks), config, place):
        trimmed = {
            name: pc.call_function("utf8_trim_whitespace", [batch.column(name)])
            for name in config.columns
        }
        lengths = (
            pc.call_function("binary_length", [trimmed[name]]) for name in config.text_columns
        )
        empty.append(np.logical_and.reduce([np.from_dlpack(length) == 0 for length in lengths]))
        for name, parts in chunks.items():
            parts.append(trimmed[name].dictionary_encode())
        if config.sampling == "per-record":
            whole = [batch.column(name) for name in sorted(batch.schema.names)]
            identifying = whole if config.id_column is None else [trimmed[config.id_column]]
            identities.append(digests([column.to_pylist() for column in identifying]))
        looking.take([trimmed[name] for name in config.text_columns])
        if config.several_codes == "each":
            numbers.append(of_batch)
        rows += batch.num_rows
        progress(rows)
    lines = _Lines(np.concatenate(numbers) if numbers else None)
    columns = {name: _Column.of(parts) for name, parts in chunks.items()}
    lacking = np.concatenate(empty)
    label = records.source.label
    coded, code_names, unknown, respelt = _codes(
        columns[config.label_column], config, listed, label
    )
    if unknown and config.unknown_codes != "drop":
        spellings = Spellings(code_names)
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
        raise InputError(
            f"{label}, column {config.label_column!r}: {unknown.total()} of {rows} records have "
            "a code that is "
            f"not on the code list ({describe_shape(unknown)}{f'; {hint}' if hint else ''}). "
            "Give the right list or column, or set data.ingest.unknown_codes=drop"
            f"{''.join(f' or {way}' for way in ways)}"
        )
    if lacking.any() and config.empty_text == "refuse":
        raise InputError(
            f"{label}: {lacking.sum()} records without text ({lines.named(lacking)}). Fill them in, "
            "or set "
            "data.ingest.empty_text=drop"
        )
    units, notes = None, lines.notes()
    if config.unit_column is not None:
        units, more = _units(
            columns[config.unit_column], f"{label}, column {config.unit_column!r}", lines
        )
        notes += more
    # The last reason written is the one that counts, so the gravest comes last.
    state = np.full(rows, USABLE, dtype=np.int8)
    if units is not None:
        state[units.blank] = NO_UNIT
    state[lacking] = NO_CONTENT
    state[coded < 0] = UNKNOWN_CODE
    state[columns[config.label_column].blank] = NO_CODE
    notes += _respelt_notes(respelt)
    counts = np.bincount(coded[coded >= 0], minlength=len(code_names)).tolist()
    by_code = {name: count for name, count in zip(code_names, counts, strict=True) if count}
    notes += twins(by_code) if listed is None else _level_notes(by_code, listed)
    cohorts, cohort_names, late = np.zeros(rows, dtype=np.int32), [ALL], None
    if config.dates_from is not None:
        cohorts, cohort_names, late, more = _dates(
            columns[config.dates_from], config, state, label, lines
        )
        notes += more
    if config.id_column is not None:
        _require_ids(columns[config.id_column], f"{label}, column {config.id_column!r}", lines)
    by_unit = units is not None and config.split_by_unit and config.sampling == "per-record"
    overview = Survey(
        state=state,
        numbers=lines.numbers,
        codes=coded,
        code_names=code_names,
        unknown=unknown,
        respelt=respelt,
        cohorts=cohorts,
        cohort_names=cohort_names,
        late=late if config.train_before is not None else None,
        units=None if units is None else units.index,
        identities=np.concatenate(identities) if identities else None,
        unit_identities=digests([units.values])[units.index]
        if units is not None and by_unit
        else None,
        notes=tuple(notes),
        look=looking.result(),
    )
    usable = coded[state == USABLE]
    if not len(usable):
        reasons = ", ".join(f"{name} {count}" for name, count in overview.dropped().items())
        raise InputError(
            f"{label}: none of {rows} records can be used ({reasons}). Check the columns"
        )
    if (usable == usable[0]).all():
        raise InputError(
            f"{label}, column {config.label_column!r}: all {len(usable)} usable records have the "
            "same code. Give "
            "records with two or more"
        )
    return overview


def _units(column: _Column, label: str, lines: _Lines) -> tuple[_Column, list[str]]:
    """Returns the units by the form that all spellings of an id share, and notes on the ids."""
    # guard: test_an_id_in_another_spelling
    forms = [unit_form(cell) if cell else "" for cell in column.values]
    place = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    units = _Column(
        to_arrow(list(place)),
        np.array([place[form] for form in forms], dtype=np.int32)[column.index],
    )
    # guard: test_a_record_of_two_people
    several = several_ids([form for form in place if form])
    shared = units.spread(form in several for form in place)
    if shared.any():
        raise InputError(
            f"{label}: {shared.sum():,} ids are made of several ({lines.named(shared)}), so that one of "
            "these would be protected less than the claim says. Give each record one id, or leave "
            "the cell blank: such records are dropped and counted"
        )
    given = [(cell, form) for cell, form in zip(column.values, forms, strict=True) if cell]
    return units, unit_notes([cell for cell, _ in given], [form for _, form in given])


def _codes(
    column: _Column, config: IngestConfig, listed: Sequence[Code] | None, label: str
) -> tuple[NDArray[np.int32], list[str], Counter[str], Counter[Respelling]]:
    place = {code.code: number for number, code in enumerate(listed or ())}
    reading = CodeCells(config, place if listed is not None else None)
    counts = np.bincount(column.index, minlength=len(column.values)).tolist()
    codes = np.full(len(column.values), -1, dtype=np.int32)
    unknown: Counter[str] = Counter()
    respelt: Counter[Respelling] = Counter()
    for number, cell in enumerate(column.values):
        if not cell:
            continue
        code, how = reading.read(cell)
        if how is not None:
            respelt[how] += counts[number]
        if listed is not None and code not in place:
            unknown[code] += counts[number]
            continue
        if len(code) > MAX_CODE:
            raise InputError(
                f"{label}, column {config.label_column!r} has values of over {MAX_CODE} "
                "characters. Give the column "
                "of codes"
            )
        codes[number] = place.setdefault(code, len(place))
    return codes[column.index], list(place), unknown, respelt


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
    column: _Column, config: IngestConfig, state: NDArray[np.int8], label: str, lines: _Lines
) -> tuple[NDArray[np.int32], list[str], NDArray[np.bool_], list[str]]:
    label = f"{label}, column {config.dates_from!r}"
    days = [day_of(cell, config.date_format) for cell in column.values]
    slashed = (
        [match for cell in column.values if (match := SLASHED.fullmatch(cell))]
        if config.date_format is None
        else []
    )
    month_first = any(int(match[2]) > 12 >= int(match[1]) for match in slashed)
    bad = column.spread(day is None for day in days) & (state == USABLE)
    if bad.any():
        counts = np.bincount(column.index[bad], minlength=len(column.values)).tolist()
        unread = [
            (cell, count)
            for cell, day, count in zip(column.values, days, counts, strict=True)
            if day is None and count
        ]
        cause = causes(unread, config.date_format)
        formats = fitting([cell for cell, _ in unread], month_first=month_first)
        raise InputError(
            f"{label}: {bad.sum()} dates are missing or do not read as "
            f"{config.date_format or '2015-01-31 or 1/31/2015'} ({lines.named(bad)}{formats}){cause}. "
            "Correct them, set "
            "data.ingest.date_format (such as %m/%d/%y where years have two digits), or set "
            "data.ingest.cohort=none"
            f"{' and no data.ingest.train_before' if config.train_before else ''}"
        )
    both = 0 if month_first else sum(match[1] != match[2] for match in slashed)
    if both and (config.cohort in ("quarter", "month") or config.train_before):
        raise InputError(
            f"{label}: every one of {both:,} dates with / reads month first and day first. Set "
            "data.ingest.date_format=%m/%d/%Y or %d/%m/%Y"
        )
    names = [
        None if day is None else cohort_of(day, config.cohort) if config.dated_cohorts else ALL
        for day in days
    ]
    place = {name: number for number, name in enumerate(dict.fromkeys(filter(None, names)))}
    if config.cohorts is not None:
        outside = column.spread(
            name is not None and name not in config.cohorts for name in names
        ) & (state == USABLE)
        if outside.any() and config.outside_cohorts == "refuse":
            raise InputError(
                f"{label}: {outside.sum()} records are of a {config.cohort} that "
                "data.ingest.cohorts does not declare "
                f"({lines.named(outside)}). Correct their dates, declare it, or set "
                "data.ingest.outside_cohorts=drop"
            )
        state[outside] = OTHER_COHORT
    cohorts = np.array([-1 if name is None else place[name] for name in names], dtype=np.int32)[
        column.index
    ]
    late = column.spread(
        bool(config.train_before and day and day >= config.train_before) for day in days
    )
    notes = []
    future = column.spread(day is not None and day > date.today() for day in days)
    if coming := int((future & (state == USABLE)).sum()):
        pivot = (
            "; %y reads the years 00 to 68 as 2000 to 2068, so give them four digits"
            if "%y" in (config.date_format or "")
            else ""
        )
        notes.append(f"{coming:,} dates lie in the future{pivot}")
    nothing = column.spread(day in NO_DAYS for day in days) & (state == USABLE)
    if nothing.any():
        notes.append(
            f"{nothing.sum():,} dates are the first day of 1900, 1901 or 1970, which programs write "
            "where there is none"
        )
    if both:
        notes.append(
            f"every one of {both:,} dates with / reads both ways, and was read month first; where "
            "days come first set "
            "data.ingest.date_format=%d/%m/%Y"
        )
    return cohorts, list(place), late, notes


def _require_ids(column: _Column, label: str, lines: _Lines) -> None:
    blank = column.blank
    if blank.any():
        raise InputError(
            f"{label}: {blank.sum()} ids are blank ({lines.named(blank)}). Fill them in"
        )
    doubled = np.bincount(column.index[lines.begins])[column.index] > 1
    if doubled.any():
        raise InputError(
            f"{label}: {doubled.sum()} records share an id with another ({lines.named(doubled)}); an "
            "id must name one record"
        )


@dataclass(frozen=True)
class _Lines:
    """Says where in the file the rows of a survey are."""

    numbers: NDArray[np.int64] | None
    """Row of the file of each, from 0, where one of the file is several; None: the same."""

    def named(self, rows: NDArray[np.bool_]) -> str:
        places = np.flatnonzero(rows) if self.numbers is None else np.unique(self.numbers[rows])
        more = f" and {len(places) - 10} more" if len(places) > 10 else ""
        word = "row" if len(places) == 1 else "rows"
        return f"{word} {', '.join(map(str, (places[:10] + 1).tolist()))}{more}"

    @property
    def begins(self) -> NDArray[np.bool_] | slice:
        """Chooses the first of each row of the file."""
        if self.numbers is None:
            return slice(None)
        return np.r_[True, self.numbers[1:] != self.numbers[:-1]]

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
