"""Prefect's server and its workers, played in the test's own process: a shard's run meets the next of its fates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prefect.client.schemas.objects import StateType

from tasks.running import shards
from tasks.running.shard_runs import Asked

STATES = {
    "done": StateType.COMPLETED,
    "twice": StateType.COMPLETED,
    "elsewhere": StateType.COMPLETED,
    "crashed": StateType.CRASHED,
    "failed": StateType.FAILED,
    "queued": StateType.SCHEDULED,
}


@dataclass
class PlayedWorkers:
    """What was asked for, as JSON, since so it goes through Prefect; and what became of it."""

    work: Callable[[dict[str, Any]], object]
    """Computes what a run was told."""
    fates: list[str] = field(default_factory=list)
    deployments: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def start(self, asked: Asked, *, label: str) -> str:
        self.asked.append(asked.model_dump_json())
        fate = self.fates.pop(0) if self.fates else "done"
        self.met.append(fate)
        for _ in range({"done": 1, "twice": 2}.get(fate, 0)):
            self.work(asked.model_dump(mode="json"))
        return str(len(self.asked) - 1)

    def states(self, runs: Sequence[str]) -> dict[str, tuple[StateType | None, str]]:
        return {run: (STATES[self.met[int(run)]], "its reason") for run in runs}

    def cancel(self, runs: Sequence[str]) -> None:
        self.cancelled.extend(runs)


def play(monkeypatch: pytest.MonkeyPatch, work: Callable[[dict[str, Any]], object], *fates: str) -> PlayedWorkers:
    """In place of the server, until the test ends."""
    played = PlayedWorkers(work, list(fates))

    @contextmanager
    def at(deployment: str, place: Mapping[str, Any]) -> Iterator[PlayedWorkers]:
        played.deployments.append(deployment)
        yield played

    monkeypatch.setattr(shards.ShardRuns, "at", at)
    return played
