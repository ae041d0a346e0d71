"""Stages: trials of one mechanism on records that took part by the toss of a coin, and what their draws say of all.

Each chunk of trials is written as it ends: a killed audit goes on from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms.audit import trials as audit_trials
from mechanisms.audit.curves import noise_scaled
from mechanisms.audit.trials import Records as PoolRecords
from mechanisms.mechanism import Batched, Mechanism, Records, Reruns, Run
from mechanisms.model import checkpoint
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import derive_seed
from mechanisms.model.threads import using
from mechanisms.model.training import Progress
from mechanisms.privacy.claims import claim_of, formal, of_one_record
from mechanisms.privacy.events import Event
from storage.artifacts import ArtifactRef
from tasks.auditing.pool import Pool
from tasks.fitting.fits import plan_of
from tasks.fitting.prepared import build, feature_schema, label_count
from tasks.running.stage import Step, Work

_claim_of = lru_cache(maxsize=64)(claim_of)
_AT_ONCE = 8
"""Trials a chunk: their parameters and optimiser states stay in the cache of a core."""


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
        body=partial(_reruns, model=model, seed=seed, trials=trials, delta=delta, unit=unit, noise=noise),
        modules=(type(mechanism).__module__, "tasks.auditing.trials"),
    )


def _reruns(
    work: Work, *, model: ModelConfig, seed: int, trials: int, delta: float, unit: tuple[str, int], noise: float
) -> Mapping[str, Any]:
    plan = plan_of(work.inputs["plan"])
    if noise != 1 and plan.event is not None:
        plan = plan.model_copy(update={"event": noise_scaled(plan.event, noise)})
    head = build(work.context, model, work.inputs["dataset"], seed=seed)
    start, classes = head.flat.clone(), label_count(work.inputs["dataset"])
    schema = feature_schema(work.inputs["dataset"])

    def untrained() -> Classifier:
        head.flat.copy_(start)
        return head

    def one_by_one(records: PoolRecords, progress: Progress) -> Mapping[str, Reruns]:
        given = FeatureInputs(features=records.features)
        ell, right, events = [], [], []
        for trial, own in enumerate(records.included):
            run = Run(classes, records.seeds[trial], untrained, schema=schema, resampled=True)
            fitted = plan.fit(Records(FeatureInputs(records.features[own]), records.labels[own]), run)
            scores = fitted.model.log_probabilities(given)
            ell.append(scores.gather(1, records.labels[:, None])[:, 0].float())
            right.append(scores.argmax(1) == records.labels)
            events.append(fitted.event)
            progress(trial + 1, len(records.seeds))
        return {plan.mechanism.kind: Reruns(torch.stack(ell), torch.stack(right), tuple(events))}

    def batched(records: PoolRecords, progress: Progress) -> Mapping[str, Reruns]:
        assert isinstance(plan.mechanism, Batched)
        initial = audit_trials.from_flat(start.cpu(), classes=classes)
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

    several = isinstance(plan.mechanism, Batched)
    return _side_by_side(
        work, batched if several else one_by_one, claimed, seed=seed, trials=trials, workers=None if several else 1
    )


def _side_by_side(
    work: Work,
    run: Callable[[PoolRecords, Progress], Mapping[str, Reruns]],
    claimed: Callable[[Event], float],
    *,
    seed: int,
    trials: int,
    workers: int | None = None,
) -> Mapping[str, Any]:
    """Chunks of trials, one a core, each on one thread; then all of them in one file a mechanism."""
    pool = Pool.load(work.inputs["pool"])
    chunks = [range(start, min(start + _AT_ONCE, trials)) for start in range(0, trials, _AT_ONCE)]
    shares = [0.0] * len(chunks)

    def one(number: int) -> Path:
        file, chunk = work.scratch / f"chunk_{number:04d}.safetensors", chunks[number]
        if not file.exists():

            def progress(done: int, total: int) -> None:
                shares[number] = done / total
                work.progress(round(100 * sum(shares)), 100 * len(chunks))

            records = PoolRecords(
                pool.features,
                pool.labels,
                torch.stack([pool.coins(seed=seed, trial=t) for t in chunk]),
                seeds=tuple(derive_seed(seed, "audit", "trial", t) >> 10 for t in chunk),
            )
            tensors: dict[str, Tensor] = {"included": records.included.to(torch.uint8)}
            for name, these in run(records, progress).items():
                epsilon = torch.tensor([claimed(event) for event in these.events], dtype=torch.float64)
                tensors |= {f"{name}.ell": these.ell, f"{name}.right": these.right.to(torch.uint8)}
                tensors[f"{name}.epsilon"] = epsilon
            checkpoint.save(file, tensors, {})
        shares[number] = 1.0
        return file

    workers = workers or torch.get_num_threads()
    with using(1), ThreadPoolExecutor(workers, thread_name_prefix="trials") as several:
        parts = [checkpoint.load(file)[0] for file in several.map(one, range(len(chunks)))]
    included = torch.cat([part["included"] for part in parts])
    for name in sorted({key.rpartition(".")[0] for key in parts[0]} - {""}):
        kept = {field: torch.cat([p[f"{name}.{field}"] for p in parts]) for field in ("ell", "right", "epsilon")}
        checkpoint.save(work.out / f"{name}.safetensors", kept | {"included": included}, {})
    return {"trials": trials, "records_mean": round(float(included.float().sum(1).mean()), 1)}
