"""Turns a file of records into the splits that a coder learns from and is tested on.

Two streaming passes: the first surveys every row without its text, then the sample is drawn, and the second reads the
texts of the sample. So memory grows by about 100 bytes per row, for any length of the narratives and any cap.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.codelist import Code, read_codelist, restrict
from storage.datasets import CELLS, CODES, FIELDS, split_file
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ingest.config import IngestConfig
from storage.ingest.record_content import Content, inspect_sources, open_records
from storage.ingest.results import FieldResult, IngestResult, LabelSpaceSource, SourceCheck, SourcePreview
from storage.ingest.sampling import SPLITS, UNUSED, Selection, select
from storage.ingest.survey import USABLE, FieldSurvey, Survey, Surveyor
from storage.ingest.writer import RecordWriter, enough_disk
from storage.tables.reader import Marks, Table
from storage.tables.source import Source

REPORT = "report.json"

Progress = Callable[[int, int | None], None]


def check_source(source: Path | Sequence[Path], config: IngestConfig, codelist: Path | None) -> SourceCheck:
    """Refuses early what `ingest` would refuse after minutes: files, columns, encoding of the first megabyte."""
    checked = inspect_sources(source, config)
    _codelists(config, codelist)
    sizes = (sum(one.bytes for one in checked), sum(one.estimated_rows for one in checked))
    return SourceCheck(checked[0].columns, *sizes)


def preview(source: Path | Sequence[Path], config: IngestConfig, codelist: Path | None) -> SourcePreview:
    """Checks every row's code, date and text against the code list, as the first pass of `ingest` does. Only reads."""
    listed = _codelists(config, codelist)
    records, content = open_records(source, config)
    surveyor, marks = Surveyor(records.source, config, listed, content), _marks(config, listed)
    for batch in records.texts(config.columns, marks):
        surveyor.take(batch)
    survey = surveyor.finish()
    usable, selection = survey.state == USABLE, _selection(survey, config)
    _require_halves(survey, selection, records.source, config)
    counts = np.bincount(selection.split[selection.split != UNUSED], minlength=len(SPLITS))
    splits = SPLITS if config.holdout_share > 0 else SPLITS[:2]
    return SourcePreview(
        rows=surveyor.rows,
        usable=int(usable.sum()),
        dropped=survey.dropped(),
        sampled={name: int(count) for name, count in zip(splits, counts, strict=False)},
        left_out={name: count for name, count in selection.left_out.items() if count},
        codes=sum(len(field.code_names) for field in survey.fields),
        codes_observed=sum(len(np.unique(f.codes[usable & (f.codes >= 0)])) for f in survey.fields),
        cohorts=config.cohorts or tuple(sorted(survey.cohort_names[at] for at in np.unique(survey.cohorts[usable]))),
        reading=tuple(records.reading),
        notes=tuple(filter(None, (marks.sentence, *survey.notes))),
    )


def _marks(config: IngestConfig, listed: Mapping[str, Sequence[Code] | None]) -> Marks:
    """Returns the marks of missing values, without those that are codes of a list."""
    return Marks(config.read.missing, codes={code.code for codes in listed.values() for code in codes or ()})


def _codelists(config: IngestConfig, codelist: Path | None) -> dict[str, tuple[Code, ...] | None]:
    """Returns the published classification of each field, None where there is none."""
    if not config.fields:
        return {"": None if codelist is None else read_codelist(codelist, columns=config.codelist_columns)}
    if codelist is not None:
        raise InputError("code list: several fields need one each. Give data.ingest.fields.NAME.codelist only")
    codelists: dict[str, tuple[Code, ...] | None] = {}
    for name, field in config.fields.items():
        file = None if field.codelist is None else Path(field.codelist).expanduser()
        if file is not None and not file.is_file():
            raise InputError(f"data.ingest.fields.{name}.codelist: no file {file}")
        codelists[name] = (
            None
            if file is None
            else read_codelist(file, option=f"code list of field {name}", columns=config.codelist_columns)
        )
    return codelists


def ingest(
    source: Path | Sequence[Path],
    out_dir: Path,
    config: IngestConfig,
    codelist: Path | None,
    progress: Progress | None = None,
) -> IngestResult:
    """Reads, checks, samples and splits records; writes `out_dir`.

    `out_dir` gets train.parquet, test.parquet, holdout.parquet (where it has a share), codes.json (the label space
    in order; of several fields fields.json, each with its own), report.json (counts, no narratives)
    and cells.parquet (digests of their text cells). Files of a killed run are overwritten.

    Args:
        codelist: published classification, which becomes the label space whole and in its order, so that
            observed codes show nowhere. Without it the sorted codes of the sample do. Several fields name one each.
        progress: called with rows done and rows expected; both passes count half.
    """
    listed = _codelists(config, codelist)
    records, content = open_records(source, config)
    report_progress = progress or (lambda done, total: None)

    surveyor, marks = Surveyor(records.source, config, listed, content), _marks(config, listed)
    for batch in records.texts(config.columns, marks):
        surveyor.take(batch)
        report_progress(surveyor.rows // 2, records.rows)
    survey = surveyor.finish()
    selection = _selection(survey, config)
    classes = [_classes(field, selection, listed[field.name], records.source, config) for field in survey.fields]
    _require_halves(survey, selection, records.source, config)

    with enough_disk(out_dir):
        for stale in (*(split_file(out_dir, split) for split in SPLITS), out_dir / CELLS):
            stale.unlink(missing_ok=True)
        splits = SPLITS if config.holdout_share > 0 else SPLITS[:2]
        named_ids, fields = config.id_column is not None, tuple(config.fields)
        with RecordWriter(out_dir, splits, content.field, named_ids=named_ids, fields=fields) as writer:
            done = 0
            for batch in records.texts(config.columns, _marks(config, listed)):
                _write(writer, batch, done, survey, selection, classes, config, content)
                done += batch.num_rows
                report_progress((surveyor.rows + done) // 2, surveyor.rows)
            if records.changed():
                raise StorageError(f"{records.source.label} changed during reading. Run again")
        result = _result(records, survey, selection, classes, writer, config, marks)
        for name in (CODES, FIELDS):
            (out_dir / name).unlink(missing_ok=True)
        if config.fields:
            spaces = {one.survey.name: [code.as_json() for code in one.space] for one in classes}
            _write_json(out_dir / FIELDS, spaces)
        else:
            _write_json(out_dir / CODES, [code.as_json() for code in classes[0].space])
        _write_json(out_dir / REPORT, result.report)
    return result


def _require_all(rows: int, counts: Mapping[str, int], source: Source, column: str) -> None:
    """Requires that each row of a column was counted once: with a code of the list, with another one or blank."""
    if sum(counts.values()) != rows:
        raise StorageError(
            f"{source.label}, column {column!r}: {rows:,} rows, {sum(counts.values()):,} of them accounted for. "
            "Run again, and report it if it persists"
        )


def _selection(survey: Survey, config: IngestConfig) -> Selection:
    return select(
        survey.codes,
        survey.units,
        survey.state == USABLE,
        config,
        late=survey.late,
        identities=survey.identities,
        unit_identities=survey.unit_identities,
    )


def _require_halves(survey: Survey, selection: Selection, source: Source, config: IngestConfig) -> None:
    """Requires records of each field on both sides, which a day or a separate draw per record does not guarantee."""
    for field in survey.fields:
        for at, name in enumerate(SPLITS[:2]):
            if not ((selection.split == at) & (field.codes >= 0)).any():
                day, side = config.train_before, "before" if name == "train" else "on or after"
                by = f"none is dated {side} {day}. Change train_before" if day else "Change test_share or holdout_share"
                of = f", field `{field.name}`, column {field.column!r}" if field.name else ""
                raise InputError(
                    f"{source.label}{of}: no usable records for the {name} half{'; ' if day else '. '}{by}"
                )


@dataclass(frozen=True)
class _Classes:
    """Holds the classes of one field in order, and the label of each of the survey's codes (-1: not a class)."""

    survey: FieldSurvey
    space: list[Code]
    labels: np.ndarray
    source: LabelSpaceSource

    def label(self, row: int) -> int:
        """Returns the label of a row of the source; -1 where the record lacks a code of this field."""
        code = int(self.survey.codes[row])
        return -1 if code < 0 else int(self.labels[code])

    def code(self, row: int) -> str | None:
        """Returns the code of a row of the source."""
        code = int(self.survey.codes[row])
        return None if code < 0 else self.survey.code_names[code]


def _classes(
    field: FieldSurvey, selection: Selection, listed: Sequence[Code] | None, source: Source, config: IngestConfig
) -> _Classes:
    observed = selection.codes_of(field.codes)
    if len(observed) < 2:
        of = f", field `{field.name}`" if field.name else ""
        raise InputError(
            f"{source.label}{of}, column {field.column!r}: {len(observed)} codes have {config.min_per_code} "
            "records or more, and a coder needs two. Lower min_per_code, or check the column"
        )
    if listed is not None and config.label_space == "codelist":
        return _Classes(field, list(listed), np.arange(len(listed)), "codelist")
    names = sorted(field.code_names[at] for at in observed)
    space = [Code(name) for name in names] if listed is None else list(restrict(listed, set(names)))
    place = {code.code: at for at, code in enumerate(space)}
    labels = np.array([place.get(name, -1) for name in field.code_names])
    return _Classes(field, space, labels, "observed")


def _write(
    writer: RecordWriter,
    batch: pa.RecordBatch,
    start: int,
    survey: Survey,
    selection: Selection,
    classes: Sequence[_Classes],
    config: IngestConfig,
    content: Content,
) -> None:
    chosen = np.flatnonzero(selection.split[start : start + batch.num_rows] != UNUSED)
    if len(chosen) == 0:
        return
    named = {name for name in (config.id_column, config.unit_column) if name is not None}
    cells = {name: batch.column(name).take(pa.array(chosen)).to_pylist() for name in named}
    values, digests = content.values(batch, chosen), content.cells(batch, chosen)
    for at, row in enumerate((chosen + start).tolist()):
        writer.add(
            SPLITS[selection.split[row]],
            record_id=row + 1 if config.id_column is None else cells[config.id_column][at].strip(),
            content=values[at],
            cells=digests[at],
            labels=tuple(one.label(row) for one in classes),
            codes=tuple(one.code(row) for one in classes),
            cohort=survey.cohort_names[survey.cohorts[row]],
            unit=None if config.unit_column is None else _pseudonym(cells[config.unit_column][at].strip()),
        )


def _pseudonym(unit: str) -> str:
    """Returns a short name for a unit, which hides nothing from anybody who can guess the unit."""
    return hashlib.blake2b(unit.encode(), digest_size=12).hexdigest()


def _result(
    records: Table,
    survey: Survey,
    selection: Selection,
    classes: Sequence[_Classes],
    writer: RecordWriter,
    config: IngestConfig,
    marks: Marks,
) -> IngestResult:
    sampled = selection.split != UNUSED
    cohort_counts = np.bincount(survey.cohorts[sampled], minlength=len(survey.cohort_names))
    counted = {name: int(n) for name, n in sorted(zip(survey.cohort_names, cohort_counts, strict=True)) if n}
    cohorts = {name: counted.get(name, 0) for name in sorted(config.cohorts or counted)}
    label_space_source: LabelSpaceSource = (
        "observed" if any(one.source == "observed" for one in classes) else "codelist"
    )
    dropped = survey.dropped() | selection.left_out
    if sum(writer.counts.values()) + sum(dropped.values()) != records.rows or sampled.sum() != sum(
        writer.counts.values()
    ):
        raise StorageError(
            f"{records.source.label}: {records.rows:,} rows, {sum(writer.counts.values()):,} of them written and "
            f"{sum(dropped.values()):,} dropped: rows are unaccounted for. Run again, and report it if it persists"
        )
    fields = {one.survey.name: _field_report(one, survey, selection, records.source) for one in classes}
    report: dict[str, Any] = {
        "rows_counted": records.rows,
        "rows_read": len(survey.state),
        "bad_rows_skipped": sum(part.skipped for part in records.files),
        "read_as_blank": marks.counts,
        "sampled": int(sampled.sum()),
        "splits": dict(writer.counts),
        "dropped": dropped,
        **({"fields": fields} if config.fields else {name: fields[""][name] for name in _CODES_OF}),
        "codes_observed": sum(field["codes_observed"] for field in fields.values()),
        "label_space": sum(field["label_space"] for field in fields.values()),
        "label_space_source": label_space_source,
        "cohorts": cohorts,
        "cohorts_source": config.cohorts_source,
        **({} if config.fields else {"codes": fields[""]["codes"]}),
        "fingerprint": writer.fingerprint,
        "source": [part.source.reading for part in records.files],
        "config": config.model_dump(mode="json"),
    }
    return IngestResult(
        rows_read=report["rows_read"],
        train=writer.counts["train"],
        test=writer.counts["test"],
        holdout=writer.counts.get("holdout", 0),
        codes_observed=report["codes_observed"],
        label_space=report["label_space"],
        label_space_source=label_space_source,
        cohorts=tuple(cohorts),
        cohorts_source=config.cohorts_source,
        fingerprint=writer.fingerprint,
        fields={
            name: FieldResult(**{key: field[key] for key in ("codes_observed", "label_space", "label_space_source")})
            for name, field in fields.items()
            if name
        },
        report=report,
    )


_CODES_OF = ("codes_respelt", "codes_not_on_list")


def _field_report(one: _Classes, survey: Survey, selection: Selection, source: Source) -> dict[str, Any]:
    """Reports where the rows of one field went, all of them, and its records per code."""
    field = one.survey
    coded = field.codes >= 0
    rows = {"coded": int(coded.sum()), "blank": field.blank, "not_on_list": field.unknown.total()}
    _require_all(len(field.codes), rows, source, field.column)
    return {
        "column": field.column,
        "rows": rows,
        "splits": {name: int((coded & (selection.split == at)).sum()) for at, name in enumerate(SPLITS)},
        "codes_respelt": field.respelt,
        "codes_not_on_list": dict(sorted(field.unknown.items())),
        "codes_observed": len(selection.codes_of(field.codes)),
        "label_space": len(one.space),
        "label_space_source": one.source,
        "codes": _per_code(field, survey.state, selection),
    }


def _per_code(field: FieldSurvey, state: np.ndarray, selection: Selection) -> dict[str, dict[str, int]]:
    """Counts records per code: usable ones, and those of each split."""
    size, coded = len(field.code_names), field.codes >= 0
    columns = {"usable": np.bincount(field.codes[coded & (state == USABLE)], minlength=size)}
    for at, split in enumerate(SPLITS):
        columns[split] = np.bincount(field.codes[coded & (selection.split == at)], minlength=size)
    named = sorted(enumerate(field.code_names), key=lambda item: item[1])
    return {
        name: {key: int(counts[at]) for key, counts in columns.items()} for at, name in named if columns["usable"][at]
    }


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False).encode())
