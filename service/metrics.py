"""Counts requests and codings for Prometheus. No metric contains a narrative, code or client."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.coding.coder import Coding

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram's buckets."""
_OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST"})


class Metrics:
    """Counters since the service started.

    Args:
        paths: paths that are counted separately. All others are counted together, so that clients
            cannot create new time series.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = frozenset(paths)
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._narratives = self._too_long = 0
        self._judged: Counter[bool] = Counter()

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        place = path if path in self._paths else _OTHER
        kind = method if method in _METHODS else _OTHER
        self._requests[kind, place, status] += 1
        buckets = self._buckets.setdefault(place, [0] * (len(_SECONDS) + 1))
        buckets[next((n for n, end in enumerate(_SECONDS) if seconds <= end), len(_SECONDS))] += 1
        self._seconds[place] = self._seconds.get(place, 0.0) + seconds

    def coded(self, codings: Sequence[Coding]) -> None:
        self._narratives += len(codings)
        self._judged.update(
            not coding.needs_review for coding in codings if coding.needs_review is not None
        )

    def cut(self, narratives: int) -> None:
        self._too_long += narratives

    def text(self) -> str:
        """Returns all counts in Prometheus' text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests by method, path and status.")
        for (method, path, status), number in sorted(self._requests.items()):
            labels = f'method="{method}",path="{path}",status="{status}"'
            yield f"autocoder_requests_total{{{labels}}} {number}"
        yield from _head("request_seconds", "histogram", "Time until the response was complete.")
        for path, buckets in sorted(self._buckets.items()):
            yield from self._histogram(path, buckets)
        yield from _head("narratives_total", "counter", "Narratives that were coded.")
        yield f"autocoder_narratives_total {self._narratives}"
        yield from _head("judged_total", "counter", "Codes that were compared with a threshold.")
        for above in (True, False):
            yield f'autocoder_judged_total{{above="{str(above).lower()}"}} {self._judged[above]}'
        yield from _head("cut_narratives_total", "counter", "Narratives that the model truncated.")
        yield f"autocoder_cut_narratives_total {self._too_long}"

    def _histogram(self, path: str, buckets: Sequence[int]) -> Iterator[str]:
        total = 0
        for end, number in zip((*map(str, _SECONDS), "+Inf"), buckets, strict=True):
            total += number
            yield f'autocoder_request_seconds_bucket{{path="{path}",le="{end}"}} {total}'
        yield f'autocoder_request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}'
        yield f'autocoder_request_seconds_count{{path="{path}"}} {total}'


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP autocoder_{name} {text}"
    yield f"# TYPE autocoder_{name} {kind}"


class Measured:
    """Wraps the application and times each request until the end of its response."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.monotonic(), 499  # if the client disconnects before a response

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            passed = time.monotonic() - begun
            self._metrics.answered(scope["method"], scope["path"], status, passed)
