"""Loads encoders with BERT's architecture into plain torch.

The corresponding module of transformers takes longer to import than torch. It is replaced by this
one if no weight of the encoder is trained. Both read and write the same files, weight for weight.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

FAMILIES = {"bert": 0, "roberta": 1, "xlm-roberta": 1}
"""Families with BERT's architecture. A 1 means that positions are counted from the padding id."""
_CLASSES = {"bert": "BertModel", "roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel"}
_WEIGHTS = "model.safetensors"


class States(NamedTuple):
    last_hidden_state: Tensor
    """float32 [b, tokens, width]."""


def fits(config: Any) -> bool:
    heads = getattr(config, "num_attention_heads", 0)
    return (
        getattr(config, "model_type", None) in FAMILIES
        and getattr(config, "hidden_act", None) == "gelu"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and not getattr(config, "is_decoder", False)
        and isinstance(heads, int)
        and heads > 0
        and config.hidden_size % heads == 0
    )


def first_position(config: Any) -> int:
    return (int(config.pad_token_id) + 1) * FAMILIES[config.model_type]


class Bert(nn.Module):
    """An encoder with the weight names of transformers. It has no dropout."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        rows = {
            "word_embeddings": config.vocab_size,
            "position_embeddings": config.max_position_embeddings,
            "token_type_embeddings": config.type_vocab_size,
        }
        # An embedding created from an empty tensor draws no weights, for which torch would import
        # its compiler.
        tables = {
            name: nn.Embedding.from_pretrained(torch.empty(size, width))
            for name, size in rows.items()
        }
        self.embeddings = nn.ModuleDict({**tables, "LayerNorm": _norm(config)})
        self.encoder = nn.ModuleDict(
            {"layer": nn.ModuleList(_layer(config) for _ in range(config.num_hidden_layers))}
        )
        self.pooler = nn.ModuleDict(
            {"dense": nn.Linear(width, width)}
        )  # unused here, but stored in the files

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings["word_embeddings"]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> States:
        """Hidden states of tokens; ids are int64 [b, tokens], padded on the right."""
        place = torch.arange(input_ids.shape[1], device=input_ids.device) + first_position(
            self.config
        )
        tables = self.embeddings
        x = self.get_input_embeddings()(input_ids) + tables["token_type_embeddings"](
            torch.zeros_like(input_ids)
        )
        x = tables["LayerNorm"](x + tables["position_embeddings"](place))
        there = attention_mask[:, None, None, :].bool()
        for layer in cast(nn.ModuleList, self.encoder["layer"]):
            x = _run(layer, x, there, int(self.config.num_attention_heads))
        return States(x)

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config.architectures, self.config.dtype = [_CLASSES[self.config.model_type]], "float32"
        self.config.save_pretrained(folder)
        weights = {
            name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()
        }
        save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})


def empty(config: Any) -> Bert:
    with torch.device("meta"):
        return Bert(config)


def read(folder: Path, config: Any, *, once: bool = False) -> Bert | None:
    """Loads an encoder. Returns None if transformers must load it: another architecture, more than
    one file, or other names or shapes.

    A pooler that is missing from the file becomes zero; transformers would initialise it randomly.

    Args:
        once: share the weights with every other caller in this process that loads the same file
            with `once`. They must not be changed.
    """
    file = folder / _WEIGHTS
    if not fits(config) or getattr(config, "quantization_config", None) or not file.is_file():
        return None
    prefix = f"{config.model_type.replace('-', '_')}."
    try:
        of_file = (file, file.stat().st_ctime_ns, file.stat().st_size)
        weights = dict(_weights_once(prefix, *of_file) if once else _weights(prefix, file))
        model = empty(config)
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError):
        return None  # transformers reports the error
    expected = {name: weight.shape for name, weight in model.state_dict().items()}
    for name in ("pooler.dense.weight", "pooler.dense.bias"):
        weights.setdefault(name, torch.zeros(expected[name]))
    if {name: weight.shape for name, weight in weights.items()} != expected:
        return None
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


def _weights(prefix: str, file: Path) -> dict[str, Tensor]:
    stored = load_file(file)
    if any(name.startswith(prefix) for name in stored):
        stored = {
            name.removeprefix(prefix): weight
            for name, weight in stored.items()
            if name.startswith(prefix)
        }
    weights = {name: weight for name, weight in stored.items() if not name.endswith("position_ids")}
    if not all(weight.is_floating_point() for weight in weights.values()):
        raise ValueError("whole numbers are no weights as they are")
    return {name: weight.to(torch.float32, copy=True) for name, weight in weights.items()}


@lru_cache(maxsize=1)
def _weights_once(prefix: str, file: Path, changed: int, size: int) -> dict[str, Tensor]:
    return _weights(prefix, file)


def _norm(config: Any) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def _layer(config: Any) -> nn.ModuleDict:
    width, wide = config.hidden_size, config.intermediate_size
    attention = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
    after = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": _norm(config)})
    return nn.ModuleDict(
        {
            "attention": nn.ModuleDict({"self": nn.ModuleDict(attention), "output": after}),
            "intermediate": nn.ModuleDict({"dense": nn.Linear(width, wide)}),
            "output": nn.ModuleDict({"dense": nn.Linear(wide, width), "LayerNorm": _norm(config)}),
        }
    )


def _run(layer: Any, x: Tensor, there: Tensor, heads: int) -> Tensor:
    def by_head(name: str) -> Tensor:
        return getattr(layer.attention.self, name)(x).unflatten(-1, (heads, -1)).transpose(1, 2)

    query, key, value = map(by_head, ("query", "key", "value"))
    seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=there)
    x = layer.attention.output.LayerNorm(
        x + layer.attention.output.dense(seen.transpose(1, 2).flatten(2))
    )
    wide = functional.gelu(layer.intermediate.dense(x))
    return layer.output.LayerNorm(x + layer.output.dense(wide))
