"""A table coded by several workers: consecutive pieces are a shard, a run of the deployment `code-shard`.

Every worker must see the input, the folder of the output and the bundle at the same paths. Through Prefect go these
paths, the digest of the job and numbers of pieces; the answers go into the hidden folder beside the output, piece by
piece, so that a shard whose worker died goes on at its next piece, on whichever worker.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from mechanisms.model.training import Progress
from storage.artifacts import digest
from storage.code_version import code_version
from storage.errors import InputError, StorageError
from storage.tables.narratives import Narratives
from storage.tables.reading import Table, survey
from tasks.coding.coder import Coder
from tasks.coding.columns import added_of, read_crosswalks
from tasks.coding.job import CodingJob, code_piece
from tasks.coding.joint import JointCoder, open_bundle
from tasks.parameters import Spread
from tasks.running import shards as spreading
from tasks.running.shard_runs import Asked, ShardRuns

DEPLOYMENT = "code-shard/code-shard"
Share = Annotated[float, Field(ge=0, le=1)]


class PiecesAsked(Asked, frozen=True, extra="forbid", title="Pieces"):
    """Some pieces of one job: what is coded with what, and which pieces. No cell of the table."""

    data: str = Field(title="Narratives", description="The table, where every worker sees it.")
    out: str = Field(title="Output", description="The file that the asking run writes; its folder is every worker's.")
    columns: tuple[str, ...] = Field(min_length=1, title="Text columns", description="Of the table, in their order.")
    template: str | None = Field(title="Template", description="How several columns are joined.")
    bundle: str = Field(title="Bundle", description="Folder of the bundle that codes.")
    thresholds: tuple[str, ...] = Field(title="Thresholds", description="Files in place of the bundle's own.")
    by_digits: bool | None = Field(title="Groups", description="Whether leading digits of a code name its groups.")
    top_k: int = Field(ge=1, le=50, title="Codes a narrative", description="How many.")
    threshold: Share | dict[str, Share] | None = Field(
        title="Threshold", description="Score below which a person must look; of several fields, of each."
    )
    crosswalk: str | dict[str, str] | None = Field(
        title="Crosswalk", description="File of another version's codes; of several fields, of each that has one."
    )
    rules: str | None = Field(title="Rules", description="File of what never occurs together, of several fields.")
    append: bool = Field(title="Append", description="Whether the rows are added to an output.")
    first: int = Field(ge=0, title="First piece", description="Its number; 0 is the first.")
    end: int = Field(ge=1, title="End", description="Number of the first piece that is left out.")
    job: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        title="Job",
        description="Digest of the table's bytes, the bundle's, and the options; a worker that finds others refuses.",
    )

    @model_validator(mode="after")
    def _some(self) -> PiecesAsked:
        if self.end <= self.first:
            raise ValueError("end must be above first")
        return self


def job_of(
    coder: Coder | JointCoder, table: Table, *, out: str, column: str, top_k: int, threshold: float | None
) -> CodingJob:
    """The job that these parameters of `code-batch` are."""
    added = added_of(coder, top_k=top_k, threshold=threshold)
    return CodingJob(table, Path(out).expanduser(), Narratives((column,), None), added)


@dataclass(frozen=True)
class PiecesShard:
    """Some pieces of a job that this process has open."""

    coder: Coder | JointCoder
    job: CodingJob
    asked: PiecesAsked

    @property
    def label(self) -> str:
        """In words, counted from one."""
        return f"pieces {self.asked.first + 1} to {self.asked.end}"

    @property
    def size(self) -> int:
        """Pieces."""
        return self.asked.end - self.asked.first

    @property
    def nowhere(self) -> str:
        """The folder that workers share."""
        return f"{self.job.folder}; give all workers of the queue the folder of the output at the same path"

    def found(self) -> bool:
        """Whether every piece is coded, by a worker or by an earlier run."""
        folders = (self.job.folder, self.job.handed_in(self.coder))
        numbers = range(self.asked.first, self.asked.end)
        return all(any(self.job.part(folder, n).is_file() for folder in folders) for n in numbers)

    def compute(self) -> None:
        """Code the pieces that are not there."""
        with _one_at_a_time(self), closing(self.job.pieces()) as every:
            for number, piece in every:
                if number >= self.asked.end:
                    break
                here = self.job.part(self.job.handed_in(self.coder), number)
                done = here.is_file() or self.job.part(self.job.folder, number).is_file()
                if number >= self.asked.first and not done:
                    code_piece(self.coder, self.job, piece, here)


def finish(coder: Coder | JointCoder, job: CodingJob, told: PiecesAsked, settings: Spread, progress: Progress) -> None:
    """Have workers code a job's pieces; return when all are there.

    Args:
        told: what every shard is told, but for its pieces and key.

    Raises:
        StorageError: a shard was lost too often, its answers do not arrive, or the server does not answer.
    """
    with closing(job.pieces()) as every:
        number = sum(1 for _ in every)
    job.handed_in(coder).mkdir(mode=0o700, exist_ok=True)
    shards = max(1, min(settings.shards, number))
    cuts = [number * i // shards for i in range(shards + 1)] if number else []
    asked = [told.model_copy(update={"first": first, "end": end}) for first, end in pairwise(cuts)]
    keyed = [one.model_copy(update={"key": _key(one)}) for one in asked]
    spreading.finish([PiecesShard(coder, job, one) for one in keyed], settings, DEPLOYMENT, {}, progress)


def told(
    coder: Coder | JointCoder,
    job: CodingJob,
    *,
    bundle: Path,
    thresholds: Sequence[Path] = (),
    by_digits: bool | None = None,
    crosswalks: Mapping[str, Path] | None = None,
    rules: Path | None = None,
) -> PiecesAsked:
    """What every shard of a job is told.

    Args:
        bundle: folder that the coder was opened from.
        thresholds: files that it was opened with, in place of the bundle's own.
        by_digits: how its groups were chosen.
        crosswalks: files of the job's crosswalks, by field.
        rules: file that it was opened with, of several fields.

    Raises:
        InputError: the bundle is packed, or the encoder's passes are rounded, which processors do differently.
    """
    if not bundle.is_dir():
        raise InputError("--bundle: it is packed; for shards unpack it where every worker sees it, and name the folder")
    if coder.model.precision != "float32":
        raise InputError("shards: workers code in float32, so that all give the same; --precision float32")
    walks = {name: _path(file) for name, file in (crosswalks or {}).items()}
    return PiecesAsked(
        data=str(job.table.source.path.resolve()),
        out=str(job.out.resolve()),
        columns=job.narratives.columns,
        template=job.narratives.template,
        bundle=str(bundle.resolve()),
        thresholds=tuple(_path(file) for file in thresholds),
        by_digits=by_digits,
        top_k=job.added.top_k,
        threshold=job.added.threshold,
        crosswalk=walks.get("", walks) or None,
        rules=rules and _path(rules),
        append=job.append,
        first=0,
        end=1,
        job=job.key(coder),
        key="0" * 32,
    )


def compute(asked: PiecesAsked) -> int:
    """Do what was asked for, on a worker; return the pieces that it was asked for.

    Raises:
        InputError: the table, the bundle or another file is not at its path here.
        StorageError: they are others than the asking run's, or this worker's code is; or the asking run ended.
    """
    table = survey(Path(asked.data), text_columns=asked.columns)
    coder = open_bundle(
        Path(asked.bundle),
        thresholds=[Path(file) for file in asked.thresholds],
        by_digits=asked.by_digits,
        rules=Path(asked.rules) if asked.rules else None,
    )
    walks = {"": asked.crosswalk} if isinstance(asked.crosswalk, str) else asked.crosswalk or {}
    crosswalks = read_crosswalks(coder, {name: Path(file) for name, file in walks.items()})
    added = added_of(coder, top_k=asked.top_k, threshold=asked.threshold, crosswalks=crosswalks)
    narratives = Narratives(asked.columns, asked.template)
    job = CodingJob(table, Path(asked.out), narratives, added, append=asked.append)
    if job.key(coder) != asked.job:
        raise StorageError(
            f"shard: {job.table.source.name}, the bundle or a file beside it is another here than where it was asked "
            "for; give all workers of the queue the same files, and run again"
        )
    if _key(asked) != asked.key:
        raise StorageError("shard: this worker's code or libraries are another version than the asking run's; upgrade")
    shard = PiecesShard(coder, job, asked)
    if not job.handed_in(coder).is_dir():
        raise StorageError(f"shard: no folder {job.handed_in(coder)}: the run that asked has ended, or wrote elsewhere")
    shard.compute()
    return shard.size


def preflight() -> None:
    """Refuse shards that nobody could be asked for, before there is work.

    Raises:
        InputError: no server is named, or it has not the deployment.
    """
    with ShardRuns.at(DEPLOYMENT, {}):
        pass


def _path(file: Path) -> str:
    return str(file.expanduser().resolve())


def _key(asked: PiecesAsked) -> str:
    pieces = {"job": asked.job, "out": asked.out, "first": asked.first, "end": asked.end}
    return digest(pieces | {"code": code_version("tasks.coding.job", "tasks.coding.shards")})[:32]


@contextmanager
def _one_at_a_time(shard: PiecesShard) -> Iterator[None]:
    """Who got the same shard waits, and finds it done."""
    with (shard.job.handed_in(shard.coder) / f"{shard.asked.first:08}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
