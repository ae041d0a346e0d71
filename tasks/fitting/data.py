"""Stages that turn a file into what a classifier reads: ingest, then tokens or features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from mechanisms.model import checkpoint, classifier, encoders
from mechanisms.model.classifier import ModelConfig
from mechanisms.model.inputs import FeatureInputs, TokenInputs
from mechanisms.model.schema import FeatureSchema
from storage import ingest as ingestion
from storage.artifacts import ArtifactRef, file_digest, files_digest
from storage.datasets import load_labels, load_split, load_values
from storage.errors import InputError
from tasks.fitting.prepared import SPLITS, feature_schema
from tasks.parameters import DataParameters
from tasks.running.stage import Step, Work


def ingest(data: DataParameters) -> Step:
    """Read, validate, sample and split the records."""
    source = Path(data.source).expanduser()
    lists = data.codelists
    for path in filter(None, (source, *lists.values())):
        if not path.is_file():
            raise InputError(f"no file {path}")
    named = {"classification": data.classification, "classification_version": data.classification_version}
    config: dict[str, Any] = {**named, "ingest": data.ingest.model_dump(mode="json"), "source": file_digest(source)}
    for name, path in lists.items():
        known = None if path is None else file_digest(path)
        if name:
            config["ingest"]["fields"][name]["codelist"] = known  # what it holds, wherever it lies
        elif known is not None:
            config["codelist"] = known

    def body(work: Work) -> Mapping[str, Any]:
        result = ingestion.ingest(
            source,
            work.out,
            data.ingest,
            lists.get(""),
            progress=lambda done, total: work.progress(done, total or done),
        )
        schema = feature_schema(work.out)
        features = {} if schema is None else _widths(schema) | {"bounds_source": schema.bounds_source}
        counted = ("rows_read", "train", "test", "codes_observed", "label_space", "label_space_source", "fingerprint")
        figures = features | named | {name: getattr(result, name) for name in counted}
        if result.fields:
            figures["fields"] = [{"name": name, **asdict(field)} for name, field in result.fields.items()]
        figures |= {"cohorts_source": result.cohorts_source, "sampling": data.ingest.sampling}
        return figures | {"records": result.train + result.test, "cohorts": list(result.cohorts)}

    return Step(name="ingest", label="ingest", config=config, inputs={}, body=body, modules=("storage.ingest",))


def prepare(model: ModelConfig, dataset: ArtifactRef | None, *, seed: int) -> Step:
    """Tokens of both splits, the frozen encoder's features for trainable part `head`, or a table's or images' own."""
    if model.pooling == "none":
        return Step(
            name="features",
            label="features",
            config={},
            inputs={"dataset": dataset},
            body=_scale,
        )
    head = model.trainable == "head"
    config: dict[str, Any] = model.model_dump(include={"encoder", "max_length"})
    if head:
        config["pooling"] = model.pooling
        if model.precision != "float32":
            config["precision"] = model.precision
    files = encoders.digest_parts(model.encoder)
    config["encoder_digest"] = files_digest(files) if files else encoders.revision(model.encoder)
    return Step(
        name="features" if head else "tokens",
        label="features" if head else "tokens",
        config=config,
        inputs={"dataset": dataset},
        body=partial(_prepare, model=model, seed=seed),
        modules=("tasks.fitting.data",),
    )


def _prepare(work: Work, *, model: ModelConfig, seed: int) -> Mapping[str, Any]:
    dataset = work.inputs["dataset"]
    splits = {name: load_split(dataset, name) for name in SPLITS}
    total = sum(len(split) for split in splits.values())
    work.sized(total)
    tokens_seen, done = 0, 0
    for name, split in splits.items():
        tokens = classifier.tokenize(model, list(split["text"]))
        tokens_seen += int(tokens.offsets[-1])
        if model.trainable == "head":
            made = _features(work, name, tokens, model=model, seed=seed, before=done, total=total)
        else:
            made = tokens
        made.save(work.out / f"{name}.safetensors")
        done += len(split)
        work.progress(done, total)
        save_labels(work.out, name, load_labels(dataset, name))
    figures = {"precision": model.precision} if model.trainable == "head" else {}
    figures |= {"tokens_per_record": round(tokens_seen / total, 1), "encoder": Path(model.encoder).name}
    return {"records": total} | figures


def _scale(work: Work) -> Mapping[str, Any]:
    """Values as features in [0, 1]; bounds that are not public are those of the training records."""
    dataset = work.inputs["dataset"]
    schema = feature_schema(dataset)
    if schema is None:
        raise InputError("model.pooling=none is for data of kind `table` or `images`")
    values = {name: torch.from_numpy(load_values(dataset, name)) for name in SPLITS}
    schema = schema.bounded_by(values["train"])
    schema.save(work.out)
    for name in SPLITS:
        FeatureInputs(features=schema.encode(values[name])).save(work.out / f"{name}.safetensors")
        save_labels(work.out, name, load_labels(dataset, name))
    return {
        "records": sum(map(len, values.values())),
        "features": len(schema.names),
        "bounds_source": schema.bounds_source,
    }


def _widths(schema: FeatureSchema) -> dict[str, int]:
    return {"features": len(schema.names), "columns": len(schema.columns)}


def _features(
    work: Work, name: str, tokens: TokenInputs, *, model: ModelConfig, seed: int, before: int, total: int
) -> FeatureInputs:
    """Encode in batches, keeping what is done every 2,048 records, so that a killed run goes on from there."""
    encoder = classifier.build(model, num_labels=2, seed=seed, device=classifier.device_of(work.context.device))
    parts = work.scratch / f"features_{name}"
    parts.mkdir(exist_ok=True)
    kept = [checkpoint.load(path)[0] for path in sorted(parts.glob("*.safetensors"))]
    finished = torch.cat([part["index"] for part in kept]) if kept else None
    pending: list[tuple[torch.Tensor, torch.Tensor]] = []
    count = 0 if finished is None else len(finished)
    files = len(kept)

    def on_batch(index: torch.Tensor, rows: torch.Tensor) -> None:
        nonlocal count, files
        count += len(index)
        pending.append((index, rows))
        if sum(len(i) for i, _ in pending) >= 2048:
            indices, features = (torch.cat(column) for column in zip(*pending, strict=True))
            checkpoint.save(parts / f"{files:06d}.safetensors", {"index": indices, "features": features}, {})
            files += 1
            pending.clear()
        work.progress(before + count, total)

    made = encoder.encode(tokens, done=finished, on_batch=on_batch)
    for part in kept:
        made.features[part["index"]] = part["features"]
    return made


def save_labels(folder: Path, split: str, labels: Sequence[int] | NDArray[np.int64]) -> None:
    """Labels of a split ([n]; of several fields [n, fields]), beside its inputs, where `load_inputs` looks for them."""
    save_file({"labels": torch.as_tensor(labels, dtype=torch.int64)}, folder / f"{split}_labels.safetensors")
