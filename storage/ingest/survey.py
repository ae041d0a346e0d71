"""Surveys all rows without their texts: code, cohort, unit, and whether each can be used.

It keeps some 20 to 60 bytes a row, so that any sample can be drawn before a single narrative is
read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.codelist import MAX_CODE, Code, describe_shape, normalise_code
from storage.errors import InputError
from storage.ingest.config import Cohort, IngestConfig
from storage.ingest.sampling import Digests, digests
from storage.spelling import Spellings, twins
from storage.tables.reader import Marks, Table

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

_YEARS = range(1900, 2101)
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ].*)?", re.ASCII)
_US = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[T ].*)?", re.ASCII)
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
_TRIED = 1000
_WORDS = {
    "english": "the of and to was were with from his her he she while when a an on in at by for",
    "french": "le la les des une dans et est sur avec du en au il par sa son a été",
    "german": "der die das und mit ein eine wurde auf beim sich dem den im von ist er",
    "spanish": "el la los las una del con por se su al en y un mientras cuando que",
    "italian": "il lo di che della nel una con per si al da un è gli la mentre",
    "portuguese": "o a os um uma do da com na no foi ao e de em quando que seu",
    "dutch": "de het een van met zijn werd op aan toen en in is bij door hij",
    "swedish": "och en ett att på med av till från den som när han hon sig var",
    "danish": "og en et at på med af til fra den som da han hun sig var blev",
    "finnish": "ja oli on kun hän että sekä kanssa mutta joka myös ei",
}
_FEWEST, _SHARE, _AHEAD = 100, 0.08, 1.4


@dataclass(frozen=True)
class Survey:
    """Holds one entry per row of the source."""

    state: NDArray[np.int8]
    codes: NDArray[np.int32]
    """Index into `code_names`, -1 without a code."""
    code_names: list[str]
    """The codes of the list, or those observed without one."""
    unknown: Counter[str]
    """Rows by code that the list lacks."""
    respelt: int
    """Cells whose code was written otherwise, such as 111.0."""
    cohorts: NDArray[np.int32]
    """Index into `cohort_names`, -1 without a date."""
    cohort_names: list[str]
    late: NDArray[np.bool_] | None
    """Rows dated on or after the day of the split; None without such a day."""
    units: NDArray[np.int32] | None
    """Number of the unit; None where there are no units."""
    identities: Digests | None
    """Identities of the records, where their use follows from them."""
    unit_identities: Digests | None
    """Identities of the records' units, where all records of a unit go to the same split."""
    notes: tuple[str, ...]
    """What was read in one of several ways, in sentences without a value of a record."""
    language: str | None = None
    """Of the first texts, as the stemmer names it, where it can be told."""

    def dropped(self) -> dict[str, int]:
        counts = np.bincount(self.state, minlength=len(_REASONS) + 1)
        return {name: int(counts[state]) for state, name in _REASONS.items() if counts[state]}


@dataclass(frozen=True)
class _Column:
    values: list[str]
    index: NDArray[Any]

    @classmethod
    def of(cls, chunks: Sequence[pa.DictionaryArray]) -> _Column:
        whole = pa.chunked_array(chunks).unify_dictionaries()
        index = np.concatenate([np.from_dlpack(chunk.indices) for chunk in whole.chunks])
        return cls(whole.chunk(0).dictionary.to_pylist(), index)

    def spread(self, each: Iterable[bool]) -> NDArray[np.bool_]:
        return np.fromiter(each, np.bool_, len(self.values))[self.index]

    @property
    def blank(self) -> NDArray[np.bool_]:
        return self.spread(not value for value in self.values)


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
    rows, language = 0, None
    for batch in records.texts(config.columns, marks):
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
        if not rows:
            language = language_of(
                text for name in config.text_columns for text in trimmed[name][:_TRIED].to_pylist()
            )
        rows += batch.num_rows
        progress(rows)
    columns = {name: _Column.of(parts) for name, parts in chunks.items()}
    lacking = np.concatenate(empty)
    label = records.source.label
    coded, code_names, unknown, respelt = _codes(
        columns[config.label_column], config, listed, label
    )
    if unknown and config.unknown_codes != "drop":
        spellings = Spellings(code_names)
        hint, matching = spellings.described(unknown), all(map(spellings.match, unknown))
        raise InputError(
            f"{label}, column {config.label_column!r}: {unknown.total()} of {rows} records have "
            "a code that is "
            f"not on the code list ({describe_shape(unknown)}{f'; {hint}' if hint else ''}). "
            "Give the right list or "
            "column, or set "
            f"data.ingest.unknown_codes=drop{' (or =match: in the spelling of the list)' * matching}"
        )
    if lacking.any() and config.empty_text == "refuse":
        raise InputError(
            f"{label}: {lacking.sum()} records without text ({_named(lacking)}). Fill them in, "
            "or set "
            "data.ingest.empty_text=drop"
        )
    units = None if config.unit_column is None else columns[config.unit_column]
    # The last reason written is the one that counts, so the gravest comes last.
    state = np.full(rows, USABLE, dtype=np.int8)
    if units is not None:
        state[units.blank] = NO_UNIT
    state[lacking] = NO_CONTENT
    state[coded < 0] = UNKNOWN_CODE
    state[columns[config.label_column].blank] = NO_CODE
    notes = (
        [f"{respelt:,} codes were read in another spelling, such as 111 for 111.0"]
        if respelt
        else []
    )
    if listed is None:
        counts = np.bincount(coded[coded >= 0], minlength=len(code_names))
        notes += twins(dict(zip(code_names, counts.tolist(), strict=True)))
    cohorts, cohort_names, late = np.zeros(rows, dtype=np.int32), [ALL], None
    if config.dates_from is not None:
        cohorts, cohort_names, late, more = _dates(columns[config.dates_from], config, state, label)
        notes += more
    if config.id_column is not None:
        _require_ids(columns[config.id_column], f"{label}, column {config.id_column!r}")
    by_unit = units is not None and config.split_by_unit and config.sampling == "per-record"
    overview = Survey(
        state=state,
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
        language=language,
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


def _codes(
    column: _Column, config: IngestConfig, listed: Sequence[Code] | None, label: str
) -> tuple[NDArray[np.int32], list[str], Counter[str], int]:
    place = {code.code: number for number, code in enumerate(listed or ())}
    spellings = Spellings(place) if config.unknown_codes == "match" else None
    counts = np.bincount(column.index, minlength=len(column.values)).tolist()
    codes = np.full(len(column.values), -1, dtype=np.int32)
    unknown: Counter[str] = Counter()
    respelt = 0
    for number, cell in enumerate(column.values):
        if not cell:
            continue
        code = normalise_code(cell, place if listed is not None else ())
        if spellings is not None and code not in place:
            code = spellings.match(code) or code
        respelt += counts[number] * (code != cell)
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


def _dates(
    column: _Column, config: IngestConfig, state: NDArray[np.int8], label: str
) -> tuple[NDArray[np.int32], list[str], NDArray[np.bool_], list[str]]:
    label = f"{label}, column {config.dates_from!r}"
    days = [_day(cell, config.date_format) for cell in column.values]
    slashed = (
        [match for cell in column.values if (match := _US.fullmatch(cell))]
        if config.date_format is None
        else []
    )
    month_first = any(int(match[2]) > 12 >= int(match[1]) for match in slashed)
    bad = column.spread(day is None for day in days) & (state == USABLE)
    if bad.any():
        fitting = _fitting(
            [cell for cell, day in zip(column.values, days, strict=True) if day is None],
            month_first=month_first,
        )
        raise InputError(
            f"{label}: {bad.sum()} dates are missing or do not read as "
            f"{config.date_format or '2015-01-31 or 1/31/2015'} ({_named(bad)}{fitting}). "
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
        None if day is None else _cohort(day, config.cohort) if config.dated_cohorts else ALL
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
                f"({_named(outside)}). Correct their dates, declare it, or set "
                "data.ingest.outside_cohorts=drop"
            )
        state[outside] = OTHER_COHORT
    cohorts = np.array([-1 if name is None else place[name] for name in names], dtype=np.int32)[
        column.index
    ]
    late = column.spread(
        bool(config.train_before and day and day >= config.train_before) for day in days
    )
    note = (
        f"every one of {both:,} dates with / reads both ways, and was read month first; where "
        "days come first set "
        "data.ingest.date_format=%d/%m/%Y"
    )
    return cohorts, list(place), late, [note] if both else []


def _fitting(unread: Sequence[str], *, month_first: bool) -> str:
    cells = [
        re.split(r"[T ]", cell)[0] if ":" in cell else cell
        for cell in filter(None, unread[:_TRIED])
    ]
    if cells and all(re.fullmatch(r"[2-6]\d{4}", cell, re.ASCII) for cell in cells):
        return (
            "; they are a spreadsheet's numbers of days: give that column the format of a "
            "date and save it again"
        )
    formats = [form for form in _FORMATS if cells and all(_day(cell, form) for cell in cells)]
    if not formats or ("%d/%m/%Y" in formats and month_first):
        return ""
    return f"; every one of the others reads as {' or '.join(formats)}"


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


def _require_ids(column: _Column, label: str) -> None:
    blank = column.blank
    if blank.any():
        raise InputError(f"{label}: {blank.sum()} ids are blank ({_named(blank)}). Fill them in")
    doubled = np.bincount(column.index)[column.index] > 1
    if doubled.any():
        raise InputError(
            f"{label}: {doubled.sum()} records share an id with another ({_named(doubled)}); an "
            "id must name one record"
        )


def _named(rows: NDArray[np.bool_]) -> str:
    numbers = np.flatnonzero(rows) + 1
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {', '.join(map(str, numbers[:10]))}{more}"


def language_of(texts: Iterable[str]) -> str | None:
    """Returns the language as Snowball names it; None where the words are few, or of no language
    known here.
    """
    words = Counter(word for text in texts for word in re.findall(r"\w+", text.lower()))
    scores = sorted(
        ((sum(words[word] for word in own.split()), name) for name, own in _WORDS.items()),
        reverse=True,
    )
    (most, name), (second, _) = scores[:2]
    sure = words.total() >= _FEWEST and most >= _SHARE * words.total() and most >= _AHEAD * second
    return name if sure else None
