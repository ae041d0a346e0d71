"""Runs a stage, or reuses its finished output: under a lock, resumable, with private errors.

A `Step` declares the dependencies of a stage, so that a dry run can list the stages that would be
reused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from mechanisms.model.pace import CHECKPOINT_SECONDS
from storage.artifacts import ArtifactRef, CopiedStore, Stage, Store
from storage.code_version import code_version
from storage.durable import own_folder
from storage.json_values import Config, Figures
from storage.paths import Workspace
from storage.shared_store import VARIABLE, SharedStore
from tasks.running import engine, progress
from tasks.running.failures import private_errors
from tasks.running.run import PLAIN, Run

if TYPE_CHECKING:
    from mechanisms.model.training import Progress

Device = Literal["auto", "cpu", "cuda"]
"""Devices offered in a form."""


class Context(BaseModel, frozen=True, extra="forbid", arbitrary_types_allowed=True):
    """Workspace, device and environment of a run. They are part of no key, because no result
    depends on them.
    """

    home: str
    device: str = "auto"
    engine: str = Field(default_factory=engine.of_environment)
    """Engine that computes the parts of large stages; see `tasks.running.engine`."""
    processes: int = 1
    """Number of processes that share the fit of an encoder (`tasks.running.ranks`)."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    """Least time between two checkpoints of a fit; 0 writes one per epoch."""
    run: Run = PLAIN
    copies: CopiedStore | None = Field(default=None, exclude=True, repr=False)
    """Store that a release reads instead of the workspace's store."""

    @property
    def workspace(self) -> Workspace:
        return Workspace(Path(self.home))

    @property
    def store(self) -> Store:
        """The private store of stage outputs, which machines share if AUTOCODER_STORAGE is set."""
        if self.copies is not None:
            return self.copies
        url = os.environ.get(VARIABLE)
        return Store(self.workspace.private, SharedStore(url) if url else None)

    @contextmanager
    def copying(self, named: Collection[str] = ()) -> Iterator[Context]:
        """Yields this context with a `CopiedStore`, which copies the files that it opens."""
        with own_folder("release") as folder:
            copies = CopiedStore(self.store, folder, named)
            yield self.model_copy(update={"copies": copies})


@dataclass(frozen=True)
class Work:
    stage: Stage
    context: Context
    inputs: Mapping[str, Path]
    refs: Mapping[str, ArtifactRef]
    progress: Progress
    label: str = ""
    parts: list[ArtifactRef] = field(default_factory=list)
    """Parts that were combined into this stage; they are removed when it is finished."""

    def sized(self, records: int) -> None:
        progress.sized(self.label, records)

    @property
    def out(self) -> Path:
        return self.stage.out

    @property
    def scratch(self) -> Path:
        """The folder for checkpoints, which survives a kill and is removed when the stage
        ends.
        """
        return self.stage.work


Body = Callable[[Work], Figures]
"""Does the work and returns aggregate figures."""


@dataclass(frozen=True)
class Step:
    """Declares a stage: its name, everything its output depends on, and its function.

    An input of None does not exist yet, which only occurs in a dry run.

    Args:
        modules: code that the output depends on; by default the body's module.
        record_digests: digests of records that belong to the configuration, by name.
    """

    name: str
    label: str
    config: Config
    inputs: Mapping[str, ArtifactRef | None]
    body: Body = field(compare=False)
    modules: tuple[str, ...] = ()
    record_digests: Mapping[str, str] = field(default_factory=dict)

    def full_config(self, store: Store) -> Config:
        """Returns the configuration, with the digests of records keyed by the workspace's key."""
        return {
            **self.config,
            **{name: store.keyed(value) for name, value in self.record_digests.items()},
        }

    @property
    def code(self) -> str:
        return code_version(*(self.modules or (self.body.__module__,)))

    def find(self, store: Store) -> ArtifactRef | None:
        if None in self.inputs.values() or (self.record_digests and not store.has_key):
            return None
        return store.find(self.name, self.key(store))

    def key(self, store: Store) -> str:
        digests = {name: ref.sha256 for name, ref in self.inputs.items() if ref is not None}
        return store.key(self.name, config=self.full_config(store), inputs=digests, code=self.code)


def run_step(context: Context, step: Step) -> ArtifactRef:
    with private_errors(step.label), progress.report_failures(step.label):
        started = time.monotonic()
        progress.started(step.label, step.name)
        store = context.store
        refs = {name: ref for name, ref in step.inputs.items() if ref is not None}
        if missing := step.inputs.keys() - refs:
            raise ValueError(f"step {step.name} has no input {', '.join(missing)}")
        digests = {name: ref.sha256 for name, ref in refs.items()}
        with store.stage(
            step.name, config=step.full_config(store), inputs=digests, code=step.code
        ) as stage:
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
                for part in work.parts:
                    store.discard(part)
            ref = stage.ref
        assert ref is not None
        progress.finished(
            step.label, store.figures(ref), reused=reused, seconds=time.monotonic() - started
        )
        return ref


def submit(context: Context, step: Step) -> ArtifactRef:
    return context.run.call(step.name, step.label, run_step, context, step)
