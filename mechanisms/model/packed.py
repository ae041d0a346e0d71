"""Runs a frozen encoder of BERT's layout forward in float32 or bfloat16, with no padding but in attention.

The tokens of a batch lie end to end, so that matrix products, norms and activations compute no padding; query, key and
value are one product, and weights are laid out once as the processor's tiles want them. Attention alone sees each
narrative in a row of its own. torch's fused attention takes lengths that are multiples of 16 twice as fast as others:
rows are as long as the next one, and what is beyond a narrative's end is masked.

Weights are copied when an encoder is packed: it is for encoders that no longer change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mechanisms.model import linear
from mechanisms.model.config import Precision
from mechanisms.model.inputs import TokenInputs

_FAMILIES = {"bert": 0, "roberta": 1, "xlm-roberta": 1}
"""Those of BERT's layout; with the 1, positions count from the padding id on."""
_KNOWN = (nn.Linear, nn.LayerNorm, nn.Embedding)
_ROW = 16
"""Lengths that torch's attention takes whole."""


BATCH_TOKENS: dict[Precision, int] = {"float32": 1024, "bfloat16": 2048}
"""float32's activations so stay in a core's cache; in bfloat16 longer products win more."""


class _Linear:
    """Computes a linear layer, or several that read the same input."""

    def __init__(self, dtype: torch.dtype, *layers: nn.Linear) -> None:
        self._weight = torch.cat([layer.weight.detach() for layer in layers]).to(dtype)
        self._bias = torch.cat([cast(Tensor, layer.bias).detach() for layer in layers]).to(dtype)
        self._tiled = _tileable(dtype)
        if self._tiled:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        if self._tiled:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return functional.linear(x, self._weight, self._bias)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The layer's output plus another vector a token."""
        if self._tiled:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        return functional.linear(x, self._weight, self._bias).add_(residual)

    def gelu(self, x: Tensor) -> Tensor:
        """The layer's output through GELU."""
        if self._tiled:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "gelu", [], "none")
        return functional.gelu(functional.linear(x, self._weight, self._bias))


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
    def of(cls, norm: nn.LayerNorm) -> _Norm:
        return cls(norm.weight.detach(), norm.bias.detach(), norm.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class _Rows:
    """Holds the places where the tokens of a batch, end to end, stand in rows of one length."""

    count: int
    length: int
    from_packed: Tensor
    """int64 [count * length]: of each place its token; of a place beyond a narrative's end the narrative's first."""
    to_packed: Tensor
    """int64 [tokens]: of each token its place."""
    mask: Tensor | None
    """[count, 1, length, length], 0 or -inf; None where every row is full."""

    @classmethod
    def of(cls, lengths: Tensor, dtype: torch.dtype) -> _Rows:
        count, length = len(lengths), -(-int(lengths.max()) // _ROW) * _ROW
        column = torch.arange(length)
        there = column < lengths[:, None]
        start = lengths.cumsum(0) - lengths
        beyond = torch.where(there, 0.0, float("-inf")).to(dtype)
        return cls(
            count=count,
            length=length,
            from_packed=torch.where(there, start[:, None] + column, start[:, None]).reshape(-1),
            to_packed=there.reshape(-1).nonzero()[:, 0],
            mask=None if bool(there.all()) else beyond[:, None, None, :].expand(count, 1, length, length),
        )


class _Layer:
    def __init__(self, layer: Any, heads: int, dtype: torch.dtype) -> None:
        own = layer.attention.self
        self._heads = heads
        self._query_key_value = _Linear(dtype, own.query, own.key, own.value)
        self._out, self._norm = _Linear(dtype, layer.attention.output.dense), _Norm.of(layer.attention.output.LayerNorm)
        self._wide, self._narrow = _Linear(dtype, layer.intermediate.dense), _Linear(dtype, layer.output.dense)
        self._last_norm = _Norm.of(layer.output.LayerNorm)

    def __call__(self, x: Tensor, rows: _Rows) -> Tensor:
        both = self._query_key_value(x).index_select(0, rows.from_packed)
        query, key, value = both.view(rows.count, rows.length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=rows.mask)
        seen = seen.transpose(1, 2).reshape(rows.count * rows.length, -1).index_select(0, rows.to_packed)
        x = self._norm(self._out.added_to(x, seen))
        return self._last_norm(self._narrow.added_to(x, self._wide.gelu(x)))


class PackedEncoder:
    """Holds an encoder's weights as they were when it was packed."""

    def __init__(self, encoder: Any, precision: Precision) -> None:
        self._dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.batch_tokens = BATCH_TOKENS[precision]
        config, embeddings = encoder.config, encoder.embeddings
        self._words = embeddings.word_embeddings.weight.detach()
        self._kind = embeddings.token_type_embeddings.weight.detach()[0]
        self._positions = embeddings.position_embeddings.weight.detach()
        self._first = (int(config.pad_token_id) + 1) * _FAMILIES[config.model_type]
        self._norm = _Norm.of(embeddings.LayerNorm)
        self._layers = [_Layer(layer, int(config.num_attention_heads), self._dtype) for layer in encoder.encoder.layer]

    @classmethod
    def of(cls, encoder: nn.Module, precision: Precision) -> PackedEncoder | None:
        """Pack an encoder; None where its layout is another than BERT's."""
        config = getattr(encoder, "config", None)
        fits = (
            getattr(config, "model_type", None) in _FAMILIES
            and getattr(config, "hidden_act", None) == "gelu"
            and getattr(config, "position_embedding_type", "absolute") == "absolute"
            and not getattr(config, "is_decoder", False)
            and all(type(part) in _KNOWN for part in encoder.modules() if hasattr(part, "weight"))  # no adapters
        )
        return cls(encoder, precision) if fits else None

    def features(self, tokens: TokenInputs, index: Tensor, *, pooling: str) -> Tensor:
        """Returns, of the records at `index`, the `mean` of the token vectors or the `first`, float32 [b, width]."""
        lengths = tokens.lengths[index]
        owner = torch.repeat_interleave(torch.arange(len(index)), lengths)
        start = lengths.cumsum(0) - lengths
        place = torch.arange(len(owner)) - start[owner]
        ids = tokens.ids[tokens.offsets[index][owner] + place].to(torch.int64)
        x = self._words.index_select(0, ids) + self._positions.index_select(0, place + self._first) + self._kind
        x = self._norm(x).to(self._dtype)
        rows = _Rows.of(lengths, self._dtype)
        for layer in self._layers:
            x = layer(x, rows)
        if pooling == "first":
            return x.index_select(0, start).float()
        sums = torch.zeros(len(index), x.shape[1]).index_add_(0, owner, x.float())
        return sums / lengths[:, None]
