"""Runs an encoder of BERT's layout forward in float32 or bfloat16, with no padding but in attention.

The tokens of a batch lie end to end, so that matrix products, norms and activations compute no padding; query, key and
value are one product, and weights are laid out once as the processor's tiles want them. Attention alone sees each
narrative in a row of its own. torch's fused attention takes lengths that are multiples of 16, or of 8 without AVX-512,
faster than others: rows are as long as the next one, and what is beyond a narrative's end is masked. In bfloat16 on a
GPU, attention takes narratives end to end as well, no row is made, and GELU is its approximation by tanh.

Weights are copied when an encoder is packed. Pack it again after they change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mechanisms.model import bert, linear
from mechanisms.model.config import Precision
from mechanisms.model.inputs import TokenInputs

_KNOWN = (nn.Linear, nn.LayerNorm, nn.Embedding)
_ROW = 8 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 16
"""torch's attention is fastest where this divides the length of a row: it fills the processor's vectors."""

BATCH_TOKENS: dict[Precision, int] = {"float32": 1024, "bfloat16": 2048}
"""float32's activations so stay in a core's cache; in bfloat16 longer products win more."""
_CARD_TOKENS = 3 << 14
"""Of a batch on a card, whose kernels take time to start."""


class _Linear:
    """Computes a linear layer, or several that read the same input."""

    def __init__(self, dtype: torch.dtype, *layers: nn.Linear) -> None:
        self._weight = torch.cat([layer.weight.detach() for layer in layers]).to(dtype)
        self._bias = torch.cat([cast(Tensor, layer.bias).detach() for layer in layers]).to(dtype)
        self._tiled = self._weight.device.type == "cpu" and _tileable(dtype)
        if self._tiled:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        if self._tiled:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return functional.linear(x, self._weight, self._bias)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns the layer's output plus the residual, which it may overwrite."""
        if self._tiled:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        if x.device.type == "cpu" and x.dtype == torch.float32:  # MKL adds to what is there
            return residual.add_(self._bias).addmm_(x, self._weight.t())
        return functional.linear(x, self._weight, self._bias).add_(residual)

    def gelu(self, x: Tensor) -> Tensor:
        """The layer's output through GELU."""
        if self._tiled:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "gelu", [], "none")
        if x.is_cuda and x.dtype == torch.bfloat16:  # by tanh, in the product's own kernel
            return torch.ops.aten._addmm_activation(self._bias, x, self._weight.t(), use_gelu=True)
        return torch.ops.aten.gelu_(functional.linear(x, self._weight, self._bias))


def _tileable(dtype: torch.dtype) -> bool:
    """Checks whether oneDNN has tiles here, and in float32 is faster than MKL. It raises without AVX-512."""
    fits = linear.available() if dtype == torch.bfloat16 else linear.worthwhile()
    return fits and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


@dataclass(frozen=True)
class _Norm:
    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, norm: nn.LayerNorm, dtype: torch.dtype = torch.float32) -> _Norm:
        """Takes a norm's weights, in this type on a card. A processor takes float32 next to any type."""
        weight, bias = norm.weight.detach(), norm.bias.detach()
        if weight.device.type != "cpu":
            weight, bias = weight.to(dtype), bias.to(dtype)
        return cls(weight, bias, norm.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class _Rows:
    """Attends in rows of one length, where the tokens of a batch, end to end, have places."""

    count: int
    length: int
    from_packed: Tensor
    """int64 [count * length]: of each place its token; of a place beyond a narrative's end the narrative's first."""
    to_packed: Tensor
    """int64 [tokens]: of each token its place."""
    mask: Tensor | None
    """[count, 1, 1, length], 0 or -inf; None where every row is full."""

    @classmethod
    def of(cls, lengths: Tensor, dtype: torch.dtype, device: torch.device) -> _Rows:
        count, length = len(lengths), -(-int(lengths.max()) // _ROW) * _ROW
        column = torch.arange(length)
        there = column < lengths[:, None]
        start = lengths.cumsum(0) - lengths
        beyond = torch.where(there, 0.0, float("-inf")).to(dtype)
        return cls(
            count=count,
            length=length,
            from_packed=torch.where(there, start[:, None] + column, start[:, None]).reshape(-1).to(device),
            to_packed=there.reshape(-1).nonzero()[:, 0].to(device),
            mask=None if bool(there.all()) else beyond[:, None, None, :].to(device),
        )

    def attend(self, query_key_value: Tensor, heads: int) -> Tensor:
        """Returns what each token sees, [tokens, width], from [tokens, 3 * width]."""
        rows = query_key_value.index_select(0, self.from_packed).view(self.count, self.length, 3, heads, -1)
        query, key, value = rows.permute(2, 0, 3, 1, 4)
        mask = None if self.mask is None else self.mask.expand(self.count, 1, self.length, self.length)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return seen.transpose(1, 2).reshape(self.count * self.length, -1).index_select(0, self.to_packed)


@dataclass(frozen=True)
class _EndToEnd:
    """Attends to tokens where they are, as the kernels of GPUs can in 16 bits."""

    ends: Tensor
    """int32 [narratives + 1]."""
    longest: int

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device) -> _EndToEnd:
        ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
        return cls(ends.to(device, non_blocking=True), int(lengths.max()))

    def attend(self, query_key_value: Tensor, heads: int) -> Tensor:
        """Returns what each token sees, [tokens, width], from [tokens, 3 * width]."""
        from torch.nn.attention.varlen import varlen_attn

        query, key, value = query_key_value.view(len(query_key_value), 3, heads, -1).unbind(1)
        seen = varlen_attn(query, key, value, self.ends, self.ends, self.longest, self.longest)
        return cast(Tensor, seen).reshape(len(query_key_value), -1)


def _attends_end_to_end(dtype: torch.dtype, device: torch.device) -> bool:
    """Checks whether the device has a kernel for it."""
    return dtype == torch.bfloat16 and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@dataclass(frozen=True)
class PackedTokens:
    """Holds the tokens of a batch end to end, on the encoder's device."""

    ids: Tensor
    """int64 [tokens]."""
    places: Tensor
    """int64 [tokens]: of each its place in its narrative."""
    start: Tensor
    """int64 [narratives]."""
    lengths: Tensor
    """int64 [narratives]."""
    attention: _Rows | _EndToEnd


class _Layer:
    def __init__(self, layer: Any, heads: int, dtype: torch.dtype) -> None:
        own, after = layer.attention.self, layer.attention.output
        self._heads = heads
        self._query_key_value = _Linear(dtype, own.query, own.key, own.value)
        self._out, self._norm = _Linear(dtype, after.dense), _Norm.of(after.LayerNorm, dtype)
        self._wide, self._narrow = _Linear(dtype, layer.intermediate.dense), _Linear(dtype, layer.output.dense)
        self._last_norm = _Norm.of(layer.output.LayerNorm, dtype)

    def __call__(self, x: Tensor, attention: _Rows | _EndToEnd) -> Tensor:
        seen = attention.attend(self._query_key_value(x), self._heads)
        x = self._norm(self._out.added_to(x, seen))
        return self._last_norm(self._narrow.added_to(x, self._wide.gelu(x)))


class PackedEncoder:
    """Holds an encoder's weights as they were when it was packed."""

    def __init__(self, encoder: Any, precision: Precision) -> None:
        self._dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        config, embeddings = encoder.config, encoder.embeddings
        self._words = embeddings.word_embeddings.weight.detach()
        kind = embeddings.token_type_embeddings.weight.detach()[0]
        first = bert.first_position(config)
        self._places = embeddings.position_embeddings.weight.detach()[first:] + kind
        self._norm = _Norm.of(embeddings.LayerNorm)
        self._layers = [_Layer(layer, int(config.num_attention_heads), self._dtype) for layer in encoder.encoder.layer]
        self._device = self._words.device
        self.batch_tokens = BATCH_TOKENS[precision] if self._device.type == "cpu" else _CARD_TOKENS

    @classmethod
    def of(cls, encoder: nn.Module, precision: Precision) -> PackedEncoder | None:
        """Pack an encoder; None where its layout is another than BERT's."""
        no_adapters = all(type(part) in _KNOWN for part in encoder.modules() if hasattr(part, "weight"))
        return cls(encoder, precision) if no_adapters and bert.fits(getattr(encoder, "config", None)) else None

    def batch(self, tokens: TokenInputs, index: Tensor) -> PackedTokens:
        """Packs the records at `index`, int64 [b]."""
        lengths, device = tokens.lengths[index], self._device
        start = lengths.cumsum(0) - lengths
        places = torch.arange(int(lengths.sum())) - start.repeat_interleave(lengths)
        ids = tokens.ids[tokens.offsets[index].repeat_interleave(lengths) + places].to(torch.int64)
        end_to_end = _attends_end_to_end(self._dtype, device)
        return PackedTokens(
            *(values.to(device, non_blocking=True) for values in (ids, places, start, lengths)),
            attention=_EndToEnd.of(lengths, device) if end_to_end else _Rows.of(lengths, self._dtype, device),
        )

    def features(self, batch: PackedTokens, *, pooling: str) -> Tensor:
        """Returns the `mean` of each record's token vectors or the `first`, float32 [b, width]."""
        x = self._words.index_select(0, batch.ids).add_(self._places.index_select(0, batch.places))
        x = self._norm(x).to(self._dtype)
        for layer in self._layers:
            x = layer(x, batch.attention)
        if pooling == "first":
            return x.index_select(0, batch.start).float()
        every = torch.arange(len(x), device=self._device)
        return functional.embedding_bag(every, x.float(), batch.start, mode="sum") / batch.lengths[:, None]
