"""Sums of per-record gradients, each clipped and rounded to integers, from one forward and one
backward pass.

Autograd computes only the gradients of layer outputs. The gradients of each record follow from
these and the layer inputs. For a linear layer on one vector per record, with input a_i and output
gradient g_i, the closed form is

  grad_i = g_i a_i'
  || grad_i ||^2 = || g_i ||^2 (|| a_i ||^2 + 1) with a bias
  sum_i c_i grad_i = (c g)' a

An embedding table uses the rows that the record looks up, and every other layer uses Opacus'
samplers. The norm is computed from the same numbers that are added, so that no cancellation can
hide a part of the gradient.

**Exact arithmetic.** A record adds integers: its clipped gradient in units of 2^-bits, with every
entry rounded towards zero. In the closed form a_i, divided by its length, is rounded to integers,
and g_i is rounded towards zero. Rounding towards zero only shortens a vector. The relative float64
rounding errors of norm, factor and products are below (P + 9) 2^-53 for P parameters in any order,
which is less than the margin of `_INSIDE` for P below 2^32. So no record adds more than its clip,
to the last bit, and sums below 2^53 are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import Batch

Coefficients = Callable[[Tensor], Tensor]
"""Gradient norms float [b] -> factors c float [b] with c_i norm_i at most the clip."""
_BLOCK = 1 << 14
"""Number of parameters whose gradients are converted to float64 at a time. The block stays in
cache, which is ten times faster than converting all at once.
"""
_INSIDE = 1 - 2.0**-20
_INPUT_BITS = 15
"""Fractional bits of a layer input divided by its length, in the closed form. The output gradient
gets the remaining bits.
"""


class RecordClipping:
    """Clipped gradient sums of one classifier, as a context manager: its hooks are on the model
    only inside the block.

    Raises:
        MechanismError: a layer mixes records, or has trainable parameters but no sampler.
    """

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self._layers = _layers(classifier)
        self._handles: list[Any] = []
        self._calls: list[tuple[nn.Module, Tensor, Tensor]] = []
        self._records = 0

    def __enter__(self) -> RecordClipping:
        self._handles = [layer.register_forward_hook(self._see) for layer in self._layers]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._calls.clear()

    def add_clipped_sum(
        self, batch: Batch, labels: Tensor, *, coefficients: Coefficients, bits: int, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Adds sum_i c_i grad(-l_i) over one micro-batch to `out`, integers as float64 [P] in units
        of 2^-bits.

        A record with a non-finite gradient adds nothing.

        Returns:
            Gradient norms before clipping, float64 [b], and losses -l_i, float32 [b].
        """
        self._calls.clear()
        self._records = len(labels)
        with torch.enable_grad():
            losses = -self._classifier.log_likelihood(batch, labels)
            outputs = [output for _, _, output in self._calls]
            gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        squared, spans = (
            torch.zeros(len(labels), dtype=out.dtype, device=out.device),
            self._classifier.spans,
        )
        adders: list[Callable[[Tensor], None]] = []
        used: set[int] = set()
        for (layer, inputs, _), gradient in zip(self._calls, gradients, strict=True):
            if gradient is None:
                continue
            owned = {id(p) for p in layer.parameters(recurse=False)} & spans.keys()
            if used & owned:
                raise MechanismError(
                    "DP-SGD: a layer runs twice, or layers share a weight. Train another part",
                    kind="shared-weights",
                )
            used |= owned
            way: Any = _sampled
            if isinstance(layer, nn.Embedding):
                way = _looked_up
            elif isinstance(layer, nn.Linear) and inputs[0].numel() == inputs.shape[-1]:
                way = _closed_form
            adders.append(way(layer, spans, inputs, gradient, squared, out))
        self._calls.clear()
        norms = squared.sqrt()
        # guard: test_a_record_beyond_float32_ends_no_run
        # the layers compute in float32, so larger values have already overflowed
        finite = squared.float().isfinite()
        factors = coefficients(norms.where(finite, 0.0)) * (_INSIDE * 2.0**bits)
        for add in adders:
            add(factors.where(finite, 0.0))
        return norms, losses.detach()

    def _see(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return output
        inputs = args[0].detach()
        # position embeddings are looked up once for the whole batch
        if output.shape[0] != self._records:
            output = output.expand(self._records, *output.shape[1:])
            inputs = inputs.expand(self._records, *inputs.shape[1:])
        self._calls.append((layer, inputs, output))
        return output


def _closed_form(
    layer: nn.Linear,
    spans: Mapping[int, slice],
    inputs: Tensor,
    gradient: Tensor,
    squared: Tensor,
    out: Tensor,
) -> Callable[[Tensor], None]:
    a, g = (values.flatten(0, -2).to(out.dtype) for values in (inputs, gradient))
    weight, bias = spans.get(id(layer.weight)), spans.get(id(layer.bias))
    reach = (a.square().sum(1) if weight is not None else torch.zeros_like(squared)) + (
        bias is not None
    )
    squared += g.square().sum(1) * reach

    def add(factors: Tensor) -> None:
        length = reach.where(factors != 0, 1.0).sqrt_().clamp_(min=1e-150)
        scale = 2.0**_INPUT_BITS / length
        right, ones = _scaled(a, scale, factors).round_(), scale.round() * (bias is not None)
        norm = (right.square().sum(1) * (weight is not None) + ones.square()).sqrt_().clamp_(min=1)
        scaled_gradients = _scaled(g, factors * (length / norm), factors).trunc_()
        if weight is not None:
            out[weight].view(layer.weight.shape).addmm_(scaled_gradients.t(), right)
        if bias is not None:
            out[bias] += scaled_gradients.t() @ ones

    return add


def _sampled(
    layer: nn.Module,
    spans: Mapping[int, slice],
    inputs: Tensor,
    gradient: Tensor,
    squared: Tensor,
    out: Tensor,
) -> Callable[[Tensor], None]:
    samples = _samplers()[type(layer)](layer, [inputs], gradient)
    samples_by_span = [
        (spans[id(p)], sample.flatten(1)) for p, sample in samples.items() if id(p) in spans
    ]
    for _, sample in samples_by_span:
        for block in sample.split(_BLOCK, 1):
            squared += block.to(out.dtype).square().sum(1)

    def add(factors: Tensor) -> None:
        for span, sample in samples_by_span:
            for part, block in zip(out[span].split(_BLOCK), sample.split(_BLOCK, 1), strict=True):
                part += _scaled(block, factors, factors).trunc_().sum(0)

    return add


def _looked_up(
    layer: nn.Embedding,
    spans: Mapping[int, slice],
    ids: Tensor,
    gradient: Tensor,
    squared: Tensor,
    out: Tensor,
) -> Callable[[Tensor], None]:
    """Uses only the few rows that a record looks up; Opacus' sampler would create the whole table
    per record.
    """
    record = torch.arange(len(ids), device=ids.device).view(-1, *(1 for _ in ids.shape[1:]))
    rows, place = torch.unique((record * layer.num_embeddings + ids).flatten(), return_inverse=True)
    record, row = rows // layer.num_embeddings, rows % layer.num_embeddings
    sums = gradient.new_zeros(len(rows), layer.embedding_dim).index_add_(
        0, place, gradient.flatten(0, -2)
    )
    sums = sums.to(out.dtype)
    squared.index_add_(0, record, sums.square().sum(1))

    def add(factors: Tensor) -> None:
        row_factors = factors[record]
        added = _scaled(sums, row_factors, row_factors).trunc_()
        out[spans[id(layer.weight)]].view(layer.weight.shape).index_add_(0, row, added)

    return add


def _scaled(rows: Tensor, scale: Tensor, factors: Tensor) -> Tensor:
    scaled = rows * scale[:, None]
    scaled[factors == 0] = 0.0  # 0 times infinity is NaN, which would spread to every record's sum
    return scaled


def _samplers() -> dict[type[nn.Module], Callable[..., dict[nn.Parameter, Tensor]]]:
    from opacus.grad_sample import GradSampleModule  # takes seconds

    return GradSampleModule.GRAD_SAMPLERS


def _layers(classifier: Classifier) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for name, module in classifier.part.named_modules():
        label = f"{name or 'head'} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise MechanismError(
                f"DP-SGD: layer `{label}` mixes records. Replace batch by group normalisation",
                kind="batch-normalisation",
            )
        if not any(id(p) in classifier.spans for p in module.parameters(recurse=False)):
            continue
        if not isinstance(module, nn.Linear | nn.Embedding) and type(module) not in _samplers():
            raise MechanismError(
                f"DP-SGD: Opacus has no sampler for layer `{label}`. Train another part",
                kind="no-sampler",
            )
        layers.append(module)
    return layers
