"""Loads encoders and locates the parts of each model family."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import bert
from mechanisms.model.encoder_files import load, resolve
from mechanisms.model.inputs import TokenInputs

_WEIGHTS: dict[str, Any] = {"dtype": "float32", "use_safetensors": True}
"""Weights are loaded only from safetensors, because the older format is a pickle."""


def token_inputs(tokenizer: Any, texts: Sequence[str], *, max_length: int) -> TokenInputs:
    """Texts as token ids with special tokens, truncated to `max_length`. Accepts an empty list."""
    if not texts:
        return TokenInputs.from_lists([], pad_id=tokenizer.pad_token_id)
    encoded = tokenizer(
        list(texts), truncation=True, max_length=max_length, return_attention_mask=False
    )
    return TokenInputs.from_lists(encoded["input_ids"], pad_id=tokenizer.pad_token_id)


def load_encoder(name: str) -> nn.Module:
    from transformers import AutoModel

    with quiet():
        return cast(nn.Module, load(AutoModel, name, **_WEIGHTS))


def load_frozen(name: str, *, once: bool = False) -> nn.Module:
    """Loads an encoder with no trainable weight. An encoder with BERT's architecture in a folder is
    loaded without transformers' module.

    Args:
        once: share the weights with every other caller in this process that loads this name with
            `once`. They must not be changed.
    """
    from transformers import AutoConfig

    frozen = bert.read(Path(resolve(name)), load(AutoConfig, name), once=once)
    return load_encoder(name) if frozen is None else frozen


def load_with_standard_head(name: str, *, num_labels: int) -> nn.Module:
    """The encoder with transformers' own sequence-classification head, newly initialised."""
    from transformers import AutoModelForSequenceClassification

    with quiet():
        return cast(
            nn.Module,
            load(AutoModelForSequenceClassification, name, num_labels=num_labels, **_WEIGHTS),
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers: its warning that the head is new (which is always the case here) and
    its progress bars for files.
    """
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def base(model: nn.Module) -> nn.Module:
    return cast(nn.Module, cast(Any, model).base_model)


def width(model: nn.Module) -> int:
    inner: Any = model if hasattr(model, "config") else cast(Any, model).encoder
    return int(inner.config.hidden_size)


class _StatesAsEmbeddings(nn.Module):
    def forward(self, inputs_embeds: Tensor, **_: object) -> Tensor:
        return inputs_embeds


def layers(model: nn.Module) -> nn.ModuleList:
    """The encoder's layers, lowest first. Refuses families with an unknown layout."""
    stack = getattr(getattr(model, "encoder", None), "layer", None)
    if not isinstance(stack, nn.ModuleList):
        raise MechanismError(
            "model.lora_layers: this encoder is not of BERT's layout. Leave it empty",
            kind="unknown-layout",
        )
    return stack


def last_layers(model: nn.Module, count: int) -> nn.Module:
    """An encoder of the last layers of this one (the same modules), which reads hidden states as
    `inputs_embeds`.
    """
    all_layers = layers(model)
    if count >= len(all_layers):
        raise MechanismError(
            f"model.lora_layers is {count}, but this encoder has {len(all_layers)} "
            "layers. Set fewer, or leave it empty",
            kind="too-many-layers",
        )
    upper = _with_layers(model, [*all_layers][len(all_layers) - count :])
    upper.add_module("embeddings", _StatesAsEmbeddings())
    return upper


def layers_below(model: nn.Module, count: int) -> nn.Module:
    return _with_layers(model, [*layers(model)][:-count])


def linear_maps(model: nn.Module, count: int) -> list[str]:
    last = {id(module) for layer in layers(model)[-count:] for module in layer.modules()}
    return [
        name
        for name, module in model.named_modules()
        if id(module) in last and isinstance(module, nn.Linear)
    ]


def _with_layers(model: nn.Module, some: Sequence[nn.Module]) -> nn.Module:
    encoder_copy, inner = copy.copy(model), copy.copy(cast(nn.Module, model.encoder))
    for module in (encoder_copy, inner):
        module._modules = dict(module._modules)
    inner.add_module("layer", nn.ModuleList(some))
    encoder_copy.add_module("encoder", inner)
    return encoder_copy


class _BertHead(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.pooler, self.dropout, self.classifier = (
            model.bert.pooler,
            model.dropout,
            model.classifier,
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.pooler(features[:, None, :])))


class _RobertaHead(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.classifier = model.classifier

    def forward(self, features: Tensor) -> Tensor:
        return self.classifier(features[:, None, :])


_STANDARD_HEADS = {"bert": _BertHead, "roberta": _RobertaHead, "xlm-roberta": _RobertaHead}


def standard_head(model: nn.Module) -> nn.Module:
    """The layers after the first token's vector in transformers' own model. Refuses unknown
    families.
    """
    family = cast(Any, model).config.model_type
    if family not in _STANDARD_HEADS:
        raise MechanismError(
            f"encoder: unknown head of family `{family}`. Set pooling to `mean`, or "
            f"use one of {', '.join(sorted(_STANDARD_HEADS))}",
            kind="unknown-head",
        )
    return _STANDARD_HEADS[family](model)
