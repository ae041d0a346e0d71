"""Runs of shards: who asks again gets the run that is on its way, and a server may be away for a while."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Pending, Running, Scheduled

from storage.errors import StorageError
from tasks.running import shard_runs
from tasks.running.shard_runs import Part, ShardRuns, StageRequest


@dataclass
class Server:
    """Prefect's client as far as runs need it: one run an idempotency key."""

    runs: dict[str, FlowRun] = field(default_factory=dict)
    troubles: list[Exception] = field(default_factory=list)

    def create_flow_run_from_deployment(self, deployment: UUID, *, idempotency_key: str, **_: Any) -> FlowRun:
        if self.troubles:
            raise self.troubles.pop()
        new = FlowRun(id=uuid4(), flow_id=uuid4(), state=Scheduled(), state_type=Scheduled().type)
        return self.runs.setdefault(idempotency_key, new)

    def read_flow_runs(self, *, flow_run_filter: Any, limit: int) -> list[FlowRun]:
        wanted = flow_run_filter.id.any_
        assert len(wanted) <= limit
        return [run for run in self.runs.values() if run.id in wanted]

    def becomes(self, run: str, state: State[Any]) -> None:
        for key, known in self.runs.items():
            if str(known.id) == run:
                self.runs[key] = known.model_copy(update={"state": state, "state_type": state.type})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server, and a clock that need not be waited for."""
    now = [0.0]
    monkeypatch.setattr(shard_runs.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(shard_runs.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return Server()


def runs_at(server: Server) -> ShardRuns:
    return ShardRuns(cast(SyncPrefectClient, server), uuid4(), {})


def asked(key: int = 0) -> StageRequest[Any]:
    return StageRequest[Any](settings=Part(end=1), key=f"{key:032x}")


def refusal(status: int) -> Exception:
    response = httpx.Response(status, request=httpx.Request("POST", "http://server"))
    return PrefectHTTPStatusError("", request=response.request, response=response)


@pytest.mark.parametrize("state", [Scheduled(), Pending(), Running()])
def test_who_asks_again_adopts_the_run_on_its_way(server: Server, state: State[Any]) -> None:
    """A retrain that died and was taken up, or a second one: no shard is queued twice."""
    first = runs_at(server).start(asked(), label="shard")
    server.becomes(first, state)
    assert runs_at(server).start(asked(), label="shard") == first
    assert runs_at(server).start(asked(1), label="another") != first


@pytest.mark.parametrize("state", [Crashed(), Cancelling(), Cancelled(), Completed()])
def test_a_run_that_has_ended_or_is_about_to_is_not_adopted(server: Server, state: State[Any]) -> None:
    """Also one that completed long ago, whose output was removed since; adopting one that is being cancelled would use
    up all attempts before it has ended."""
    first = runs_at(server).start(asked(), label="shard")
    server.becomes(first, state)
    second = runs_at(server).start(asked(), label="shard")
    assert second != first
    assert runs_at(server).start(asked(), label="shard") == second


def test_states_of_more_runs_than_a_page(server: Server) -> None:
    """None is left out."""
    runs = runs_at(server)
    ids = [runs.start(asked(i), label="shard") for i in range(450)]
    server.becomes(ids[449], Crashed(message="its reason"))
    states = runs.states(ids)
    assert set(states) == set(ids)
    assert states[ids[449]] == (Crashed().type, "its reason")


def test_a_server_that_is_away_is_waited_for(server: Server) -> None:
    """Five minutes of nothing and of errors of its own; then it goes on. After ten it gives up, with what to do."""
    server.troubles = [httpx.ConnectError("no"), refusal(503)] * 75
    assert runs_at(server).start(asked(), label="shard")
    server.troubles = [httpx.ConnectError("no")] * 400
    with pytest.raises(StorageError, match=r"no answer \(ConnectError\)\. Run again to resume"):
        runs_at(server).start(asked(1), label="shard")


def test_a_refusal_is_told_at_once(server: Server) -> None:
    """A wrong password does not become right by waiting."""
    server.troubles = [httpx.ConnectError("later"), refusal(401)]
    with pytest.raises(StorageError, match="status 401"):
        runs_at(server).start(asked(), label="shard")
    assert len(server.troubles) == 1
