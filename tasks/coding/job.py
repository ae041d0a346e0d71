"""Codes a whole table piece by piece, resumable after any crash, and replaces the output with one
rename.

The answers of each finished piece are in the job's hidden folder next to the output, without the
narratives. When all pieces are complete, one pass over the input merges both. After a crash the
same command codes only the missing pieces. Before the output is put in place, a mark next to it
names its job. The mark is removed last, so that a job that died during cleanup counts as finished.
"""

import json
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifacts import digest, file_digest
from storage.code_version import code_version
from storage.durable import limit_rights, replace_atomically, sync, write_atomically
from storage.errors import Changed, Contradiction, Missing, StorageError
from storage.locks import locked
from storage.tables.formulas import escape_formula
from storage.tables.narratives import Narratives
from storage.tables.reader import Row, Table, pieces, survey
from storage.tables.writer import open_writer, output_kind
from tasks.coding.bundles import Bundles
from tasks.coding.columns import AnswerColumns, output_schema
from tasks.running import progress

_STAGE = "code"
_LOCK = "lock"


@dataclass(frozen=True)
class CodingReport:
    rows: int
    blank: int
    review: int | None
    """Number of rows for review. None if there is no threshold."""
    resumed: int
    """Number of rows with answers from an earlier run."""


@dataclass(frozen=True)
class CodingJob:
    table: Table
    out: Path
    narratives: Narratives
    answers: tuple[AnswerColumns, ...]
    """Answer columns of each bundle."""
    append: bool = False
    overwrite: bool = False

    @property
    def folder(self) -> Path:
        return self.out.with_name(f".{self.out.name}.coding")

    @property
    def mark(self) -> Path:
        """The file that marks the output as this job's until cleanup is complete."""
        return self.out.with_name(f".{self.out.name}.coded")

    def parts(self, bundles: Bundles) -> Path:
        return self.folder / self.key(bundles)[:32]

    def part(self, bundles: Bundles, number: int) -> Path:
        return self.parts(bundles) / f"{number:08}.parquet"

    def pieces(self) -> Generator[tuple[int, list[Row]], None, None]:
        """Yields the cells of the text columns in numbered pieces, which are the
        same in every pass.
        """
        with closing(self.table.text_rows(self.narratives.columns, self.table.marks())) as rows:
            yield from enumerate(pieces(rows, columns=len(self.table.columns)))

    def key(self, bundles: Bundles) -> str:
        """Returns a digest of everything that the answers depend on, so that jobs
        do not share pieces.
        """
        return digest(
            {
                "code": _code(),
                "input": self.table.sha256,
                "kind": self.table.kind,
                "read": [*self.table.reading, sorted(self.table.options.missing)],
                "columns": list(self.narratives.columns),
                "template": self.narratives.template,
                "bundles": bundles.key,
                "append": self.append,
                "answers": [columns.key for columns in self.answers],
            }
        )


@cache
def _code() -> str:
    return code_version("tasks.coding.job")


def run(
    bundles: Bundles, job: CodingJob, *, distribute: Callable[[], object] | None = None
) -> CodingReport:
    """Codes a table, or resumes coding it. `distribute` lets workers code pieces first; this
    process codes the rest.
    """
    schema = output_schema(job.table, job.answers, bundles.origin)
    kind = output_kind(job.out)
    if kind != "csv" and len(set(schema.names)) < len(schema.names):
        raise Contradiction(
            f"--data: {job.table.source.name} has duplicate column names, which only CSV supports.",
            kind="duplicate-columns",
        )
    _check_output(job, bundles)
    before = _existing(job, schema, bundles) if job.append else None
    with _locked(job):
        coded = _finished(job, bundles)  # not None: an earlier run died during cleanup
        if coded is None:
            _begin(job, bundles)
            resumed = sum(pq.read_metadata(part).num_rows for part in _parts(job))
            if distribute is not None:
                distribute()
            _code_missing(bundles, job)
            coded = _tally(job, resumed=resumed)
            _merge(bundles, job, schema, before, coded)
        _clear(job)
        job.mark.unlink(missing_ok=True)
    with suppress(OSError):  # already removed on systems that allow removing an open file
        job.folder.rmdir()
    return coded


def _clear(job: CodingJob) -> None:
    """Removes the folder of a job, except its lock on systems that cannot remove an open file."""
    try:
        shutil.rmtree(job.folder)
    except PermissionError:
        shutil.rmtree(job.folder, ignore_errors=True)
        if any(path.name != _LOCK for path in job.folder.iterdir()):
            raise


def _code_missing(bundles: Bundles, job: CodingJob) -> None:
    done = 0
    with closing(job.pieces()) as pieces:
        for number, piece in pieces:
            part = job.part(bundles, number)
            if not part.is_file():
                code_piece(bundles, job, piece, part)
            done += len(piece)
            progress.report(_STAGE, done, job.table.rows)


def code_piece(bundles: Bundles, job: CodingJob, piece: list[Row], part: Path) -> None:
    rows = bundles.rows(job.narratives.texts(piece), job.answers)
    _write_part(
        part, rows, pa.schema([field for columns in job.answers for field in columns.schema()])
    )


def _merge(
    bundles: Bundles, job: CodingJob, schema: pa.Schema, before: Table | None, coded: CodingReport
) -> None:
    fresh, origin = job.folder / "output", tuple(bundles.origin.values())
    with open_writer(fresh, output_kind(job.out), schema) as write:
        if before is not None:
            # JSON objects may lack keys; missing keys remain missing
            existing = before.read(schema.names) if before.kind == "jsonl" else before.read()
            for piece in pieces(existing, columns=len(schema)):
                write(piece)
        with closing(job.table.read()) as rows:
            answers = _answers(job)
            for piece in pieces(rows, columns=len(schema)):
                write([row + next(answers) + origin for row in piece])
    if job.table.changed():
        raise Changed(
            f"{job.table.source.name} changed during coding. Run again.",
            kind="changed-during-coding",
        )
    for part in job.table.files:
        limit_rights(fresh, job.out, part.source.path)
    sync(fresh)
    _check_output(job, bundles)  # another output may have appeared in the meantime
    mark = {
        "key": job.key(bundles),
        "sha256": file_digest(fresh),
        "blank": coded.blank,
        "review": coded.review,
    }
    write_atomically(job.mark, json.dumps(mark).encode())
    fresh.replace(job.out)
    sync(job.out.parent)


def _answers(job: CodingJob) -> Iterator[Row]:
    for part in _parts(job):
        columns = pq.read_table(part).columns
        yield from zip(*(column.to_pylist() for column in columns), strict=True)


def _tally(job: CodingJob, *, resumed: int) -> CodingReport:
    blank = review = 0
    reviewed = [
        f"{columns.prefix}needs_review" for columns in job.answers if columns.threshold is not None
    ]
    for part in _parts(job):
        answers = pq.read_table(part)
        blank += answers[f"{job.answers[0].prefix}code"].null_count
        review += sum(map(any, zip(*(answers[name].to_pylist() for name in reviewed), strict=True)))
    return CodingReport(job.table.rows, blank, review if reviewed else None, resumed)


def _parts(job: CodingJob) -> list[Path]:
    return sorted(job.folder.glob("*/*.parquet"))


def _check_output(job: CodingJob, bundles: Bundles) -> None:
    if job.out.is_dir():
        raise Contradiction(
            f"--out: {job.out} is a folder. Specify a file.", kind="output-is-folder"
        )
    if job.out.exists() and not (job.append or job.overwrite or _finished(job, bundles)):
        raise Contradiction(
            f"--out: {job.out} exists. --overwrite replaces it, --append adds rows to it.",
            kind="output-exists",
        )


def _begin(job: CodingJob, bundles: Bundles) -> None:
    parts = job.parts(bundles)
    for path in job.folder.iterdir():
        if path.is_dir() and path != parts:
            shutil.rmtree(path)
    parts.mkdir(mode=0o700, exist_ok=True)


def _finished(job: CodingJob, bundles: Bundles) -> CodingReport | None:
    try:
        mark = json.loads(job.mark.read_text())
        if (mark["key"], mark["sha256"]) == (job.key(bundles), file_digest(job.out)):
            return CodingReport(
                job.table.rows, mark["blank"], mark["review"], resumed=job.table.rows
            )
    except (OSError, ValueError, KeyError):
        pass
    return None


def _existing(job: CodingJob, schema: pa.Schema, bundles: Bundles) -> Table | None:
    """Returns the existing rows of the output, to which rows are appended."""
    if not job.out.is_file():
        return None
    before = survey(job.out, text_columns=())
    origin = [
        name
        for name in bundles.origin
        if name.endswith(("classification", "classification_version"))
    ]
    if missing := [name for name in origin if name not in before.columns]:
        raise Contradiction(
            f"--append: {job.out} has no column {missing[-1]!r}, so this command "
            "did not write it. Specify another file.",
            kind="not-written-by-code",
            column=missing[-1],
        )
    mine = tuple(bundles.origin[name] for name in origin)
    for number, row in enumerate(before.read(origin), start=1):
        if row != mine:
            raise Contradiction(
                f"--append: {job.out} contains codes of another version (row "
                f"{number}). These bundles code {' '.join(mine)}, and a table "
                "must not mix versions. Specify another file.",
                kind="mixed-versions",
                row=number,
            )
    names = (
        [escape_formula(name) for name in schema.names] if before.kind == "csv" else schema.names
    )
    fits = (
        set(before.columns) <= set(names)
        if before.kind == "jsonl"
        else before.columns == tuple(names)
    )
    if not fits:
        raise Contradiction(
            f"--append: {job.out} has other columns than this job writes. Specify another file.",
            kind="other-output-columns",
        )
    return before


@contextmanager
def _locked(job: CodingJob) -> Iterator[None]:
    try:
        job.folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        raise Missing(
            f"--out: {job.out.parent} does not exist. Create the folder first.",
            kind="no-output-folder",
        ) from None
    with ExitStack() as held:
        try:
            held.enter_context(locked(job.folder / _LOCK, wait=False))
        except BlockingIOError:
            raise StorageError(
                f"--out: another process is writing codes to {job.out}. Wait for "
                "it, or specify another file.",
                kind="output-locked",
            ) from None
        yield


def _write_part(part: Path, rows: list[Row], schema: pa.Schema) -> None:
    arrays = [
        pa.array(column, field.type)
        for field, column in zip(schema, zip(*rows, strict=True), strict=True)
    ]
    with replace_atomically(part) as fresh:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), fresh, compression="zstd")
