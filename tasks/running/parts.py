"""Computes a stage in parts. Each part is a stage of its own, so that an existing part is not
computed again, here or on a worker.

The parts of a computation, the dtype, the batches and the order of sums are the same in every
engine, so results are equal to the bit on equal hardware. A part is identified by its settings and
the digests of its inputs, which a worker takes from the workspace or from the store that machines
share. Its output goes there too.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, Field, model_validator

from storage.artifacts import ArtifactRef, Store
from storage.errors import StorageError
from tasks.running import engine, progress
from tasks.running.stage import Context, Step, Work, run_step


class Part(BaseModel, frozen=True, extra="forbid"):
    """A range of consecutive units of one computation: draws of a pass, reruns of an audit, or
    texts to encode.
    """

    first: int = Field(default=0, ge=0)
    end: int = Field(ge=1)

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.end <= self.first:
            raise ValueError("end must be above first")
        return self

    @property
    def size(self) -> int:
        return self.end - self.first

    def cut(self, size: int) -> list[Self]:
        return [
            self.model_copy(update={"first": first, "end": min(first + size, self.end)})
            for first in range(self.first, self.end, size)
        ]


S = TypeVar("S", bound=BaseModel)
StepOf = Callable[[Store, Any, Mapping[str, ArtifactRef]], Step]
"""Declares the stage of a part from its settings and inputs."""


class PartRequest(BaseModel, Generic[S], frozen=True, extra="forbid"):
    """A request for one part. It contains nothing from any record."""

    settings: S
    inputs: dict[str, ArtifactRef]
    key: str
    """Key of the output. A worker with another version of the code computes another key and
    refuses.
    """
    home: str | None
    """Workspace, or None for the worker's own ($AUTOCODER_HOME) with the store that machines share.
    """
    device: str


def run_parts(
    context: Context,
    body: Callable[[str], str],
    parts: Sequence[S],
    inputs: Mapping[str, ArtifactRef],
    step_of: StepOf,
    *,
    report: Callable[[int, int], None],
    at_once: int = 1,
) -> list[ArtifactRef]:
    """Computes the parts that do not exist yet, and returns the outputs of all parts in order.

    Args:
        body: module-level function that calls `compute_part` for these settings.
        report: called with the number of units done and the total. Units are the parts' `size`, or
            one per part.
        at_once: number of parts computed concurrently in this process.
    """
    store = context.store
    steps = [step_of(store, part, inputs) for part in parts]
    labels = [step.label for step in steps]
    missing = [number for number, step in enumerate(steps) if step.find(store) is None]
    shares_store = engine.is_cluster(context.engine) and store.shared is not None

    def request(number: int) -> str:
        return PartRequest[Any](
            settings=parts[number],
            inputs=dict(inputs),
            key=steps[number].key(store),
            home=None if shares_store else context.home,
            device=context.device,
        ).model_dump_json()

    sizes = [int(getattr(part, "size", 1)) for part in parts]
    tally = _Tally(report, dict(zip(labels, sizes, strict=True)))
    for number in set(range(len(steps))) - set(missing):
        tally.end(labels[number])
    with progress.listening(tally, others=False):
        engine.map_parts(
            body,
            list(map(request, missing)),
            engine=context.engine,
            done=lambda position: tally.end(labels[missing[position]]),
            at_once=at_once,
        )
    outputs: list[ArtifactRef] = []
    for step in steps:
        ref = step.find(store)
        if ref is None:  # a maximum over fewer draws would understate Delta
            place = "AUTOCODER_STORAGE" if shares_store else "this workspace"
            raise StorageError(
                f"{step.label}: its output is not in {place}. Use the same one on "
                "all workers, and run again",
                kind="output-elsewhere",
            )
        outputs.append(ref)
    return outputs


def run_parts_of(
    work: Work, body: Callable[[str], str], parts: Sequence[S], step_of: StepOf, *, at_once: int = 1
) -> list[Path]:
    refs = run_parts(
        work.context, body, parts, work.refs, step_of, report=work.progress, at_once=at_once
    )
    work.parts.extend(refs)
    return [work.context.store.open(ref) for ref in refs]


def compute_part(text: str, settings: type[BaseModel], step_of: StepOf) -> str:
    """Computes or finds the requested part, and returns the digest of its output."""
    request = PartRequest[settings].model_validate_json(text)
    home = request.home or str(
        Path(os.environ.get("AUTOCODER_HOME", "workspace")).expanduser().resolve()
    )
    context = Context(home=home, device=request.device, engine="")
    store = context.store
    step = step_of(
        store, request.settings, {name: store.adopt(ref) for name, ref in request.inputs.items()}
    )
    if step.key(store) != request.key:
        raise StorageError(
            "engine: a worker's code or libraries differ from this machine's. Upgrade the worker.",
            kind="worker-differs",
        )
    return run_step(context, step).sha256


class _Tally(progress.Listener):
    def __init__(self, report: Callable[[int, int], None], sizes: Mapping[str, int]) -> None:
        self._report, self._sizes = report, sizes
        self._total, self._done = sum(sizes.values()), 0.0
        self._shares: dict[str, float] = {}
        self._lock = threading.Lock()

    def end(self, label: str) -> None:
        self._move(label, 1.0)

    def report(self, label: str, done: int, total: int | None) -> None:
        if label in self._sizes and total:
            self._move(label, done / total)

    def _move(self, label: str, share: float) -> None:
        with self._lock:  # parts in one process report from several threads
            self._done += self._sizes[label] * (share - self._shares.get(label, 0.0))
            self._shares[label] = share
            done = self._done
        self._report(min(round(done), self._total), self._total)
