"""Stages: trials of one mechanism on records that took part by the toss of a coin, and what their draws say of all.

Each chunk of trials is written as it ends: a killed audit goes on from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms import dp_sgd, formal_head, private_posterior
from mechanisms.audit import trials as audit_trials
from mechanisms.audit.trials import Drawn, Records, Round
from mechanisms.dp_sgd import DpSgdPlan
from mechanisms.formal_head import FormalHeadConfig
from mechanisms.model import checkpoint
from mechanisms.model.classifier import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import derive_seed
from mechanisms.model.threads import using
from mechanisms.model.training import OptimiserPhase
from mechanisms.posterior.risks import PseudoPosteriorConfig
from mechanisms.privacy.events import NonPrivateEvent
from mechanisms.private_posterior import PrivatePosteriorConfig
from storage.artifacts import ArtifactRef
from tasks.auditing.pool import Pool
from tasks.branches.branch import Branch
from tasks.branches.one_fit import event_of
from tasks.fitting.data import label_count
from tasks.fitting.train import build
from tasks.parameters import FitParameters, RetrainParameters
from tasks.running.stage import Step, Work

_AT_ONCE = 8
"""Trials a chunk: their parameters and optimiser states stay in the cache of a core."""


@dataclasses.dataclass(frozen=True)
class Trials:
    """What one mechanism's draws say of the pool, trial by trial.

    included bool [T, n]; ell float32 [T, n], the log-likelihood at the trial's draw; right bool [T, n], whether the
    draw predicts the row's code; epsilon float64 [T], what each trial would have claimed (nan: nothing).
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


def chain(parameters: RetrainParameters, *, trials: int, draws: int, pool: ArtifactRef, dataset: ArtifactRef) -> Step:
    """The whole chain in each trial; one draw of each round's posterior.

    Args:
        draws: for risks and for the sensitivity, in place of the retrain's own numbers, whose draws take longer than
            its fits.
    """
    fit = parameters.fit
    config = parameters.pseudo_posterior.model_copy(update={"risk_draws": draws, "sensitivity_draws": draws})
    rounds = tuple(
        Round(name, weighted=name not in ("base", "censored"), bounded=parameters.bounded(name))
        for name in parameters.rounds
    )
    return Step(
        name="audit-trials",
        label="audit trials (SWAG)",
        config={
            "model": parameters.model.model_dump(mode="json"),
            "fit": fit.model_dump(mode="json"),
            "pseudo_posterior": config.model_dump(mode="json"),
            "trials": trials,
        },
        inputs={"pool": pool, "dataset": dataset},
        body=partial(_chain, model=parameters.model, fit=fit, config=config, rounds=rounds, trials=trials),
        modules=("tasks.auditing.trials",),
    )


def _chain(
    work: Work,
    *,
    model: ModelConfig,
    fit: FitParameters,
    config: PseudoPosteriorConfig,
    rounds: Sequence[Round],
    trials: int,
) -> Mapping[str, Any]:
    initial = _initial(work, model, seed=fit.seed)

    def run(records: Records, progress: Callable[[int, int], None]) -> dict[str, Drawn]:
        return audit_trials.chain(
            records,
            initial,
            rounds=rounds,
            fine_tune=fit.adamw,
            collect=fit.sgd,
            moments=fit.swag,
            config=config,
            progress=progress,
        )

    return _side_by_side(work, run, names=[r.name for r in rounds], seed=fit.seed, trials=trials)


def non_private(
    parameters: RetrainParameters, *, epochs: int, trials: int, pool: ArtifactRef, dataset: ArtifactRef
) -> Step:
    """The non-private fit in each trial."""
    phase = parameters.fit.adamw.model_copy(update={"epochs": epochs})
    seed = parameters.fit.seed
    return Step(
        name="audit-trials",
        label="audit trials (non-private)",
        config={
            "model": parameters.model.model_dump(mode="json"),
            "phase": phase.model_dump(mode="json"),
            "seed": seed,
            "trials": trials,
        },
        inputs={"pool": pool, "dataset": dataset},
        body=partial(_non_private, model=parameters.model, phase=phase, seed=seed, trials=trials),
        modules=("tasks.auditing.trials",),
    )


def _non_private(work: Work, *, model: ModelConfig, phase: OptimiserPhase, seed: int, trials: int) -> Mapping[str, Any]:
    initial = _initial(work, model, seed=seed)

    def run(records: Records, progress: Callable[[int, int], None]) -> dict[str, Drawn]:
        theta = initial.repeat(len(records.seeds), 1, 1)
        for epoch, _ in enumerate(audit_trials.fit(theta, records, phase=phase, purpose="non-private"), start=1):
            progress(epoch, phase.epochs)
        claimed = torch.full((len(records.seeds),), float("nan"), dtype=torch.float64)
        return {"non-private": Drawn(theta, claimed)}

    return _side_by_side(work, run, names=["non-private"], seed=seed, trials=trials)


def private(
    branch: Branch,
    parameters: RetrainParameters,
    *,
    trials: int,
    epsilon: float,
    linear: FormalHeadConfig | PrivatePosteriorConfig | None,
    pool: ArtifactRef,
    dataset: ArtifactRef,
    calibrated: ArtifactRef,
) -> Step:
    """A formal branch in each trial, with the noise, sampling and scale of its calibration. Its noise has no seed.

    Args:
        linear: settings of a family that knows a linear layer alone; None: DP-SGD's, from its calibration.
    """
    seed = parameters.fit.seed
    return Step(
        name="audit-trials",
        label=f"audit trials ({branch.name})",
        config={
            "model": parameters.model.model_dump(mode="json"),
            "branch": branch.name,
            "seed": seed,
            "trials": trials,
            "epsilon": epsilon,
            "linear": None if linear is None else linear.model_dump(mode="json"),
        },
        inputs={"pool": pool, "dataset": dataset, "calibrated": calibrated},
        body=partial(
            _private, name=branch.name, model=parameters.model, seed=seed, trials=trials, epsilon=epsilon, linear=linear
        ),
        modules=("tasks.auditing.trials",),
    )


def _private(
    work: Work,
    *,
    name: str,
    model: ModelConfig,
    seed: int,
    trials: int,
    epsilon: float,
    linear: FormalHeadConfig | PrivatePosteriorConfig | None,
) -> Mapping[str, Any]:
    folder = work.inputs["calibrated"]
    event = event_of(folder)
    assert not isinstance(event, NonPrivateEvent)
    config = dp_sgd.DpSgdConfig.model_validate_json((folder / "config.json").read_text())
    classes = label_count(work.inputs["dataset"])
    head = build(work.context, model, work.inputs["dataset"], seed=seed)
    start = head.flat.clone()

    def run(records: Records, progress: Callable[[int, int], None]) -> dict[str, Drawn]:
        made = []
        for trial, own in enumerate(records.included):
            head.flat.copy_(start)
            inputs, labels = FeatureInputs(features=records.features[own]), records.labels[own]
            # the mechanism as calibrated: a record more or less changes neither noise nor sampling
            plan = DpSgdPlan(config=config, event=event, num_records=len(labels))
            common: Any = {"plan": plan, "num_labels": classes, "seed": records.seeds[trial]}
            match linear:
                case FormalHeadConfig():
                    formal_head.run(head, inputs, labels, config=linear, **common)
                case PrivatePosteriorConfig():
                    private_posterior.run(head, inputs, labels, config=linear, **common)
                case None:
                    dp_sgd.run(head, inputs, labels, purpose="audit", physical_batch_size=512, **common)
            made.append(audit_trials.from_flat(head.flat.cpu(), classes=classes))
            progress(trial + 1, len(records.seeds))
        claimed = torch.full((len(made),), epsilon, dtype=torch.float64)
        return {name: Drawn(torch.stack(made), claimed)}

    return _side_by_side(work, run, names=[name], seed=seed, trials=trials, workers=1)


def _initial(work: Work, model: ModelConfig, *, seed: int) -> Tensor:
    """The parameters that every fit starts from, [classes, width + 1]."""
    flat = build(work.context, model, work.inputs["dataset"], seed=seed).flat.cpu()
    return audit_trials.from_flat(flat, classes=label_count(work.inputs["dataset"]))


def _side_by_side(
    work: Work,
    run: Callable[[Records, Callable[[int, int], None]], dict[str, Drawn]],
    *,
    names: Sequence[str],
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

            records = Records(
                pool.features,
                pool.labels,
                torch.stack([pool.coins(seed=seed, trial=t) for t in chunk]),
                seeds=tuple(derive_seed(seed, "audit", "trial", t) >> 10 for t in chunk),
            )
            tensors: dict[str, Tensor] = {"included": records.included.to(torch.uint8)}
            for name, drawn in run(records, progress).items():
                ell, right = audit_trials.log_likelihood(drawn.theta, records.padded, records.labels)
                tensors |= {f"{name}.ell": ell, f"{name}.right": right.to(torch.uint8)}
                tensors[f"{name}.epsilon"] = drawn.epsilon
            checkpoint.save(file, tensors, {})
        shares[number] = 1.0
        return file

    workers = workers or torch.get_num_threads()
    with using(1), ThreadPoolExecutor(workers, thread_name_prefix="trials") as several:
        parts = [checkpoint.load(file)[0] for file in several.map(one, range(len(chunks)))]
    included = torch.cat([part["included"] for part in parts])
    for name in names:
        kept = {field: torch.cat([p[f"{name}.{field}"] for p in parts]) for field in ("ell", "right", "epsilon")}
        checkpoint.save(work.out / f"{name}.safetensors", kept | {"included": included}, {})
    return {"trials": trials, "records_mean": round(float(included.float().sum(1).mean()), 1)}
