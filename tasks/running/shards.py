"""Computes the shards of a large stage as runs of a deployment, on whichever worker is free, and waits for them.

Only numbers, settings and digests pass through Prefect; results about records stay where the shards write them.

    a shard is finished already                 it is not requested
    a shard's run died, failed, was cancelled
    or deleted                                  requested again, `attempts` times in all; the others go on
    two workers got the same shard              in one workspace the second reuses it; otherwise the first counts
    the requesting run died                     shards that run go on; resumed, it reuses what is finished and adopts
                                                the runs in progress (they are named by shard)
    no worker serves the pool                   after `patience_seconds` the requesting run computes shard by shard
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel

from storage.artifacts import ArtifactRef
from storage.errors import StorageError
from tasks.parameters import ShardSettings
from tasks.running.shard_runs import Part, ShardRuns, StageRequest
from tasks.running.stage import Context, Step, Work, run_step

if TYPE_CHECKING:
    from mechanisms.model.training import Progress

DEPLOYMENT = "shard/shard"
"""Computes shards on the pool `cpu`; the setting of a pass over draws names the one of the pool `gpu`."""
P = TypeVar("P", bound=Part)

_LOST = ("CRASHED", "FAILED", "CANCELLED", "CANCELLING")
_WAITING = ("SCHEDULED", "PENDING")
_POLL_SECONDS = (0.5, 5.0)
"""First and longest pause between two polls of the runs."""


class Shard(Protocol):
    """Describes one part of a stage: its request, its output, and its computation in this process."""

    @property
    def label(self) -> str:
        """Names its run, without anything of a record."""
        ...

    @property
    def size(self) -> int:
        """Gives its share of the whole, in units of progress."""
        ...

    @property
    def location(self) -> str:
        """Names where its output is expected, and what to set if it does not arrive."""
        ...

    @property
    def request(self) -> StageRequest[Any]:
        """Holds the parameters of its run."""
        ...

    def is_finished(self) -> bool:
        """Checks that its output exists."""
        ...

    def compute(self) -> object:
        """Computes it in this process."""
        ...


@dataclass(frozen=True)
class StageShard:
    """Implements a shard as a stage of the private store."""

    context: Context
    step: Step
    settings: BaseModel
    size: int = 1
    location: str = "this workspace. Give all workers the same AUTOCODER_STORAGE or one shared workspace"

    @property
    def request(self) -> StageRequest[Any]:
        """Returns settings, inputs and key of the stage."""
        inputs = {name: ref for name, ref in self.step.inputs.items() if ref is not None}
        return StageRequest[Any](settings=self.settings, inputs=inputs, key=self.step.key(self.context.store))

    @property
    def label(self) -> str:
        """Returns the stage's label."""
        return self.step.label

    def is_finished(self) -> bool:
        """Checks for the finished stage, in this workspace or in the shared store."""
        return self.step.find(self.context.store) is not None

    def compute(self) -> ArtifactRef:
        """Runs the stage."""
        return run_step(self.context, self.step)


def compute(
    context: Context, request: StageRequest[Any], step_of: Callable[[Context, Any, dict[str, ArtifactRef]], Step]
) -> ArtifactRef:
    """Computes a requested shard on a worker: fetches the inputs, runs the stage.

    Raises:
        StorageError: an input is missing, or this worker's code is another version.
    """
    store = context.store
    step = step_of(context, request.settings, {name: store.adopt(ref) for name, ref in request.inputs.items()})
    if step.key(store) != request.key:
        raise StorageError(
            "shard: this worker's code or libraries differ from those of the requesting run. Upgrade the worker."
        )
    return run_step(context, step)


def place_of(context: Context) -> dict[str, Any]:
    """Returns workspace and device for the run of a shard; workers on a shared store use separate workspaces."""
    return {"home": None if context.store.shared else context.home, "device": context.device}


def without_shards(context: Context) -> Context:
    """Returns the context with a single shard."""
    return context.model_copy(update={"fan_out": context.fan_out.model_copy(update={"shards": 1})})


def run_parts(
    work: Work, parts: Sequence[P], step_of: Callable[[P, dict[str, ArtifactRef]], Step], *, deployment: str
) -> list[Path]:
    """Lets workers compute the parts of a stage, each a stage with the same inputs; returns their outputs in order."""
    context, store = without_shards(work.context), work.context.store
    shards = [StageShard(context, step_of(part, dict(work.refs)), part, part.size) for part in parts]
    finish(shards, work.context.fan_out, work.progress, place_of(context), deployment=deployment)
    outputs = [(shard.label, shard.step.find(store)) for shard in shards]
    for label, ref in outputs:
        if ref is None:  # a maximum over fewer draws would understate Delta
            raise StorageError(f"{label}: its output was removed before it was merged. Run again")
    return [store.open(ref) for _, ref in outputs if ref is not None]


def finish(
    shards: Sequence[Shard],
    settings: ShardSettings,
    progress: Progress,
    place: Mapping[str, Any],
    *,
    deployment: str = DEPLOYMENT,
    queue: str | None = None,
) -> None:
    """Returns when every shard's output exists.

    Args:
        progress: receives the size of the finished shards, and of all.
        place: parameters that each run gets in addition to its shard.
        queue: in place of the deployment's.

    Raises:
        StorageError: a shard was lost too often, its output does not arrive, or the server does not answer.
    """
    _Round(shards, settings, progress, place, deployment, queue).finish()


@dataclass
class _Open:
    """Tracks a shard that is not finished: its run, and how often it was requested."""

    shard: Shard
    run: str = ""
    state: str | None = None
    requests: int = 0


@dataclass
class _Round:
    """Drives the shards that are not finished."""

    shards: Sequence[Shard]
    settings: ShardSettings
    progress: Progress
    place: Mapping[str, Any]
    deployment: str
    queue: str | None
    open: list[_Open] = field(default_factory=list)

    def finish(self) -> None:
        self.open = [_Open(shard) for shard in self.shards if not shard.is_finished()]
        if not self.open:
            return
        self._report()
        with ShardRuns.connect(self.deployment, self.place, self.queue) as runs, self._cancel_on_error(runs):
            for one in self.open:
                self._request(one, runs)
            patience = self.settings.patience_seconds
            pause, changed = _POLL_SECONDS[0], time.monotonic()
            while self.open:
                if self._poll(runs):
                    pause, changed = _POLL_SECONDS[0], time.monotonic()
                    continue
                waited = time.monotonic() - changed
                idle = all(one.state != "RUNNING" for one in self.open) and waited >= patience
                waiting = [one for one in self.open if one.state in _WAITING]
                if waiting and (idle or patience == 0):
                    self._take(waiting[-1], runs)  # workers take the first ones
                    changed = time.monotonic()
                    continue
                time.sleep(pause)
                pause = min(pause * 1.3, _POLL_SECONDS[1])

    def _request(self, one: _Open, runs: ShardRuns) -> None:
        one.requests += 1
        one.run = runs.start(one.shard.request, label=one.shard.label)
        one.state = "SCHEDULED"

    def _poll(self, runs: ShardRuns) -> bool:
        """Reads the runs' states and acts on those that ended; returns True if anything changed."""
        states = runs.states([one.run for one in self.open])
        changed = False
        for one in list(self.open):
            state, message = states.get(one.run, (None, "its run was deleted"))
            changed |= state != one.state
            one.state = state
            if state == "COMPLETED":
                self._close(one)
            elif state is None or state in _LOST:
                self._repeat(one, message, runs)
        return changed

    def _close(self, one: _Open) -> None:
        if not one.shard.is_finished():
            raise StorageError(
                f"{one.shard.label}: the run ended without output in {one.shard.location}. Then run again."
            )
        self.open.remove(one)
        self._report()

    def _repeat(self, one: _Open, message: str, runs: ShardRuns) -> None:
        attempts = self.settings.attempts
        if one.requests >= attempts:
            raise StorageError(
                f"{one.shard.label}: lost {attempts} times; last reason: {message or one.state}. Run again."
            )
        self._request(one, runs)

    def _take(self, one: _Open, runs: ShardRuns) -> None:
        """Computes a shard in this process; its run, if it starts all the same, waits or reuses the output."""
        runs.cancel([one.run])
        one.shard.compute()
        self._close(one)

    def _report(self) -> None:
        total = sum(shard.size for shard in self.shards)
        self.progress(total - sum(one.shard.size for one in self.open), total)

    @contextmanager
    def _cancel_on_error(self, runs: ShardRuns) -> Iterator[None]:
        """Cancels the shards that have not started if the block raises.

        Running shards go on after an error, for the next attempt to reuse; an interrupt cancels them too.
        """
        try:
            yield
        except BaseException as end:
            stopped = not isinstance(end, Exception)
            runs.cancel([s.run for s in self.open if s.state in _WAITING or (stopped and s.state == "RUNNING")])
            raise
