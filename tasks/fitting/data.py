"""Stages that turn records into a classifier's inputs: tokens or features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mechanisms.model.config import ModelConfig
from storage.artifacts import ArtifactRef, Store
from storage.datasets import (
    SplitWriter,
    load_codes,
    load_labels,
    load_split,
    load_table,
    split_file,
)
from storage.errors import Changed
from storage.json_values import Figures
from tasks.fitting.distinct_texts import DistinctTexts, text_batches
from tasks.fitting.model_inputs import SPLITS
from tasks.fitting.prior import encoder_digest, lexicon_of
from tasks.running.parts import Part, compute_part, run_parts_of
from tasks.running.stage import Step, Work

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from mechanisms.model.classifier import Classifier
    from mechanisms.model.inputs import TokenInputs
    from mechanisms.model.lexicon import Lexicon
    from storage.json_values import Json

PART = 512
"""Number of texts encoded and saved together, small enough that several workers
finish at about the same time.
"""
_FEATURES = "features.safetensors"
_ALL = "train"
"""Name of the split with the distinct texts of several data sets."""


class Texts(Part, frozen=True):
    """A range of distinct texts of a split for a frozen encoder. The data set is
    the stage's input.
    """

    model: ModelConfig
    encoder_digest: str
    split: str


def prepare(
    model: ModelConfig,
    dataset: ArtifactRef | None,
    *,
    encoding: Mapping[str, ArtifactRef | None] | None = None,
) -> Step:
    """Prepares both splits: tokens, or the frozen encoder's features.

    Args:
        encoding: outputs of `distinct_texts` and `encoding_of`, named `texts` and `encoding`, if
            the texts are already encoded.
    """
    head = model.trainable == "head"
    config = _encoder_of(model)
    if model.lexical != "none":
        config |= model.model_dump(
            include={"lexical", "lexical_titles", "lexical_language", "prior_sentence"}
        )
    if model.lora_layers is not None:
        config |= model.model_dump(include={"lora_layers", "precision"})
    return Step(
        name="features" if head else "tokens",
        label="features" if head else "tokens",
        config=config,
        inputs={"dataset": dataset, **(encoding or {})},
        body=partial(_prepare, model=model, encoder_digest=str(config["encoder_digest"])),
        modules=("tasks.fitting.data",),
    )


def _encoder_of(model: ModelConfig) -> dict[str, Json]:
    config: dict[str, Json] = model.model_dump(include={"encoder", "max_length"})
    if model.trainable == "head":
        config["pooling"] = model.pooling
        if model.precision != "float32":
            config["precision"] = model.precision
    return config | {"encoder_digest": encoder_digest(model)}


def distinct_texts(datasets: Sequence[ArtifactRef | None]) -> Step:
    """Collects the distinct texts of several data sets of the same records, which
    differ only in their codes.
    """

    def body(work: Work) -> Figures:
        columns = [
            load_table(folder, split).column("text")
            for folder in work.inputs.values()
            for split in SPLITS
        ]
        all_texts = pa.chunked_array([chunk for column in columns for chunk in column.chunks])
        texts = pa.table({"text": all_texts.unique()}).sort_by("text")
        with SplitWriter(split_file(work.out, _ALL), texts.schema) as writer:
            writer.write(texts)
        return {"texts": texts.num_rows}

    return Step(
        name="texts",
        label="texts",
        config={},
        inputs={f"dataset_{number}": dataset for number, dataset in enumerate(datasets)},
        body=body,
        modules=("tasks.fitting.data",),
    )


def encoding_of(model: ModelConfig, texts: ArtifactRef | None) -> Step:
    """Encodes the output of `distinct_texts`, once for all releases that are planned together."""
    config = _encoder_of(model)

    def body(work: Work) -> Figures:
        from mechanisms.model import checkpoint

        number = load_table(work.inputs["dataset"], _ALL).num_rows
        work.sized(number)
        (parts,) = _parts(work, model, str(config["encoder_digest"]), [_ALL])
        for n, part in enumerate(parts):
            checkpoint.save(work.out / f"{n:06d}.safetensors", part, {})
        return {"texts": number}

    return Step(
        name="encoding",
        label="encoding",
        config=config,
        inputs={"dataset": texts},
        body=body,
        modules=("tasks.fitting.data",),
    )


def _parts(
    work: Work, model: ModelConfig, encoder_digest: str, splits: Sequence[str]
) -> list[list[dict[str, torch.Tensor]]]:
    """Encodes the distinct texts of several splits together, and returns the parts
    of each split.
    """
    from mechanisms.model import checkpoint

    parts = [
        part
        for split in splits
        for part in Texts(
            end=max(len(_distinct(work.inputs["dataset"], split)), 1),
            model=model.frozen(),
            encoder_digest=encoder_digest,
            split=split,
        ).cut(PART)
    ]
    paths = run_parts_of(work, encode, parts, part_step)
    tensors = [
        (part.split, checkpoint.load(path / _FEATURES)[0])
        for part, path in zip(parts, paths, strict=True)
    ]
    return [[features for name, features in tensors if name == split] for split in splits]


def _prepare(work: Work, *, model: ModelConfig, encoder_digest: str) -> Figures:
    import torch

    from mechanisms.model import checkpoint
    from mechanisms.model.inputs import save_features

    dataset = work.inputs["dataset"]
    splits = {name: load_split(dataset, name) for name in SPLITS}
    total = sum(map(len, splits.values()))
    lexicon = lexicon_of(work.context, model, load_codes(dataset))
    work.sized(total)
    tokens_seen, done, all_encoded, parts = 0, 0, None, []
    if model.trainable == "head" and "encoding" in work.inputs:
        all_encoded = _distinct(work.inputs["texts"], _ALL)
        encoded = [
            checkpoint.load(part)[0]
            for part in sorted(work.inputs["encoding"].glob("*.safetensors"))
        ]
        parts = [encoded] * len(splits)
    elif model.trainable == "head":
        parts = _parts(work, model, encoder_digest, list(splits))
    for number, (name, split) in enumerate(splits.items()):
        file = work.out / f"{name}.safetensors"
        if model.trainable != "head":
            tokens = _tokens(split, model, lexicon)
            tokens_seen += int(tokens.offsets[-1])
            states = _states(work, tokens, model=model, before=done, total=total)
            replace(tokens, states=states).save(file)
            done += len(split)
            work.progress(done, total)
        else:
            distinct = _distinct(dataset, name) if all_encoded is None else all_encoded
            places = distinct.places_in(split)
            tokens_seen += int(torch.cat([part["lengths"] for part in parts[number]])[places].sum())
            blocks = blocks_of(split, places, [part["features"] for part in parts[number]], lexicon)
            width = parts[number][0]["features"].shape[1] + (
                0 if lexicon is None else lexicon.columns
            )
            save_features(file, (len(split), width), blocks)
        save_labels(work.out, name, load_labels(dataset, name))
    _encoder.cache_clear()
    _distinct.cache_clear()
    figures: dict[str, Json] = {"precision": model.precision} if model.trainable == "head" else {}
    if lexicon is not None:
        figures["words"] = lexicon.columns
    figures |= {
        "tokens_per_record": round(tokens_seen / total, 1),
        "encoder": Path(model.encoder).name,
    }
    return {"records": total} | figures


def encode(request: str) -> str:
    return compute_part(request, Texts, part_step)


def part_step(store: Store, texts: Texts, inputs: Mapping[str, ArtifactRef]) -> Step:
    """Returns the stage that encodes texts: features float32 [m, width], and
    lengths in tokens, int64 [m].
    """

    def body(work: Work) -> Figures:
        from mechanisms.model import checkpoint

        if encoder_digest(texts.model) != texts.encoder_digest:
            raise Changed(
                f"encoder {Path(texts.model.encoder).name}: its files differ from those of the run",
                kind="encoder-changed",
            )
        distinct = _distinct(work.inputs["dataset"], texts.split)
        tokenizer, encoder = _encoder(texts.model, work.context.device)
        tokens = tokenizer(distinct.texts(texts.first, texts.end))
        work_done = tokens.lengths.sort(descending=True).values.cumsum(0) / tokens.lengths.sum()
        encoded = 0

        def on_batch(number: int) -> None:
            nonlocal encoded
            encoded += number  # the longest first, so progress is measured in tokens, not in texts
            work.progress(int(texts.size * work_done[encoded - 1]), texts.size)

        features = encoder.encode(tokens, on_batch=on_batch).features
        checkpoint.save(work.out / _FEATURES, {"features": features, "lengths": tokens.lengths}, {})
        return {}

    return Step(
        name="features-part",
        label=f"features of {texts.split} texts {texts.first + 1} to {texts.end}",
        config=texts.model_dump(mode="json"),
        inputs=dict(inputs),
        body=body,
        modules=(__name__,),
    )


@lru_cache(maxsize=1)
def _encoder(
    model: ModelConfig, device: str
) -> tuple[Callable[[Sequence[str]], TokenInputs], Classifier]:
    from mechanisms.model import classifier

    return classifier.tokenizer(model), classifier.build(
        model, num_labels=2, seed=0, device=classifier.device_of(device)
    )


@lru_cache(maxsize=2)
def _distinct(dataset: Path, split: str) -> DistinctTexts:
    return DistinctTexts.of(dataset, split)


def _tokens(split: Dataset, model: ModelConfig, lexicon: Lexicon | None) -> TokenInputs:
    from mechanisms.model import classifier
    from mechanisms.model.inputs import joined

    tokenize = classifier.tokenizer(model)
    parts = []
    for texts in text_batches(split, PART):
        words = None if lexicon is None else lexicon.words(texts)
        parts.append(replace(tokenize(texts), words=words))
    return cast("TokenInputs", joined(parts or [tokenize([])]))


def blocks_of(
    split: Dataset,
    places: torch.Tensor,
    parts: Sequence[torch.Tensor],
    lexicon: Lexicon | None,
) -> Iterator[torch.Tensor]:
    """Yields the features of all records in order, `PART` records at a time, with
    word features if there are any.
    """
    import torch

    for number, texts in enumerate(text_batches(split, PART)):
        wanted = places[number * PART : number * PART + len(texts)]
        block = torch.empty(len(wanted), parts[0].shape[1])
        for part in torch.unique(wanted // PART).tolist():
            here = wanted // PART == part
            block[here] = parts[part][wanted[here] % PART]
        yield (block if lexicon is None else lexicon.join(block, lexicon.words(texts)))


def _states(
    work: Work, tokens: TokenInputs, *, model: ModelConfig, before: int, total: int
) -> torch.Tensor | None:
    from mechanisms.model import classifier

    done = 0

    def on_batch(count: int) -> None:
        nonlocal done
        done += count
        work.progress(before + len(tokens) * done // len(tokens.ids), total)

    device = classifier.device_of(work.context.device)
    return classifier.states(model, tokens, device=device, on_batch=on_batch)


def save_labels(folder: Path, split: str, labels: Sequence[int] | NDArray[np.int64]) -> None:
    """Saves labels [n] of a split next to its inputs, for `load_inputs`."""
    import torch
    from safetensors.torch import save_file

    save_file(
        {"labels": torch.as_tensor(labels, dtype=torch.int64)},
        folder / f"{split}_labels.safetensors",
    )
