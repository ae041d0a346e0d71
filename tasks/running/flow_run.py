"""Tells a run of Prefect's from a plain call: without one, stages run the same, and nothing of Prefect is used.

Prefect records runs and shows them. What a result rests on (locks, keys, resume, ledger) is in the workspace, so that a
command alone on one machine needs no server. Artifacts, and progress on Prefect's page, are then left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from pydantic import validate_call

if TYPE_CHECKING:
    from prefect import Flow

P = ParamSpec("P")
R = TypeVar("R")

NOTHING_STORED: dict[str, Any] = {"persist_result": False, "result_serializer": "json", "log_prints": False}
"""Options of every flow and task of ours: Prefect stores no result of theirs, and nothing that they print."""


def job(*, name: str, description: str, **options: Any) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Returns the decorator of our flows. Without Prefect, the decorated function waits as a `PlainJob`."""
    settings = {"name": name, "description": description} | NOTHING_STORED | options

    def decorate(function: Callable[P, R]) -> Flow[P, R]:
        plain = PlainJob(function, settings)
        return plain.flow() if "prefect" in sys.modules else cast("Flow[P, R]", plain)

    return decorate


@dataclass(frozen=True)
class PlainJob(Generic[P, R]):
    """Holds the function of a flow in a process that has not imported Prefect, whose import takes a second."""

    fn: Callable[P, R]
    settings: Mapping[str, Any]

    @property
    def should_validate_parameters(self) -> bool:
        """Returns whether the function wants its parameters checked, as of a flow."""
        return bool(self.settings.get("validate_parameters", True))

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Checks and converts parameters by the function's annotations, as Prefect does."""
        collect = validate_call(config={"arbitrary_types_allowed": True})(_collector(self.fn))
        checked: dict[str, Any] = collect(**parameters)
        return checked

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the flow, as calling one does."""
        return self.flow()(*args, **kwargs)

    def flow(self) -> Flow[P, R]:
        """Makes the flow."""
        from prefect import flow

        return flow(**self.settings)(self.fn)


def _collector(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Returns a function of the same parameters that returns their values."""

    @wraps(function)
    def collect(*args: Any, **values: Any) -> dict[str, Any]:
        return signature(function).bind(*args, **values).arguments

    return collect


def named_by_plan() -> str:
    """Returns the name of a run that takes a plan: that of its file."""
    from prefect.runtime import flow_run

    return Path(str(flow_run.get_parameters()["plan"])).stem


def run_id() -> str | None:
    """Returns the id of the flow run, if there is one."""
    if "prefect" not in sys.modules:
        return None
    from prefect.runtime import flow_run

    return str(flow_run.get_id() or "") or None


def deployment_id() -> str | None:
    """Returns the id of the flow run's deployment, if it has one."""
    if "prefect" not in sys.modules:
        return None
    from prefect.runtime import deployment

    return str(deployment.id or "") or None


def in_flow_run() -> bool:
    """Checks that a flow run of Prefect's surrounds the caller."""
    if "prefect" not in sys.modules:  # within a run it has been imported
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def call_task(name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function as a task of its flow run, never retried and never cached; without a run, calls it.

    A second attempt goes through the ledger's idempotency key instead.
    """
    if not in_flow_run():
        return function(*args, **kwargs)
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    made = task(name=name, task_run_name=name, retries=0, cache_policy=NO_CACHE, **NOTHING_STORED)(function)
    return made(*args, **kwargs)


def publish_markdown(*, key: str, markdown: str, description: str) -> None:
    """Publishes a text as an artifact of the flow run, if there is one."""
    if in_flow_run():
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(key=key, markdown=markdown, description=description)


def publish_table(*, key: str, table: Sequence[Mapping[str, Any]], description: str) -> None:
    """Publishes rows as an artifact of the flow run, if there is one."""
    if in_flow_run():
        from prefect.artifacts import create_table_artifact

        create_table_artifact(key=key, table=[dict(row) for row in table], description=description)
