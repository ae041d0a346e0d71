"""Defines the stages that turn records into a classifier's inputs: tokens or features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from mechanisms.model import checkpoint, classifier, encoder_files
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import TokenInputs, save_features
from mechanisms.model.lexicon import Lexicon
from storage.artifacts import ArtifactRef, files_digest
from storage.datasets import load_labels, load_table
from tasks.fitting.model_inputs import SPLITS
from tasks.fitting.prior import lexicon_of
from tasks.running.stage import Step, Work

PART = 4096
"""Texts that are encoded, saved and joined at a time; what is in memory grows with it and not with the records."""


def prepare(model: ModelConfig, dataset: ArtifactRef | None, *, seed: int) -> Step:
    """Prepares both splits: tokens, or the frozen encoder's features."""
    head = model.trainable == "head"
    config: dict[str, Any] = model.model_dump(include={"encoder", "max_length"})
    if head:
        config["pooling"] = model.pooling
        if model.precision != "float32":
            config["precision"] = model.precision
    if model.lexical != "none":
        config |= model.model_dump(include={"lexical", "lexical_language", "prior_sentence", "prior_sentences"})
    files = encoder_files.digest_parts(model.encoder)
    if model.lora_layers is not None:
        config |= model.model_dump(include={"lora_layers", "precision"})
    config["encoder_digest"] = files_digest(files) if files else encoder_files.revision(model.encoder)
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
    tables = {name: load_table(dataset, name) for name in SPLITS}
    total = sum(table.num_rows for table in tables.values())
    lexicon = lexicon_of(work.context, model, dataset)
    tokenizer = classifier.tokenizer(model)
    encoder = None
    if model.trainable == "head":
        encoder = classifier.build(
            model.frozen(), num_labels=2, seed=seed, device=classifier.device_of(work.context.device)
        )
    work.sized(total)
    tokens_seen, done = 0, 0
    for name, table in tables.items():
        texts = table.column("text").to_pylist()
        file = work.out / f"{name}.safetensors"
        if encoder is None:
            tokens = tokenizer(texts)
            tokens_seen += int(tokens.offsets[-1])
            words = None if lexicon is None else lexicon.words(texts)
            states = _states(work, tokens, model=model, before=done, total=total)
            replace(tokens, words=words, states=states).save(file)
        else:
            places, parts = encode_texts(
                work.scratch / f"features_{name}",
                texts,
                encoder=encoder,
                tokenizer=tokenizer,
                progress=lambda count, before=done: work.progress(before + count, total),
            )
            tokens_seen += int(torch.cat([part["lengths"] for part in parts])[places].sum())
            blocks = blocks_of(texts, places, [part["features"] for part in parts], lexicon)
            width = parts[0]["features"].shape[1] + (0 if lexicon is None else lexicon.columns)
            save_features(file, (len(texts), width), blocks)
        done += len(texts)
        work.progress(done, total)
        save_labels(work.out, name, load_labels(dataset, name))
    figures: dict[str, Any] = {"precision": model.precision} if encoder is not None else {}
    if lexicon is not None:
        figures["words"] = lexicon.columns
    figures |= {"tokens_per_record": round(tokens_seen / total, 1), "encoder": Path(model.encoder).name}
    return {"records": total} | figures


def encode_texts(
    folder: Path,
    texts: Sequence[str],
    *,
    encoder: Classifier,
    tokenizer: Callable[[Sequence[str]], TokenInputs],
    progress: Callable[[int], None],
) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    """Encodes each distinct text once and saves every `PART` of them, so that a killed run continues from there.

    Returns: the place of each record's text among the distinct ones, int64 [n]; features and lengths in tokens of
        these, in parts that are memory-mapped.
    """
    place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    distinct, places = list(place), torch.tensor([place[text] for text in texts], dtype=torch.int64)
    folder.mkdir(exist_ok=True)
    parts: list[dict[str, torch.Tensor]] = []
    for start in range(0, max(len(distinct), 1), PART):
        file = folder / f"{start:09d}.safetensors"
        if not file.is_file():
            tokens = tokenizer(distinct[start : start + PART])
            count = start

            def on_batch(records: int) -> None:
                nonlocal count
                count += records
                progress(count)

            features = encoder.encode(tokens, on_batch=on_batch).features
            checkpoint.save(file, {"features": features, "lengths": tokens.lengths}, {})
        parts.append(checkpoint.load(file)[0])
    return places, parts


def blocks_of(
    texts: Sequence[str], places: torch.Tensor, parts: Sequence[torch.Tensor], lexicon: Lexicon | None
) -> Iterator[torch.Tensor]:
    """Yields the features of all records in order, `PART` records at a time, with their words where there are any."""
    for start in range(0, len(texts), PART):
        wanted = places[start : start + PART]
        block = torch.empty(len(wanted), parts[0].shape[1])
        for part in torch.unique(wanted // PART).tolist():
            here = wanted // PART == part
            block[here] = parts[part][wanted[here] % PART]
        yield block if lexicon is None else lexicon.join(block, lexicon.words(texts[start : start + PART]))


def _states(work: Work, tokens: TokenInputs, *, model: ModelConfig, before: int, total: int) -> torch.Tensor | None:
    """Computes the states below the layers that train, which are as private as the records."""
    done = 0

    def on_batch(count: int) -> None:
        nonlocal done
        done += count
        work.progress(before + len(tokens) * done // len(tokens.ids), total)

    device = classifier.device_of(work.context.device)
    return classifier.states(model, tokens, device=device, on_batch=on_batch)


def save_labels(folder: Path, split: str, labels: Sequence[int] | NDArray[np.int64]) -> None:
    """Saves labels of a split ([n]; of several fields [n, fields]) next to its inputs, for `load_inputs`."""
    save_file({"labels": torch.as_tensor(labels, dtype=torch.int64)}, folder / f"{split}_labels.safetensors")
