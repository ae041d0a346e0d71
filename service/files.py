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
from storage.errors import InputError
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
        raise InputError(
            "This takes a CSV. Code archives, workbooks, Parquet and JSON with `autocoder code`."
        )
    with _in_memory(content) as path:
        try:
            records = Narratives((column,))
            table = survey(path, text_columns=records.columns, option="file", read=read)
            if table.kind != "csv":
                raise InputError("This takes a CSV. Code JSON with `autocoder code`.")
            if table.rows > MOST_ROWS:
                raise InputError(
                    f"The file has {table.rows:,} rows, more than {MOST_ROWS:,}. Split it, or use "
                    "`autocoder code`, which takes any size."
                )
            answers = answer_columns(coder, top_k=top_k, threshold=threshold)
            schema = output_schema(table, (answers,), coder.origin)
            texts = records.texts(table.text_rows(records.columns, table.marks()))
            notes = coder.reads.notes(look_at(table, records.columns))
            return Upload(list(table.read()), texts, schema, answers, tuple(notes))
        except InputError as error:
            problem = str(error).removeprefix("--data: ").removeprefix("file: ")
            problem = problem.replace(str(path), "the file")
            raise InputError(problem[0].upper() + problem[1:]) from None


async def lines(
    upload: Upload, coder: Coder, batcher: Batcher, require_not_revoked: Callable[[], None]
) -> AsyncIterator[str]:
    """Yields the file's lines with codes, a few narratives at a time, so that others get their
    turn.

    Args:
        require_not_revoked: raises for a withdrawn bundle; called before each piece.
    """
    yield csv_lines([tuple(upload.schema.names)])
    columns, origin = upload.answers, tuple(coder.origin.values())
    how: Any = {"top_k": columns.top_k, "threshold": columns.threshold}
    for start in range(0, len(upload.texts), _PIECE):
        require_not_revoked()
        piece = slice(start, start + _PIECE)
        while True:
            try:
                codings = await coded(batcher, coder, upload.texts[piece], **how)
                break
            except Overloaded:
                await asyncio.sleep(_PAUSE)
        yield csv_lines(
            [
                row + columns.row(own) + origin
                for row, own in zip(upload.rows[piece], codings, strict=True)
            ]
        )


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
