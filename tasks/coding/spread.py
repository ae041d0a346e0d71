"""Codes a table on the workers of an engine, piece by piece.

Every worker must see the input, the folder of the output and the bundle at the same paths. A request holds these
paths, a keyed digest of the job and the number of a piece. The answers go into the hidden folder next to the output; a
piece that is there is not coded again. Each worker reads the table once, since pieces are handed out in their order.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from storage.code_version import code_version
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.tables.narratives import Narratives
from storage.tables.reader import Row, survey
from tasks.coding.bundles import Bundles
from tasks.coding.coder import open_bundle
from tasks.coding.columns import answer_columns
from tasks.coding.job import CodingJob, code_piece
from tasks.running.engine import map_parts

Share = Annotated[float, Field(ge=0, le=1)]


class JobRequest(BaseModel, frozen=True, extra="forbid"):
    """Describes a job by its files and settings. Holds no cell of the table."""

    data: str
    out: str
    columns: tuple[str, ...]
    template: str | None
    bundle: str
    precision: Literal["float32", "bfloat16"]
    thresholds: str | None
    by_digits: bool | None
    top_k: int = Field(ge=1, le=50)
    threshold: Share | None
    coverage: Share | None
    append: bool
    job: str
    """Keyed digest of table, bundle, precision and options. A worker with other files refuses."""
    code: str
    """Version of the code that codes."""


def spread(
    bundles: Bundles,
    job: CodingJob,
    *,
    engine: str,
    report: Callable[[int, int], None],
    bundle: Path,
    thresholds: Path | None = None,
    by_digits: bool | None = None,
) -> None:
    """Lets workers code all pieces of a job that are missing, and returns when they are there.

    Args:
        report: is called with pieces done and in all.
        bundle: the folder that the coder was opened with, as the other files are.

    Raises:
        InputError: there are several bundles, or the bundle is packed.
    """
    if list(bundles.coders) != [""]:
        raise InputError("--engine: workers code with one bundle. Give one --bundle without a name.")
    coder, (answers,) = bundles.coders[""], job.answers
    if not bundle.is_dir():
        raise InputError(
            "--bundle: workers cannot use a packed bundle. Unpack it where every worker sees it and name the folder."
        )
    with closing(job.pieces()) as every:
        number = sum(1 for _ in every)
    folder = job.spread_folder(bundles)
    folder.mkdir(mode=0o700, exist_ok=True)
    request = JobRequest(
        data=str(job.table.source.path.resolve()),
        out=str(job.out.resolve()),
        columns=job.narratives.columns,
        template=job.narratives.template,
        bundle=str(bundle.resolve()),
        precision=coder.model.precision,
        thresholds=None if thresholds is None else _path(thresholds),
        by_digits=by_digits,
        top_k=answers.top_k,
        threshold=answers.threshold,
        coverage=None if coder.sets is None else coder.sets.coverage,
        append=job.append,
        job=_job_name(job, bundles, create=True) or "",
        code=_code(),
    ).model_dump_json()
    missing = [n for n in range(number) if not any(job.part(place, n).is_file() for place in (folder, job.folder))]
    finished = number - len(missing)

    def done(_: int) -> None:
        nonlocal finished
        finished += 1
        report(finished, number)

    map_parts(compute, [json.dumps([request, n]) for n in missing], engine=engine, done=done)
    gone = [n for n in range(number) if not any(job.part(place, n).is_file() for place in (folder, job.folder))]
    if gone:
        raise StorageError(
            f"code: pieces are not in {folder}. Give all workers the folder of the output at the same path. Run again."
        )


def compute(part: str) -> str:
    """Codes a piece on a worker.

    Raises:
        InputError: the table, the bundle or another file is missing on this worker.
        StorageError: files or code differ from the requesting run's, or that run has ended.
    """
    request, number = json.loads(part)
    opened = _opened(request)
    file = opened.job.part(opened.job.spread_folder(opened.bundles), number)
    if not file.is_file():
        piece = opened.piece(number)
        with _one_at_a_time(file):
            if not file.is_file():
                code_piece(opened.bundles, opened.job, piece, file)
    return ""


class _Opened:
    def __init__(self, request: JobRequest) -> None:
        table = survey(Path(request.data), text_columns=request.columns)
        coder = open_bundle(
            Path(request.bundle),
            thresholds=None if request.thresholds is None else Path(request.thresholds),
            by_digits=request.by_digits,
            precision=request.precision,
            coverage=request.coverage,
        )
        self.bundles = Bundles.of(coder)
        answers = (answer_columns(coder, top_k=request.top_k, threshold=request.threshold),)
        narratives = Narratives(request.columns, request.template)
        self.job = CodingJob(table, Path(request.out), narratives, answers, append=request.append)
        self._pieces: Generator[tuple[int, list[Row]], None, None] | None = None
        self._next = 0
        if _code() != request.code:
            raise StorageError("engine: a worker's code or libraries differ from this machine's. Upgrade the worker.")
        if _job_name(self.job, self.bundles, create=False) != request.job:
            raise StorageError(
                "engine: the table, the bundle or one of its files differs on a worker, the output's folder is not "
                "shared, or that run has ended. Give all workers the same files and run again."
            )

    def piece(self, number: int) -> list[Row]:
        """Reads on to a piece; begins again for one that lies behind."""
        if self._pieces is None or number < self._next:
            self.close()
            self._pieces = self.job.pieces()
        for at, piece in self._pieces:
            self._next = at + 1
            if at == number:
                return piece
        raise StorageError(f"{self.job.table.source.name} changed during coding. Run again.")

    def close(self) -> None:
        """Closes the table."""
        if self._pieces is not None:
            self._pieces.close()
        self._pieces, self._next = None, 0


@lru_cache(maxsize=1)
def _opened(request: str) -> _Opened:
    return _Opened(JobRequest.model_validate_json(request))


def _job_name(job: CodingJob, bundles: Bundles, *, create: bool) -> str | None:
    """Returns the job's digest under a key that stays in its folder, so that no request holds a digest of a table.

    None where the folder has no key: it is another job's, ended, or not shared.
    """
    file = job.spread_folder(bundles) / "key"
    if create and not file.is_file():
        write_atomically(file, secrets.token_bytes(32))
    try:
        return hmac.new(file.read_bytes(), job.key(bundles).encode(), hashlib.sha256).hexdigest()
    except FileNotFoundError:
        return None


def _path(file: Path) -> str:
    return str(file.expanduser().resolve())


def _code() -> str:
    return code_version("tasks.coding.job", "tasks.coding.spread")


@contextmanager
def _one_at_a_time(file: Path) -> Generator[None, None, None]:
    """Makes a second worker with the same piece wait until it is finished."""
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
