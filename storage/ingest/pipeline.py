"""From a file of records to the splits that a coder learns from and is tested on.

Two passes, both streaming: the first judges every row and keeps no text, the sample is drawn, the second reads the
texts of the sample. So memory grows by about 100 bytes a row, whatever the length of the narratives or the cap.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.codelist import Code, read_codelist
from storage.datasets import CODES, split_file
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ingest import readers
from storage.ingest.columns import USABLE, Survey, Surveyor
from storage.ingest.config import IngestConfig
from storage.ingest.report import IngestResult, LabelSpaceSource, SourceCheck
from storage.ingest.sampling import SPLITS, UNUSED, Selection, select
from storage.ingest.source import Source, open_source, require_columns, scan
from storage.ingest.writer import RecordWriter, enough_disk

REPORT = "report.json"

Progress = Callable[[int, int | None], None]


def check_source(source: Path, config: IngestConfig, codelist: Path | None) -> SourceCheck:
    """Refuse at a glance what `ingest` would refuse after minutes: files, columns, encoding of the first megabyte.

    Raises:
        InputError: names the file, column or row and what to do.
    """
    found = open_source(source)
    require_columns(found, config.columns)
    if codelist is not None:
        read_codelist(codelist)
    return SourceCheck(found.columns, found.bytes, found.estimated_rows)


def ingest(
    source: Path,
    out_dir: Path,
    config: IngestConfig,
    codelist: Path | None,
    progress: Progress | None = None,
    *,
    block_bytes: int = readers.BLOCK_BYTES,
) -> IngestResult:
    """Read, check, sample and split records; write `out_dir`.

    `out_dir` gets train.parquet, test.parquet, holdout.parquet (where a share is kept), codes.json (the label space
    in order) and report.json (counts, no narratives). Files of a killed run are overwritten.

    Args:
        codelist: published classification, which becomes the label space whole and in its order, so that what was
            observed shows nowhere. Without it the sorted codes of the sample do.
        progress: called with rows done and rows expected; both passes count half.
        block_bytes: of CSV read at once. Changes nothing in the output.

    Raises:
        InputError: the source, the code list or the columns named for it are at fault.
        StorageError: no space left, or the source changed meanwhile.
    """
    listed = None if codelist is None else read_codelist(codelist)
    found = open_source(source)
    require_columns(found, config.columns)
    found = scan(found)
    report_progress = progress or (lambda done, total: None)

    surveyor = Surveyor(found, config, listed)
    for batch in readers.batches(found, config.columns, block_bytes=block_bytes):
        surveyor.take(batch)
        report_progress(surveyor.rows // 2, max(found.estimated_rows, surveyor.rows))
    survey = surveyor.finish()
    usable = survey.state == USABLE
    selection = select(survey.codes, survey.units, usable, config)
    space, labels = _label_space(survey, selection, listed, found, config)

    with enough_disk(out_dir):
        for split in SPLITS:
            split_file(out_dir, split).unlink(missing_ok=True)
        splits = SPLITS if config.holdout_share > 0 else SPLITS[:2]
        with RecordWriter(out_dir, splits, named_ids=config.id_column is not None) as writer:
            done = 0
            for batch in readers.batches(found, config.columns, block_bytes=block_bytes):
                _write(writer, batch, done, survey, selection, labels, config)
                done += batch.num_rows
                report_progress((surveyor.rows + done) // 2, surveyor.rows)
            if done != surveyor.rows:
                raise StorageError(f"data: {found.name} changed while it was read; run again")
        result = _result(found, survey, selection, space, listed is not None, writer, config)
        _write_json(out_dir / CODES, [{"code": code.code, "title": code.title} for code in space])
        _write_json(out_dir / REPORT, result.report)
    return result


def _label_space(
    survey: Survey, selection: Selection, listed: Sequence[Code] | None, source: Source, config: IngestConfig
) -> tuple[list[Code], np.ndarray]:
    """The classes in order, and the label of each of the survey's codes (-1: not a class)."""
    observed = selection.codes_of(survey.codes)
    if len(observed) < 2:
        raise InputError(
            f"data: {source.name}, column {config.label_column!r}: {len(observed)} codes have {config.min_per_code} "
            "records or more; a coder needs two. Lower min_per_code, or check the column"
        )
    if listed is not None:
        return list(listed), np.arange(len(listed))
    names = sorted(survey.code_names[at] for at in observed)
    place = {name: at for at, name in enumerate(names)}
    return [Code(name) for name in names], np.array([place.get(name, -1) for name in survey.code_names])


def _write(
    writer: RecordWriter,
    batch: pa.RecordBatch,
    start: int,
    survey: Survey,
    selection: Selection,
    labels: np.ndarray,
    config: IngestConfig,
) -> None:
    chosen = np.flatnonzero(selection.split[start : start + batch.num_rows] != UNUSED)
    if len(chosen) == 0:
        return
    cells = {name: batch.column(name).take(pa.array(chosen)).to_pylist() for name in config.columns}
    for at, row in enumerate((chosen + start).tolist()):
        code = int(survey.codes[row])
        writer.add(
            SPLITS[selection.split[row]],
            record_id=row + 1 if config.id_column is None else cells[config.id_column][at].strip(),
            text=config.join(tuple(cells[name][at] for name in config.text_columns)),
            label=int(labels[code]),
            code=survey.code_names[code],
            cohort=survey.cohort_names[survey.cohorts[row]],
            unit=None if config.unit_column is None else _pseudonym(cells[config.unit_column][at].strip()),
        )


def _pseudonym(unit: str) -> str:
    """A short name for a unit. It hides nothing from who can guess the unit; it only keeps it out of sight."""
    return hashlib.blake2b(unit.encode(), digest_size=12).hexdigest()


def _result(
    source: Source,
    survey: Survey,
    selection: Selection,
    space: list[Code],
    fixed: bool,
    writer: RecordWriter,
    config: IngestConfig,
) -> IngestResult:
    sampled = selection.split != UNUSED
    cohort_counts = np.bincount(survey.cohorts[sampled], minlength=len(survey.cohort_names))
    cohorts = {name: int(n) for name, n in sorted(zip(survey.cohort_names, cohort_counts, strict=True)) if n}
    label_space_source: LabelSpaceSource = "codelist" if fixed else "observed"
    dropped = survey.dropped() | {
        "over_unit_cap": selection.over_unit_cap,
        "rare_code": selection.rare_code,
        "over_code_cap": selection.over_code_cap,
    }
    report: dict[str, Any] = {
        "rows_read": len(survey.state),
        "sampled": int(sampled.sum()),
        "splits": dict(writer.counts),
        "dropped": dropped,
        "codes_respelt": survey.respelt,
        "codes_not_on_list": dict(sorted(survey.unknown.items())),
        "codes_observed": len(selection.codes_of(survey.codes)),
        "label_space": len(space),
        "label_space_source": label_space_source,
        "cohorts": cohorts,
        "codes": _per_code(survey, selection),
        "fingerprint": writer.fingerprint,
        "source": {"kind": source.kind, "encoding": source.encoding, "member": source.member, "bytes": source.bytes},
        "config": config.model_dump(mode="json"),
    }
    return IngestResult(
        rows_read=report["rows_read"],
        train=writer.counts["train"],
        test=writer.counts["test"],
        holdout=writer.counts.get("holdout", 0),
        codes_observed=report["codes_observed"],
        label_space=len(space),
        label_space_source=label_space_source,
        cohorts=tuple(cohorts),
        fingerprint=writer.fingerprint,
        report=report,
    )


def _per_code(survey: Survey, selection: Selection) -> dict[str, dict[str, int]]:
    """Records a code: usable ones, and those of each split."""
    size = len(survey.code_names)
    columns = {"usable": np.bincount(survey.codes[survey.state == USABLE], minlength=size)}
    for at, split in enumerate(SPLITS):
        columns[split] = np.bincount(survey.codes[selection.split == at], minlength=size)
    named = sorted(enumerate(survey.code_names), key=lambda item: item[1])
    return {
        name: {key: int(counts[at]) for key, counts in columns.items()} for at, name in named if columns["usable"][at]
    }


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False).encode())
