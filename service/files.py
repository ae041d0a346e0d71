"""Codes an uploaded file of narratives in memory, with the strict reader of `autocoder code`.

Nothing is written to a disk, and nothing remains when the answer ends, however it ends.
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
"""Files that are coded at a time; of each client one, until its answer is sent."""

_PIECE = 16
TOGETHER = 64
"""Narratives of a request that are coded as one. A request with more is coded in such pieces."""
LARGE_AT_ONCE = 4
"""Requests with more narratives than that, at a time: bounds the memory of bodies and answers."""
_PAUSE = 0.2
"""Seconds until a piece tries again where too many narratives wait."""
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
    """What of the narratives the model does not read."""
    cut: int = 0
    """Narratives that are longer than what it reads."""


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
    """Yields the file's lines with codes, as `in_pieces` codes them."""
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
            [row + columns.row(own) + origin for row, own in zip(rows, codings, strict=True)]
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
    """Yields codings of a few narratives at a time, so that others get their turn.

    Args:
        require_not_revoked: raises for a withdrawn bundle; called before each piece.
        refuses: raises `Overloaded` where the first piece would have to wait; later ones wait.
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
    """Yields a file's lines as they are read, while they are made without waiting for a reader.

    Args:
        done: called when all are made.
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
    """Admits a few large requests at a time."""

    def __init__(self) -> None:
        self._now = 0

    @contextmanager
    def admitted(self, narratives: int) -> Iterator[None]:
        """Raises `Overloaded` for one large request too many."""
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
    """Streams a coded file; calls `done` at its end, also when the client left."""

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
    """Yields a path to read the content from: in memory alone where the system can, as Linux does,
    and otherwise a file that only this user may read, which is removed at once.
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
