"""Codes an uploaded file of narratives in memory, with the strict reader of `autocoder code`.

Nothing is written to disk, and the memory is freed when the response ends, even if it ends early.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.batching import Batcher, Overloaded
from service.metrics import Metrics
from storage.errors import InputError, OutOfRange, Unreadable
from storage.narrative_look import look_at
from storage.tables.narratives import Narratives
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import Row, survey
from storage.tables.writer import csv_lines
from tasks.coding.coder import Coder, Coding
from tasks.coding.columns import AnswerColumns, answer_columns, output_schema

MOST_BYTES = 4 << 20
MOST_ROWS = 5000
AT_ONCE = 2
"""Number of files coded concurrently. Each client may have one, until its response is sent."""

_PIECE = 16
TOGETHER = 64
"""Number of narratives coded together. A larger request is split into pieces of this size."""
LARGE_AT_ONCE = 4
"""Number of such larger requests processed concurrently, which bounds the memory that they use."""
_PAUSE = 0.2
"""Seconds before a piece is tried again if too many narratives are in the queue."""
_OTHER_KINDS = (
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PAR1",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"\xd0\xcf\x11\xe0",
)


@dataclass(frozen=True)
class Upload:
    rows: list[Row]
    texts: list[str]
    schema: pa.Schema
    answers: AnswerColumns
    notes: tuple[str, ...] = ()
    """Sentences on narratives that the model cannot read in full."""
    cut: int = 0
    """Number of narratives that were truncated."""


def read(
    content: bytes,
    coder: Coder,
    *,
    column: str,
    top_k: int,
    threshold: float | None,
    read: ReadOptions = AS_IT_LOOKS,
) -> Upload:
    """Read a CSV to its end, as `autocoder code --data` does."""
    if content.startswith(_OTHER_KINDS):
        raise Unreadable(
            "This takes a CSV. Code archives, workbooks, Parquet and JSON with `autocoder code`.",
            kind="another-format",
        )
    with _in_memory(content) as path:
        try:
            records = Narratives((column,))
            table = survey(path, text_columns=records.columns, option="file", read=read)
            if table.kind != "csv":
                raise Unreadable(
                    "This takes a CSV. Code JSON with `autocoder code`.", kind="json-upload"
                )
            if table.rows > MOST_ROWS:
                raise OutOfRange(
                    f"The file has {table.rows:,} rows, more than {MOST_ROWS:,}. Split it, or use "
                    "`autocoder code`, which takes any size.",
                    kind="too-many-uploaded-rows",
                )
            answers = answer_columns(coder, top_k=top_k, threshold=threshold)
            schema = output_schema(table, (answers,), coder.origin)
            texts = records.texts(table.text_rows(records.columns, table.marks()))
            look = look_at(table, records.columns)
            notes, cut = tuple(coder.reads.notes(look)), coder.reads.cut(look)
            return Upload(list(table.read()), texts, schema, answers, notes, cut)
        except InputError as error:
            problem = str(error).removeprefix("--data: ").removeprefix("file: ")
            problem = problem.replace(str(path), "the file")
            raise InputError(
                problem[0].upper() + problem[1:],
                kind=error.kind,
                column=error.column,
                row=error.row,
            ) from None


async def lines(
    upload: Upload,
    coder: Coder,
    batcher: Batcher,
    require_not_revoked: Callable[[], None],
    metrics: Metrics,
) -> AsyncIterator[str]:
    """Yields the lines of the coded file, coded by `in_pieces`."""
    yield csv_lines([tuple(upload.schema.names)])
    columns, origin = upload.answers, tuple(coder.origin.values())
    how: Any = {"top_k": columns.top_k, "threshold": columns.threshold}
    pieces = in_pieces(batcher, coder, upload.texts, require_not_revoked, each=_PIECE, **how)
    start = 0
    async for codings in pieces:
        rows = upload.rows[start : start + len(codings)]
        start += len(codings)
        metrics.coded(codings)
        yield csv_lines(
            [row + columns.row(coding) + origin for row, coding in zip(rows, codings, strict=True)]
        )


async def in_pieces(
    batcher: Batcher,
    coder: Coder,
    texts: Sequence[str],
    require_not_revoked: Callable[[], None],
    *,
    each: int,
    top_k: int,
    threshold: float | None,
    refuses: bool = False,
) -> AsyncIterator[list[Coding]]:
    """Yields the codings of a few narratives at a time, so that other requests get their turn.

    Args:
        require_not_revoked: raises if the bundle is withdrawn; called before each piece.
        refuses: raises `Overloaded` if the first piece would have to wait. Later pieces always
            wait.
    """
    for start in range(0, len(texts), each):
        require_not_revoked()
        piece = texts[start : start + each]
        while True:
            try:
                codings = await coded(batcher, coder, piece, top_k=top_k, threshold=threshold)
                break
            except Overloaded:
                if refuses and start == 0:
                    raise
                await asyncio.sleep(_PAUSE)
        yield codings


async def coded(
    batcher: Batcher, coder: Coder, texts: Sequence[str], *, top_k: int, threshold: float | None
) -> list[Coding]:
    scores = await batcher.scores([text for text in texts if text.strip()])
    return coder.from_scores(texts, scores, top_k=top_k, threshold=threshold)


async def ahead(content: AsyncIterator[str], done: Callable[[], None]) -> AsyncIterator[str]:
    """Yields lines while further lines are produced in the background, without waiting for the
    reader.

    Args:
        done: called when all lines have been produced.
    """
    queue: asyncio.Queue[str | Exception | None] = asyncio.Queue()

    async def make() -> None:
        try:
            async for line in content:
                queue.put_nowait(line)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)
        finally:
            done()

    making = asyncio.create_task(make())
    try:
        while (line := await queue.get()) is not None:
            if isinstance(line, Exception):
                raise line
            yield line
    finally:
        making.cancel()


class LargeRequests:
    """Limits the number of large requests that run concurrently."""

    def __init__(self) -> None:
        self._now = 0

    @contextmanager
    def admitted(self, narratives: int) -> Iterator[None]:
        """Raises `Overloaded` if the limit of large requests is reached."""
        large = narratives > TOGETHER
        # guard: test_large_requests_are_admitted_a_few_at_a_time
        if large and self._now >= LARGE_AT_ONCE:
            raise Overloaded
        self._now += large
        try:
            yield
        finally:
            self._now -= large


class Answer(StreamingResponse):
    """Streams a coded file and calls `done` at the end, even if the client disconnects."""

    def __init__(
        self,
        content: AsyncIterator[str],
        *,
        rows: int,
        done: Callable[[], None],
        notes: Sequence[str] = (),
    ) -> None:
        headers = {"X-Rows": str(rows), "Content-Disposition": 'attachment; filename="coded.csv"'}
        if notes:
            headers["X-Warnings"] = "; ".join(notes)
        super().__init__(content, media_type="text/csv", headers=headers)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


@contextmanager
def _in_memory(content: bytes) -> Iterator[Path]:
    """Yields a path from which the content can be read. On Linux the file is in memory only.
    Elsewhere it is a temporary file that only this user may read and that is removed at once.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory(prefix="autocoder-upload-") as folder:
            file = Path(folder) / "upload"
            file.touch(mode=0o600)
            file.write_bytes(content)
            yield file
        return
    descriptor = os.memfd_create("upload", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
