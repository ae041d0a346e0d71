"""How a stage runs: found finished and reused, or computed under its lock, resumable, with private errors.

A `Step` says what a stage depends on, apart from doing it, so that a dry run can tell which stages would be reused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import quote
from pydantic import BaseModel

from mechanisms.model.training import Progress
from storage.artifacts import ArtifactRef, Stage, Store
from storage.code_version import code_version
from storage.paths import Workspace
from storage.shared import VARIABLE, Shared
from tasks.parameters import FanOut
from tasks.running import progress
from tasks.running.failures import private_errors

Device = Literal["auto", "cpu", "cuda"]
"""What a form of the page offers."""


class Context(BaseModel, frozen=True, extra="forbid"):
    """Where a run works and on what device. Not part of any key: it does not change what is computed."""

    home: str
    device: str = "auto"
    fan_out: FanOut = FanOut()

    @property
    def workspace(self) -> Workspace:
        """The folders of this run."""
        return Workspace(Path(self.home))

    @property
    def store(self) -> Store:
        """The private store of stage outputs, shared between machines where AUTOCODER_STORAGE says so."""
        url = os.environ.get(VARIABLE)
        return Store(self.workspace.private, Shared(url) if url else None)


@dataclass(frozen=True)
class Work:
    """What a stage's body is given: where to write, what to read, whom to tell."""

    stage: Stage
    context: Context
    inputs: Mapping[str, Path]
    refs: Mapping[str, ArtifactRef]
    progress: Progress
    label: str = ""

    def sized(self, records: int) -> None:
        """Say how many records pass through the model in the whole stage; progress becomes a rate by it."""
        progress.sized(self.label, records)

    @property
    def out(self) -> Path:
        """Folder for what is kept."""
        return self.stage.out

    @property
    def scratch(self) -> Path:
        """Folder for checkpoints; survives a kill, goes when the stage is finished."""
        return self.stage.work


Body = Callable[[Work], Mapping[str, Any]]
"""Does the work and returns aggregate figures."""


@dataclass(frozen=True)
class Step:
    """One stage to run: name, everything its output depends on, and the function that does it.

    An input of None is one that does not exist yet, which only a dry run meets.

    Args:
        modules: where the code lies that the output depends on; the body's own module, unless others are named.
    """

    name: str
    label: str
    config: Mapping[str, Any]
    inputs: Mapping[str, ArtifactRef | None]
    body: Body = field(compare=False)
    modules: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """Version of the code behind this step."""
        return code_version(*(self.modules or (self.body.__module__,)))

    def find(self, store: Store) -> ArtifactRef | None:
        """The finished stage, or None when it would have to run."""
        return None if None in self.inputs.values() else store.find(self.name, self.key(store))

    def key(self, store: Store) -> str:
        """The key of its output; all inputs must be there."""
        digests = {name: ref.sha256 for name, ref in self.inputs.items() if ref is not None}
        return store.key(self.name, config=self.config, inputs=digests, code=self.code)


def run_step(context: Context, step: Step) -> ArtifactRef:
    """Run one step, or find it finished; return the reference of its output."""
    with private_errors(step.label), progress.failures_told(step.label):
        started = time.monotonic()
        progress.started(step.label)
        store = context.store
        refs = {name: ref for name, ref in step.inputs.items() if ref is not None}
        if missing := step.inputs.keys() - refs:
            raise ValueError(f"step {step.name} lacks its input {', '.join(missing)}")
        digests = {name: ref.sha256 for name, ref in refs.items()}
        with store.stage(step.name, config=step.config, inputs=digests, code=step.code) as stage:
            reused = stage.ref is not None
            if stage.ref is None:
                work = Work(
                    stage=stage,
                    context=context,
                    inputs={name: store.open(ref) for name, ref in refs.items()},
                    refs=refs,
                    progress=progress.reporter(step.label),
                    label=step.label,
                )
                stage.finish(step.body(work))
            ref = stage.ref
        assert ref is not None
        progress.finished(step.label, store.figures(ref), reused=reused, seconds=time.monotonic() - started)
        return ref


def _task(step: Step) -> Task[..., ArtifactRef]:
    """A step as a Prefect task. Retries are the flow's: a stage resumes from its own files."""
    return Task(
        run_step,
        name=step.name,
        task_run_name=step.label,
        retries=0,
        persist_result=False,
        result_serializer="json",
        cache_policy=NO_CACHE,
        log_prints=False,
    )


def submit(context: Context, step: Step) -> ArtifactRef:
    """Run a step as a Prefect task run of its own name."""
    # quote: Prefect must not walk through the step in search of futures
    return _task(step)(context, cast(Step, quote(step)))


def submit_all(context: Context, steps: Sequence[Step], *, slots: int) -> None:
    """Run independent steps as task runs, at most `slots` at once."""
    # read by all of them, and Python's parser, which finds it, is not safe in several threads: find it here, once
    _ = [step.code for step in steps]
    with ThreadPoolTaskRunner(max_workers=slots) as runner:
        futures = [
            runner.submit(_task(step), parameters={"context": context, "step": cast(Step, quote(step))})
            for step in steps
        ]
        for future in futures:
            future.result()
