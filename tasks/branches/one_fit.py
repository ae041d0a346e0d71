"""Stages of one branch: solve the noise, fit at a seed, measure on the test half."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import TypeAdapter

from mechanisms import dp_sgd, formal_head, private_posterior
from mechanisms.dp_sgd import DpEvent, DpSgdPlan
from mechanisms.errors import MechanismError
from mechanisms.formal_head import FormalHeadConfig
from mechanisms.model import checkpoint, metrics, training
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.training import OptimiserPhase
from mechanisms.posterior import risks, swag
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import NonPrivateEvent
from mechanisms.private_posterior import PrivatePosteriorConfig
from storage.artifacts import ArtifactRef
from storage.datasets import load_codes
from tasks.branches.branch import LINEAR, Branch, CompareParameters, dp_sgd_config, linear_config
from tasks.fitting.data import load_inputs
from tasks.fitting.train import build
from tasks.parameters import FitParameters
from tasks.running.stage import Context, Step, Work

_EVENT: TypeAdapter[DpEvent | NonPrivateEvent] = TypeAdapter(DpEvent | NonPrivateEvent)
_BUILDING = threading.Lock()
"""Initial weights come from torch's one generator a process; branches that run side by side take turns."""

THRESHOLDS = (0.3, 0.5, 0.7, 0.9)


def calibrate(
    branch: Branch,
    model: ModelConfig,
    compare: CompareParameters,
    *,
    target: float,
    records: int,
    records_per_unit: int,
) -> Step:
    """Solve the branch's noise for the target; the same for all seeds."""
    if branch.family in LINEAR:
        config: Any = linear_config(branch, compare, target=target)
    else:
        config = dp_sgd_config(branch, model, compare, target=target, records=records)
    return Step(
        name="calibrate",
        label=f"noise ({branch.name})",
        config={"mechanism": config.model_dump(mode="json"), "records": records, "unit": records_per_unit},
        inputs={},
        body=partial(_calibrate, config=config, records=records, unit=records_per_unit),
        modules=("tasks.branches.one_fit",),
    )


def _calibrate(
    work: Work, *, config: dp_sgd.DpSgdConfig | FormalHeadConfig | PrivatePosteriorConfig, records: int, unit: int
) -> Mapping[str, Any]:
    match config:
        case FormalHeadConfig():
            plan = formal_head.calibrate(config, num_records=records, records_per_unit=unit)
        case PrivatePosteriorConfig():
            plan = private_posterior.calibrate(config, num_records=records, records_per_unit=unit)
        case _:
            plan = dp_sgd.calibrate(config, num_records=records, records_per_unit=unit)
    (work.out / "event.json").write_text(plan.event.model_dump_json())
    (work.out / "config.json").write_text(plan.config.model_dump_json())
    cost = gaussian_cost.cost(plan.event, delta=config.delta, records_per_unit=unit)
    # Opacus knows no schedule with full-batch steps, and its orders do not reach a delta near 1
    known = plan.sgd.sampling_prob < 1 and unit == 1 and config.delta < 0.5
    opacus = gaussian_cost.opacus_epsilon(plan.event, delta=config.delta) if known else None
    return {
        "noise_multiplier": plan.sgd.segments[-1].noise_multiplier,
        "steps": plan.sgd.steps,
        **{name: value for name, value in asdict(cost).items() if value is not None},
        **({} if opacus is None else {"epsilon_opacus": opacus}),
    }


def event_of(folder: Path) -> DpEvent | NonPrivateEvent:
    """The event of a calibrated or fitted branch."""
    return _EVENT.validate_json((folder / "event.json").read_text())


def fit(
    branch: Branch,
    model: ModelConfig,
    parameters: FitParameters,
    compare: CompareParameters,
    *,
    seed: int,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    calibrated: ArtifactRef | None,
    target: float | None,
) -> Step:
    """Fit a branch at one seed. DP-SGD's noise has no seed: it is anew in each."""
    config: dict[str, Any] = {"model": model.model_dump(mode="json"), "seed": seed, "branch": branch.name}
    inputs: dict[str, ArtifactRef | None] = {"dataset": dataset, "prepared": prepared}
    if calibrated is None:
        phase = parameters.adamw.model_copy(update={"epochs": compare.epochs})
        config["phase"] = phase.model_dump(mode="json")
        body = partial(_fit_non_private, model=model, phase=phase, seed=seed)
    else:
        inputs["calibrated"] = calibrated
        linear = None
        if branch.family in LINEAR:
            assert target is not None
            linear = linear_config(branch, compare, target=target)
            config[branch.family] = linear.model_dump(mode="json")
        body = partial(_fit_private, model=model, seed=seed, linear=linear)
    return Step(
        name="branch-fit",
        label=f"{branch.name}, seed {seed}",
        config=config,
        inputs=inputs,
        body=body,
        modules=("tasks.branches.one_fit",),
    )


def _built(work: Work, model: ModelConfig, seed: int) -> Classifier:
    with _BUILDING:
        return build(work.context, model, work.inputs["dataset"], seed=seed)


def _fit_non_private(work: Work, *, model: ModelConfig, phase: OptimiserPhase, seed: int) -> Mapping[str, Any]:
    trained = _built(work, model, seed)
    records, labels = load_inputs(work.inputs["prepared"], "train")
    losses = training.train(
        trained,
        records,
        labels,
        phase=phase,
        seed=seed,
        purpose="non-private",
        folder=work.scratch,
        progress=work.progress,
    )
    checkpoint.save(work.out / "theta.safetensors", {"theta": trained.flat}, {})
    (work.out / "event.json").write_text(NonPrivateEvent(epochs=phase.epochs).model_dump_json())
    return {"epochs": phase.epochs, "loss": losses[-1], "losses": list(losses)}


def _fit_private(
    work: Work, *, model: ModelConfig, seed: int, linear: FormalHeadConfig | PrivatePosteriorConfig | None
) -> Mapping[str, Any]:
    trained = _built(work, model, seed)
    records, labels = load_inputs(work.inputs["prepared"], "train")
    folder = work.inputs["calibrated"]
    config = dp_sgd.DpSgdConfig.model_validate_json((folder / "config.json").read_text())
    event = event_of(folder)
    assert not isinstance(event, NonPrivateEvent)
    plan = DpSgdPlan(config=config, event=event, num_records=len(labels))
    num_labels = len(load_codes(work.inputs["dataset"]))
    common: Any = {"plan": plan, "num_labels": num_labels, "seed": seed}
    common |= {"folder": work.scratch, "progress": work.progress}
    match linear:
        case FormalHeadConfig():
            ran = formal_head.run(trained, cast(FeatureInputs, records), labels, config=linear, **common)
        case PrivatePosteriorConfig():
            ran = private_posterior.run(trained, cast(FeatureInputs, records), labels, config=linear, **common)
        case None:
            size = 512 if isinstance(records, FeatureInputs) else 32
            ran = dp_sgd.run(trained, records, labels, purpose="compare", physical_batch_size=size, **common)
    if ran.event != event:
        raise MechanismError(f"branch: {ran.event.mechanism} did not run as calibrated; nothing is claimed of it")
    checkpoint.save(work.out / "theta.safetensors", {"theta": trained.flat}, {})
    (work.out / "event.json").write_text(ran.event.model_dump_json())
    return {"steps": plan.sgd.steps, "loss": ran.losses[-1], "losses": list(ran.losses)}


def measure(
    branch: Branch,
    model: ModelConfig,
    parameters: FitParameters,
    *,
    seed: int,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    fitted: ArtifactRef,
) -> Step:
    """Metrics on the test half: aggregates as figures, F1 by code as a private file."""
    drawn = branch.family == "swag"
    return Step(
        name="branch-measure",
        label=f"measure {branch.name}, seed {seed}",
        config={
            "model": model.model_dump(mode="json"),
            "seed": seed,
            "branch": branch.name,
            "std_scale": parameters.swag.std_scale if drawn else None,
        },
        inputs={"dataset": dataset, "prepared": prepared, "fitted": fitted},
        body=partial(_measure, model=model, seed=seed, std_scale=parameters.swag.std_scale if drawn else None),
        modules=("tasks.branches.one_fit",),
    )


def _measure(work: Work, *, model: ModelConfig, seed: int, std_scale: float | None) -> Mapping[str, Any]:
    trained = _built(work, model, seed)
    if std_scale is None:
        trained.flat.copy_(checkpoint.load(work.inputs["fitted"] / "theta.safetensors")[0]["theta"])
    else:
        posterior = swag.load(work.inputs["fitted"], std_scale=std_scale)
        risks.load_draw(trained, posterior, seed=seed, purpose="evaluate", draw=0)
    records, tensor = load_inputs(work.inputs["prepared"], "test")
    labels = tensor.numpy()
    probabilities = _probabilities(trained, records)
    predicted = probabilities.argmax(1)
    whole, codes = metrics.classification(labels, predicted), metrics.per_code(labels, predicted)
    top, bottom = metrics.quartiles(codes)
    _write_codes(work.out / "codes.json", codes, [code.code for code in load_codes(work.inputs["dataset"])])
    covered = [metrics.coverage_at(labels, probabilities, threshold=t) for t in THRESHOLDS]
    return {
        "weighted_f1": whole.weighted_f1,
        "macro_f1": whole.macro_f1,
        "accuracy": whole.accuracy,
        "ece": metrics.expected_calibration_error(labels, probabilities),
        **{f"top_{k}": metrics.top_k_accuracy(labels, probabilities, k=k) for k in (3, 5)},
        **{f"top_quartile_{n}": getattr(top, n) for n in ("weighted_f1", "macro_f1")},
        **{f"bottom_quartile_{n}": getattr(bottom, n) for n in ("weighted_f1", "macro_f1")},
        **{f"coverage_{c.threshold}": c.coverage for c in covered},
        # none at or above the threshold has no accuracy; JSON has no nan
        **{f"accuracy_at_{c.threshold}": None if np.isnan(c.accuracy) else c.accuracy for c in covered},
    }


def _probabilities(trained: Classifier, records: Any) -> np.ndarray:
    scores = trained.predict(records)
    return torch.softmax(scores.double(), -1).numpy()


def _write_codes(file: Path, codes: metrics.PerCode, names: list[str]) -> None:
    rows = [
        {"code": names[int(code)], "size": int(size), "f1": float(f1)}
        for code, size, f1 in zip(codes.code, codes.size, codes.f1, strict=True)
    ]
    file.write_text(json.dumps(rows))


def codes_of(context: Context, measured: ArtifactRef) -> list[dict[str, Any]]:
    """F1 by code of a measured branch: code, test size, F1. Internal."""
    return json.loads((context.store.open(measured) / "codes.json").read_text())
