"""Log-likelihoods at the parameters that a classifier holds now, in float32 or, roughly, in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import Batch, Inputs, TokenInputs, length_sorted_batches, token_budget_batches
from mechanisms.model.linear import fast_linear
from mechanisms.model.rounded import RoundedModel
from mechanisms.model.threads import forward_batch_size, forward_tokens


@dataclass
class Float32:
    """Computes in float32, as training and release do."""

    classifier: Classifier
    inputs: Inputs

    def batches(self, size: int | None) -> Iterator[Tensor]:
        """Yields the indices of batches of so many records, or of as many as are fastest."""
        size = size or forward_batch_size(self.inputs, self.classifier.device)
        return length_sorted_batches(self.inputs, batch_size=size)

    def batch(self, index: Tensor) -> Batch:
        """Puts the records at `index`, int64 [b], on the classifier's device."""
        return self.inputs.batch(index, self.classifier.device)

    def reload(self) -> None:
        """Does nothing: no parameter is kept here."""

    def log_likelihood(self, batch: Batch, labels: Tensor) -> Tensor:
        with fast_linear(self.classifier.device):
            return self.classifier.log_likelihood(batch, labels)


class Bfloat16(Float32):
    """Computes in bfloat16: by a copy of the encoder where its layout is known, else by autocast."""

    def __init__(self, classifier: Classifier, inputs: Inputs) -> None:
        super().__init__(classifier, inputs)
        reads_tokens = isinstance(inputs, TokenInputs) and inputs.states is None
        self._rounded = RoundedModel.of(classifier.whole) if reads_tokens else None

    def reload(self) -> None:
        """Rounds the encoder's weights of this moment."""
        if self._rounded is not None:
            self._rounded.reload()

    def batches(self, size: int | None) -> Iterator[Tensor]:
        """Yields the indices of batches of so many records, or of as many as are fastest."""
        if self._rounded is None or size is not None:
            return super().batches(size)
        assert isinstance(self.inputs, TokenInputs)
        return token_budget_batches(self.inputs, budget=forward_tokens("bfloat16", self.classifier.device))

    def log_likelihood(self, batch: Batch, labels: Tensor) -> Tensor:
        if self._rounded is None:
            with torch.autocast(self.classifier.device.type, torch.bfloat16):
                return self.classifier.log_likelihood(batch, labels)
        return self.classifier.log_likelihood_of(self._rounded.logits(batch, batch.get("words")), labels)
