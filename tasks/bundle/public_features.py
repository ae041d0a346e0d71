"""Caches the features of public texts by a frozen encoder for all bundles of a process.

Neither the texts nor a frozen encoder depend on any record. The packaged encoder's features of the
generated narratives ship with the program (`scripts/generated_features.py`). No feature is read
from the workspace, because whoever can write there could then determine test vectors and
thresholds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from mechanisms.model import checkpoint
from mechanisms.model.classifier import MeanPooled
from mechanisms.model.export import Released
from storage.artifacts import digest
from storage.egress.gate import tokenizer_digest

PACKAGED = Path(__file__).with_name("generated_features.safetensors")


def logits(released: Released, texts: Sequence[str], *, encoder: str | None = None) -> Tensor:
    """Returns `released.logits(texts)`. Cached features are used if the model is a linear head on
    mean-pooled features.
    """
    model = released.model
    if not isinstance(model, MeanPooled):
        return released.logits(texts)
    features = _features(released, texts, encoder or encoder_digest(released))
    return logits_from(released, features, texts)


def logits_from(released: Released, features: Tensor, texts: Sequence[str]) -> Tensor:
    """Returns a mean-pooled model's scores, float32 [n, codes], from its encoder's features of
    these texts.
    """
    model = released.model
    assert isinstance(model, MeanPooled)
    words = None if model.lexicon is None else model.lexicon.words(texts)
    with torch.inference_mode():
        return model.scores(features, words)


def _features(released: Released, texts: Sequence[str], encoder: str) -> Tensor:
    public = key_of_packaged(texts, encoder)
    stored, described = checkpoint.load(PACKAGED)
    if described["public"] == public and released.max_length >= described["tokens"]:
        return stored["features"]
    key = (public, released.max_length)
    if key not in _COMPUTED:
        if len(_COMPUTED) == _MOST_COMPUTED:
            del _COMPUTED[next(iter(_COMPUTED))]
        _COMPUTED[key] = compute(released, texts)
    return _COMPUTED[key]


_COMPUTED: dict[tuple[str, int], Tensor] = {}
_MOST_COMPUTED = 8


def compute(released: Released, texts: Sequence[str]) -> Tensor:
    """Computes the features of texts with a mean-pooled model's encoder, float32 [n, width]."""
    model = released.model
    assert isinstance(model, MeanPooled)
    width = model.head.in_features - (0 if model.lexicon is None else model.lexicon.columns)
    pooled = MeanPooled(model.encoder, width, 1)
    pooled.head = nn.Identity()  # pyrefly: ignore[bad-assignment]
    alone = replace(released, model=pooled.eval(), codes=tuple(map(str, range(width))))
    return alone.logits(texts)


def encoder_digest(released: Released) -> str:
    """Returns a digest of a mean-pooled model's encoder and tokenizer; empty for other models."""
    if not isinstance(released.model, MeanPooled):
        return ""
    weights = hashlib.sha256()
    for name, tensor in sorted(released.model.encoder.state_dict().items()):
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    tokenizer = tokenizer_digest(json.loads(released.tokenizer.backend_tokenizer.to_str()))
    return digest({"encoder": weights.hexdigest(), "tokenizer": tokenizer})


def key_of_packaged(texts: Sequence[str], encoder: str) -> str:
    """Returns a digest of texts and encoder. No text may be longer than the model's input."""
    return digest({"encoder": encoder, "texts": list(texts)})
