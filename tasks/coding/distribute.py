"""Codes a table on the workers of an engine, piece by piece.

Every worker must see the input, the output's folder and the bundle at the same paths. A request
contains these paths, the options and the number of a piece. The answers go into the job's own
folder next to the output. Its name is a digest of table, bundle, options and code. A worker with
a different version of any of them, or one that comes late, finds no such folder. A finished piece
is not coded again. Pieces are handed out in order, so each worker reads the table only once.
"""

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TypedDict

from storage.errors import Changed, Contradiction, StorageError
from storage.json_values import Config
from storage.tables.narratives import Narratives
from storage.tables.options import ReadOptions
from storage.tables.reader import Row, survey
from tasks.coding.bundles import Bundles
from tasks.coding.coder import Precision, open_bundle
from tasks.coding.columns import answer_columns
from tasks.coding.groups import Levels
from tasks.coding.job import CodingJob, code_piece
from tasks.running.engine import map_parts


class _Request(TypedDict):
    """What a worker needs to open a job: paths, which it sees as the sender does, and options."""

    data: list[str]
    read: Config
    out: str
    columns: Sequence[str]
    template: str | None
    bundle: str
    precision: Precision
    thresholds: str | None
    levels: Levels
    top_k: int
    threshold: float | None
    coverage: float | None
    append: bool


def distribute(
    bundles: Bundles,
    job: CodingJob,
    *,
    engine: str,
    report: Callable[[int, int], None],
    bundle: Path,
    thresholds: Path | None = None,
    levels: Levels = "auto",
) -> None:
    """Lets workers code all missing pieces of a job, and returns when the pieces exist.

    Args:
        report: called with the number of pieces done and the total.
        bundle: the folder that the coder was opened with, like the other files.
    """
    if list(bundles.coders) != [""] or not bundle.is_dir():
        raise Contradiction(
            "--engine: workers code with one bundle, unpacked at a place that "
            "every worker can read. Specify one --bundle FOLDER without a name.",
            kind="engine-needs-folder",
        )
    coder, (answers,) = bundles.coders[""], job.answers
    with closing(job.pieces()) as pieces:
        number = sum(1 for _ in pieces)
    wanted: _Request = {
        "data": [str(part.source.path.resolve()) for part in job.table.files],
        "read": job.table.options.model_dump(mode="json"),
        "out": str(job.out.resolve()),
        "columns": job.narratives.columns,
        "template": job.narratives.template,
        "bundle": str(bundle.resolve()),
        "precision": coder.model.precision,
        "thresholds": None if thresholds is None else str(thresholds.expanduser().resolve()),
        "levels": levels,
        "top_k": answers.top_k,
        "threshold": answers.threshold,
        "coverage": None if coder.sets is None else coder.sets.coverage,
        "append": job.append,
    }
    request = json.dumps(wanted)
    missing = [n for n in range(number) if not job.part(bundles, n).is_file()]
    finished = number - len(missing)

    def done(_: int) -> None:
        nonlocal finished
        finished += 1
        report(finished, number)

    map_parts(compute, [json.dumps([request, n]) for n in missing], engine=engine, done=done)
    if not all(job.part(bundles, n).is_file() for n in missing):
        raise StorageError(
            f"code: pieces are not in {job.folder}. Mount the folder of the "
            "output at the same path on all workers, and run again.",
            kind="pieces-missing",
        )


def compute(part: str) -> str:
    request, number = json.loads(part)
    opened = _opened(request)
    file = opened.job.part(opened.bundles, number)
    if not file.is_file():
        piece = opened.piece(number)
        if not file.parent.is_dir():
            raise StorageError(
                "engine: the table, the bundle, the options or the code differ "
                "on a worker, the output's folder is not shared, or that run has "
                "ended. Install the same files and libraries on all workers, and "
                "run again.",
                kind="workers-differ",
            )
        code_piece(opened.bundles, opened.job, piece, file)
    return ""


class _Opened:
    def __init__(self, job_request: _Request) -> None:
        thresholds = job_request["thresholds"]
        coder = open_bundle(
            Path(job_request["bundle"]),
            thresholds=None if thresholds is None else Path(thresholds),
            levels=job_request["levels"],
            precision=job_request["precision"],
            coverage=job_request["coverage"],
        )
        self.bundles = Bundles.of(coder)
        records = Narratives(tuple(job_request["columns"]), job_request["template"])
        read = ReadOptions.model_validate(job_request["read"])
        files = list(map(Path, job_request["data"]))
        table = survey(files, text_columns=records.columns, read=read)
        answers = (
            answer_columns(coder, top_k=job_request["top_k"], threshold=job_request["threshold"]),
        )
        self.job = CodingJob(
            table, Path(job_request["out"]), records, answers, append=job_request["append"]
        )
        self._pieces: Generator[tuple[int, list[Row]], None, None] | None = None
        self._next = 0

    def piece(self, number: int) -> list[Row]:
        if self._pieces is None or number < self._next:
            self.close()
            self._pieces = self.job.pieces()
        for n, piece in self._pieces:
            self._next = n + 1
            if n == number:
                return piece
        raise Changed(
            f"{self.job.table.source.name} changed during coding. Run again.",
            kind="changed-during-coding",
        )

    def close(self) -> None:
        if self._pieces is not None:
            self._pieces.close()
        self._pieces, self._next = None, 0


@lru_cache(maxsize=1)
def _opened(request: str) -> _Opened:
    return _Opened(json.loads(request))
