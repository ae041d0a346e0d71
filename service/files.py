"""A file of narratives, coded while it is answered: the strict reader of `autocoder code`, and memory alone.

Nothing of it is written to a disk and nothing is left when the answer ends, however it ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from torch import Tensor

from service.batching import Batcher, Overloaded
from storage.errors import InputError
from storage.tables.narratives import Narratives
from storage.tables.reading import Row, survey
from storage.tables.writing import csv_lines
from tasks.coding.coder import Coder
from tasks.coding.columns import Added, JointAdded, added_of, output_schema
from tasks.coding.joint import JointCoder

MOST_BYTES = 4 << 20
MOST_ROWS = 5000
SECONDS = 60.0
"""That a client has for the body."""
AT_ONCE = 2
"""Files that are coded at a time."""

_PIECE = 16
_PAUSE = 0.2
"""Seconds until a piece tries again where too many narratives wait."""
_OTHER_KINDS = (b"PK\x03\x04", b"PK\x05\x06", b"PAR1")


@dataclass(frozen=True)
class Upload:
    """A table that was read whole, and how it is answered."""

    rows: list[Row]
    texts: list[str]
    schema: pa.Schema
    added: Added | JointAdded


def read(
    content: bytes, coder: Coder | JointCoder, *, column: str, top_k: int, threshold: float | None, most_rows: int
) -> Upload:
    """Read a CSV to its end, as `autocoder code --data` does.

    Raises:
        InputError: what that would refuse, a file of another kind, or one of too many rows; quotes no cell.
    """
    if content.startswith(_OTHER_KINDS):
        raise InputError("This takes a CSV; code archives, Parquet and JSON Lines with `autocoder code`")
    with _in_memory(content) as path:
        try:
            table = survey(path, text_columns=(column,), option="file")
            if table.rows > most_rows:
                raise InputError(
                    f"The file has {table.rows:,} rows, and {most_rows:,} are coded at a time here; split it, or code "
                    "it with `autocoder code`, which takes any size"
                )
            added = added_of(coder, top_k=top_k, threshold=threshold)
            schema = output_schema(table, added, coder)
            texts = Narratives((column,)).texts(table.text_rows((column,)))
            return Upload(list(table.read()), texts, schema, added)
        except InputError as error:
            said = str(error).removeprefix("--data: ").removeprefix("file: ")
            said = said.replace(str(path), "the file")
            raise InputError(said[0].upper() + said[1:]) from None


async def lines(
    upload: Upload, coder: Coder | JointCoder, batcher: Batcher, require_standing: Callable[[], None]
) -> AsyncIterator[str]:
    """The file's lines with its codes, as they are coded: a few narratives at a time, so that others get their turn.

    Args:
        require_standing: raises where nothing is to be coded any more; asked before each piece.
    """
    yield csv_lines([tuple(upload.schema.names)])
    added: Any = upload.added  # of the coder's own kind
    origin, threshold = tuple(coder.origin.values()), added.threshold
    blank = coder.blank(threshold)
    for start in range(0, len(upload.texts), _PIECE):
        require_standing()
        texts = upload.texts[start : start + _PIECE]
        scores = await _scores(batcher, [text for text in texts if text.strip()])
        coded = iter(coder.from_scores(scores, top_k=added.top_k, threshold=threshold))
        answers = [added.row(next(coded) if text.strip() else blank) for text in texts]
        rows = upload.rows[start : start + _PIECE]
        yield csv_lines([row + answer + origin for row, answer in zip(rows, answers, strict=True)])


async def _scores(batcher: Batcher, texts: Sequence[str]) -> Tensor:
    while True:
        try:
            return await batcher.scores(texts)
        except Overloaded:
            await asyncio.sleep(_PAUSE)


class Answer(StreamingResponse):
    """A coded file on its way; `done` is called when it has ended, whether it came to its end or the client went."""

    def __init__(self, content: AsyncIterator[str], *, rows: int, done: Callable[[], None]) -> None:
        headers = {"X-Rows": str(rows), "Content-Disposition": 'attachment; filename="coded.csv"'}
        super().__init__(content, media_type="text/csv", headers=headers)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


@contextmanager
def _in_memory(content: bytes) -> Iterator[Path]:
    """A file that has a path as long as this is open, and no place on a disk."""
    descriptor = os.memfd_create("upload", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
