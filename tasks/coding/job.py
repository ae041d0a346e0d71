"""Coding a whole table: piece by piece, resumable after any death, put in place by one rename.

The answers of each finished piece lie in a hidden folder beside the output, without the narratives. When all are there,
one pass over the input merges the two. The same command after a crash finds the answers and codes only what is missing.
Just before the output is put in place, a mark beside it says which job it is of; the mark goes last of all, so that a
job that died while clearing up is known to be done.

Workers that code some of the pieces (tasks/coding/shards.py) leave their answers in a folder of this very job inside
the hidden one: nothing that a worker of an earlier job writes late can be taken for an answer of this one.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifacts import digest, file_digest
from storage.durable import replacing, sync, write_atomically
from storage.errors import InputError, StorageError
from storage.tables.formulas import harmless
from storage.tables.narratives import Narratives
from storage.tables.reading import Row, Table, pieces, survey
from storage.tables.writing import kind_of, writing
from tasks.coding.coder import Coder
from tasks.coding.columns import Added, JointAdded, output_schema
from tasks.coding.joint import JointCoder
from tasks.running import progress

_FORMAT = 2
_STAGE = "code"
_JOB, _LOCK = "job.json", "lock"
_HANDED_IN = "shards-"


@dataclass(frozen=True)
class Coded:
    """What a job did."""

    rows: int
    blank: int
    review: int | None
    """Rows for a person to look at; None without a threshold."""
    resumed: int
    """Rows whose answers were there from an earlier run."""


@dataclass(frozen=True)
class CodingJob:
    """One table to code into one file."""

    table: Table
    out: Path
    narratives: Narratives
    added: Added | JointAdded
    append: bool = False
    overwrite: bool = False

    @property
    def folder(self) -> Path:
        """Where the answers of finished pieces are kept until the output is whole."""
        return self.out.with_name(f".{self.out.name}.coding")

    @property
    def mark(self) -> Path:
        """What tells, until all is cleared up, that the output is this job's."""
        return self.out.with_name(f".{self.out.name}.coded")

    def handed_in(self, coder: Coder | JointCoder) -> Path:
        """Where workers leave the answers of pieces of this very job."""
        return self.folder / f"{_HANDED_IN}{self.key(coder)[:16]}"

    def part(self, folder: Path, number: int) -> Path:
        """The answers of one piece."""
        return folder / f"{number:08}.parquet"

    def pieces(self) -> Generator[tuple[int, list[Row]], None, None]:
        """The cells of the text columns piece by piece, with the piece's number; the same at every reading."""
        with closing(self.table.text_rows(self.narratives.columns)) as rows:
            yield from enumerate(pieces(rows, columns=len(self.table.columns)))

    def key(self, coder: Coder | JointCoder) -> str:
        """Digest of all that the answers depend on: pieces of another job are not taken for this one's."""
        known = [(own.thresholds or {}).get("temperature") for own in coder.fields.values()]
        precision = coder.model.precision
        # nothing for float32, so that jobs that were begun before go on
        rounded = {} if precision == "float32" else {"precision": precision, "near_tie": coder.model.near_tie}
        return digest(
            rounded
            | {
                "format": _FORMAT,
                "input": self.table.sha256,
                "kind": self.table.kind,
                "columns": list(self.narratives.columns),
                "template": self.narratives.template,
                "bundle": coder.digest,
                "temperature": known[0] if len(known) == 1 else known,
                "append": self.append,
            }
            | self.added.key
        )


def run(coder: Coder | JointCoder, job: CodingJob, *, spread: Callable[[], object] | None = None) -> Coded:
    """Code a table, or go on with it.

    Args:
        spread: has workers code pieces first; what they leave out is coded here.

    Raises:
        InputError: the output is there and not to be replaced, or holds other columns or another version.
        StorageError: another process codes into the same file, or the input changed meanwhile.
    """
    schema = output_schema(job.table, job.added, coder)
    kind = kind_of(job.out)
    if kind != "csv" and len(set(schema.names)) < len(schema.names):
        raise InputError(f"--data: {job.table.source.name} has a column name twice, which only CSV can hold")
    _check_output(job, coder)
    with _locked(job):
        coded = _finished(job, coder)  # not None: all but clearing up was done when an earlier run died
        if coded is None:
            _begin(job, coder)
            before = _before(job, schema, coder) if job.append else None
            _take_in(coder, job)
            if spread is not None:
                resumed = sum(pq.read_metadata(part).num_rows for part in _parts(job))
                spread()
                _take_in(coder, job)
                _code(coder, job)
            else:
                resumed = _code(coder, job)
            coded = _tally(job, resumed=resumed)
            _merge(coder, job, schema, before, coded)
        shutil.rmtree(job.folder)
        job.mark.unlink(missing_ok=True)
    return coded


def _code(coder: Coder | JointCoder, job: CodingJob) -> int:
    """Code the pieces that are not there; return the rows that were."""
    done = resumed = 0
    with closing(job.pieces()) as every:
        for number, piece in every:
            part = job.part(job.folder, number)
            if not part.is_file():
                code_piece(coder, job, piece, part)
            else:
                resumed += len(piece)
            done += len(piece)
            progress.report(_STAGE, done, job.table.rows)
    return resumed


def code_piece(coder: Coder | JointCoder, job: CodingJob, piece: list[Row], part: Path) -> None:
    """Code the cells of one piece's text columns and keep the answers."""
    added: Any = job.added  # of the coder's own kind
    codings = coder.code(job.narratives.texts(piece), top_k=added.top_k, threshold=added.threshold)
    rows = [added.row(coding) for coding in codings]
    _write_part(part, rows, job.added.schema())


def _take_in(coder: Coder | JointCoder, job: CodingJob) -> None:
    """Put what workers handed in among the answers."""
    for part in sorted(job.handed_in(coder).glob("*.parquet")):
        part.replace(job.folder / part.name)


def _merge(coder: Coder | JointCoder, job: CodingJob, schema: pa.Schema, before: Table | None, coded: Coded) -> None:
    """Write the output beside its name, then put it there."""
    fresh, origin = job.folder / "output", tuple(coder.origin.values())
    with writing(fresh, kind_of(job.out), schema) as write:
        if before is not None:
            # JSON objects may lack keys, which then stay absent
            existing = before.read(schema.names) if before.kind == "jsonl" else before.read()
            for piece in pieces(existing, columns=len(schema)):
                write(piece)
        with closing(job.table.read()) as rows:
            answers = _answers(job)
            for piece in pieces(rows, columns=len(schema)):
                write([row + next(answers) + origin for row in piece])
    if file_digest(job.table.source.path) != job.table.sha256:
        raise StorageError(f"{job.table.source.name} changed while it was coded; run again")
    sync(fresh)
    mark = {"key": job.key(coder), "sha256": file_digest(fresh), "blank": coded.blank, "review": coded.review}
    write_atomically(job.mark, json.dumps(mark).encode())
    fresh.replace(job.out)
    sync(job.out.parent)


def _answers(job: CodingJob) -> Iterator[Row]:
    for part in _parts(job):
        columns = pq.read_table(part).columns
        yield from zip(*(column.to_pylist() for column in columns), strict=True)


def _tally(job: CodingJob, *, resumed: int) -> Coded:
    blank = review = 0
    for part in _parts(job):
        answers = pq.read_table(part)
        blank += answers[job.added.blank_where].null_count
        if job.added.reviewed:
            review += sum(answers["needs_review"].to_pylist())
    return Coded(job.table.rows, blank, review if job.added.reviewed else None, resumed)


def _parts(job: CodingJob) -> list[Path]:
    return sorted(job.folder.glob("*.parquet"))


def _check_output(job: CodingJob, coder: Coder | JointCoder) -> None:
    if job.out.is_dir():
        raise InputError(f"--out: {job.out} is a folder; name a file")
    if job.out.exists() and not (job.append or job.overwrite or _finished(job, coder)):
        raise InputError(f"--out: {job.out} is there; --overwrite replaces it, --append adds the rows to it")


def _begin(job: CodingJob, coder: Coder | JointCoder) -> None:
    """Keep what an earlier run of the same job left, remove what another one did."""
    file, content = job.folder / _JOB, json.dumps({"key": job.key(coder)}).encode()
    if file.is_file() and file.read_bytes() == content:
        return
    for path in job.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()
    write_atomically(file, content)


def _finished(job: CodingJob, coder: Coder | JointCoder) -> Coded | None:
    """What an earlier run of the same job did, where its output is in place."""
    try:
        mark = json.loads(job.mark.read_text())
        if (mark["key"], mark["sha256"]) == (job.key(coder), file_digest(job.out)):
            return Coded(job.table.rows, mark["blank"], mark["review"], resumed=job.table.rows)
    except (OSError, ValueError, KeyError):
        pass
    return None


def _before(job: CodingJob, schema: pa.Schema, coder: Coder | JointCoder) -> Table | None:
    try:
        return _existing(job, schema, coder)
    except InputError:
        if not _parts(job):
            shutil.rmtree(job.folder)
        raise


def _existing(job: CodingJob, schema: pa.Schema, coder: Coder | JointCoder) -> Table | None:
    """The rows that an output to append to has already.

    Raises:
        InputError: its columns are others, or its codes are of another version.
    """
    if not job.out.is_file():
        return None
    before = survey(job.out, text_columns=())
    kept = ("classification", "classification_version")
    if not set(kept) <= set(before.columns):
        raise InputError(f"--append: {job.out} has no column {kept[1]!r}; it was not written by this command")
    mine = tuple(coder.origin[name] for name in kept)
    for number, row in enumerate(before.read(kept), start=1):
        if row != mine:
            raise InputError(
                f"--append: {job.out} holds codes of another version (row {number}); this bundle codes "
                f"{' '.join(mine)}, and versions are not mixed in one table: name another file"
            )
    names = [harmless(name) for name in schema.names] if before.kind == "csv" else schema.names
    fits = set(before.columns) <= set(names) if before.kind == "jsonl" else before.columns == tuple(names)
    if not fits:
        raise InputError(f"--append: {job.out} has other columns than this job would write; name another file")
    return before


@contextmanager
def _locked(job: CodingJob) -> Iterator[None]:
    try:
        job.folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        raise InputError(f"--out: no folder {job.out.parent}") from None
    with (job.folder / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(f"--out: another process is coding into {job.out}") from None
        yield


def _write_part(part: Path, rows: list[Row], schema: pa.Schema) -> None:
    arrays = [pa.array(column, field.type) for field, column in zip(schema, zip(*rows, strict=True), strict=True)]
    with replacing(part) as fresh:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), fresh, compression="zstd")
