"""Batches the narratives that arrive while the model is busy, so that they are coded together next.

The service never waits for a batch to fill: an idle service codes a single narrative at once, and
batches grow with the load. A batch has a maximum number of narratives and of characters, so that a
narrative waits for one batch at most before its own.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mechanisms.model.scorer import Scores

T = TypeVar("T")
_MOST_SINGLE = 8
"""Maximum number of explanations in the queue."""
Scoring = Callable[[Sequence[str]], Scores]
"""Computes scores, float32 [n, codes], from n texts."""


class Overloaded(Exception):
    """Raised when too many narratives are in the queue."""


@dataclass
class _Waiting:
    text: str
    answer: asyncio.Future[Scores]


class Batcher:
    def __init__(
        self, scores: Scoring, *, most: int = 16, most_characters: int = 8000, waiting: int = 512
    ) -> None:
        self._scores = scores
        self._most, self._most_characters, self._waiting = most, most_characters, waiting
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._worker: asyncio.Task[None] | None = None
        self._single = 0

    async def start(self) -> None:
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            with suppress(asyncio.CancelledError):
                await self._worker
        while not self._queue.empty():
            self._queue.get_nowait().answer.cancel()
        self._pool.shutdown()

    async def scores(self, texts: Sequence[str]) -> Scores:
        """Returns the scores of the texts, float32 [n, codes], in the same order."""
        if not texts:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._scores, [])
        if self._queue.qsize() + len(texts) > self._waiting:
            raise Overloaded
        loop = asyncio.get_running_loop()
        items = [_Waiting(text, loop.create_future()) for text in texts]
        for item in items:
            self._queue.put_nowait(item)
        try:
            return np.stack(await asyncio.gather(*(item.answer for item in items)))
        finally:
            for item in items:  # the rest of an abandoned request is skipped
                item.answer.cancel()

    async def single(self, work: Callable[[], T]) -> T:
        """Runs other work on the model's thread when its turn comes, and returns the result."""
        if self._single >= _MOST_SINGLE:
            raise Overloaded
        self._single += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._single -= 1

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next()
            try:
                rows = await loop.run_in_executor(
                    self._pool, self._scores, [item.text for item in batch]
                )
            except Exception as error:
                for item in batch:
                    if not item.answer.done():
                        item.answer.set_exception(error)
                continue
            for item, row in zip(batch, rows, strict=True):
                if not item.answer.done():
                    item.answer.set_result(row)

    async def _next(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        characters = 0
        while not batch or (
            len(batch) < self._most
            and characters < self._most_characters
            and not self._queue.empty()
        ):
            item = await self._queue.get()
            if not item.answer.done():
                batch.append(item)
                characters += len(item.text)
        return batch
