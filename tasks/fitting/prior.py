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
from storage.codelist import Code, in_place, read_codelist
from storage.datasets import load_codes
from storage.errors import InputError
from tasks.running.stage import Context, Step, Work, run_step

_FILE = "titles.safetensors"


def stages(model: ModelConfig, codelist: Path | None) -> list[Step]:
    """What a run needs of this before its fits: nothing without a prior."""
    return [] if model.prior == "none" or codelist is None else [titles(model, read_codelist(codelist))]


def titles(model: ModelConfig, codes: Sequence[Code]) -> Step:
    """Embeddings of each code's public text.

    Raises:
        InputError: no code has a title.
    """
    texts = in_place(codes)
    if not any(texts):
        raise InputError("model.prior: no code of the list has a title; give --codelist one that has, or --prior none")
    files = encoders.digest_parts(model.encoder)
    return Step(
        name="titles",
        label="titles",
        config={
            "texts": digest(texts),
            "encoder_digest": files_digest(files) if files else encoders.revision(model.encoder),
            "max_length": model.max_length,
        },
        inputs={},
        body=partial(_embed, model=model, texts=texts),
        modules=("tasks.fitting.prior",),
    )


def _embed(work: Work, *, model: ModelConfig, texts: list[str]) -> Mapping[str, Any]:
    embeddings = prior.embed(model, texts, device=classifier.device_of(work.context.device))
    known = [bool(text) for text in texts]
    checkpoint.save(work.out / _FILE, {"embeddings": embeddings}, {"known": known})
    return {"codes": len(texts), "with_text": sum(known)}


def start(context: Context, built: Classifier, dataset: Path) -> None:
    """Put the prior of a data set's code list into an untrained classifier; computed here where no run has yet."""
    step = titles(built.config, load_codes(dataset))
    folder = context.store.open(step.find(context.store) or run_step(context, step))
    tensors, told = checkpoint.load(folder / _FILE)
    prior.start(built, tensors["embeddings"], torch.tensor(told["known"]))
