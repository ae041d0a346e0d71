"""Scores of a whole model, encoder and head, through the packed encoder. The head, a small product, stays float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mechanisms.model import encoders
from mechanisms.model.classifier import MeanPooled
from mechanisms.model.config import Precision
from mechanisms.model.inputs import TokenInputs, token_budget_batches
from mechanisms.model.packed import PackedEncoder, PackedTokens


@dataclass(frozen=True)
class PackedModel:
    """Holds a model whose encoder is packed."""

    encoder: PackedEncoder
    head: Any
    """From pooled features to logits; of mean pooling, features and words."""
    mean: bool

    @classmethod
    def of(cls, model: nn.Module, precision: Precision) -> PackedModel | None:
        """Packs the encoder with its present weights; None where its layout is not known."""
        mean = isinstance(model, MeanPooled)
        encoder = PackedEncoder.of(model.encoder if mean else encoders.base(model), precision)
        if encoder is None:
            return None
        return cls(encoder, model.scores if mean else encoders.standard_head(model), mean)

    def batches(self, tokens: TokenInputs) -> Iterator[Tensor]:
        """Yields the indices of batches, longest records first."""
        return token_budget_batches(tokens, budget=self.encoder.batch_tokens)

    def batch(self, tokens: TokenInputs, index: Tensor) -> PackedTokens:
        """Packs the records at `index`, int64 [b]."""
        return self.encoder.batch(tokens, index)

    def logits(self, batch: PackedTokens, words: Tensor | None = None) -> Tensor:
        """Returns scores, float32 [b, labels]; `words` [b, columns] is the lexicon's block, if the head reads one."""
        if self.mean:
            return self.head(self.encoder.features(batch, pooling="mean"), words)
        return self.head(self.encoder.features(batch, pooling="first"))
