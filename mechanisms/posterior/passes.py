"""Log-likelihoods at the parameters that a classifier holds now, in float32 or, roughly, in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import Batch, Inputs, TokenInputs, length_sorted_batches
from mechanisms.model.linear import fast_linear
from mechanisms.model.packed_model import PackedModel
from mechanisms.model.threads import forward_batch_size


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
        """Returns the log-likelihoods of a batch, float32 [b]."""
        with fast_linear(self.classifier.device):
            return self.classifier.log_likelihood(batch, labels)


class Bfloat16(Float32):
    """Computes in bfloat16: through the packed encoder where its layout is known, else by autocast."""

    def __init__(self, classifier: Classifier, inputs: Inputs) -> None:
        super().__init__(classifier, inputs)
        self.reload()

    def reload(self) -> None:
        """Packs the encoder again, with the parameters of this moment."""
        reads_tokens = isinstance(self.inputs, TokenInputs) and self.inputs.states is None
        self._packed = PackedModel.of(self.classifier.whole, "bfloat16") if reads_tokens else None

    def batches(self, size: int | None) -> Iterator[Tensor]:
        """Yields the indices of batches of so many records, or of as many as are fastest."""
        if self._packed is None or size is not None:
            return super().batches(size)
        assert isinstance(self.inputs, TokenInputs)
        return self._packed.batches(self.inputs)

    def batch(self, index: Tensor) -> Any:
        """Puts the records at `index`, int64 [b], on the classifier's device."""
        if self._packed is None:
            return super().batch(index)
        assert isinstance(self.inputs, TokenInputs)
        return self._packed.batch(self.inputs, index)

    def log_likelihood(self, batch: Any, labels: Tensor) -> Tensor:
        """Returns the log-likelihoods of a batch, float32 [b]."""
        if self._packed is None:
            with torch.autocast(self.classifier.device.type, torch.bfloat16):
                return self.classifier.log_likelihood(batch, labels)
        return self.classifier.log_likelihood_of(self._packed.logits(batch), labels)
