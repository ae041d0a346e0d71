"""A classifier as a folder that plain libraries load, and back.

Standard heads become a transformers folder (`pipeline("text-classification", folder)`); a mean-pooled head becomes the
sentence-transformers module layout (transformer, pooling, dense), whose `encode` gives the logits. Labels are codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mechanisms import encoders
from mechanisms.classifier import Classifier, MeanPooled
from mechanisms.errors import MechanismError
from mechanisms.inputs import length_sorted_batches

MODEL_FILES = frozenset(
    {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.txt",
        "vocab.json",
        "merges.txt",
    }
)
"""Files of a transformers folder that may leave."""

MODULE_FILES = frozenset(
    {
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    }
)
"""Files that the sentence-transformers layout adds."""


def save(classifier: Classifier, folder: Path, *, codes: Sequence[str]) -> None:
    """Write the whole model with its present parameters. `codes` are the labels, in the order of the outputs."""
    config = classifier.config
    model = classifier.releasable()
    tokenizer = encoders.load_tokenizer(config.encoder)
    tokenizer.model_max_length = config.max_length
    with encoders.quiet():
        if isinstance(model, MeanPooled):
            _save_modules(model, tokenizer, folder, codes=codes, max_length=config.max_length)
        else:
            _label(cast(Any, model), codes)
            cast(Any, model).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    _forget_origin(folder / "config.json")
    _forget_origin(folder / "tokenizer_config.json")


def _save_modules(model: MeanPooled, tokenizer: Any, folder: Path, *, codes: Sequence[str], max_length: int) -> None:
    """The layout of sentence-transformers, written by the library itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    encoder = cast(Any, model.encoder)
    _label(encoder, codes)
    encoder.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = modules.Transformer(str(folder), max_seq_length=max_length)
    width, labels = model.head.in_features, model.head.out_features
    dense = modules.Dense(width, labels, activation_function=nn.Identity())
    with torch.no_grad():
        dense.linear.weight.copy_(model.head.weight)
        dense.linear.bias.copy_(model.head.bias)
    whole = SentenceTransformer(modules=[transformer, modules.Pooling(width, pooling_mode="mean"), dense], device="cpu")
    whole.save(str(folder), create_model_card=False)
    _stable_module_names(folder / "modules.json")


def _label(model: Any, codes: Sequence[str]) -> None:
    model.config.id2label = dict(enumerate(codes))
    model.config.label2id = {code: i for i, code in enumerate(codes)}
    model.config.num_labels = len(codes)


def _forget_origin(path: Path) -> None:
    """Leave no folder or host name of the training machine in a saved configuration."""
    if path.is_file():
        content = json.loads(path.read_text())
        kept = {k: v for k, v in content.items() if k not in {"_name_or_path", "name_or_path", "local_files_only"}}
        path.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


@dataclass(frozen=True)
class Released:
    """A released folder, loaded: texts in, scores out."""

    model: nn.Module
    tokenizer: Any
    codes: tuple[str, ...]
    max_length: int

    @torch.inference_mode()
    def logits(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Scores float32 [n, codes], in the texts' order."""
        tokens = encoders.token_inputs(self.tokenizer, texts, max_length=self.max_length)
        out = torch.empty(len(texts), len(self.codes))
        for index in length_sorted_batches(tokens, batch_size=batch_size):
            batch = tokens.batch(index, torch.device("cpu"))
            answer = self.model(**batch)
            out[index] = (answer if isinstance(answer, Tensor) else answer.logits).float()
        return out


def load(folder: Path) -> Released:
    """Open a folder that `save` wrote.

    Raises:
        MechanismError: the folder is no released model.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        codes = tuple(config["id2label"][str(i)] for i in range(len(config["id2label"])))
    except (OSError, ValueError, KeyError):
        raise MechanismError(f"{folder} is no released model: its config.json is missing or names no codes") from None
    tokenizer = encoders.load_tokenizer(str(folder))
    if (folder / "modules.json").is_file():
        encoder = encoders.load_encoder(str(folder))
        model: nn.Module = MeanPooled(encoder, encoders.width(encoder), len(codes))
        dense = load_file(folder / "2_Dense" / "model.safetensors")
        cast(MeanPooled, model).head.load_state_dict({"weight": dense["linear.weight"], "bias": dense["linear.bias"]})
    else:
        model = encoders.load_with_standard_head(str(folder), num_labels=len(codes))
    model.eval()
    return Released(model=model, tokenizer=tokenizer, codes=codes, max_length=int(tokenizer.model_max_length))


def _stable_module_names(path: Path) -> None:
    """Name the modules as every version of sentence-transformers knows them, not by where this one keeps them."""
    listed = json.loads(path.read_text())
    for module in listed:
        module["type"] = "sentence_transformers.models." + module["type"].rpartition(".")[2]
    path.write_text(json.dumps(listed, indent=2) + "\n")
