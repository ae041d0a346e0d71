"""Parts of a long work, each a run of a deployment on whichever worker is free; whoever asked for them waits.

Through Prefect go numbers, settings and digests; what is found out about records stays where the parts leave it. A part
that is there is not asked for, one whose run died is asked for again, and one that no worker takes is computed here.

    a shard's run died, failed, was cancelled
    or deleted                                  asked for again, `attempts` times in all; the others go on
    two workers got the same shard              on one workspace the second waits and finds it; else the first counts
    the asking run died                         shards that run go on; taken up again, it finds what is finished and
                                                adopts the runs that are on their way (they are named by shard)
    no worker serves the pool                   after `patience_seconds` the asking run computes shard by shard
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from prefect.client.schemas.objects import StateType
from pydantic import Field

from mechanisms.model.training import Progress
from storage.artifacts import ArtifactRef
from storage.errors import StorageError
from tasks.parameters import Spread
from tasks.running.shard_runs import Asked, ShardRuns
from tasks.running.stage import Context, Step, run_step

_LOST = (StateType.CRASHED, StateType.FAILED, StateType.CANCELLED, StateType.CANCELLING)
_WAITING = (StateType.SCHEDULED, StateType.PENDING)
_POLL_SECONDS = (0.5, 5.0)
"""Between two looks at the runs: the first, growing to the last."""


class Shard(Protocol):
    """One part: what its run is told, whether its output is there, and how it is computed here."""

    @property
    def label(self) -> str:
        """Name of its run; of no record."""
        ...

    @property
    def size(self) -> int:
        """How much of the whole it is."""
        ...

    @property
    def nowhere(self) -> str:
        """Where its output is looked for, and what to set where it does not arrive."""
        ...

    @property
    def asked(self) -> Asked:
        """What its run is told."""
        ...

    def found(self) -> bool:
        """Whether its output is there."""
        ...

    def compute(self) -> object:
        """Do it in this process."""
        ...


class StageAsked(Asked, frozen=True, extra="forbid"):
    """A shard that is a stage of the private store: the digests of what it reads."""

    inputs: dict[str, ArtifactRef] = Field(title="Inputs", description="References of the stages it reads.")

    @staticmethod
    def told(step: Step, context: Context) -> dict[str, Any]:
        """Inputs and key of a stage."""
        inputs = {name: ref for name, ref in step.inputs.items() if ref is not None}
        return {"inputs": inputs, "key": step.key(context.store)}


@dataclass(frozen=True)
class StageShard:
    """A shard that is a stage of the private store."""

    context: Context
    step: Step
    asked: Asked
    size: int = 1
    nowhere: str = "this workspace; give all workers the same AUTOCODER_STORAGE, or a workspace that they all see"

    @property
    def label(self) -> str:
        """The stage's."""
        return self.step.label

    def found(self) -> bool:
        """Whether the stage is finished, here or where machines share stages."""
        return self.step.find(self.context.store) is not None

    def compute(self) -> ArtifactRef:
        """Run the stage."""
        return run_step(self.context, self.step)


def compute(context: Context, asked: StageAsked, step_of: Callable[[Mapping[str, ArtifactRef]], Step]) -> ArtifactRef:
    """Do what was asked for, on a worker: fetch the inputs, run the stage.

    Raises:
        StorageError: an input is nowhere to be had, or this worker's code is another version.
    """
    store = context.store
    step = step_of({name: store.adopt(ref) for name, ref in asked.inputs.items()})
    if step.key(store) != asked.key:
        raise StorageError("shard: this worker's code or libraries are another version than the asking run's; upgrade")
    return run_step(context, step)


def place_of(context: Context) -> dict[str, Any]:
    """Where the run of a stage's shard works. Workers that share a place have workspaces of their own."""
    return {"home": None if context.store.shared else context.home, "device": context.device}


def alone(context: Context) -> Context:
    """The same without shards."""
    return context.model_copy(update={"fan_out": context.fan_out.model_copy(update={"shards": 1})})


def finish(
    shards: Sequence[Shard], settings: Spread, deployment: str, place: Mapping[str, Any], progress: Progress
) -> None:
    """Return when every shard's output is there.

    Args:
        deployment: by name, whose runs compute them.
        place: parameters that each run gets beside its shard.
        progress: is told of the sizes of those that are there, and of all.

    Raises:
        StorageError: a shard was lost too often, its output does not arrive, or the server does not answer.
    """
    _Round(shards, settings, deployment, place, progress).finish()


@dataclass
class _Open:
    """One that is not there yet: the run that computes it, and how often it was asked for."""

    shard: Shard
    run: str = ""
    state: StateType | None = None
    asked: int = 0


@dataclass
class _Round:
    """Shards on their way."""

    shards: Sequence[Shard]
    settings: Spread
    deployment: str
    place: Mapping[str, Any]
    progress: Progress
    open: list[_Open] = field(default_factory=list)

    def finish(self) -> None:
        self.open = [_Open(shard) for shard in self.shards if not shard.found()]
        if not self.open:
            return
        self._tell()
        with ShardRuns.at(self.deployment, self.place) as runs, self._none_left_behind(runs):
            for one in self.open:
                self._ask(one, runs)
            patience = self.settings.patience_seconds
            pause, changed = _POLL_SECONDS[0], time.monotonic()
            while self.open:
                if self._look(runs):
                    pause, changed = _POLL_SECONDS[0], time.monotonic()
                    continue
                waited = time.monotonic() - changed
                idle = all(one.state is not StateType.RUNNING for one in self.open) and waited >= patience
                waiting = [one for one in self.open if one.state in _WAITING]
                if waiting and (idle or patience == 0):
                    self._take(waiting[-1], runs)  # workers take the first ones
                    changed = time.monotonic()
                    continue
                time.sleep(pause)
                pause = min(pause * 1.3, _POLL_SECONDS[1])

    def _ask(self, one: _Open, runs: ShardRuns) -> None:
        one.asked += 1
        one.run = runs.start(one.shard.asked, label=one.shard.label)
        one.state = StateType.SCHEDULED

    def _look(self, runs: ShardRuns) -> bool:
        """Ask the server for the runs' states; act on those that ended. Whether anything changed."""
        states = runs.states([one.run for one in self.open])
        changed = False
        for one in list(self.open):
            state, said = states.get(one.run, (None, "its run was deleted"))
            changed |= state is not one.state
            one.state = state
            if state is StateType.COMPLETED:
                self._close(one)
            elif state is None or state in _LOST:
                self._again(one, said, runs)
        return changed

    def _close(self, one: _Open) -> None:
        if not one.shard.found():
            raise StorageError(
                f"{one.shard.label}: its run ended, but its output is not in {one.shard.nowhere}, and run again"
            )
        self.open.remove(one)
        self._tell()

    def _again(self, one: _Open, said: str, runs: ShardRuns) -> None:
        attempts = self.settings.attempts
        if one.asked >= attempts:
            raise StorageError(f"{one.shard.label}: lost {attempts} times, at last: {said or one.state}; run again")
        self._ask(one, runs)

    def _take(self, one: _Open, runs: ShardRuns) -> None:
        """Compute one here; its run, if it begins all the same, waits for us or finds the output."""
        runs.cancel([one.run])
        one.shard.compute()
        self._close(one)

    def _tell(self) -> None:
        total = sum(shard.size for shard in self.shards)
        self.progress(total - sum(one.shard.size for one in self.open), total)

    @contextmanager
    def _none_left_behind(self, runs: ShardRuns) -> Iterator[None]:
        """Where it ends early, shards that have not begun are not computed.

        Those at work may end after an error, to be found by the next try; who stops it takes them along.
        """
        try:
            yield
        except BaseException as end:
            stopped = not isinstance(end, Exception)
            runs.cancel([s.run for s in self.open if s.state in _WAITING or (stopped and s.state is StateType.RUNNING)])
            raise
