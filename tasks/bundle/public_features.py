"""Stores the features of public texts by the digest of the encoder: every release reads them.

They depend on no record: neither the texts nor a frozen encoder do. An encoder that trains is
another one after each fit, so that its features are not stored. Those of the generated narratives
by the packaged encoder come with the program (`scripts/generated_features.py`); others are stored
in the workspace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from mechanisms.model import checkpoint
from mechanisms.model.classifier import MeanPooled
from mechanisms.model.export import Released
from storage.artifacts import digest
from storage.egress.gate import tokenizer_digest

PACKAGED = Path(__file__).with_name("generated_features.safetensors")


def logits(
    released: Released, texts: Sequence[str], *, folder: Path, encoder: str | None = None
) -> Tensor:
    """Returns `released.logits(texts)`, from stored features where the model is a linear head on a
    mean.
    """
    model = released.model
    if not isinstance(model, MeanPooled):
        return released.logits(texts)
    return logits_from(
        released, _features(released, texts, folder, encoder or encoder_digest(released)), texts
    )


def logits_from(released: Released, features: Tensor, texts: Sequence[str]) -> Tensor:
    """Returns a mean-pooled model's scores from its encoder's features of these texts, float32 [n,
    codes].
    """
    model = released.model
    assert isinstance(model, MeanPooled)
    words = None if model.lexicon is None else model.lexicon.words(texts)
    with torch.inference_mode():
        return model.scores(features, words)


def _features(released: Released, texts: Sequence[str], folder: Path, encoder: str) -> Tensor:
    file = folder / f"{_key(released, texts, encoder)[:32]}.safetensors"
    try:
        return checkpoint.load(file)[0]["features"]
    except (OSError, SafetensorError, KeyError):  # absent or damaged
        pass
    stored, described = checkpoint.load(PACKAGED)
    if (
        described["public"] == key_of_packaged(texts, encoder)
        and released.max_length >= described["tokens"]
    ):
        return stored["features"]
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(file, {"features": compute(released, texts)}, {"texts": len(texts)})
    return checkpoint.load(file)[0]["features"]


def compute(released: Released, texts: Sequence[str]) -> Tensor:
    """Computes the features of texts by a mean-pooled model's encoder, float32 [n, width]."""
    model = released.model
    assert isinstance(model, MeanPooled)
    width = model.head.in_features - (0 if model.lexicon is None else model.lexicon.columns)
    pooled = MeanPooled(model.encoder, width, 1)
    pooled.head = nn.Identity()  # pyrefly: ignore[bad-assignment]
    alone = replace(released, model=pooled.eval(), codes=tuple(map(str, range(width))))
    return alone.logits(texts)


def encoder_digest(released: Released) -> str:
    """Returns a digest of a mean-pooled model's encoder and tokenizer; empty for another model."""
    if not isinstance(released.model, MeanPooled):
        return ""
    weights = hashlib.sha256()
    for name, tensor in sorted(released.model.encoder.state_dict().items()):
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    tokenizer = tokenizer_digest(json.loads(released.tokenizer.backend_tokenizer.to_str()))
    return digest({"encoder": weights.hexdigest(), "tokenizer": tokenizer})


def key_of_packaged(texts: Sequence[str], encoder: str) -> str:
    """Returns a digest of texts and encoder; none of the texts may be longer than what the model
    reads.
    """
    return digest({"encoder": encoder, "texts": list(texts)})


def _key(released: Released, texts: Sequence[str], encoder: str) -> str:
    return digest(
        {
            "encoder": encoder,
            "max_length": released.max_length,
            "texts": list(texts),
            "torch": torch.__version__,
            "processor": torch.backends.cpu.get_cpu_capability(),
        }
    )
