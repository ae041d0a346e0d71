"""Stages: trials of one mechanism on records that took part by the toss of a coin, and what their draws say of all.

Each chunk of trials is written as it ends: a killed audit goes on from there. Where the run is spread over workers,
consecutive chunks are a shard, a stage of its own and a run of the deployment `trials-shard`; a trial's coins and seeds
depend on its number alone, so that shards put together in their order are the trials of one process.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor

from mechanisms.audit import trials as audit_trials
from mechanisms.audit.trials import Records as PoolRecords
from mechanisms.mechanism import Batched, Mechanism, Records, Reruns, Run
from mechanisms.model import checkpoint
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import derive_seed
from mechanisms.model.threads import using
from mechanisms.model.training import Progress
from mechanisms.privacy.claims import claim_of, formal, of_one_record
from mechanisms.privacy.events import Event
from mechanisms.privacy.scaled import noise_scaled
from storage.artifacts import ArtifactRef
from storage.errors import StorageError
from tasks.auditing.pool import Pool
from tasks.fitting.fits import plan_of
from tasks.fitting.prepared import build, feature_schema, fields_of, label_count
from tasks.running import shards as spread
from tasks.running.shards import StageAsked, StageShard
from tasks.running.stage import Context, Step, Work

DEPLOYMENT = "trials-shard/trials-shard"

_claim_of = lru_cache(maxsize=64)(claim_of)
_AT_ONCE = 8
"""Trials a chunk of a linear head: their parameters and optimiser states stay in the cache of a core."""
_FILE = "trials.safetensors"


class TrialRange(BaseModel, frozen=True, extra="forbid", title="Trials"):
    """Which trials of a planned mechanism; the plan, the pool and the data set are the stage's inputs."""

    model: ModelConfig = Field(title="Model")
    seed: int = Field(ge=0, lt=2**53, title="Seed", description="A trial's coins and seed depend on it and its number.")
    delta: float = Field(gt=0, lt=1, title="Delta", description="That formal claims of the reruns are stated for.")
    unit: tuple[str, int] = Field(title="Privacy unit", description="And its records at most.")
    noise: float = Field(default=1.0, gt=0, le=1, title="Noise", description="Times the plan's.")
    first: int = Field(default=0, ge=0, title="First trial", description="Its number; 0 is the first.")
    end: int = Field(ge=1, le=100_000, title="End", description="Number of the first trial that is left out.")

    @model_validator(mode="after")
    def _some(self) -> TrialRange:
        if self.end <= self.first:
            raise ValueError("end must be above first")
        return self

    @property
    def chunks(self) -> list[range]:
        """The trials that are written together; of more than a head, where each takes long, one."""
        size = _AT_ONCE if self.model.linear_head else 1
        return [range(start, min(start + size, self.end)) for start in range(self.first, self.end, size)]

    def split(self, shards: int) -> list[TrialRange]:
        """Consecutive shards of whole chunks, as a single process cuts them; no more of them than chunks."""
        chunks = self.chunks
        shards = min(shards, len(chunks))
        cuts = [chunks[len(chunks) * i // shards].start for i in range(shards)] + [self.end]
        return [self.model_copy(update={"first": first, "end": end}) for first, end in pairwise(cuts)]


class TrialsAsked(StageAsked, frozen=True, extra="forbid", title="Shard"):
    """One shard: which trials, and the digests of what they read. Nothing of a record."""

    trials: TrialRange = Field(title="Trials")


@dataclasses.dataclass(frozen=True)
class Trials:
    """What one mechanism's draws say of the pool, trial by trial.

    included bool [T, n]; ell float32 [T, n], the log-likelihood at the trial's draw; right bool [T, n], whether the
    draw predicts the row's code; epsilon float64 [T], what each trial would have claimed for one record more or less
    (nan: nothing).
    """

    included: Tensor
    ell: Tensor
    right: Tensor
    epsilon: Tensor

    @staticmethod
    def load(folder: Path, name: str) -> Trials:
        """Read what a stage wrote of one of its mechanisms."""
        tensors, _ = checkpoint.load(folder / f"{name}.safetensors")
        tensors["included"], tensors["right"] = tensors["included"].bool(), tensors["right"].bool()
        return Trials(**tensors)


def label_of(name: str, *, noise: float = 1.0) -> str:
    """Of the reruns of a branch."""
    return f"audit trials ({name}{', half noise' if noise < 1 else ''})"


def reruns(
    name: str,
    model: ModelConfig,
    *,
    seed: int,
    trials: int,
    delta: float,
    unit: tuple[str, int],
    pool: ArtifactRef,
    dataset: ArtifactRef,
    planned: ArtifactRef,
    mechanism: Mechanism,
    noise: float = 1.0,
) -> Step:
    """A planned mechanism in each trial, with the sampling and scale of its plan. Its noise has no seed.

    Args:
        delta, unit: what each rerun's own claim is stated for: delta of a formal one; privacy unit and its records.
        noise: times the plan's; less shows what an audit would have said of a mechanism that leaks.
    """
    return Step(
        name="audit-trials",
        label=label_of(name, noise=noise),
        config={"model": model.model_dump(mode="json"), "seed": seed, "trials": trials, "delta": delta, "unit": unit}
        | ({} if noise == 1 else {"noise": noise}),
        inputs={"pool": pool, "dataset": dataset, "plan": planned},
        body=partial(
            _reruns, asked=TrialRange(model=model, seed=seed, delta=delta, unit=unit, noise=noise, end=trials)
        ),
        modules=(type(mechanism).__module__, "tasks.auditing.trials"),
    )


def compute(context: Context, asked: TrialsAsked) -> ArtifactRef:
    """Do what was asked for, on a worker.

    Raises:
        StorageError: an input is nowhere to be had, or this worker's code is another version.
    """

    def step_of(inputs: Mapping[str, ArtifactRef]) -> Step:
        mechanism = plan_of(context.store.open(inputs["plan"])).mechanism
        return _some(asked.trials, inputs, mechanism)

    return spread.compute(context, asked, step_of)


def _some(asked: TrialRange, inputs: Mapping[str, ArtifactRef], mechanism: Mechanism) -> Step:
    """Some of the trials as a stage of their own."""

    def body(work: Work) -> Mapping[str, Any]:
        checkpoint.save(work.out / _FILE, _run(work, asked), {})
        return {"trials": asked.end - asked.first}

    return Step(
        name="trials-shard",
        label=f"audit trials {asked.first + 1} to {asked.end}",
        config=asked.model_dump(mode="json"),
        inputs=dict(inputs),
        body=body,
        modules=(type(mechanism).__module__, "tasks.auditing.trials"),
    )


def _reruns(work: Work, *, asked: TrialRange) -> Mapping[str, Any]:
    """All trials, in this process or in shards, as the context says; then one file a mechanism."""
    parts = asked.split(work.context.fan_out.shards)
    done = _run(work, asked) if len(parts) == 1 else _spread(work, parts)
    included = done.pop("included")
    for name in sorted({key.rpartition(".")[0] for key in done}):
        kept = {field: done[f"{name}.{field}"] for field in ("ell", "right", "epsilon")}
        checkpoint.save(work.out / f"{name}.safetensors", kept | {"included": included}, {})
    return {"trials": asked.end, "records_mean": round(float(included.float().sum(1).mean()), 1)}


def _spread(work: Work, parts: list[TrialRange]) -> dict[str, Tensor]:
    """The trials of shards that workers run, in the shards' order."""
    context, settings = spread.alone(work.context), work.context.fan_out
    mechanism = plan_of(work.inputs["plan"]).mechanism
    steps = [_some(part, work.refs, mechanism) for part in parts]
    shards = [
        StageShard(context, step, TrialsAsked(trials=part, **StageAsked.told(step, context)), part.end - part.first)
        for part, step in zip(parts, steps, strict=True)
    ]
    spread.finish(shards, settings, DEPLOYMENT, spread.place_of(context), work.progress)
    found = [(step.label, step.find(context.store)) for step in steps]
    for label, ref in found:
        if ref is None:
            raise StorageError(f"{label}: its output was removed before it was merged; run again")
    return _together([checkpoint.load(context.store.open(ref) / _FILE)[0] for _, ref in found if ref is not None])


def _together(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Consecutive trials, one after the other."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _run(work: Work, asked: TrialRange) -> dict[str, Tensor]:
    """Trials in this process: `included`, and of each mechanism `ell`, `right` and `epsilon`, each [trials, ...]."""
    model, seed, delta, unit, noise = asked.model, asked.seed, asked.delta, asked.unit, asked.noise
    plan = plan_of(work.inputs["plan"])
    if noise != 1 and plan.event is not None:
        plan = plan.model_copy(update={"event": noise_scaled(plan.event, noise)})
    head = build(work.context, model, work.inputs["dataset"], seed=seed)
    start, classes = head.flat.clone(), label_count(work.inputs["dataset"])
    schema, fields = feature_schema(work.inputs["dataset"]), fields_of(work.inputs["dataset"])
    layout = fields or Fields((classes,))

    def untrained() -> Classifier:
        head.flat.copy_(start)
        return head

    def one_by_one(pool: Pool, chunk: _Chunk, progress: Progress) -> Mapping[str, Reruns]:
        ell, right, events = [], [], []
        for trial, own, own_seed in zip(chunk.trials, chunk.included, chunk.seeds, strict=True):
            # what takes long goes on from its last epoch; it is private, and goes when the trial has been scored
            folder = None if isinstance(pool.inputs, FeatureInputs) else work.scratch / f"trial_{trial:05d}"
            run = Run(classes, own_seed, untrained, fields=fields, schema=schema, folder=folder, resampled=True)
            fitted = plan.fit(Records(pool.inputs.take(own), pool.labels[own]), run)
            scores = fitted.model.log_probabilities(pool.inputs)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            ell.append(layout.log_likelihood(scores, pool.labels).float())
            said = layout.predicted(scores) == pool.labels
            right.append(said if fields is None else (said | (pool.labels < 0)).all(1))
            events.append(fitted.event)
            progress(len(events), len(chunk.seeds))
        return {plan.mechanism.kind: Reruns(torch.stack(ell), torch.stack(right), tuple(events))}

    def batched(pool: Pool, chunk: _Chunk, progress: Progress) -> Mapping[str, Reruns]:
        assert isinstance(plan.mechanism, Batched)
        assert isinstance(pool.inputs, FeatureInputs)
        initial = audit_trials.from_flat(start.cpu(), classes=classes)
        records = PoolRecords(pool.inputs.features, pool.labels, chunk.included, seeds=chunk.seeds, fields=fields)
        return plan.mechanism.fit_many(plan, records, initial, progress=progress)

    def claimed(event: Event) -> float:
        claim = _claim_of(
            event,
            delta=delta if formal(event) else None,
            privacy_unit=unit[0],
            max_records_per_unit=unit[1],
            unprotected_inputs=(),
        )
        epsilon = of_one_record(claim)
        return float("nan") if epsilon is None else epsilon

    if isinstance(plan.mechanism, Batched) and model.linear_head:
        return _in_chunks(work, asked, batched, claimed, workers=torch.get_num_threads(), threads=1)
    # a head's small products gain nothing from threads, an encoder's do
    return _in_chunks(work, asked, one_by_one, claimed, threads=1 if model.linear_head else torch.get_num_threads())


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Trials by number, with who takes part in each, bool [trials, n], and its seed."""

    trials: range
    included: Tensor
    seeds: tuple[int, ...]


def _in_chunks(
    work: Work,
    asked: TrialRange,
    run: Callable[[Pool, _Chunk, Progress], Mapping[str, Reruns]],
    claimed: Callable[[Event], float],
    *,
    workers: int = 1,
    threads: int,
) -> dict[str, Tensor]:
    """Chunks of trials, so many side by side and each on so many threads; then all of them together."""
    pool, seed = Pool.load(work.inputs["pool"]), asked.seed
    chunks = asked.chunks
    shares = [0.0] * len(chunks)

    def one(number: int) -> Path:
        file, chunk = work.scratch / f"chunk_{number:04d}.safetensors", chunks[number]
        if not file.exists():

            def progress(done: int, total: int) -> None:
                shares[number] = done / total
                work.progress(round(100 * sum(shares)), 100 * len(chunks))

            included = torch.stack([pool.coins(seed=seed, trial=t) for t in chunk])
            seeds = tuple(derive_seed(seed, "audit", "trial", t) >> 10 for t in chunk)
            tensors: dict[str, Tensor] = {"included": included.to(torch.uint8)}
            for name, these in run(pool, _Chunk(chunk, included, seeds), progress).items():
                epsilon = torch.tensor([claimed(event) for event in these.events], dtype=torch.float64)
                tensors |= {f"{name}.ell": these.ell, f"{name}.right": these.right.to(torch.uint8)}
                tensors[f"{name}.epsilon"] = epsilon
            checkpoint.save(file, tensors, {})
        shares[number] = 1.0
        return file

    with using(threads), ThreadPoolExecutor(workers, thread_name_prefix="trials") as several:
        return _together([checkpoint.load(file)[0] for file in several.map(one, range(len(chunks)))])
