"""Sums of per-record gradients, each cut to a norm and to integers, from one forward and one
backward pass.

Autograd is asked only for the gradients of layers' outputs. From them and the layers' inputs follow
the gradients of each record: of a linear layer on one vector a record, with input a_i and output
gradient g_i, in closed form,

    grad_i = g_i a_i'
    || grad_i ||^2 = || g_i ||^2 (|| a_i ||^2 + 1) with a bias
    sum_i c_i grad_i = (c g)' a

of a table's rows by those that the record looks up, and of every other layer by Opacus' samplers.
What is added is what the norm was taken of, so that no cancellation hides a part of it.

**Exact arithmetic.** A record adds integers: its clipped gradient in units of 2^-bits, every number
cut towards zero. In the closed form a_i is rounded to integers, and g_i, over their length, is cut.
Cutting only shortens, and what float64 rounds of norm, factor and products, below (P + 9) 2^-53 of
them for P parameters in any order, is less than `_INSIDE` leaves for P below 2^32. So no record
adds more than its clip, to the last bit, and sums below 2^53 are exact.
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
"""Parameters whose gradients become float64 at a time: few enough to stay in cache, ten times
faster than all.
"""
_INSIDE = 1 - 2.0**-20
_INPUT_BITS = 15
"""Of a layer's input in the closed form, over its length; the gradient of its output has the rest.
"""


class RecordClipping:
    """Clipped gradient sums of one classifier. A context: its hooks are on the model inside it
    only.

    Raises:
        MechanismError: a layer mixes records, or has trainable parameters and no sampler.
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
        """Adds sum_i c_i grad(-l_i) over one micro-batch to `out`, float64 [P] of integers in units
        of 2^-bits.

        A record whose gradient is not finite adds nothing.

        Returns:
            Gradient norms before clipping, float64, and losses -l_i, float32, [b] each.
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
            own = {id(p) for p in layer.parameters(recurse=False)} & spans.keys()
            if used & own:
                raise MechanismError(
                    "DP-SGD: a layer runs twice, or layers share a weight. Train another part",
                    kind="shared-weights",
                )
            used |= own
            way: Any = _sampled
            if isinstance(layer, nn.Embedding):
                way = _looked_up
            elif isinstance(layer, nn.Linear) and inputs[0].numel() == inputs.shape[-1]:
                way = _closed_form
            adders.append(way(layer, spans, inputs, gradient, squared, out))
        self._calls.clear()
        norms = squared.sqrt()
        # guard: test_a_record_beyond_float32_ends_no_run
        finite = squared.float().isfinite()  # beyond float32 is beyond what the layers compute
        factors = coefficients(norms.where(finite, 0.0)) * (_INSIDE * 2.0**bits)
        for add in adders:
            add(factors.where(finite, 0.0))
        return norms, losses.detach()

    def _see(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return output
        inputs = args[0].detach()
        if output.shape[0] != self._records:  # positions are looked up once for the whole batch
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
        whole = (right.square().sum(1) * (weight is not None) + ones.square()).sqrt_().clamp_(min=1)
        left = _scaled(g, factors * (length / whole), factors).trunc_()
        if weight is not None:
            out[weight].view(layer.weight.shape).addmm_(left.t(), right)
        if bias is not None:
            out[bias] += left.t() @ ones

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
    own = [(spans[id(p)], sample.flatten(1)) for p, sample in samples.items() if id(p) in spans]
    for _, sample in own:
        for block in sample.split(_BLOCK, 1):
            squared += block.to(out.dtype).square().sum(1)

    def add(factors: Tensor) -> None:
        for span, sample in own:
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
    """By the few rows that a record looks up: Opacus' sampler forms the whole table for each
    record.
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
        own = factors[record]
        added = _scaled(sums, own, own).trunc_()
        out[spans[id(layer.weight)]].view(layer.weight.shape).index_add_(0, row, added)

    return add


def _scaled(rows: Tensor, scale: Tensor, factors: Tensor) -> Tensor:
    scaled = rows * scale[:, None]
    scaled[factors == 0] = 0.0  # nothing times infinity would be everybody's
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
