"""Stage: the code list through the frozen encoder, once a list and encoder. It is public: no record is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechanisms.model import checkpoint, classifier, encoders, prior
from mechanisms.model.classifier import Classifier, ModelConfig
from storage.artifacts import digest, files_digest
from storage.codelist import Code, read_codelist, told, told_in_place, told_in_sentence
from storage.datasets import load_spaces
from storage.errors import InputError
from tasks.running.stage import Context, Step, Work, run_step

_FILE = "titles.safetensors"


def stages(model: ModelConfig, codelists: Mapping[str, Path | None]) -> list[Step]:
    """What a run needs of this before its fits: nothing without a prior, else one for the code list of each field.

    Args:
        codelists: those whose every code is a class. Which codes are observed is known after ingest: `start` does them.
    """
    if model.prior == "none":
        return []
    return [titles(model, read_codelist(file), field=name) for name, file in codelists.items() if file is not None]


def titles(model: ModelConfig, codes: Sequence[Code], *, field: str = "") -> Step:
    """Embeddings of each code's public text, of one field.

    Raises:
        InputError: no code has a title.
    """
    model = model.of_field(field)
    texts = [told(codes), told_in_place(codes)]
    if model.prior_sentence:
        texts.append(
            [said or own for said, own in zip(told_in_sentence(codes, model.prior_sentence), texts[0], strict=True)]
        )
    if not any(texts[0]):
        option = f"data.ingest.fields.{field}.codelist" if field else "--codelist"
        raise InputError(f"model.prior: no code of the list has a title; give {option} one that has, or --prior none")
    files = encoders.digest_parts(model.encoder)
    return Step(
        name="titles",
        label=f"titles of {field}" if field else "titles",
        config={
            "texts": digest(texts),
            "encoder_digest": files_digest(files) if files else encoders.revision(model.encoder),
            "max_length": model.max_length,
        },
        inputs={},
        body=partial(_embed, model=model, texts=texts),
        modules=("tasks.fitting.prior",),
    )


def _embed(work: Work, *, model: ModelConfig, texts: list[list[str]]) -> Mapping[str, Any]:
    device = classifier.device_of(work.context.device)
    embeddings = prior.embed(model, [text for kind in texts for text in kind], device=device)
    known = [bool(text) for text in texts[0]]
    kinds = {"embeddings": embeddings.unflatten(0, (len(texts), len(known)))}
    checkpoint.save(work.out / _FILE, kinds, {"known": known})
    return {"codes": len(known), "with_text": sum(known)}


def start(context: Context, built: Classifier, dataset: Path) -> None:
    """Put the prior of a data set's code lists into an untrained classifier; computed here where no run has yet."""
    spaces = load_spaces(dataset)
    rows = (slice(None),) if built.fields is None else built.fields.spans
    for (name, codes), own in zip(spaces.items(), rows, strict=True):
        step = titles(built.config, codes, field=name)
        folder = context.store.open(step.find(context.store) or run_step(context, step))
        tensors, told = checkpoint.load(folder / _FILE)
        prior.start(built, tensors["embeddings"], torch.tensor(told["known"]), rows=own)
