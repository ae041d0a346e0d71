"""Clipped gradient sums of a head on cached features, in closed form: no autograd, no hooks, no per-record gradients.

Linear head, logits z = W x + b, residual e = softmax(z) - onehot(y):

    grad_i = (e_i x_i', e_i),    || grad_i ||^2 = || e_i ||^2 (|| x_i ||^2 + 1)

Two layers, h = tanh(V x + a), z = W h + b, and f = (W' e) * (1 - h^2):

    || grad_i ||^2 = || e_i ||^2 (|| h_i ||^2 + 1) + || f_i ||^2 (|| x_i ||^2 + 1)

and the clipped sum is one matrix product a layer, (c e)' [x, 1]. The heads are the linear one (mean pooling),
BERT's (pooler, classifier) and RoBERTa's (dense, tanh, projection), without their dropout (`mechanisms.dp_sgd` says
why).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import encoders
from mechanisms.model.classifier import Classifier
from mechanisms.model.ghost import Coefficients
from mechanisms.model.inputs import Batch, FeatureInputs, Inputs

_LEAST = -60.0
"""exp(-60) is nothing beside 1; less would be denormal numbers, on which processors are ten times slower."""


def has_closed_form(classifier: Classifier, inputs: Inputs) -> bool:
    """Checks whether `HeadClipping` knows the head: one of those above, on features."""
    known = (nn.Linear, encoders._BertHead, encoders._RobertaHead)
    return isinstance(inputs, FeatureInputs) and isinstance(classifier.part, known)


@dataclass(frozen=True)
class _Affine:
    """A linear layer's live parameters and where its gradient lies in the flat vector."""

    layer: nn.Linear
    weight: slice
    bias: slice

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.layer.weight, self.layer.bias)

    def add(self, x: Tensor, scaled: Tensor, out: Tensor) -> None:
        """Adds sum_i scaled_i [x_i, 1]' to the flat gradient."""
        out[self.weight].view(self.layer.weight.shape).addmm_(scaled.t(), x)
        out[self.bias] += scaled.sum(0)


class HeadClipping:
    """Clipped gradient sums of a linear or two-layer head, as `ghost.GhostClipping` has them; refuses others."""

    def __init__(self, classifier: Classifier) -> None:
        part: Any = classifier.part
        self._hidden: nn.Linear | None = None
        match part:
            case nn.Linear():
                output = part
            case encoders._BertHead():
                self._hidden, output = cast(nn.Linear, part.pooler.dense), cast(nn.Linear, part.classifier)
            case encoders._RobertaHead():
                self._hidden, output = part.classifier.dense, part.classifier.out_proj
            case _:
                raise MechanismError(
                    f"DP-SGD: head `{type(part).__name__}` has no closed form here; supported are a linear layer and "
                    "the standard heads of BERT and RoBERTa"
                )
        self._output = _affine(classifier, output)
        self._first = None if self._hidden is None else _affine(classifier, self._hidden)

    def __enter__(self) -> HeadClipping:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @torch.no_grad()
    def add_clipped_sum(
        self, batch: Batch, labels: Tensor, *, coefficients: Coefficients, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add sum_i c_i grad(-l_i) over one micro-batch to `out`, float [P]. A record whose gradient is not finite adds
        nothing. Norms, factors and products have the precision of `out`.

        Returns:
            Gradient norms before clipping, of the precision of `out`, and losses -l_i, float32, [b] each.
        """
        x = batch["features"]
        h, slope = x, None
        if self._first is not None:
            h = torch.tanh(self._first(x))
            slope = 1 - h.square()
        log_probabilities = self._output(h).log_softmax(-1)
        losses = -log_probabilities.gather(1, labels[:, None])[:, 0]
        residual = log_probabilities.clamp_(min=_LEAST).exp_()
        residual.scatter_add_(1, labels[:, None], residual.new_full((len(labels), 1), -1.0))
        inner = None if slope is None else (residual @ self._output.layer.weight).mul_(slope).to(out.dtype)
        length = x.square().sum(1)
        x, h, residual = x.to(out.dtype), h.to(out.dtype), residual.to(out.dtype)
        squared = residual.square().sum(1) * (h.square().sum(1) + 1)
        if inner is not None:
            squared += inner.square().sum(1) * (x.square().sum(1) + 1)
        norms = squared.sqrt()
        finite = (squared.float() + length).isfinite()[:, None]  # beyond float32 is beyond what the layers compute
        factors = coefficients(norms).to(out.dtype)[:, None]

        def of_finite(values: Tensor) -> Tensor:
            return values.where(finite, 0.0)  # nothing times infinity would be everybody's

        self._output.add(of_finite(h), of_finite(residual * factors), out)
        if self._first is not None and inner is not None:
            self._first.add(of_finite(x), of_finite(inner * factors), out)
        return norms, losses


def _affine(classifier: Classifier, layer: nn.Linear) -> _Affine:
    return _Affine(layer, weight=classifier.spans[id(layer.weight)], bias=classifier.spans[id(layer.bias)])
