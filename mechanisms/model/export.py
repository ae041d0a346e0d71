"""A classifier as a folder that plain libraries load, and back.

Standard heads become a transformers folder (`pipeline("text-classification", folder)`); a mean-pooled head becomes the
sentence-transformers module layout (transformer, pooling, dense), whose `encode` gives the logits. Labels are codes.

A head that reads words next to the encoder becomes transformer and pooling too, with `lexicon.json` and a dense layer
on both blocks; the bundle's card reads it by published libraries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import encoder_files, encoders
from mechanisms.model.classifier import Classifier, MeanPooled
from mechanisms.model.config import Precision
from mechanisms.model.inputs import token_budget_batches
from mechanisms.model.lexicon import MOST_CHARACTERS, Lexicon
from mechanisms.model.precision import computing
from mechanisms.model.rounded import RoundedModel
from mechanisms.model.threads import forward_passes, forward_tokens

ENCODER = "0_Transformer"
"""Folder of a mean-pooled model's encoder. Not the bundle itself: where it lies beside names of codes, transformers
makes up a head for it and answers with those names."""
LABELS = "labels.json"
"""Codes in the order of the scores, where no configuration of transformers names them."""
DENSE = "2_Dense"

Shapes = dict[str, tuple[int, ...]]


def save(
    classifier: Classifier, folder: Path, *, codes: Sequence[str], precision: Precision = "float32"
) -> dict[str, Shapes]:
    """Write the whole model with its present parameters; return the shape of each weight written, by file and name.

    Args:
        codes: the labels, in the order of the outputs.
        precision: of the weights on the disk. bfloat16 halves the file and rounds each weight to 8 bits.
    """
    config = classifier.config
    model = classifier.releasable()
    tokenizer = encoder_files.load_tokenizer(config.encoder)
    tokenizer.model_max_length = config.max_length
    folder.mkdir(parents=True, exist_ok=True)
    with encoders.quiet():
        if isinstance(model, MeanPooled):
            within = folder / ENCODER
            _save_modules(model, tokenizer, folder, codes=codes)
        else:
            within, standard = folder, cast(Any, model)
            standard.config.id2label = dict(enumerate(codes))
            standard.config.label2id = {code: i for i, code in enumerate(codes)}
            standard.config.num_labels = len(codes)
            standard.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    _forget_origin(within / "config.json")
    _forget_origin(within / "tokenizer_config.json")
    weights = _inference_weights(model)
    if precision == "bfloat16":
        for name in weights:
            _halve(folder / name)
        _set(within / "config.json", dtype=precision)
    return weights


def _inference_weights(model: nn.Module) -> dict[str, Shapes]:
    def shapes(module: nn.Module) -> Shapes:
        return {name: tuple(weight.shape) for name, weight in module.state_dict().items()}

    if isinstance(model, MeanPooled):
        encoder = {f"{ENCODER}/model.safetensors": shapes(model.encoder)}
        dense = {f"linear.{name}": shape for name, shape in shapes(model.head).items()}
        return encoder | {f"{DENSE}/model.safetensors": dense}
    return {"model.safetensors": shapes(model)}


def _halve(path: Path) -> None:
    weights = {name: weight.to(torch.bfloat16) for name, weight in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def _set(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2, sort_keys=True) + "\n")


def _save_modules(model: MeanPooled, tokenizer: Any, folder: Path, *, codes: Sequence[str]) -> None:
    """Writes the layout of sentence-transformers, file for file what the library itself writes.

    Its imports take a second of every release, and it loads the encoder once more to save it.
    """
    within = folder / ENCODER
    cast(Any, model.encoder).save_pretrained(within)
    if "use_cache" in json.loads((within / "config.json").read_text()):
        _set(within / "config.json", use_cache=False)  # of decoders: the library switches it off
    tokenizer.save_pretrained(within)
    _write_settings(within / "sentence_bert_config.json", _TOKENS)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"embedding_dimension": encoders.width(model), "pooling_mode": "mean", "include_prompt": True}
    _write_settings(folder / "1_Pooling" / "config.json", pooling)
    modules = ["Transformer", "Pooling"]
    _save_dense(model.head, folder / DENSE)
    if model.lexicon is None:
        modules.append("Dense")
    else:
        model.lexicon.save(folder)
    listed = [
        {"idx": at, "name": str(at), "path": f"{at}_{name}", "type": f"sentence_transformers.models.{name}"}
        for at, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n")
    versions = {name.replace("-", "_"): version(name) for name in ("sentence-transformers", "transformers")}
    settings = {
        "__version__": {"pytorch": str(torch.__version__), **versions},
        "default_prompt_name": None,
        "model_type": "SentenceTransformer",
        "prompts": {"document": "", "query": ""},
        "similarity_fn_name": "cosine",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings, indent=2))
    _write(folder / LABELS, {"codes": list(codes)})


_TOKENS = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
"""How sentence-transformers reads an encoder's states."""


def _save_dense(head: nn.Linear, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "in_features": head.in_features,
        "out_features": head.out_features,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
        "module_input_name": "sentence_embedding",
        "module_output_name": "sentence_embedding",
    }
    _write_settings(folder / "config.json", settings)
    weights = {f"linear.{name}": weight.detach().cpu().contiguous() for name, weight in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def _write_settings(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON as sentence-transformers does."""
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_ORIGIN = {"_name_or_path", "name_or_path", "local_files_only", "is_local"}


def _forget_origin(path: Path) -> None:
    """Leave no folder or host name of the training machine in a saved configuration."""
    if path.is_file():
        content = json.loads(path.read_text())
        remaining = {k: v for k, v in content.items() if k not in _ORIGIN}
        path.write_text(json.dumps(remaining, indent=2, sort_keys=True) + "\n")


NEAR_TIE = 0.05
"""Of a logit: where the two best codes lie closer than this in bfloat16, rounding may have put either first. The least
width of that band; a model whose logits are larger has a wider one (`Released.near_tie`)."""


@dataclass(frozen=True)
class Released:
    """A released folder, loaded: texts in, scores out."""

    model: nn.Module
    tokenizer: Any
    codes: tuple[str, ...]
    max_length: int
    precision: Precision = "float32"
    """Of the passes; the weights are float32."""
    near_tie: float = NEAR_TIE
    """Of a logit: texts whose two best codes lie closer than this in bfloat16 are scored again in float32."""

    def logits(self, texts: Sequence[str]) -> Tensor:
        """Scores float32 [n, codes], in the texts' order; texts are cut at `max_length` tokens.

        In bfloat16 the texts whose two best codes are a near tie are scored again in float32: rounding chooses no code
        there. Of a text only the first 32,768 characters are looked at, many times what `max_length` tokens take of
        prose: a text of any size costs no more than that.
        """
        out = self.logits_in(self.precision, texts)
        if self.precision == "bfloat16":
            near: list[int] = (lead_of(out)[0] < self.near_tie).nonzero()[:, 0].tolist()
            if near:
                out[near] = self.logits_in("float32", [texts[at] for at in near])
        return out

    def logits_in(self, precision: Precision, texts: Sequence[str]) -> Tensor:
        """The same with every text in one precision."""
        tokens = encoders.token_inputs(
            self.tokenizer, [text[:MOST_CHARACTERS] for text in texts], max_length=self.max_length
        )
        out = torch.empty(len(texts), len(self.codes))
        rounded = self._rounded if precision == "bfloat16" else None
        lexicon = self.model.lexicon if isinstance(self.model, MeanPooled) else None
        words = None if lexicon is None else lexicon.words(texts)

        def scores(index: Tensor) -> tuple[Tensor, Tensor]:
            block = {} if words is None else {"words": words[index]}
            with torch.inference_mode():
                batch = tokens.batch(index, _CPU)
                if rounded is not None:
                    return index, rounded.logits(batch, **block)
                with computing(precision, _CPU):
                    answer = self.model(**batch, **block)
                return index, (answer if isinstance(answer, Tensor) else answer.logits).float()

        with forward_passes(tokens, _CPU) as over:
            for index, answer in over(scores, token_budget_batches(tokens, budget=forward_tokens(precision, _CPU))):
                out[index] = answer
        return out

    @cached_property
    def _rounded(self) -> RoundedModel | None:
        return RoundedModel.of(self.model)


_CPU = torch.device("cpu")


def lead_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    """By how much the best code leads the second, [n], and which two they are, [n, 2]; of one code: for ever."""
    if scores.shape[1] < 2:
        return scores.new_full((len(scores),), math.inf), scores.new_zeros((len(scores), 2), dtype=torch.int64)
    best = scores.topk(2, dim=-1)
    return best.values[:, 0] - best.values[:, 1], best.indices


def margin_errors(released: Released, texts: Sequence[str]) -> Tensor:
    """Returns how far bfloat16 moves the distance between the logits of the two codes that lead in it, float32 [n]."""
    exact, rounded = released.logits_in("float32", texts), released.logits_in("bfloat16", texts)
    lead, best = lead_of(rounded)
    if not lead.isfinite().all():
        return torch.zeros(len(texts))
    chosen = exact.gather(1, best)
    return (lead - (chosen[:, 0] - chosen[:, 1])).abs()


def load(folder: Path) -> Released:
    """Opens a folder that `save` wrote, and refuses any other."""
    labels = folder / LABELS
    encoder_folder = folder / ENCODER if labels.is_file() else folder
    try:
        codes = _codes(folder)
    except (OSError, ValueError, KeyError, TypeError):
        raise MechanismError(
            f"{folder} is not a released model: {LABELS} or config.json is missing, or lists no codes"
        ) from None
    tokenizer = encoder_files.load_tokenizer(str(encoder_folder))
    if (folder / "modules.json").is_file():
        encoder = encoders.load_frozen(str(encoder_folder))
        model: nn.Module = MeanPooled(encoder, encoders.width(encoder), len(codes), Lexicon.load(folder))
        dense = load_file(folder / DENSE / "model.safetensors")
        cast(MeanPooled, model).head.load_state_dict(
            {name: dense[f"linear.{name}"].float() for name in ("weight", "bias")}
        )
    else:
        model = encoders.load_with_standard_head(str(folder), num_labels=len(codes))
    model.eval()
    longest = int(tokenizer.model_max_length)
    return Released(model=model, tokenizer=tokenizer, codes=codes, max_length=longest)


def _codes(folder: Path) -> tuple[str, ...]:
    """Returns the codes in the order of the scores."""
    labels = folder / LABELS
    if not labels.is_file():
        named = json.loads((folder / "config.json").read_text())["id2label"]
        return tuple(named[str(i)] for i in range(len(named)))
    return tuple(map(str, json.loads(labels.read_text(encoding="utf-8"))["codes"]))
