"""A classifier as a folder that plain libraries load, and back.

Standard heads become a transformers folder (`pipeline("text-classification", folder)`); a mean-pooled head becomes the
sentence-transformers module layout (transformer, pooling, dense), whose `encode` gives the logits. Labels are codes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import encoders
from mechanisms.model.classifier import Classifier, MeanPooled
from mechanisms.model.inputs import TokenInputs, token_budget_batches
from mechanisms.model.packed import PackedEncoder
from mechanisms.model.precision import Precision, computing
from mechanisms.model.threads import forward_passes

ENCODER = "0_Transformer"
"""Folder of a mean-pooled model's encoder. Not the bundle itself: where it lies beside names of codes, transformers
makes up a head for it and answers with those names."""
LABELS = "labels.json"
"""Codes in the order of the scores, where no configuration of transformers names them."""

Shapes = dict[str, tuple[int, ...]]


def save(
    classifier: Classifier, folder: Path, *, codes: Sequence[str], precision: Precision = "float32"
) -> dict[str, Shapes]:
    """Write the whole model with its present parameters; return the shape of each weight written, by file and name.

    Args:
        classifier: the model.
        folder: where to.
        codes: the labels, in the order of the outputs.
        precision: of the weights on the disk. bfloat16 halves the file and rounds each weight to 8 bits.
    """
    config = classifier.config
    model = classifier.releasable()
    tokenizer = encoders.load_tokenizer(config.encoder)
    tokenizer.model_max_length = config.max_length
    folder.mkdir(parents=True, exist_ok=True)
    with encoders.quiet():
        if isinstance(model, MeanPooled):
            within = folder / ENCODER
            _save_modules(model, tokenizer, folder, codes=codes, max_length=config.max_length)
        else:
            within = folder
            _label(cast(Any, model), codes)
            cast(Any, model).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    _forget_origin(within / "config.json")
    _forget_origin(within / "tokenizer_config.json")
    weights = _inference_weights(model)
    if precision == "bfloat16":
        for name in weights:
            _halve(folder / name)
        _set(within / "config.json", dtype=precision)
    return weights


def tokenizer_of(encoder: str) -> dict[str, Any]:
    """The encoder's public tokenizer in the format of `tokenizers`.

    Raises:
        MechanismError: the encoder cannot be had, or its tokenizer has no such format.
    """
    tokenizer = getattr(encoders.load_tokenizer(encoder), "backend_tokenizer", None)
    if tokenizer is None:
        raise MechanismError(f"encoder: `{encoder}` has no tokenizer.json; only such a tokenizer can be released")
    return json.loads(tokenizer.to_str())


def _inference_weights(model: nn.Module) -> dict[str, Shapes]:
    def shapes(module: nn.Module) -> Shapes:
        return {name: tuple(weight.shape) for name, weight in module.state_dict().items()}

    if isinstance(model, MeanPooled):
        dense = {f"linear.{name}": shape for name, shape in shapes(model.head).items()}
        return {f"{ENCODER}/model.safetensors": shapes(model.encoder), "2_Dense/model.safetensors": dense}
    return {"model.safetensors": shapes(model)}


def _halve(path: Path) -> None:
    weights = {name: weight.to(torch.bfloat16) for name, weight in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def _set(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2, sort_keys=True) + "\n")


def _save_modules(model: MeanPooled, tokenizer: Any, folder: Path, *, codes: Sequence[str], max_length: int) -> None:
    """The layout of sentence-transformers, written by the library itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    with tempfile.TemporaryDirectory(dir=folder) as place:
        cast(Any, model.encoder).save_pretrained(place)
        tokenizer.save_pretrained(place)
        transformer = modules.Transformer(place, max_seq_length=max_length)
    transformer.save_in_root = False
    width, labels = model.head.in_features, model.head.out_features
    dense = modules.Dense(width, labels, activation_function=nn.Identity())
    with torch.no_grad():
        dense.linear.weight.copy_(model.head.weight)
        dense.linear.bias.copy_(model.head.bias)
    whole = SentenceTransformer(modules=[transformer, modules.Pooling(width, pooling_mode="mean"), dense], device="cpu")
    whole.save(str(folder), create_model_card=False)
    _stable_module_names(folder / "modules.json")
    (folder / LABELS).write_text(json.dumps({"codes": list(codes)}, indent=2) + "\n", encoding="utf-8")


def _label(model: Any, codes: Sequence[str]) -> None:
    model.config.id2label = dict(enumerate(codes))
    model.config.label2id = {code: i for i, code in enumerate(codes)}
    model.config.num_labels = len(codes)


_ORIGIN = {"_name_or_path", "name_or_path", "local_files_only", "is_local"}


def _forget_origin(path: Path) -> None:
    """Leave no folder or host name of the training machine in a saved configuration."""
    if path.is_file():
        content = json.loads(path.read_text())
        kept = {k: v for k, v in content.items() if k not in _ORIGIN}
        path.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


_MOST_CHARACTERS = 1 << 15
_BATCH_TOKENS = {"float32": 1024, "bfloat16": 2048}
"""Padding included. float32's activations so stay in a core's cache; in bfloat16 longer products win more."""
NEAR_TIE = 0.05
"""Of a logit: where the two best codes lie closer than this in bfloat16, rounding may have put either first."""


@dataclass(frozen=True)
class Released:
    """A released folder, loaded: texts in, scores out."""

    model: nn.Module
    tokenizer: Any
    codes: tuple[str, ...]
    max_length: int
    precision: Precision = "float32"
    """Of the passes; the weights are float32."""

    def logits(self, texts: Sequence[str]) -> Tensor:
        """Scores float32 [n, codes], in the texts' order; texts are cut at `max_length` tokens.

        In bfloat16 the texts whose two best codes are a near tie are scored again in float32: rounding chooses no code
        there. Of a text only the first 32,768 characters are looked at, many times what `max_length` tokens take of
        prose: a text of any size costs no more than that.
        """
        out = self.logits_in(self.precision, texts)
        if self.precision == "bfloat16" and len(self.codes) > 1:
            best = out.topk(2, dim=-1).values
            near = (best[:, 0] - best[:, 1] < NEAR_TIE).nonzero()[:, 0].tolist()
            if near:
                out[near] = self.logits_in("float32", [texts[at] for at in near])
        return out

    def logits_in(self, precision: Precision, texts: Sequence[str]) -> Tensor:
        """The same with every text in one precision."""
        tokens = encoders.token_inputs(
            self.tokenizer, [text[:_MOST_CHARACTERS] for text in texts], max_length=self.max_length
        )
        out = torch.empty(len(texts), len(self.codes))
        packed = self._packed if precision == "bfloat16" else None

        def scores(index: Tensor) -> tuple[Tensor, Tensor]:
            with torch.inference_mode():
                if packed is not None:
                    return index, packed(tokens, index)
                with computing(precision, _CPU):
                    answer = self.model(**tokens.batch(index, _CPU))
                return index, (answer if isinstance(answer, Tensor) else answer.logits).float()

        with forward_passes(tokens, _CPU) as over:
            for index, answer in over(scores, token_budget_batches(tokens, budget=_BATCH_TOKENS[precision])):
                out[index] = answer
        return out

    @cached_property
    def _packed(self) -> Callable[[TokenInputs, Tensor], Tensor] | None:
        """Scores of the records at an index through the packed encoder; the head, a small product, is float32."""
        pooled = isinstance(self.model, MeanPooled)
        encoder = PackedEncoder.of(self.model.encoder if pooled else encoders.base(self.model))
        if encoder is None:
            return None
        head = self.model.head if pooled else encoders.standard_head(self.model)
        pooling = "mean" if pooled else "first"
        return lambda tokens, index: head(encoder.features(tokens, index, pooling=pooling))


_CPU = torch.device("cpu")


def margin_errors(released: Released, texts: Sequence[str]) -> Tensor:
    """How far bfloat16 moves the distance between the logits of the two codes that lead in it, float32 [n]."""
    exact, rounded = released.logits_in("float32", texts), released.logits_in("bfloat16", texts)
    if len(released.codes) < 2:
        return torch.zeros(len(texts))
    best = rounded.topk(2, dim=-1)
    there = exact.gather(1, best.indices)
    return ((best.values[:, 0] - best.values[:, 1]) - (there[:, 0] - there[:, 1])).abs()


def load(folder: Path) -> Released:
    """Open a folder that `save` wrote.

    Raises:
        MechanismError: the folder is no released model.
    """
    labels = folder / LABELS
    encoder_folder = folder / ENCODER if labels.is_file() else folder
    try:
        if labels.is_file():
            codes = tuple(map(str, json.loads(labels.read_text(encoding="utf-8"))["codes"]))
        else:
            named = json.loads((folder / "config.json").read_text())["id2label"]
            codes = tuple(named[str(i)] for i in range(len(named)))
    except (OSError, ValueError, KeyError, TypeError):
        raise MechanismError(
            f"{folder} is no released model: {LABELS} or config.json is missing or names no codes"
        ) from None
    tokenizer = encoders.load_tokenizer(str(encoder_folder))
    if (folder / "modules.json").is_file():
        encoder = encoders.load_encoder(str(encoder_folder))
        model: nn.Module = MeanPooled(encoder, encoders.width(encoder), len(codes))
        dense = {k: w.float() for k, w in load_file(folder / "2_Dense" / "model.safetensors").items()}
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
