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
from storage.datasets import CELLS, CODES, split_file
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ingest.config import IngestConfig
from storage.ingest.record_content import Content, inspect_sources, open_records
from storage.ingest.results import IngestResult, LabelSpaceSource, SourceCheck, SourcePreview
from storage.ingest.sampling import SPLITS, UNUSED, Selection, select
from storage.ingest.survey import USABLE, CodeSurvey, Survey, Surveyor
from storage.ingest.writer import RecordWriter, enough_disk
from storage.tables.reader import Marks, Table
from storage.tables.source import Source

REPORT = "report.json"

Progress = Callable[[int, int | None], None]


def check_source(source: Path | Sequence[Path], config: IngestConfig, codelist: Path | None) -> SourceCheck:
    """Refuses early what `ingest` would refuse after minutes: files, columns, encoding of the first megabyte."""
    checked = inspect_sources(source, config)
    _read_list(codelist, config)
    sizes = (sum(one.bytes for one in checked), sum(one.rows for one in checked))
    return SourceCheck(checked[0].columns, *sizes)


def preview(source: Path | Sequence[Path], config: IngestConfig, codelist: Path | None) -> SourcePreview:
    """Checks every row's code, date and text against the code list, as the first pass of `ingest` does. Only reads."""
    listed = _read_list(codelist, config)
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
        codes=len(survey.coded.code_names),
        codes_observed=len(np.unique(survey.codes[usable])),
        cohorts=config.cohorts or tuple(sorted(survey.cohort_names[at] for at in np.unique(survey.cohorts[usable]))),
        reading=tuple(records.reading),
        notes=tuple(filter(None, (marks.sentence, *survey.notes))),
    )


def _marks(config: IngestConfig, listed: Sequence[Code] | None) -> Marks:
    """Returns the marks of missing values, without those that are codes of the list."""
    return Marks(config.read.missing, codes={code.code for code in listed or ()})


def _read_list(codelist: Path | None, config: IngestConfig) -> tuple[Code, ...] | None:
    return None if codelist is None else read_codelist(codelist, columns=config.codelist_columns)


def ingest(
    source: Path | Sequence[Path],
    out_dir: Path,
    config: IngestConfig,
    codelist: Path | None,
    progress: Progress | None = None,
) -> IngestResult:
    """Reads, checks, samples and splits records; writes `out_dir`.

    `out_dir` gets train.parquet, test.parquet, holdout.parquet (where it has a share), codes.json (the label space
    in order), report.json (counts, no narratives) and cells.parquet (digests of their text cells). Files of a killed
    run are overwritten.

    Args:
        codelist: published classification, which becomes the label space whole and in its order, so that
            observed codes show nowhere. Without it the sorted codes of the sample do.
        progress: called with rows done and rows expected; both passes count half.
    """
    listed = _read_list(codelist, config)
    records, content = open_records(source, config)
    report_progress = progress or (lambda done, total: None)

    surveyor, marks = Surveyor(records.source, config, listed, content), _marks(config, listed)
    for batch in records.texts(config.columns, marks):
        surveyor.take(batch)
        report_progress(surveyor.rows // 2, records.rows)
    survey = surveyor.finish()
    selection = _selection(survey, config)
    classes = _classes(survey.coded, selection, listed, records.source, config)
    _require_halves(survey, selection, records.source, config)

    with enough_disk(out_dir):
        for stale in (*(split_file(out_dir, split) for split in SPLITS), out_dir / CELLS):
            stale.unlink(missing_ok=True)
        splits = SPLITS if config.holdout_share > 0 else SPLITS[:2]
        with RecordWriter(out_dir, splits, content.field, named_ids=config.id_column is not None) as writer:
            done = 0
            for batch in records.texts(config.columns, _marks(config, listed)):
                _write(writer, batch, done, survey, selection, classes, config, content)
                done += batch.num_rows
                report_progress((surveyor.rows + done) // 2, surveyor.rows)
            if records.changed():
                raise StorageError(f"{records.source.label} changed during reading. Run again")
        result = _result(records, survey, selection, classes, writer, config, marks)
        _write_json(out_dir / CODES, [code.as_json() for code in classes.space])
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
    """Requires records on both sides, which a day or a separate draw per record does not guarantee."""
    for at, name in enumerate(SPLITS[:2]):
        if not (selection.split == at).any():
            day, side = config.train_before, "before" if name == "train" else "on or after"
            by = f"none is dated {side} {day}. Change train_before" if day else "Change test_share or holdout_share"
            raise InputError(f"{source.label}: no usable records for the {name} half{'; ' if day else '. '}{by}")


@dataclass(frozen=True)
class _Classes:
    """Holds the classes in order, and the label of each of the survey's codes (-1: not a class)."""

    survey: CodeSurvey
    space: list[Code]
    labels: np.ndarray
    source: LabelSpaceSource

    def label(self, row: int) -> int:
        """Returns the label of a sampled row of the source."""
        return int(self.labels[self.survey.codes[row]])

    def code(self, row: int) -> str:
        """Returns the code of a sampled row of the source."""
        return self.survey.code_names[self.survey.codes[row]]


def _classes(
    coded: CodeSurvey, selection: Selection, listed: Sequence[Code] | None, source: Source, config: IngestConfig
) -> _Classes:
    observed = selection.codes_of(coded.codes)
    if len(observed) < 2:
        raise InputError(
            f"{source.label}, column {coded.column!r}: {len(observed)} codes have {config.min_per_code} "
            "records or more, and a classifier needs two. Lower min_per_code, or check the column"
        )
    if listed is not None and config.label_space == "codelist":
        return _Classes(coded, list(listed), np.arange(len(listed)), "codelist")
    names = sorted(coded.code_names[at] for at in observed)
    unlisted = [Code(name, name if config.codes_are_names else "") for name in names]
    space = unlisted if listed is None else list(restrict(listed, set(names)))
    place = {code.code: at for at, code in enumerate(space)}
    labels = np.array([place.get(name, -1) for name in coded.code_names])
    return _Classes(coded, space, labels, "observed")


def _write(
    writer: RecordWriter,
    batch: pa.RecordBatch,
    start: int,
    survey: Survey,
    selection: Selection,
    classes: _Classes,
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
            label=classes.label(row),
            code=classes.code(row),
            cohort=survey.cohort_names[survey.cohorts[row]],
            unit=None if config.unit_column is None else _pseudonym(cells[config.unit_column][at].strip()),
        )


def _pseudonym(unit: str) -> str:
    """Returns a short name for a unit, which hides nothing from anyone who can guess the unit."""
    return hashlib.blake2b(unit.encode(), digest_size=12).hexdigest()


def _result(
    records: Table,
    survey: Survey,
    selection: Selection,
    classes: _Classes,
    writer: RecordWriter,
    config: IngestConfig,
    marks: Marks,
) -> IngestResult:
    sampled = selection.split != UNUSED
    cohort_counts = np.bincount(survey.cohorts[sampled], minlength=len(survey.cohort_names))
    counted = {name: int(n) for name, n in sorted(zip(survey.cohort_names, cohort_counts, strict=True)) if n}
    cohorts = {name: counted.get(name, 0) for name in sorted(config.cohorts or counted)}
    dropped = survey.dropped() | selection.left_out
    if sum(writer.counts.values()) + sum(dropped.values()) != records.rows or sampled.sum() != sum(
        writer.counts.values()
    ):
        raise StorageError(
            f"{records.source.label}: {records.rows:,} rows, {sum(writer.counts.values()):,} of them written and "
            f"{sum(dropped.values()):,} dropped: rows are unaccounted for. Run again, and report it if it persists"
        )
    coded, source = survey.coded, records.source
    rows = {"coded": int((coded.codes >= 0).sum()), "blank": coded.blank, "not_on_list": coded.unknown.total()}
    _require_all(records.rows, rows, source, coded.column)
    report: dict[str, Any] = {
        "rows_counted": records.rows,
        "rows_read": len(survey.state),
        "bad_rows_skipped": sum(part.skipped for part in records.files),
        "read_as_blank": marks.counts,
        "sampled": int(sampled.sum()),
        "splits": dict(writer.counts),
        "dropped": dropped,
        "codes_respelt": coded.respelt,
        "codes_not_on_list": dict(sorted(coded.unknown.items())),
        "codes_observed": len(selection.codes_of(coded.codes)),
        "label_space": len(classes.space),
        "label_space_source": classes.source,
        "cohorts": cohorts,
        "cohorts_source": config.cohorts_source,
        "codes": _per_code(coded, survey.state, selection),
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
        label_space_source=classes.source,
        cohorts=tuple(cohorts),
        cohorts_source=config.cohorts_source,
        fingerprint=writer.fingerprint,
        report=report,
    )


def _per_code(coded: CodeSurvey, state: np.ndarray, selection: Selection) -> dict[str, dict[str, int]]:
    """Counts records per code: usable ones, and those of each split."""
    size, codes = len(coded.code_names), coded.codes
    columns = {"usable": np.bincount(codes[state == USABLE], minlength=size)}
    for at, split in enumerate(SPLITS):
        columns[split] = np.bincount(codes[selection.split == at], minlength=size)
    named = sorted(enumerate(coded.code_names), key=lambda item: item[1])
    return {
        name: {key: int(counts[at]) for key, counts in columns.items()} for at, name in named if columns["usable"][at]
    }


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False).encode())
