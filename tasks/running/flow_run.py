"""Tells a run of Prefect's from a plain call: without one, stages run the same, and nothing of Prefect is used.

Prefect records runs and shows them. What a result rests on (locks, keys, resume, ledger) is in the workspace, so that a
command alone on one machine needs no server. Artifacts, and progress on Prefect's page, are then left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from prefect import Flow, Task

P = ParamSpec("P")
R = TypeVar("R")


def job(*, name: str, description: str, **options: Any) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Returns the decorator of our flows: Prefect stores no result of theirs, and nothing that they print."""
    from prefect import flow

    stored: dict[str, Any] = {"persist_result": False, "result_serializer": "json", "log_prints": False}
    return flow(name=name, description=description, **stored, **options)


def named_by_plan() -> str:
    """Returns the name of a run that takes a plan: that of its file."""
    from prefect.runtime import flow_run

    return Path(str(flow_run.get_parameters()["plan"])).stem


def run_id() -> str | None:
    """Returns the id of the flow run, if there is one."""
    from prefect.runtime import flow_run

    return str(flow_run.get_id() or "") or None


def in_flow_run() -> bool:
    """Checks that a flow run of Prefect's surrounds the caller."""
    if "prefect" not in sys.modules:  # its import takes a second, and within a run it has happened
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def call_task(task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a task as a run of its flow run; without one, calls its function."""
    called: Callable[..., R] = task if in_flow_run() else task.fn
    return called(*args, **kwargs)


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
