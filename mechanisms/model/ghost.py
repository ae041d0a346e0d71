"""Per-record gradient norms and clipped gradient sums without per-record gradients, in one backward pass.

For a linear layer with inputs a [b, T, d] and output gradients g [b, T, p], record i's weight gradient is
sum_t g_it a_it', and its squared norm is a sum over pairs of positions (Goodfellow 2015; Li et al. 2022, "ghost"):

    || sum_t g_it a_it' ||^2 = sum_{s,t} (a_is . a_it)(g_is . g_it)        with a bias: (a_is . a_it + 1)

Inputs and output gradients are kept until every layer's norm is known; then one matrix product a layer gives the
clipped sum, sum_i c_i sum_t g_it a_it' ("book-keeping", Bu et al. 2023). Autograd is not asked for weight gradients at
all, so the whole costs one forward pass, one backward pass through the activations, the weight products that
non-private training does too, and the pairs. Other ghost modes run the backward pass twice.

Where a layer is narrow (LoRA), d p < T (d + p) and its per-record gradients are smaller than what the pairs need:
they are formed and kept instead.

**Rounding.** Both are sums in which large terms may cancel; in float32 what is left may then be anything, 0 too. So the
norm that is clipped by is an upper bound: to the square is added what rounding can take from it,

    m eps ( sum_t |a_it| |g_it| )^2,    m the terms of the longest sum, eps float32's rounding unit

which is 1e-4 to 1e-2 of an ordinary record's square, and most of that of one whose terms cancel.

The products of the clipped sum, and the sum, have the precision of `out`: float64 where one record more must not move
how all others are rounded.

| layer     | norm                                              | kept until the norms are known |
|-----------|---------------------------------------------------|--------------------------------|
| Linear    | pairs, or per-record gradients where smaller      | a and g, or the gradients      |
| Embedding | pairs that hold the same id; the padding id has no gradient | ids and g            |
| LayerNorm | per-record gradients                              | the gradients [b, d]           |

Any other layer with trainable parameters is refused by name, and so are parameters that two layers share and layers
that mix records (batch normalisation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import Batch

_ROUNDING = torch.finfo(torch.float32).eps / 2
"""Largest relative error of one float32 operation."""
Coefficients = Callable[[Tensor], Tensor]
"""Gradient norms float32 [b] -> factors c float32 [b] with c_i norm_i at most the clip."""


@dataclass
class _Layer:
    """A layer that trains, its places in the flat gradient, and what the present micro-batch left there."""

    name: str
    module: nn.Module
    spans: dict[str, slice]
    calls: int = 0
    add: list[Callable[[Tensor, Tensor], None]] = field(default_factory=list)


class GhostClipping:
    """Clipped gradient sums of one classifier. A context: its hooks are on the model inside it only."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self._layers = _layers(classifier)
        self._handles: list[Any] = []
        self._squared: Tensor | None = None
        self._records = 0
        self._gram: tuple[Tensor, Tensor] | None = None

    def __enter__(self) -> GhostClipping:
        for parameter in self._classifier.parameters:
            parameter.requires_grad_(False)
        for layer in self._layers:
            self._handles.append(layer.module.register_forward_hook(self._hook(layer)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for parameter in self._classifier.parameters:
            parameter.requires_grad_(True)
        self._forget()

    def add_clipped_sum(
        self, batch: Batch, labels: Tensor, *, coefficients: Coefficients, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add sum_i c_i grad(-l_i) over one micro-batch to `out`, float [P]. A record whose gradient is not finite adds
        nothing.

        Returns:
            Upper bounds of the gradient norms before clipping, and losses -l_i, float32 [b] each.
        """
        self._forget()
        self._records = len(labels)
        self._squared = torch.zeros(self._records, device=labels.device)
        with torch.enable_grad():
            losses = -self._classifier.log_likelihood(batch, labels)
            losses.sum().backward()
        norms = self._squared.clamp_(min=0).sqrt_()
        finite = norms.isfinite()
        # guard: a record without a finite gradient adds nothing
        if not finite.all():  # nothing times infinity would be everybody's
            self._forget()
            if finite.any():
                others = {name: values[finite] for name, values in batch.items()}
                factors = coefficients(norms.where(finite, 0.0))[finite]  # of the whole batch, as the caller knows it
                self.add_clipped_sum(others, labels[finite], coefficients=lambda _: factors, out=out)
            return norms, losses.detach()
        factors = coefficients(norms).to(out.dtype)
        for layer in self._layers:
            for add in layer.add:
                add(factors, out)
        self._forget()
        return norms, losses.detach()

    def _forget(self) -> None:
        for layer in self._layers:
            layer.calls = 0
            layer.add.clear()
        self._gram = self._squared = None

    def _hook(self, layer: _Layer) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
        ways: dict[type[nn.Module], Callable[[_Layer, Tensor, Tensor], None]] = {
            nn.Linear: self._linear,
            nn.Embedding: self._embedding,
            nn.LayerNorm: self._layer_norm,
        }
        see = ways[type(layer.module)]

        def forward_hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            if self._squared is None or not torch.is_grad_enabled():
                return output
            layer.calls += 1
            if layer.calls > 1:
                raise MechanismError(
                    f"DP-SGD: layer `{layer.name}` runs twice in one pass; the norm of its gradient is not the sum"
                )
            if output.shape[0] != self._records:  # positions are looked up once for the whole batch
                output = output.expand(self._records, *output.shape[1:])
            inputs = args[0].detach()
            if not output.requires_grad:
                output = output.detach().requires_grad_(True)
            output.register_hook(lambda gradient: see(layer, inputs, gradient))
            return output

        return forward_hook

    def _linear(self, layer: _Layer, inputs: Tensor, gradient: Tensor) -> None:
        a, g = _positions(inputs), _positions(gradient)
        (width_in, width_out), length = (a.shape[2], g.shape[2]), a.shape[1]
        weight, bias = layer.spans["weight"], layer.spans.get("bias")
        shape, terms = (width_out, width_in), width_in + width_out + length
        self._count_rounding(a.norm(dim=2), g.norm(dim=2), terms)
        if bias is not None:
            self._count_rounding(None, g.norm(dim=2), terms)
        if width_in * width_out < length * (width_in + width_out):
            per_record = torch.bmm(g.transpose(1, 2), a)
            self._count(per_record)
            summed = g.sum(1)
            if bias is not None:
                self._count(summed)

            def add(factors: Tensor, out: Tensor) -> None:
                _add(out[weight], per_record.flatten(1), factors)
                if bias is not None:
                    _add(out[bias], summed, factors)
        else:
            pairs = torch.bmm(g, g.transpose(1, 2))
            self._count_pairs(self._input_gram(a), pairs)
            if bias is not None and self._squared is not None:
                self._squared += pairs.sum((1, 2))

            def add(factors: Tensor, out: Tensor) -> None:
                scaled = (g.to(out.dtype) * factors[:, None, None]).flatten(0, 1)
                out[weight].view(shape).addmm_(scaled.t(), a.flatten(0, 1).to(out.dtype))
                if bias is not None:
                    out[bias] += scaled.sum(0)

        layer.add.append(add)

    def _embedding(self, layer: _Layer, ids: Tensor, gradient: Tensor) -> None:
        module, weight = layer.module, layer.spans["weight"]
        assert isinstance(module, nn.Embedding)
        shape = module.weight.shape
        ids = ids.expand(self._records, *ids.shape[1:]).flatten(1)
        g = _positions(gradient)
        if module.padding_idx is not None:
            g = g * (ids != module.padding_idx)[:, :, None]
        self._count_rounding(None, g.norm(dim=2), g.shape[1] + g.shape[2])
        same = (ids[:, :, None] == ids[:, None, :]).to(g.dtype)
        self._count_pairs(same, torch.bmm(g, g.transpose(1, 2)))

        def add(factors: Tensor, out: Tensor) -> None:
            scaled = (g.to(out.dtype) * factors[:, None, None]).flatten(0, 1)
            out[weight].view(shape).index_add_(0, ids.flatten(), scaled)

        layer.add.append(add)

    def _layer_norm(self, layer: _Layer, inputs: Tensor, gradient: Tensor) -> None:
        module = layer.module
        assert isinstance(module, nn.LayerNorm)
        normalised = nn.functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)
        trailing = len(module.normalized_shape)
        positions = {"bias": _positions(gradient, trailing), "weight": _positions(gradient * normalised, trailing)}
        for values in positions.values():
            self._count_rounding(None, values.norm(dim=2), values.shape[1])
        for name, span in layer.spans.items():
            gradients = positions[name].sum(1)
            self._count(gradients)

            def add(factors: Tensor, out: Tensor, span: slice = span, gradients: Tensor = gradients) -> None:
                _add(out[span], gradients, factors)

            layer.add.append(add)

    def _count(self, per_record: Tensor) -> None:
        assert self._squared is not None
        self._squared += per_record.flatten(1).square().sum(1)

    def _count_rounding(self, left: Tensor | None, right: Tensor, terms: int) -> None:
        """Adds what rounding may have taken from sums over positions of vectors of these lengths, [b, T] each."""
        assert self._squared is not None
        lengths = right if left is None else left * right
        self._squared += terms * _ROUNDING * lengths.sum(1).square()

    def _count_pairs(self, left: Tensor, right: Tensor) -> None:
        assert self._squared is not None
        self._squared += (left * right).sum((1, 2))

    def _input_gram(self, a: Tensor) -> Tensor:
        """a_is . a_it, computed once for the layers (query, key, value) that read the same input."""
        if self._gram is None or self._gram[0].data_ptr() != a.data_ptr() or self._gram[0].shape != a.shape:
            self._gram = (a, torch.bmm(a, a.transpose(1, 2)))
        return self._gram[1]


def _add(out: Tensor, per_record: Tensor, factors: Tensor) -> None:
    """Adds sum_i c_i per_record_i [b, P] to `out` [P], in the precision of `out`."""
    out += per_record.to(out.dtype).t() @ factors


def _positions(values: Tensor, trailing: int = 1) -> Tensor:
    """[b, ..., trailing dimensions] as [b, T, width]; a record's single vector has T = 1."""
    return values.reshape(values.shape[0], -1, values.shape[-trailing:].numel())


_SUPPORTED = (nn.Linear, nn.Embedding, nn.LayerNorm)


def _layers(classifier: Classifier) -> list[_Layer]:
    """Returns the layers that train; refuses unsupported layers, shared parameters and batch normalisation by name."""
    spans = classifier.spans
    layers: list[_Layer] = []
    owner: dict[int, str] = {}
    for name, module in classifier.part.named_modules(remove_duplicate=True):
        label = f"{name or 'head'} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise MechanismError(f"DP-SGD: layer `{label}` mixes records; replace batch by group normalisation")
        own = {key: spans[id(p)] for key, p in module.named_parameters(recurse=False) if id(p) in spans}
        if not own:
            continue
        if type(module) not in _SUPPORTED:
            raise MechanismError(
                f"DP-SGD: layer `{label}` has trainable parameters and is not supported; "
                f"supported are {', '.join(t.__name__ for t in _SUPPORTED)}"
            )
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
            raise MechanismError(f"DP-SGD: layer `{label}` uses max_norm or scale_grad_by_freq, which mix records")
        for key, parameter in module.named_parameters(recurse=False):
            if id(parameter) in owner:
                raise MechanismError(f"DP-SGD: layers `{owner[id(parameter)]}` and `{label}` share `{key}`")
            owner[id(parameter)] = label
        if "weight" not in own and isinstance(module, nn.Linear):
            raise MechanismError(f"DP-SGD: layer `{label}` trains its bias alone, which is not supported")
        layers.append(_Layer(name=label, module=module, spans=own))
    if missing := spans.keys() - owner.keys():
        raise MechanismError(f"DP-SGD: {len(missing)} trainable parameters belong to no layer")
    return layers
