"""Codes a table on several workers: consecutive pieces form a shard, a run of the deployment `shard`.

Every worker must see the input, the folder of the output and the bundle at the same paths. Prefect gets these paths,
a keyed digest of the job and numbers of pieces. The answers go into the hidden folder next to the output, piece by
piece, so that a shard resumes at its next piece, on any worker, after its worker died.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mechanisms.model.training import Progress
from storage.artifacts import digest
from storage.code_version import code_version
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.tables.narratives import Narratives
from storage.tables.reader import Table, survey
from tasks.coding.coder import Coder
from tasks.coding.columns import answer_columns
from tasks.coding.job import CodingJob, code_piece
from tasks.coding.joint import JointCoder, open_bundle
from tasks.parameters import ShardSettings
from tasks.running import shards as spreading
from tasks.running.shard_runs import Part, ShardRuns, StageRequest

_QUEUE = "coding"
"""Its workers see the narratives, and hold neither records nor a ledger."""
Share = Annotated[float, Field(ge=0, le=1)]


class Pieces(Part, frozen=True, title="Pieces"):
    """Describes some pieces of one job: its files, settings and piece numbers. Holds no cell of the table."""

    data: str = Field(title="Narratives", description="Path of the table on every worker.")
    out: str = Field(title="Output", description="Path of the output, in a folder that all workers share.")
    columns: tuple[str, ...] = Field(
        min_length=1, title="Text columns", description="Text columns of the table, in order."
    )
    template: str | None = Field(title="Template", description="Template that joins several columns.")
    bundle: str = Field(title="Bundle", description="Folder of the bundle.")
    thresholds: tuple[str, ...] = Field(title="Thresholds", description="Files in place of the bundle's.")
    by_digits: bool | None = Field(title="Groups", description="Take leading digits of a code as its groups.")
    top_k: int = Field(ge=1, le=50, title="Codes per narrative", description="Number of codes.")
    threshold: Share | dict[str, Share] | None = Field(
        title="Threshold", description="Score below which a row needs review; per field with several fields."
    )
    coverage: Share | None = Field(
        default=None, title="Coverage", description="Probability that a row's set holds the right code."
    )
    rules: str | None = Field(
        title="Rules", description="File of codes that never occur together, with several fields."
    )
    append: bool = Field(title="Append", description="Add the rows to an existing output.")
    job: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        title="Job",
        description="Keyed digest of table, bundle and options. A worker with other files refuses.",
    )


def job_of(
    coder: Coder | JointCoder, table: Table, *, out: str, column: str, top_k: int, threshold: float | None
) -> CodingJob:
    """Returns the job for parameters of `code-batch`."""
    answers = answer_columns(coder, top_k=top_k, threshold=threshold)
    return CodingJob(table, Path(out).expanduser(), Narratives((column,)), answers)


@dataclass(frozen=True)
class PiecesShard:
    """Holds some pieces of a job that this process has opened."""

    coder: Coder | JointCoder
    job: CodingJob
    pieces: Pieces

    @property
    def request(self) -> StageRequest[Any]:
        """Returns the pieces and their key."""
        return StageRequest[Any](settings=self.pieces, key=key_of(self.pieces))

    @property
    def label(self) -> str:
        """Returns the pieces' numbers in words, from one."""
        return f"pieces {self.pieces.first + 1} to {self.pieces.end}"

    @property
    def size(self) -> int:
        """Returns the number of pieces."""
        return self.pieces.size

    @property
    def location(self) -> str:
        """Returns the shared folder, with advice if it is not shared."""
        return f"{self.job.folder}. Give all workers of the queue the folder of the output at the same path"

    def is_finished(self) -> bool:
        """Returns whether every piece is coded, by a worker or an earlier run."""
        folders = (self.job.folder, self.job.shard_folder(self.coder))
        numbers = range(self.pieces.first, self.pieces.end)
        return all(any(self.job.part(folder, n).is_file() for folder in folders) for n in numbers)

    def compute(self) -> None:
        """Codes the missing pieces."""
        with _one_at_a_time(self), closing(self.job.pieces()) as every:
            for number, piece in every:
                if number >= self.pieces.end:
                    break
                part = self.job.part(self.job.shard_folder(self.coder), number)
                done = part.is_file() or self.job.part(self.job.folder, number).is_file()
                if number >= self.pieces.first and not done:
                    code_piece(self.coder, self.job, piece, part)


def finish(
    coder: Coder | JointCoder, job: CodingJob, pieces: Pieces, settings: ShardSettings, progress: Progress
) -> None:
    """Lets workers code a job's pieces and returns when all are complete; takes all but the numbers of pieces."""
    with closing(job.pieces()) as every:
        number = sum(1 for _ in every)
    job.shard_folder(coder).mkdir(mode=0o700, exist_ok=True)
    name = _job_name(job, coder, create=True)
    parts = pieces.model_copy(update={"first": 0, "end": number, "job": name}).split(settings.shards) if number else []
    shards = [PiecesShard(coder, job, part) for part in parts]
    spreading.finish(shards, settings, progress, {}, queue=_QUEUE)


def pieces_of(
    coder: Coder | JointCoder,
    job: CodingJob,
    *,
    bundle: Path,
    thresholds: Sequence[Path] = (),
    by_digits: bool | None = None,
    rules: Path | None = None,
) -> Pieces:
    """Builds the settings of all shards of a job, from the folder and files that its coder was opened with.

    Raises:
        InputError: the bundle is packed, or the precision is not float32, so that processors would differ.
    """
    if not bundle.is_dir():
        raise InputError(
            "--bundle: shards cannot use a packed bundle. Unpack it where every worker sees it and name the folder."
        )
    if coder.model.precision != "float32":
        raise InputError("shards: workers code in float32, so that results agree. Use --precision float32.")
    return Pieces(
        data=str(job.table.source.path.resolve()),
        out=str(job.out.resolve()),
        columns=job.narratives.columns,
        template=job.narratives.template,
        bundle=str(bundle.resolve()),
        thresholds=tuple(_path(file) for file in thresholds),
        by_digits=by_digits,
        top_k=job.answers.top_k,
        threshold=job.answers.threshold,
        coverage=next((one.sets.coverage for one in coder.fields.values() if one.sets), None),
        rules=None if rules is None else _path(rules),
        append=job.append,
        first=0,
        end=1,
        job="0" * 64,
    )


def compute(request: Pieces, key: str) -> int:
    """Codes the requested pieces on a worker and returns their number.

    Raises:
        InputError: the table, the bundle or another file is missing on this worker.
        StorageError: files or code differ from the requesting run's, or that run has ended.
    """
    table = survey(Path(request.data), text_columns=request.columns)
    coder = open_bundle(
        Path(request.bundle),
        thresholds=[Path(file) for file in request.thresholds],
        by_digits=request.by_digits,
        rules=Path(request.rules) if request.rules else None,
        coverage=request.coverage,
    )
    answers = answer_columns(coder, top_k=request.top_k, threshold=request.threshold)
    records = Narratives(request.columns, request.template)
    job = CodingJob(table, Path(request.out), records, answers, append=request.append)
    if key_of(request) != key:
        raise StorageError(
            "shard: this worker's code or libraries differ from the requesting run's. Upgrade the worker."
        )
    if _job_name(job, coder, create=False) != request.job:
        raise StorageError(
            "shard: the table, the bundle or one of its files differs from the requesting run's, its folder is not "
            "shared, or that run has ended. Give all workers of the queue the same files and run again."
        )
    shard = PiecesShard(coder, job, request)
    shard.compute()
    return shard.size


def _job_name(job: CodingJob, coder: Coder | JointCoder, *, create: bool) -> str | None:
    """Returns the job's digest under a key that stays in its folder, so that Prefect holds no digest of a table.

    None where the folder has no key: it is another job's, ended, or not shared.
    """
    file = job.shard_folder(coder) / "key"
    if create and not file.is_file():
        write_atomically(file, secrets.token_bytes(32))
    try:
        return hmac.new(file.read_bytes(), job.key(coder).encode(), hashlib.sha256).hexdigest()
    except FileNotFoundError:
        return None


def preflight() -> None:
    """Checks before work starts that a server is set and has the deployment that runs shards."""
    with ShardRuns.connect(spreading.DEPLOYMENT, {}):
        pass


def _path(file: Path) -> str:
    return str(file.expanduser().resolve())


def key_of(request: Pieces) -> str:
    """Returns the key of some pieces; code of another version has another."""
    pieces = {"job": request.job, "out": request.out, "first": request.first, "end": request.end}
    return digest(pieces | {"code": code_version("tasks.coding.job", "tasks.coding.shards")})[:32]


@contextmanager
def _one_at_a_time(shard: PiecesShard) -> Iterator[None]:
    """Makes a second worker with the same shard wait until it is finished."""
    with (shard.job.shard_folder(shard.coder) / f"{shard.pieces.first:08}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
