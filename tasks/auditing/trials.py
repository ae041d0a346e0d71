"""Stages: reruns one mechanism on records chosen by coins, and scores all records with its draws.

Each chunk of trials is written as it ends: a killed audit resumes from it. If workers share the run, consecutive
chunks are a shard, a stage of its own and a run of the deployment `shard`; a trial's coins and seeds
depend on its number alone, so that shards in their order equal the trials of one process.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.audit.trials import Records as PoolRecords
from mechanisms.mechanism import Batched, Mechanism, Records, Reruns, Run
from mechanisms.model import checkpoint
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.linear_head import from_flat
from mechanisms.model.seeding import derive_seed
from mechanisms.model.threads import using
from mechanisms.model.training import Progress
from mechanisms.privacy.claims import claim_of, formal, of_one_record
from mechanisms.privacy.events import Event
from storage.artifacts import ArtifactRef, Store
from tasks.auditing.pool import Pool
from tasks.fitting.fits import plan_of
from tasks.fitting.model_inputs import build, fields_of, label_count
from tasks.running.shard_runs import Part
from tasks.running.shards import DEPLOYMENT, run_parts
from tasks.running.stage import Step, Work

_claim_of = lru_cache(maxsize=64)(claim_of)
_CHUNK = 8
"""Trials per chunk of a linear head: their parameters and optimiser states stay in the cache of a core."""
_FILE = "trials.safetensors"


class TrialRange(Part, frozen=True, title="Trials"):
    """Selects trials of a planned mechanism; the plan, the pool and the data set are the stage's inputs."""

    model: ModelConfig = Field(title="Model")
    seed: int = Field(ge=0, lt=2**53, title="Seed", description="A trial's coins and seed depend on it and its number.")
    delta: float = Field(gt=0, lt=1, title="Delta", description="Delta of the reruns' formal claims.")
    unit: tuple[str, int] = Field(title="Privacy unit", description="The unit and its most records.")
    noise: float = Field(default=1.0, gt=0, le=1, title="Noise", description="Factor on the plan's noise.")

    @property
    def chunk(self) -> int:
        """Returns how many trials are written together; one alone if more than a head is trained."""
        return _CHUNK if self.model.linear_head else 1

    @property
    def chunks(self) -> list[range]:
        """Returns the trials that are written together."""
        return [range(start, min(start + self.chunk, self.end)) for start in range(self.first, self.end, self.chunk)]


@dataclasses.dataclass(frozen=True)
class Trials:
    """Holds the scores of one mechanism's draws on the pool, trial by trial.

    included bool [T, n]; ell float32 [T, n], the log-likelihood at the trial's draw; right bool [T, n], whether the
    draw predicts the row's code; epsilon float64 [T], the claim of each trial for one record more or less (nan: none).
    """

    included: Tensor
    ell: Tensor
    right: Tensor
    epsilon: Tensor

    @staticmethod
    def load(folder: Path, name: str) -> Trials:
        """Loads the scores of one mechanism of a stage."""
        tensors, _ = checkpoint.load(folder / f"{name}.safetensors")
        tensors["included"], tensors["right"] = tensors["included"].bool(), tensors["right"].bool()
        return Trials(**tensors)


def label_of(name: str, *, noise: float = 1.0) -> str:
    """Returns the label of the reruns of a branch."""
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
    """Declares the reruns of a planned mechanism, with the sampling and scale of its plan. The noise has no seed.

    Args:
        delta, unit: of each rerun's claim: delta of a formal one; privacy unit and its records.
        noise: factor on the plan's noise; less than 1 shows the audit of a mechanism that leaks.
    """
    return Step(
        name="audit-trials",
        label=label_of(name, noise=noise),
        config={"model": model.model_dump(mode="json"), "seed": seed, "trials": trials, "delta": delta, "unit": unit}
        | ({} if noise == 1 else {"noise": noise}),
        inputs={"pool": pool, "dataset": dataset, "plan": planned},
        body=partial(
            _reruns, selection=TrialRange(model=model, seed=seed, delta=delta, unit=unit, noise=noise, end=trials)
        ),
        modules=(type(mechanism).__module__, "tasks.auditing.trials"),
    )


def shard(store: Store, selection: TrialRange, inputs: Mapping[str, ArtifactRef]) -> Step:
    """Declares some of the trials as a separate stage."""
    mechanism = plan_of(store.open(inputs["plan"])).mechanism

    def body(work: Work) -> Mapping[str, Any]:
        checkpoint.save(work.out / _FILE, _run(work, selection), {})
        return {"trials": selection.size}

    return Step(
        name="trials-shard",
        label=f"audit trials {selection.first + 1} to {selection.end}",
        config=selection.model_dump(mode="json"),
        inputs=dict(inputs),
        body=body,
        modules=(type(mechanism).__module__, "tasks.auditing.trials"),
    )


def _reruns(work: Work, *, selection: TrialRange) -> Mapping[str, Any]:
    """Runs all trials, in this process or in shards, then writes one file per mechanism."""
    parts = selection.split(work.context.fan_out.shards, chunk=selection.chunk)
    if len(parts) == 1:
        done = _run(work, selection)
    else:
        folders = run_parts(work, parts, partial(shard, work.context.store), deployment=DEPLOYMENT)
        done = _concatenate([checkpoint.load(folder / _FILE)[0] for folder in folders])
    included = done.pop("included")
    for name in sorted({key.rpartition(".")[0] for key in done}):
        tensors = {field: done[f"{name}.{field}"] for field in ("ell", "right", "epsilon")}
        checkpoint.save(work.out / f"{name}.safetensors", tensors | {"included": included}, {})
    return {"trials": selection.end, "records_mean": round(float(included.float().sum(1).mean()), 1)}


def _concatenate(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenates consecutive trials."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _run(work: Work, selection: TrialRange) -> dict[str, Tensor]:
    """Runs trials in this process; returns `included`, and per mechanism `ell`, `right`, `epsilon` [trials, ...]."""
    model, seed, delta, unit = selection.model, selection.seed, selection.delta, selection.unit
    plan = plan_of(work.inputs["plan"])
    plan = plan.model_copy(update={"noise_factor": selection.noise})
    head = build(work.context, model, work.inputs["dataset"], seed=seed)
    start, classes = head.flat.clone(), label_count(work.inputs["dataset"])
    fields = fields_of(work.inputs["dataset"])
    layout = fields or Fields((classes,))

    def untrained() -> Classifier:
        head.flat.copy_(start)
        return head

    def one_by_one(pool: Pool, chunk: _Chunk, progress: Progress) -> Mapping[str, Reruns]:
        ell, right, events = [], [], []
        for trial, included, trial_seed in zip(chunk.trials, chunk.included, chunk.seeds, strict=True):
            # long trials resume from the last epoch; the folder is private, and removed when the trial has been scored
            folder = None if isinstance(pool.inputs, FeatureInputs) else work.scratch / f"trial_{trial:05d}"
            run = Run(classes, trial_seed, untrained, fields=fields, folder=folder, resampled=True)
            fitted = plan.fit(Records(pool.inputs.take(included), pool.labels[included]), run)
            scores = fitted.model.log_probabilities(pool.inputs)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            ell.append(layout.log_likelihood(scores, pool.labels).float())
            right_codes = layout.predicted(scores) == pool.labels
            right.append(right_codes if fields is None else (right_codes | (pool.labels < 0)).all(1))
            events.append(fitted.event)
            progress(len(events), len(chunk.seeds))
        return {plan.mechanism.kind: Reruns(torch.stack(ell), torch.stack(right), tuple(events))}

    def batched(pool: Pool, chunk: _Chunk, progress: Progress) -> Mapping[str, Reruns]:
        assert isinstance(plan.mechanism, Batched)
        assert isinstance(pool.inputs, FeatureInputs)
        initial = from_flat(start.cpu(), classes=classes)
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
        return _in_chunks(work, selection, batched, claimed, workers=torch.get_num_threads(), threads=1)
    # a head's small products gain nothing from threads, an encoder's do
    return _in_chunks(work, selection, one_by_one, claimed, threads=1 if model.linear_head else torch.get_num_threads())


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Holds trials by number, with their members, bool [trials, n], and their seeds."""

    trials: range
    included: Tensor
    seeds: tuple[int, ...]


def _in_chunks(
    work: Work,
    selection: TrialRange,
    run: Callable[[Pool, _Chunk, Progress], Mapping[str, Reruns]],
    claimed: Callable[[Event], float],
    *,
    workers: int = 1,
    threads: int,
) -> dict[str, Tensor]:
    """Runs chunks of trials on this many workers and threads each, and concatenates them."""
    pool, seed = Pool.load(work.inputs["pool"]), selection.seed
    chunks = selection.chunks
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
        return _concatenate([checkpoint.load(file)[0] for file in several.map(one, range(len(chunks)))])
