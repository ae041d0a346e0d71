"""Of what a schedule missed the newest alone catches up: a weekend without a worker is one round,
not two hundred.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from flows.server import dead_runs

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def run(
    deployment: UUID | None, hours: float, *, by_schedule: bool = True, count: int = 0
) -> FlowRun:
    when = NOW - timedelta(hours=hours)
    return FlowRun(
        name=f"{hours:g}",
        flow_id=uuid4(),
        deployment_id=deployment,
        auto_scheduled=by_schedule,
        expected_start_time=when,
        run_count=count,
        state=Scheduled(scheduled_time=when),
    )


def test_the_newest_of_each_deployment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs manually, and those that began once and wait to go on, are left alone."""
    often, nightly = uuid4(), uuid4()
    runs = [run(often, hours) for hours in (1, 2, 3)] + [run(nightly, hours) for hours in (9, 33)]
    runs += [run(often, hours) for hours in range(10, 226)]  # more than a page of the server's
    runs += [run(often, 4, by_schedule=False), run(often, 5, count=1), run(None, 6)]
    asked: dict[str, Any] = {}
    cancelled: list[UUID] = []

    class Client:
        def read_flow_runs(self, **options: Any) -> list[FlowRun]:
            asked.update(options)
            newest = sorted(runs, key=lambda one: one.expected_start_time or NOW, reverse=True)
            return newest[options["offset"] :][: options["limit"]]

        def set_flow_run_state(self, run_id: UUID, state: Any) -> None:
            assert state.is_cancelled()
            cancelled.append(run_id)

    @contextmanager
    def server() -> Iterator[Client]:
        yield Client()

    monkeypatch.setattr(dead_runs, "server", server)
    dropped = dead_runs.drop_missed(before=NOW)
    assert dropped[:3] == ("2", "3", "10")
    assert len(dropped) == len(set(cancelled)) == 2 + 1 + 216
    kept = {one.id for one in runs if one.name in ("1", "9", "4", "5", "6")}
    assert not kept & set(cancelled)
    assert asked["flow_run_filter"].expected_start_time.before_ == NOW
