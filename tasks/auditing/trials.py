"""Stages: rerun one mechanism on randomly chosen records, and score all records with its draws.

A part is a stage of its own with a few trials. A killed audit continues after the finished parts,
and workers can share parts. A trial's coins and seeds depend only on its number, and the trials of
a part run side by side everywhere.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.audit.trials import Records as PoolRecords
from mechanisms.mechanism import Mechanism, Plan, Records, Reruns, Run
from mechanisms.model import checkpoint
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.linear_head import from_flat
from mechanisms.model.seeding import derive_seed
from mechanisms.model.threads import using
from mechanisms.privacy.claims import claim_of, formal, of_one_record
from mechanisms.privacy.events import Event
from storage.artifacts import ArtifactRef, Store
from storage.json_values import Figures
from tasks.auditing.pool import Pool
from tasks.fitting.fits import plan_of
from tasks.fitting.model_inputs import build, label_count
from tasks.running.parts import Part, compute_part, run_parts_of
from tasks.running.stage import Step, Work

_claim_of = lru_cache(maxsize=64)(claim_of)
_TOGETHER = 8
"""Trials of a linear head per part. Their parameters and optimiser states fit in one core's cache.
"""
_FILE = "trials.safetensors"
_BUILDING = Lock()
"""Building an untrained model uses torch's global generator, so two threads must not do it at once.
"""


class TrialRange(Part, frozen=True, title="Trials"):
    """A range of trials of a planned mechanism. The plan, the pool and the data set are the stage's
    inputs.
    """

    model: ModelConfig = Field(title="Model")
    seed: int = Field(
        ge=0,
        lt=2**53,
        title="Seed",
        description="Each trial's coins and seed are derived from it and the trial's number.",
    )
    delta: float = Field(
        gt=0, lt=1, title="Delta", description="Delta of the reruns' formal claims."
    )
    unit: tuple[str, int] = Field(
        title="Privacy unit", description="The unit, and the most records that it may have."
    )

    @property
    def trials(self) -> range:
        return range(self.first, self.end)


@dataclasses.dataclass(frozen=True)
class Trials:
    """Scores of one mechanism's draws on the pool, for T trials and n rows.

    included: bool [T, n].
    ell: float32 [T, n], the log-likelihood of each row at the trial's draw.
    right: bool [T, n], whether the draw predicts the row's code.
    epsilon: float64 [T], each trial's claim for adding or removing one record; nan if there is
    none.
    """

    included: Tensor
    ell: Tensor
    right: Tensor
    epsilon: Tensor

    @staticmethod
    def load(folder: Path, name: str) -> Trials:
        tensors, _ = checkpoint.load(folder / f"{name}.safetensors")
        tensors["included"], tensors["right"] = tensors["included"].bool(), tensors["right"].bool()
        return Trials(**tensors)


def label_of(name: str) -> str:
    return f"audit trials ({name})"


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
) -> Step:
    """Declares the reruns of a planned mechanism, with its plan's sampling and scale. The noise has
    no seed.
    """
    return Step(
        name="audit-trials",
        label=label_of(name),
        config={
            "model": model.model_dump(mode="json"),
            "seed": seed,
            "trials": trials,
            "delta": delta,
            "unit": unit,
        },
        inputs={"pool": pool, "dataset": dataset, "plan": planned},
        body=partial(
            _reruns,
            selection=TrialRange(model=model, seed=seed, delta=delta, unit=unit, end=trials),
        ),
        modules=(type(mechanism).__module__, "tasks.auditing.trials"),
    )


def _reruns(work: Work, *, selection: TrialRange) -> Figures:
    head = selection.model.linear_head
    mechanism = plan_of(work.inputs["plan"]).mechanism
    batched = mechanism.batched(selection.model)
    at_once = 1 if batched is None else torch.get_num_threads()
    parts = selection.cut(_TOGETHER if head else 1)
    # small products of a head gain nothing from threads, unlike those of an encoder; parallel parts
    # must not each set the number of threads
    with using(1 if head else torch.get_num_threads()):
        folders = run_parts_of(work, compute, parts, part_step, at_once=at_once)
    done = _concatenate([checkpoint.load(folder / _FILE)[0] for folder in folders])
    included = done.pop("included")
    for name in sorted({key.rpartition(".")[0] for key in done}):
        tensors = {field: done[f"{name}.{field}"] for field in ("ell", "right", "epsilon")}
        checkpoint.save(work.out / f"{name}.safetensors", tensors | {"included": included}, {})
    return {
        "trials": selection.end,
        "records_mean": round(float(included.float().sum(1).mean()), 1),
    }


def compute(request: str) -> str:
    return compute_part(request, TrialRange, part_step)


def part_step(store: Store, selection: TrialRange, inputs: Mapping[str, ArtifactRef]) -> Step:
    mechanism = plan_of(store.open(inputs["plan"])).mechanism

    def body(work: Work) -> Figures:
        with using(1 if selection.model.linear_head else torch.get_num_threads()):
            checkpoint.save(work.out / _FILE, _run(work, selection), {})
        return {"trials": selection.size}

    return Step(
        name="trials-part",
        label=f"audit trials {selection.first + 1} to {selection.end}",
        config=selection.model_dump(mode="json"),
        inputs=dict(inputs),
        body=body,
        modules=(type(mechanism).__module__, "tasks.auditing.trials"),
    )


def _concatenate(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _run(work: Work, selection: TrialRange) -> dict[str, Tensor]:
    """Runs trials side by side. Returns `included`, and per mechanism `ell`, `right`, `epsilon`
    [trials, ...].
    """
    model, delta, unit = selection.model, selection.delta, selection.unit
    plan = plan_of(work.inputs["plan"])
    pool = Pool.load(work.inputs["pool"])
    included = torch.stack([pool.coins(seed=selection.seed, trial=t) for t in selection.trials])
    seeds = tuple(derive_seed(selection.seed, "audit", "trial", t) >> 10 for t in selection.trials)
    with _BUILDING:
        head = build(work.context, model, work.inputs["dataset"], seed=selection.seed)
    classes = label_count(work.inputs["dataset"])
    batched = plan.mechanism.batched(model)
    if batched is not None:
        assert isinstance(pool.inputs, FeatureInputs)
        initial = from_flat(head.flat.cpu(), classes=classes)
        records = PoolRecords(pool.inputs.features, pool.labels, included, seeds=seeds)
        scored = batched.fit_many(plan, records, initial, progress=work.progress)
    else:
        scored = _one_by_one(work, selection, plan, pool, included, seeds, head)

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

    tensors: dict[str, Tensor] = {"included": included.to(torch.uint8)}
    for name, mechanism_scores in scored.items():
        epsilon = torch.tensor(
            [claimed(event) for event in mechanism_scores.events], dtype=torch.float64
        )
        tensors |= {
            f"{name}.ell": mechanism_scores.ell,
            f"{name}.right": mechanism_scores.right.to(torch.uint8),
        }
        tensors[f"{name}.epsilon"] = epsilon
    return tensors


def _one_by_one(
    work: Work,
    selection: TrialRange,
    plan: Plan,
    pool: Pool,
    included: Tensor,
    seeds: Sequence[int],
    head: Classifier,
) -> Mapping[str, Reruns]:
    start = head.flat.clone()
    classes = label_count(work.inputs["dataset"])

    def untrained() -> Classifier:
        head.flat.copy_(start)
        return head

    ell, right, events = [], [], []
    for trial, members, seed in zip(selection.trials, included, seeds, strict=True):
        # long trials resume from a checkpoint; the folder is private, and is removed when the
        # trial has been scored
        folder = (
            None if isinstance(pool.inputs, FeatureInputs) else work.scratch / f"trial_{trial:05d}"
        )
        run = Run(
            classes,
            seed,
            untrained,
            folder=folder,
            checkpoint_seconds=work.context.checkpoint_seconds,
            resampled=True,
        )
        fitted = plan.fit(Records(pool.inputs.select(members), pool.labels[members]), run)
        scores = fitted.model.log_probabilities(pool.inputs)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        ell.append(scores.gather(1, pool.labels[:, None])[:, 0].float())
        right.append(scores.argmax(-1) == pool.labels)
        events.append(fitted.event)
        work.progress(len(events), len(seeds))
    return {plan.mechanism.kind: Reruns(torch.stack(ell), torch.stack(right), tuple(events))}
