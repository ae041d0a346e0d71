"""Runs a function in a Prefect flow run: stages are task runs, and results appear
on the run's page.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import wraps
from inspect import signature
from pathlib import Path
from signal import SIGTERM
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID

import httpx
from prefect import Flow, flow, get_run_logger, task
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import MissingContextError, PrefectException, TerminationSignal
from prefect.runtime import deployment, flow_run
from prefect.settings import (
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_RETRY_EXTRA_CODES,
    PREFECT_UI_URL,
    temporary_settings,
)
from prefect.states import Cancelled, Crashed, Failed, State
from prefect.utilities.annotations import quote
from pydantic import BaseModel

from flows.server import form_values
from flows.server.client import REFUSED, server
from storage.errors import InputError, Unavailable
from storage.json_values import Figures
from tasks.running.failures import SAFE
from tasks.running.progress import Listener, sentence_of
from tasks.running.run import Run

P = ParamSpec("P")
R = TypeVar("R")

NOTHING_STORED: dict[str, Any] = {
    "persist_result": False,
    "result_serializer": "json",
    "log_prints": False,
}
"""Options of every flow and task of the program: Prefect stores neither their
results nor their printed output.
"""
UNCHECKED: dict[str, Any] = {"validate_parameters": False}
"""Option of a flow that reads its parameters itself."""
_SECONDS_BETWEEN_UPDATES = 3.0


class OneLineRefusals(logging.Filter):
    """Drops the tracebacks of errors with a text made to be shown, which `ending` logs as one line.

    Prefect logs the exception of a task, again that of its flow, and again that of the process.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return not isinstance(error, SAFE)


for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(OneLineRefusals())


class PrefectRun(Run):
    """The flow run that the caller executes in."""

    shows = True

    def __init__(self) -> None:
        self.id = str(flow_run.get_id() or "") or None
        self.deployment = str(deployment.id or "") or None

    def call(
        self, name: str, label: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        @wraps(function)
        def body(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TerminationSignal:
                if self._is_cancelled():
                    return cast("R", Cancelled())
                raise

        unit = task(
            name=name, task_run_name=label, retries=0, cache_policy=NO_CACHE, **NOTHING_STORED
        )(body)
        # quote: Prefect must not search the arguments for futures
        quoted: Any = [quote(value) for value in args]
        keywords: Any = {key: quote(value) for key, value in kwargs.items()}
        answer = unit(*quoted, **keywords)
        if isinstance(
            answer, State
        ):  # cancelled: the flow is ended by the signal, as without a task
            raise TerminationSignal(SIGTERM)
        return answer

    def _is_cancelled(self) -> bool:
        with suppress(Unavailable), server() as client:
            state = client.read_flow_run(UUID(self.id)).state
            return state is not None and state.is_cancelling()
        return False

    def listeners(self) -> tuple[Listener, ...]:
        return (ProgressBars(),)

    def publish_markdown(self, *, key: str, markdown: str, description: str) -> str | None:
        with _unless_refused():
            made = create_markdown_artifact(key=key, markdown=markdown, description=description)
            return f"{PREFECT_UI_URL.value().rstrip('/')}/artifacts/artifact/{made}"
        return None

    def log(self, text: str) -> None:
        _log("%s", text)


@contextmanager
def _unless_refused() -> Iterator[None]:
    """Continues if the server refuses displayed content or is away, because everything that matters
    is in the workspace.
    """
    try:
        yield
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("not shown on the page: %s", type(error).__name__)


def _log(*words: str) -> None:
    with suppress(MissingContextError):
        get_run_logger().info(*words)


def ending(body: Callable[P, R]) -> Callable[P, R]:
    """Returns a function that ends its run with the text of an error that is made to be shown.

    The run is *Crashed* if its database or a server is away, so that housekeeping resumes it,
    *Refused* if its input must be corrected first, and otherwise *Failed*. Prefect itself would
    put its own words and the name of the type before the text. Outside of a run, errors are raised.
    """

    @wraps(body)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return body(*args, **kwargs)
        except Unavailable as error:
            return cast("R", Crashed(message=str(error)))
        except SAFE as error:
            if FlowRunContext.get() is None:
                raise
            get_run_logger().error("%s", error)
            name = REFUSED if isinstance(error, InputError) else "Failed"
            return cast("R", Failed(name=name, message=str(error), data=error))

    return call


def as_flow(**options: Any) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Makes a flow that reads its parameters itself, so that it refuses them in its own words, and
    ends as `ending` describes.
    """

    def decorate(body: Callable[P, R]) -> Flow[P, R]:
        # Prefect resolves the names of types in this function's module
        shape = signature(body, eval_str=True)

        @wraps(body)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = shape.bind(*args, **kwargs).arguments
            arguments: Any = form_values.read(shape, given)
            return cast("Callable[..., R]", body)(**arguments)

        ended = ending(call)
        ended.__signature__ = shape  # pyrefly: ignore[missing-attribute]
        return flow(ended, **UNCHECKED, **options, **NOTHING_STORED)

    return decorate


def named_by(*fields: str, of: str | None = None, words: str = "{}") -> Callable[[], str]:
    """Returns a function that names a run by values of its form, or not if a value is missing.

    Args:
        fields: names of the values.
        of: name of the section that holds them, if they are in one.
        words: text of the name, with a pair of braces for each value.
    """

    def name() -> str:
        given = flow_run.get_parameters()
        section = given if of is None else given.get(of)
        values = section.model_dump() if isinstance(section, BaseModel) else section
        if not isinstance(values, Mapping) or not set(fields) <= values.keys():
            return flow_run.get_name() or ""
        return words.format(*(_short(values[field]) for field in fields))

    return name


def _short(value: object) -> str:
    """Returns a value as a person would write it: 2 instead of 2.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def named_by_plan() -> str:
    """Returns the name of a run for a plan: population, method, and the plan's file."""
    file = Path(str(flow_run.get_parameters().get("plan", ""))).expanduser()
    try:
        plan = json.loads(file.read_text(encoding="utf-8"))["plan"]
        event = plan["event"]
        mechanism = event.get("training", event)["mechanism"]
        return f"{plan['population']}, {mechanism} ({file.stem})"
    except (OSError, ValueError, KeyError, TypeError):
        return file.stem  # the run itself reports what is wrong with the file


def in_flow_run(
    body: Callable[[Run], R], *, name: str, label: str, home: str, parameters: Mapping[str, object]
) -> R:
    """Calls the body of a command in a flow run. Its page shows home and parameters."""

    @flow(name=name, flow_run_name=lambda: label, **UNCHECKED, **NOTHING_STORED)
    @ending
    def command(home: str, parameters: Mapping[str, object]) -> R:
        return body(PrefectRun())

    with temporary_settings(
        {PREFECT_CLIENT_MAX_RETRIES: 10, PREFECT_CLIENT_RETRY_EXTRA_CODES: {500}}
    ):
        return command(home=home, parameters=parameters)


class ProgressBars(Listener):
    """Shows a bar for each longer stage, updated rarely enough not to slow the stage.

    If the server refuses a bar or is away, the bar is missing and the stage continues.
    """

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._last = 0.0
        self._run = copy_context()
        self._names: dict[str, str] = {}

    def named(self, label: str, name: str) -> None:
        self._names[label] = name

    def started(self, label: str) -> None:
        """Waits, because most stages end before a bar is worth a request."""
        self._artifact, self._last = None, time.monotonic()
        self._run = copy_context()  # threads of the stage are outside Prefect's run

    def report(self, label: str, done: int, total: int | None) -> None:
        """Creates or updates the bar, at most every few seconds."""
        now = time.monotonic()
        if not total or now - self._last < _SECONDS_BETWEEN_UPDATES:
            return
        self._last = now
        self._show(label, min(100.0, 100.0 * done / total))

    def finished(self, label: str, figures: Figures, *, reused: bool, seconds: float) -> None:
        """Removes the bar and logs the stage, without figures, because the number
        of records must not reach Prefect.
        """
        told = sentence_of(self._names.get(label, label), label)
        time_taken = "found finished" if reused else f"{seconds:.3g} s"
        self._run.copy().run(_log, "%s (%s).", told, time_taken)
        self._remove()

    def failed(self, label: str) -> None:
        self._remove()

    def _remove(self) -> None:
        """Removes the bar of a finished stage, because the page keeps every artifact of a run."""
        if self._artifact is not None:
            artifact, self._artifact = self._artifact, None
            self._run.copy().run(self._delete, artifact)

    def _delete(self, artifact: UUID) -> None:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            _unless_refused(),
            get_client(sync_client=True) as client,
        ):
            client.delete_artifact(artifact)

    def _show(self, description: str, percent: float) -> None:
        self._run.copy().run(self._move, description, percent)

    def _move(self, description: str, percent: float) -> None:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), _unless_refused():
            if self._artifact is None:
                self._artifact = cast(
                    "UUID", create_progress_artifact(progress=percent, description=description)
                )
            else:
                update_progress_artifact(self._artifact, progress=percent, description=description)
