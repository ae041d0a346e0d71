"""Locates the files of an encoder and reads its properties from them. Needs no torch."""

import json
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mechanisms.errors import MechanismError
from mechanisms.model import packaged
from mechanisms.model.config import NO_ENCODER

PACKAGED = packaged.MINILM


def resolve(name: str) -> str:
    """A hub name or folder that transformers can load.

    In a sentence-transformers folder, the first module is in the folder itself or in a subfolder.
    Its pooling and scaling are ignored: the run's settings decide the pooling.

    Raises:
        MechanismError: there is no such folder, or it contains no model.
    """
    if name == NO_ENCODER:
        raise MechanismError(
            "encoder: a model on features has no encoder and makes no bundle. Its owner saves it",
            kind="features-without-encoder",
        )
    if name in packaged.PUBLISHED:
        return str(packaged.folder(name))
    looks_like_a_path = (
        name.startswith((".", "/", "~")) or os.sep in name.rstrip(os.sep).partition(os.sep)[2]
    )
    path = Path(name).expanduser()
    if path.is_dir():
        for folder in (path, *sorted(path.glob("0_*"))):
            if (folder / "config.json").is_file():
                return str(folder)
        raise MechanismError(
            f"encoder: folder {name} has no config.json. Specify a saved transformers model",
            kind="no-encoder-config",
        )
    if looks_like_a_path:
        raise MechanismError(f"encoder: no folder {name}", kind="no-encoder-folder")
    return name


def digest_parts(name: str) -> list[Path]:
    """Files with the content that identifies a local encoder; empty for a hub name."""
    path = Path(resolve(name))
    return (
        sorted(p for p in path.glob("*") if p.suffix in {".json", ".safetensors", ".txt"})
        if path.is_dir()
        else []
    )


def load(loader: Any, name: str, **options: Any) -> Any:
    """Loads a part of an encoder with a transformers class; refuses incomplete models."""
    source = resolve(name)
    _check_config(Path(source))
    try:
        # Code from a model folder is never run (and the user is never asked to allow it).
        return loader.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError):
        # The error of transformers lists caches and hosts over a page. These are the causes.
        raise MechanismError(
            f"encoder: cannot load `{name}`: no whole model here (config.json, "
            "model.safetensors, tokenizer.json), none at the hub, or one whose "
            f"head has other labels. Specify a local folder, or `{PACKAGED}`",
            kind="no-model",
        ) from None


_MOST = {
    "num_hidden_layers": 1000,
    "hidden_size": 1 << 16,
    "intermediate_size": 1 << 18,
    "vocab_size": 1 << 22,
}


_ATTENTION = (None, "eager", "sdpa")


def _check_config(folder: Path) -> None:
    """Refuses implausible sizes, which would hang the loader, and attention implementations from
    other packages.
    """
    try:
        read = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # the loader reports the error
    parts = [read, *read.values()] if isinstance(read, dict) else []
    for config in (part for part in parts if isinstance(part, dict)):
        for key, most in _MOST.items():
            size = config.get(key, 1)
            if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= most:
                raise MechanismError(
                    f"encoder: {folder}: config.json: {key} is not from 1 to {most:,}. Correct it",
                    kind="encoder-setting",
                    option=key,
                )
        if any(
            config.get(key) not in _ATTENTION
            for key in ("_attn_implementation", "attn_implementation")
        ):
            raise MechanismError(
                f"encoder: {folder}: config.json: attention is neither eager nor sdpa. Correct it",
                kind="encoder-attention",
            )


def load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return load(AutoTokenizer, name)


def whole_words(name: str) -> set[str]:
    """Words that are single tokens of the encoder's tokenizer, in lower case."""
    tokens = list(load_tokenizer(name).get_vocab())
    for mark in ("Ġ", "▁"):  # prefix of a word's first token: byte-level BPE, SentencePiece
        if any(token.startswith(mark) for token in tokens):
            tokens = [token[1:] for token in tokens if token.startswith(mark)]
            break
    # "##" marks a token that continues a word. It is not a letter, so such tokens do not match.
    return {token.lower() for token in tokens if re.fullmatch(r"[^\W\d_]{3,}", token)}


def settings(name: str) -> set[str]:
    from transformers import AutoConfig

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list | tuple):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from texts(inner)

    tokenizer = load_tokenizer(name)
    options = {
        key: value
        for key, value in tokenizer.init_kwargs.items()
        if not re.search("file|path", key)
    }
    config = {
        key: value
        for key, value in load(AutoConfig, name).to_dict().items()
        if not key.startswith("_")
    }
    return {
        *texts(config),
        *texts(options),
        *texts(tokenizer.special_tokens_map),
        type(tokenizer).__name__,
    }


_ACTIVATIONS = {
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "relu",
    "silu",
    "swish",
    "tanh",
}


def is_usual(setting: str) -> bool:
    """Whether transformers itself defines this text of a configuration: a class, a family, or an
    activation.
    """
    import transformers

    is_defined = setting in transformers.CONFIG_MAPPING or setting in _ACTIVATIONS
    return bool(is_defined or re.fullmatch(r"LABEL_\d+|[\d.]+", setting)) or (
        setting.isidentifier() and setting[0].isupper() and setting in _names()
    )


@lru_cache
def _names() -> frozenset[str]:
    """All names in transformers; listing them takes a third of a second."""
    import transformers

    return frozenset(dir(transformers))


def require_length(name: str, tokens: int) -> None:
    """Refuses a token limit above the number of tokens that the encoder can read.

    Raises:
        MechanismError: the limit is too high, or the encoder cannot be loaded.
    """
    most = longest(name)
    if tokens > most:
        raise MechanismError(
            f"model.max_length is {tokens}, but this encoder reads at most {most} tokens. Set it "
            f"to {most} or less",
            kind="max-length",
        )


def longest(name: str) -> int:
    """Number of tokens that the encoder can read: its position embeddings minus those that RoBERTa
    reserves for padding. Read from `config.json` alone if it has them, because transformers takes a
    second to import.
    """
    source = resolve(name)
    family, positions, padding = _positions(Path(source) / "config.json")
    if family is None:
        from transformers import AutoConfig

        config = load(AutoConfig, name)
        family, padding = config.model_type, config.pad_token_id
        positions = int(getattr(config, "max_position_embeddings", 1 << 30))
    return positions - padding - 1 if family in _POSITIONS_AFTER_PADDING else positions


def _positions(file: Path) -> tuple[str | None, int, int]:
    """Family, number of position embeddings, and padding id; the family is None if the file leaves
    one of them to transformers.
    """
    try:
        read = json.loads(file.read_bytes())
        family, positions = read["model_type"], read["max_position_embeddings"]
        padding = read["pad_token_id"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return None, 0, 0
    if type(family) is str and type(positions) is int and type(padding) is int:
        return family, positions, padding
    return None, 0, 0


_POSITIONS_AFTER_PADDING = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}


_NO_WEIGHT = "embeddings.position_ids"


@lru_cache(maxsize=8)
def shape(name: str) -> tuple[int, int]:
    """Number of parameters and width of an encoder, computed only from its configuration. For a
    packaged encoder, which is complete, they come from the file headers, because importing
    transformers takes a second.
    """
    if name in packaged.PUBLISHED:
        folder = Path(resolve(name))
        with safe_open(folder / "model.safetensors", framework="np") as weights:
            keys = [key for key in weights.keys() if key != _NO_WEIGHT]  # noqa: SIM118 - it is no mapping
            size = sum(prod(weights.get_slice(key).get_shape()) for key in keys)
        return size, int(
            json.loads((folder / "config.json").read_text(encoding="utf-8"))["hidden_size"]
        )
    import torch
    from transformers import AutoConfig

    from mechanisms.model import bert

    config = load(AutoConfig, name)
    if bert.fits(config):
        model: torch.nn.Module = bert.empty(config)
    else:
        from transformers import AutoModel

        with torch.device("meta"):
            model = AutoModel.from_config(config)
    return sum(p.numel() for p in model.parameters()), int(config.hidden_size)


def revision(name: str) -> str:
    """The hub commit of an encoder; another commit counts as another encoder."""
    from transformers import AutoConfig

    return str(getattr(load(AutoConfig, name), "_commit_hash", None) or "unknown")
