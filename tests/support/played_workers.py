"""Prefect's server and its workers, played in the test's own process: a shard's run meets the next of its fates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import StateType

from flows.shard import ShardRequest, step_of
from tasks.running import shards
from tasks.running.shard_runs import StageRequest
from tasks.running.stage import Context

STATES = {
    "done": StateType.COMPLETED,
    "twice": StateType.COMPLETED,
    "elsewhere": StateType.COMPLETED,
    "crashed": StateType.CRASHED,
    "failed": StateType.FAILED,
    "cancelled": StateType.CANCELLED,
    "queued": StateType.SCHEDULED,
    "running": StateType.RUNNING,
}
"""Of a run by its fate; one that was deleted has none."""


@dataclass
class PlayedWorkers:
    """Records the requests as JSON, the form that goes through Prefect, and what became of them."""

    work: Callable[[dict[str, Any]], object]
    """Computes a request."""
    fates: list[str] = field(default_factory=list)
    deployments: list[tuple[str, str | None]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def start(self, request: StageRequest[Any], *, label: str) -> str:
        self.requests.append(request.model_dump_json())
        fate = self.fates.pop(0) if self.fates else "done"
        self.met.append(fate)
        for _ in range({"done": 1, "twice": 2}.get(fate, 0)):
            self.work(request.model_dump(mode="json"))
        return str(len(self.requests) - 1)

    def states(self, runs: Sequence[str]) -> dict[str, tuple[StateType | None, str]]:
        return {run: (STATES[self.met[int(run)]], "its reason") for run in runs if self.met[int(run)] in STATES}

    def cancel(self, runs: Sequence[str]) -> None:
        self.cancelled.extend(runs)


def compute(context: Context, asked: dict[str, Any]) -> object:
    """Computes a request as the flow does on a worker."""
    return shards.compute(context, ShardRequest.model_validate(asked), step_of)


def on(home: Path) -> Callable[[dict[str, Any]], object]:
    """A worker with this workspace."""
    return lambda asked: compute(Context(home=str(home), device="cpu"), asked)


def play(monkeypatch: pytest.MonkeyPatch, work: Callable[[dict[str, Any]], object], *fates: str) -> PlayedWorkers:
    """In place of the server, until the test ends."""
    played = PlayedWorkers(work, list(fates))

    @contextmanager
    def connect(deployment: str, place: Mapping[str, Any], queue: str | None = None) -> Iterator[PlayedWorkers]:
        played.deployments.append((deployment, queue))
        yield played

    monkeypatch.setattr(shards.ShardRuns, "connect", connect)
    return played
