"""Splits a file of records into training, test and holdout data.

The first pass surveys every row without its text. Then the sample is drawn, and the second pass
reads only the texts of the sample.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.code_levels import restrict
from storage.codelist import Code, CodeList, read_list
from storage.datasets import CELLS, CODES, SplitWriter, split_file
from storage.durable import write_atomically
from storage.errors import Changed, OutOfRange, StorageError
from storage.ingest.cell_digests import SIZE, cell_digests
from storage.ingest.code_cells import Numbers, numbered
from storage.ingest.config import CohortsSource, IngestConfig
from storage.ingest.sampling import SPLITS, UNUSED, Selection, select
from storage.ingest.survey import USABLE, Survey, places_of, survey
from storage.ingest.units import unit_forms
from storage.narrative_look import NarrativeLook
from storage.tables.csv_layout import open_source
from storage.tables.inputs import files_in
from storage.tables.json_rows import scan_json
from storage.tables.reader import MissingValues, Table, open_table, to_arrow
from storage.tables.source import require_columns

REPORT = "report.json"
_READ_EARLY = 4 << 20
"""Total size in bytes of files of which every row is validated before slow imports."""
_SCANNED_EARLY = 8 << 20
"""Size in bytes of JSON files that are read completely before slower steps."""

_QUOTED = json.encoder.encode_basestring_ascii
Progress = Callable[[int, int | None], None]
LabelSpaceSource = Literal["codelist", "observed"]


@dataclass(frozen=True)
class IngestResult:
    """Counts of one ingest: aggregate figures, and a private `report` with counts per code."""

    rows_read: int
    train: int
    test: int
    holdout: int
    codes_observed: int
    """Number of codes with a record in the sample."""
    label_space: int
    """Number of classes of the model: the whole code list, or the codes observed."""
    label_space_source: LabelSpaceSource
    cohorts: tuple[str, ...]
    """The declared cohorts, or those of the sampled records; sorted."""
    cohorts_source: CohortsSource
    fingerprint: str
    """SHA-256 over one line of JSON per sampled record, in the order of the source: [split,
    record_id, text, code, cohort, unit], in ASCII, without spaces, ended by a line feed. It
    depends on neither the file format nor the numbering of the codes.
    """
    report: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Units:
    """Number of distinct privacy units, ignoring differences in spelling."""

    number: int
    largest: int
    """Records of the largest unit, before a cap."""


@dataclass(frozen=True)
class SourcePreview:
    """Counts of a whole source, computed without writing a record."""

    rows: int
    usable: int
    dropped: dict[str, int]
    sampled: dict[str, int]
    """Number of records by split, including `holdout` if it has a share."""
    left_out: dict[str, int]
    """Usable records that the sampling leaves out, by reason."""
    codes: int
    """Number of codes in the list or, without a list, of observed codes."""
    codes_observed: int
    cohorts: tuple[str, ...]
    reading: tuple[str, ...]
    """How each file is read: its name, rows, format, and skipped rows."""
    units: Units | None
    """Units of the usable records; None if the unit is a record."""
    notes: tuple[str, ...]
    """Notes on marks read as blank, spellings, and ambiguous dates."""
    look: NarrativeLook
    """Summary of the narratives of all records."""


def check_source(source: Path | Sequence[Path], config: IngestConfig, codelist: Path | None) -> int:
    """Refuses early what `ingest` would refuse after minutes. Returns the number of rows, estimated
    from the first bytes.
    """
    rows = 0
    for file in files_in(source, "data"):
        overview = open_source(file, read=config.read, required=config.columns)
        rows += overview.rows
        if overview.kind == "jsonl" and overview.bytes <= _SCANNED_EARLY:
            overview, _, _ = scan_json(overview, config.columns, [0])
        # the columns are known at the end of the file
        if overview.kind != "jsonl" or overview.columns:
            require_columns(overview, config.columns, config.column_options)
    _read_list(codelist, config)
    return rows


def check_early(source: Path | Sequence[Path], config: IngestConfig, codelist: Path | None) -> None:
    """Refuses what `ingest` would refuse, before slow imports. Small files are read completely, and
    others as far as their first bytes show.
    """
    files = files_in(source, "data")
    check_source(files, config, codelist)
    if sum(file.stat().st_size for file in files) <= _READ_EARLY:
        preview(files, config, codelist)


def preview(
    source: Path | Sequence[Path], config: IngestConfig, codelist: Path | None
) -> SourcePreview:
    """Validates and samples every row like `ingest`, without writing anything."""
    read_list_of_codes = None if codelist is None else read_codes(codelist, config)
    listed = None if read_list_of_codes is None else read_list_of_codes.codes
    records, marks = _open(source, config), _marks(config, listed)
    overview = survey(records, config, listed, marks)
    of_list = () if read_list_of_codes is None else read_list_of_codes.notes
    usable, selection = overview.state == USABLE, _select(overview, config, records)
    return SourcePreview(
        rows=len(usable),
        usable=int(usable.sum()),
        dropped=overview.dropped(),
        sampled=_counts(selection, config),
        left_out={name: count for name, count in selection.left_out.items() if count},
        codes=len(overview.code_names),
        codes_observed=len(np.unique(overview.codes[usable])),
        cohorts=config.cohorts
        or tuple(
            sorted(overview.cohort_names[number] for number in np.unique(overview.cohorts[usable]))
        ),
        reading=tuple(records.reading),
        units=_units(overview),
        notes=tuple(filter(None, (*of_list, marks.sentence, *overview.notes))),
        look=overview.look,
    )


def ingest(
    source: Path | Sequence[Path],
    out_dir: Path,
    config: IngestConfig,
    codelist: Path | None,
    progress: Progress = lambda done, total: None,
) -> IngestResult:
    """Reads, validates, samples and splits records, and writes them to `out_dir`.

    `out_dir` gets train.arrow, test.arrow, holdout.arrow (if it has a share), codes.json (the label
    space in order), report.json (counts, no narratives) and cells.parquet (digests of the text
    cells). Files of an interrupted run are overwritten.

    Args:
        codelist: published classification. All of it becomes the label space, in its order, so that
            the observed codes are not revealed. Without it, the sorted codes of the sample are
            used.
        progress: called with completed and expected rows. Each pass counts half.
    """
    listed = _read_list(codelist, config)
    records, marks = _open(source, config), _marks(config, listed)
    overview = survey(
        records, config, listed, marks, lambda rows: progress(rows // 2, records.rows)
    )
    selection = _select(overview, config, records)
    space, labels = _classes(overview, selection, listed, config)
    counts = _counts(selection, config)
    files = {name: split_file(out_dir, name) for name in counts}
    for stale in (*(split_file(out_dir, split) for split in SPLITS), out_dir / CELLS):
        stale.unlink(missing_ok=True)
    written = _write_splits(records, files, config, listed, overview, selection, labels, progress)
    if records.changed():
        for file in files.values():
            _partial(file).unlink()
        raise Changed(
            f"{records.source.label} changed during reading. Run again", kind="records-changed"
        )
    report = _report(records, overview, selection, counts, config)
    report["read_as_blank"] = marks.counts
    report["label_space"] = len(space)
    from_list = bool(listed) and config.label_space == "codelist"
    report["label_space_source"] = "codelist" if from_list else "observed"
    report["fingerprint"] = written.fingerprint
    _write_cells(written.cells, out_dir / CELLS)
    for file in files.values():
        _partial(file).replace(file)
    codes = [code.as_json() for code in space]
    for name, content in ((CODES, codes), (REPORT, report)):
        write_atomically(out_dir / name, json.dumps(content, ensure_ascii=False).encode())
    return IngestResult(
        rows_read=len(overview.state),
        train=counts["train"],
        test=counts["test"],
        holdout=counts.get("holdout", 0),
        cohorts=tuple(report["cohorts"]),
        report=report,
        codes_observed=report["codes_observed"],
        label_space=report["label_space"],
        label_space_source=report["label_space_source"],
        cohorts_source=report["cohorts_source"],
        fingerprint=report["fingerprint"],
    )


class _Written(NamedTuple):
    fingerprint: str
    """Digest of the sampled records."""
    cells: bytearray
    """Digests of their text cells."""


def _write_splits(
    records: Table,
    files: Mapping[str, Path],
    config: IngestConfig,
    listed: Sequence[Code] | None,
    overview: Survey,
    selection: Selection,
    labels: np.ndarray,
    progress: Progress,
) -> _Written:
    """Reads the records a second time, and writes those of each split to its file."""
    digest, cells = hashlib.sha256(), bytearray()
    done, rows_in_all = 0, len(overview.state)
    schema = _schema(config)
    batches = records.texts(config.columns, _marks(config, listed))
    with ExitStack() as opened:
        writers = [
            opened.enter_context(SplitWriter(_partial(file), schema)) for file in files.values()
        ]
        for batch, numbers in numbered(batches, config, places_of(listed)):
            rows = _sampled(
                batch, done, numbers, overview, selection, labels, config, digest, cells
            )
            split = selection.split[done : done + batch.num_rows]
            split = split[split != UNUSED]
            for number, writer in enumerate(writers):
                writer.write(rows.filter(to_arrow(split == number)))
            done += batch.num_rows
            progress((rows_in_all + done) // 2, rows_in_all)
    return _Written(digest.hexdigest(), cells)


def _write_cells(cells: bytearray, path: Path) -> None:
    """Writes distinct digests in sorted order, which reveals nothing about a record's position."""
    if not cells:
        return
    all_digests = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(SIZE), len(cells) // SIZE, [None, pa.py_buffer(cells)]
    )
    pq.write_table(pa.table({"cell": all_digests.unique()}).sort_by("cell"), path)


def units_of(folder: Path) -> Units | None:
    """The units of an ingested dataset; None if the unit is a record."""
    counted = json.loads((folder / REPORT).read_text(encoding="utf-8")).get("units")
    return None if counted is None else Units(**counted)


def _units(overview: Survey) -> Units | None:
    if overview.units is None:
        return None
    counts = np.bincount(overview.units[overview.state == USABLE])
    return Units(number=int((counts > 0).sum()), largest=int(counts.max()))


def _open(source: Path | Sequence[Path], config: IngestConfig) -> Table:
    return open_table(
        source, config.columns, column_options=config.column_options, read=config.read
    )


def _marks(config: IngestConfig, listed: Sequence[Code] | None) -> MissingValues:
    return MissingValues(config.read.missing, codes={code.code for code in listed or ()})


def read_codes(codelist: Path, config: IngestConfig) -> CodeList:
    """Reads the code list of a run with its settings. All code that reads the list must use this
    function.
    """
    return read_list(codelist, columns=config.codelist_columns, read=config.codelist_read)


def _read_list(codelist: Path | None, config: IngestConfig) -> tuple[Code, ...] | None:
    return None if codelist is None else read_codes(codelist, config).codes


def _select(overview: Survey, config: IngestConfig, records: Table) -> Selection:
    selection = select(
        overview.codes,
        overview.units,
        overview.state == USABLE,
        config,
        late=overview.late,
        identities=overview.identities,
        unit_identities=overview.unit_identities,
    )
    observed = len(selection.codes_of(overview.codes))
    if observed < 2:
        raise OutOfRange(
            f"{records.source.label}, column {config.label_column!r}: {observed} codes have "
            f"{config.min_per_code} "
            "records or more, and a classifier needs two. Lower min_per_code, or check the column",
            kind="too-few-frequent-codes",
            column=config.label_column,
        )
    for number, name in enumerate(SPLITS[:2]):
        if not (selection.split == number).any():
            day, side = config.train_before, "before" if name == "train" else "on or after"
            kept = "training" if name == "train" else "held-out"
            by = (
                f"none is dated {side} {day}. Change train_before"
                if day
                else "Change test_share or holdout_share"
            )
            raise OutOfRange(
                f"{records.source.label}: there are no usable {kept} "
                f"records{'; ' if day else '. '}{by}",
                kind="no-usable-records",
            )
    return selection


def _counts(selection: Selection, config: IngestConfig) -> dict[str, int]:
    splits = SPLITS if config.holdout_share > 0 else SPLITS[:2]
    return {name: int((selection.split == number).sum()) for number, name in enumerate(splits)}


def _classes(
    overview: Survey, selection: Selection, listed: Sequence[Code] | None, config: IngestConfig
) -> tuple[Sequence[Code], np.ndarray]:
    if listed is not None and config.label_space == "codelist":
        return listed, np.arange(len(listed), dtype=np.int32)
    names = sorted(overview.code_names[code] for code in selection.codes_of(overview.codes))
    unlisted = [Code(name, name if config.codes_are_names else "") for name in names]
    space = unlisted if listed is None else restrict(listed, set(names))
    place = {code.code: label for label, code in enumerate(space)}
    return space, np.array([place.get(name, -1) for name in overview.code_names], dtype=np.int32)


def _sampled(
    batch: pa.RecordBatch,
    start: int,
    numbers: Numbers,
    overview: Survey,
    selection: Selection,
    labels: np.ndarray,
    config: IngestConfig,
    digest: Any,
    cells: bytearray,
) -> pa.Table:
    split = selection.split[start : start + batch.num_rows]
    chosen = np.flatnonzero(split != UNUSED)
    rows = chosen + start
    columns = {
        name: batch.column(name).take(to_arrow(chosen)).to_pylist() for name in config.columns
    }
    written = list(zip(*(columns[name] for name in config.text_columns), strict=True))
    texts = config.narratives.texts(written)
    row_numbers = numbers[chosen] + 1
    ids: list[int] | list[str] = row_numbers.tolist()
    if config.id_column is not None:
        ids = [cell.strip() for cell in columns[config.id_column]]
    units: Sequence[str | None] = [None] * len(rows)
    if config.unit_column is not None:
        units = _pseudonyms(columns[config.unit_column])
    codes = overview.codes[rows]
    cohorts = [overview.cohort_names[cohort] for cohort in overview.cohorts[rows].tolist()]
    halves = [_QUOTED(SPLITS[half]) for half in split[chosen].tolist()]
    quoted = list(map(_QUOTED, overview.code_names))
    code_texts = [quoted[code] for code in codes.tolist()]
    digest.update(
        "".join(map(_line, halves, ids, texts, code_texts, cohorts, units)).encode("ascii")
    )
    cells += b"".join(map(cell_digests, written))
    record_ids = row_numbers if config.id_column is None else ids
    arrays = list(map(to_arrow, (record_ids, texts, labels[codes], cohorts, units)))
    return pa.Table.from_arrays(arrays, schema=_schema(config))


def _schema(config: IngestConfig) -> pa.Schema:
    types = {
        "record_id": pa.int64() if config.id_column is None else pa.string(),
        "text": pa.string(),
        "label": pa.int32(),
        "cohort": pa.string(),
        "unit": pa.string(),
    }
    return pa.schema([pa.field(name, kind, name == "unit") for name, kind in types.items()])


def _line(half: str, name: str | int, text: str, code: str, cohort: str, unit: str | None) -> str:
    """A record's line of JSON, formatted as a list. `half` and `code` are already quoted."""
    record_id = _QUOTED(name) if isinstance(name, str) else str(name)
    whose = "null" if unit is None else _QUOTED(unit)
    return f"[{half},{record_id},{_QUOTED(text)},{code},{_QUOTED(cohort)},{whose}]\n"


def _pseudonyms(units: Sequence[str]) -> list[str]:
    forms = unit_forms(to_arrow([unit.strip() for unit in units])).dictionary_encode()
    names = [
        hashlib.blake2b(form.encode(), digest_size=12).hexdigest()
        for form in forms.dictionary.to_pylist()
    ]
    return [names[place] for place in forms.indices.to_pylist()]


def _report(
    records: Table,
    overview: Survey,
    selection: Selection,
    counts: dict[str, int],
    config: IngestConfig,
) -> dict[str, Any]:
    sampled = selection.split != UNUSED
    counted = _counts_of_cohorts(overview, sampled)
    dropped = overview.dropped() | selection.left_out
    further = 0
    if overview.numbers is not None:
        further = len(overview.numbers) - len(np.unique(overview.numbers))
    if sum(counts.values()) + sum(dropped.values()) != records.rows + further:
        raise StorageError(
            f"{records.source.label}: {records.rows:,} rows, {sum(counts.values()):,} of them "
            "sampled and "
            f"{sum(dropped.values()):,} dropped: rows are unaccounted for. Run again, and report "
            "it if it persists",
            kind="unaccounted-rows",
        )
    units = _units(overview)
    return {
        "rows_counted": records.rows,
        "rows_read": len(overview.state),
        "records_of_further_codes": further,
        "bad_rows_skipped": sum(part.skipped for part in records.files),
        "sampled": int(sampled.sum()),
        "splits": counts,
        "dropped": dropped,
        "units": None if units is None else asdict(units),
        "codes_respelt": overview.respelt.total(),
        "codes_not_on_list": dict(sorted(overview.unknown.items())),
        "codes_observed": len(selection.codes_of(overview.codes)),
        "cohorts": {name: counted.get(name, 0) for name in sorted(config.cohorts or counted)},
        "cohorts_source": config.cohorts_source,
        "codes": _counts_of_codes(overview, selection),
        "source": [part.source.reading for part in records.files],
        "config": config.model_dump(mode="json"),
    }


def _counts_of_cohorts(overview: Survey, sampled: NDArray[np.bool_]) -> dict[str, int]:
    """The number of sampled records in each non-empty cohort, by name."""
    names = overview.cohort_names
    counts = np.bincount(overview.cohorts[sampled], minlength=len(names)).tolist()
    return {name: count for name, count in sorted(zip(names, counts, strict=True)) if count}


def _counts_of_codes(overview: Survey, selection: Selection) -> dict[str, dict[str, int]]:
    """The number of records of each usable code by name: usable, and in each split."""
    names = overview.code_names
    chosen = {"usable": overview.state == USABLE}
    chosen |= {split: selection.split == number for number, split in enumerate(SPLITS)}
    per_code = {
        column: np.bincount(overview.codes[mask], minlength=len(names)).tolist()
        for column, mask in chosen.items()
    }
    counts: dict[str, dict[str, int]] = {}
    for code, name in sorted(enumerate(names), key=lambda numbered: numbered[1]):
        if per_code["usable"][code]:
            counts[name] = {column: of_code[code] for column, of_code in per_code.items()}
    return counts


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
