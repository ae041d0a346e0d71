"""A pass over draws in shards, each a run of the deployment `risk-shard` on whichever worker is free.

Shards are stages: found by their keys, resumed from their own checkpoints, computed once. Through Prefect go their
numbers and the digests of their inputs; what they found out about records stays in the store. The pass that asked for
them waits, asks again for a shard whose run died, and takes a shard itself when no worker does.

    shard's run died, failed, was cancelled
    or deleted                                  asked for again, `attempts` times in all; the others go on
    two workers got the same shard              on one workspace the second waits and finds it; else the first counts
    the asking run died                         shards that run go on; taken up again, it finds what is finished and
                                                adopts the runs that are on their way (they are named by shard)
    no worker serves the pool                   after `patience_seconds` the asking run computes shard by shard
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from prefect.client.schemas.objects import StateType

from mechanisms.posterior import risks
from mechanisms.posterior.risks import RiskPass
from storage.errors import StorageError
from tasks.fitting import draws as passes
from tasks.fitting.draws import Draws
from tasks.fitting.shard_runs import ShardParameters, ShardRuns
from tasks.running.stage import Context, Step, Work, run_step

_LOST = (StateType.CRASHED, StateType.FAILED, StateType.CANCELLED, StateType.CANCELLING)
_WAITING = (StateType.SCHEDULED, StateType.PENDING)
_POLL_SECONDS = (0.5, 5.0)
"""Between two looks at the runs: the first, growing to the last."""


def passed(work: Work, whole: Draws) -> RiskPass:
    """The pass, in this process or in shards, as the context says. Both give the same, bit for bit, on like devices.

    Raises:
        MechanismError: a log-likelihood is not finite.
        StorageError: a shard was lost too often, or the server does not answer.
    """
    shards = whole.split(work.context.fan_out.shards)
    if len(shards) == 1:
        return passes.run(work, whole)
    context = work.context.model_copy(update={"fan_out": work.context.fan_out.alone()})
    steps = [passes.shard(shard, work.refs) for shard in shards]
    _Pass(work, context, whole, steps).finish()
    store = context.store
    found = [(step.label, step.find(store)) for step in steps]
    for label, ref in found:
        if ref is None:  # a maximum over fewer draws would understate Delta
            raise StorageError(f"{label}: its output was removed before it was merged; run again")
    return risks.merge([passes.load(store.open(ref)) for _, ref in found if ref is not None])


@dataclass
class _Shard:
    """One that is not finished yet: the run that computes it, and how often it was asked for."""

    step: Step
    parameters: ShardParameters
    run: str = ""
    state: StateType | None = None
    asked: int = 0


@dataclass
class _Pass:
    """The shards of one pass on their way."""

    work: Work
    context: Context
    whole: Draws
    steps: Sequence[Step]
    open: list[_Shard] = field(default_factory=list)

    def finish(self) -> None:
        """Return when every shard's output is in the store."""
        settings = self.work.context.fan_out
        store = self.context.store
        self.open = [_Shard(step, ShardParameters.of(step, store)) for step in self.steps if step.find(store) is None]
        if not self.open:
            return
        self._tell()
        with ShardRuns.at(self.work.context) as runs, self._none_left_behind(runs):
            for shard in self.open:
                self._ask(shard, runs)
            pause, changed = _POLL_SECONDS[0], time.monotonic()
            while self.open:
                if self._look(runs):
                    pause, changed = _POLL_SECONDS[0], time.monotonic()
                    continue
                waited = time.monotonic() - changed
                idle = (
                    all(shard.state is not StateType.RUNNING for shard in self.open)
                    and waited >= settings.patience_seconds
                )
                waiting = [shard for shard in self.open if shard.state in _WAITING]
                if waiting and (idle or settings.patience_seconds == 0):
                    self._take(waiting[-1], runs)  # workers take the first ones
                    changed = time.monotonic()
                    continue
                time.sleep(pause)
                pause = min(pause * 1.3, _POLL_SECONDS[1])

    def _ask(self, shard: _Shard, runs: ShardRuns) -> None:
        shard.asked += 1
        shard.run = runs.start(shard.parameters, label=shard.step.label)
        shard.state = StateType.SCHEDULED

    def _look(self, runs: ShardRuns) -> bool:
        """Ask the server for the runs' states; act on those that ended. Whether anything changed."""
        states = runs.states([shard.run for shard in self.open])
        changed = False
        for shard in list(self.open):
            state, said = states.get(shard.run, (None, "its run was deleted"))
            changed |= state is not shard.state
            shard.state = state
            if state is StateType.COMPLETED:
                self._close(shard)
            elif state is None or state in _LOST:
                self._again(shard, said, runs)
        return changed

    def _close(self, shard: _Shard) -> None:
        if shard.step.find(self.context.store) is None:
            raise StorageError(
                f"{shard.step.label}: its run ended, but its output is not in this workspace; give all workers the "
                "same AUTOCODER_STORAGE, or a workspace that they all see, and run again"
            )
        self.open.remove(shard)
        self._tell()

    def _again(self, shard: _Shard, said: str, runs: ShardRuns) -> None:
        attempts = self.work.context.fan_out.attempts
        if shard.asked >= attempts:
            raise StorageError(f"{shard.step.label}: lost {attempts} times, at last: {said or shard.state}; run again")
        self._ask(shard, runs)

    def _take(self, shard: _Shard, runs: ShardRuns) -> None:
        """Compute one here; its run, if it begins all the same, waits for us or finds the output."""
        runs.cancel([shard.run])
        run_step(self.context, shard.step)
        self._close(shard)

    def _tell(self) -> None:
        left = sum(shard.parameters.draws.end - shard.parameters.draws.first for shard in self.open)
        total = self.whole.end - self.whole.first
        self.work.progress(total - left, total)

    @contextmanager
    def _none_left_behind(self, runs: ShardRuns) -> Iterator[None]:
        """Where the pass ends early, shards that have not begun are not computed.

        Those at work may end after an error, to be found by the next try; a pass that somebody stops takes them along.
        """
        try:
            yield
        except BaseException as end:
            stopped = not isinstance(end, Exception)
            runs.cancel([s.run for s in self.open if s.state in _WAITING or (stopped and s.state is StateType.RUNNING)])
            raise
