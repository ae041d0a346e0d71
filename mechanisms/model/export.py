"""A classifier as a folder that plain libraries load, and back.

Standard heads become a transformers folder (`pipeline("text-classification", folder)`); a mean-pooled head becomes the
sentence-transformers module layout (transformer, pooling, dense), whose `encode` gives the logits. Labels are codes.

A joint head of several fields becomes transformer and pooling, whose `encode` gives the features, and a folder a field
with a dense layer on them and the codes of its scores:

    encoder = SentenceTransformer(folder)
    part = SentenceTransformer(modules=[*encoder, Dense.load(folder, subfolder="part/2_Dense")])

A head that reads words next to the encoder becomes transformer and pooling too, with `lexicon.json` and a dense layer
on both blocks; the bundle's card reads it by published libraries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import token_budget_batches
from mechanisms.model.lexicon import MOST_CHARACTERS, Lexicon
from mechanisms.model.precision import computing
from mechanisms.model.rounded import RoundedModel
from mechanisms.model.threads import forward_passes, forward_tokens

ENCODER = "0_Transformer"
"""Folder of a mean-pooled model's encoder. Not the bundle itself: where it lies beside names of codes, transformers
makes up a head for it and answers with those names."""
LABELS = "labels.json"
"""Codes in the order of the scores, where no configuration of transformers names them; of a joint head, at the top the
names of its fields in their order, and in each field's folder its codes."""
DENSE = "2_Dense"

Shapes = dict[str, tuple[int, ...]]
Codes = Sequence[str] | Mapping[str, Sequence[str]]
"""The labels, in the order of the outputs; of several fields, those of each by its name."""


def save(classifier: Classifier, folder: Path, *, codes: Codes, precision: Precision = "float32") -> dict[str, Shapes]:
    """Write the whole model with its present parameters; return the shape of each weight written, by file and name.

    Args:
        codes: the labels, in the order of the outputs; of a joint head, those of each field by its name.
        precision: of the weights on the disk. bfloat16 halves the file and rounds each weight to 8 bits.
    """
    config = classifier.config
    several = codes if isinstance(codes, Mapping) else None
    if (classifier.fields and classifier.fields.sizes) != (several and tuple(map(len, several.values()))):
        raise MechanismError("the codes are not those of the fields that the head codes")
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
    weights = _inference_weights(model, several)
    if precision == "bfloat16":
        for name in weights:
            _halve(folder / name)
        _set(within / "config.json", dtype=precision)
    return weights


def tokenizer_of(encoder: str) -> dict[str, Any]:
    """Returns the encoder's public tokenizer in the format of `tokenizers`; refuses one that has no such format."""
    tokenizer = getattr(encoder_files.load_tokenizer(encoder), "backend_tokenizer", None)
    if tokenizer is None:
        raise MechanismError(f"encoder: `{encoder}` has no tokenizer.json; only such a tokenizer can be released")
    return json.loads(tokenizer.to_str())


def _inference_weights(model: nn.Module, several: Mapping[str, Sequence[str]] | None) -> dict[str, Shapes]:
    def shapes(module: nn.Module) -> Shapes:
        return {name: tuple(weight.shape) for name, weight in module.state_dict().items()}

    if isinstance(model, MeanPooled):
        encoder = {f"{ENCODER}/model.safetensors": shapes(model.encoder)}
        return encoder | {
            f"{place}{DENSE}/model.safetensors": {f"linear.{name}": shape for name, shape in shapes(head).items()}
            for place, head, _ in _heads(model, several)
        }
    return {"model.safetensors": shapes(model)}


def _halve(path: Path) -> None:
    weights = {name: weight.to(torch.bfloat16) for name, weight in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def _set(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2, sort_keys=True) + "\n")


def _heads(
    model: MeanPooled, several: Mapping[str, Sequence[str]] | None
) -> list[tuple[str, nn.Linear, Sequence[str]]]:
    """The linear layer of each field with its codes, and where its files lie: "" for the only one."""
    if several is None:
        return [("", model.head, ())]
    spans = Fields(tuple(map(len, several.values()))).spans
    return [
        (f"{name}/", _rows(model.head, span), own) for (name, own), span in zip(several.items(), spans, strict=True)
    ]


def _rows(head: nn.Linear, span: slice) -> nn.Linear:
    """Some rows of a linear layer as one of their own."""
    own = nn.Linear(head.in_features, span.stop - span.start)
    own.load_state_dict({"weight": head.weight[span].detach(), "bias": head.bias[span].detach()})
    return own.requires_grad_(False)


def _save_modules(model: MeanPooled, tokenizer: Any, folder: Path, *, codes: Codes) -> None:
    """Writes the layout of sentence-transformers, file for file what the library itself writes.

    Its imports take a second of every release, and it loads the encoder once more to save it.
    """
    several = codes if isinstance(codes, Mapping) else None
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
    for place, head, own in _heads(model, several):
        _save_dense(head, folder / place / DENSE)
        if place:
            _write(folder / place / LABELS, {"codes": list(own)})
        elif model.lexicon is None:
            modules.append("Dense")
    if model.lexicon is not None:
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
    _write(folder / LABELS, {"codes": list(codes)} if several is None else {"fields": list(several)})


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
    spans: Mapping[str, slice] = field(default_factory=dict)
    """Of a joint head, where each field's codes and scores lie; empty where there is one field."""

    @property
    def fields(self) -> Mapping[str, Released]:
        """Each field by its name, as a model of its own on the same encoder; the only one has the name ""."""
        return {name: self._of(span) for name, span in self.spans.items()} or {"": self}

    def _of(self, span: slice) -> Released:
        whole = cast(MeanPooled, self.model)
        own = MeanPooled(whole.encoder, encoders.width(whole), span.stop - span.start, whole.lexicon)
        own.head = _rows(whole.head, span)
        return replace(self, model=own.eval(), codes=self.codes[span], spans={})

    def logits(self, texts: Sequence[str]) -> Tensor:
        """Scores float32 [n, codes], in the texts' order; texts are cut at `max_length` tokens.

        In bfloat16 the texts whose two best codes are a near tie are scored again in float32: rounding chooses no code
        there. Of a text only the first 32,768 characters are looked at, many times what `max_length` tokens take of
        prose: a text of any size costs no more than that.
        """
        out = self.logits_in(self.precision, texts)
        if self.precision == "bfloat16":
            leads = [lead_of(out[:, span])[0] for span in self.places]
            near: list[int] = (torch.stack(leads) < self.near_tie).any(0).nonzero()[:, 0].tolist()
            if near:
                out[near] = self.logits_in("float32", [texts[at] for at in near])
        return out

    @property
    def places(self) -> tuple[slice, ...]:
        """Returns the places of each field's scores; all of them where there is one."""
        return tuple(self.spans.values()) or (slice(None),)

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
    """Returns how far bfloat16 moves the distance between the logits of the two codes that lead in it, float32 [n].

    Of several fields, the most that it moves in any."""
    exact, rounded = released.logits_in("float32", texts), released.logits_in("bfloat16", texts)
    moved = [torch.zeros(len(texts))]
    for place in released.places:
        lead, best = lead_of(rounded[:, place])
        if lead.isfinite().all():
            there = exact[:, place].gather(1, best)
            moved.append((lead - (there[:, 0] - there[:, 1])).abs())
    return torch.stack(moved).amax(0)


def load(folder: Path) -> Released:
    """Opens a folder that `save` wrote, and refuses any other."""
    labels = folder / LABELS
    encoder_folder = folder / ENCODER if labels.is_file() else folder
    try:
        spaces = _spaces(folder)
    except (OSError, ValueError, KeyError, TypeError):
        raise MechanismError(
            f"{folder} is not a released model: {LABELS} or config.json is missing, or lists no codes"
        ) from None
    codes = tuple(code for own in spaces.values() for code in own)
    tokenizer = encoder_files.load_tokenizer(str(encoder_folder))
    if (folder / "modules.json").is_file():
        encoder = encoders.load_frozen(str(encoder_folder))
        model: nn.Module = MeanPooled(encoder, encoders.width(encoder), len(codes), Lexicon.load(folder))
        places = [folder / name / DENSE / "model.safetensors" for name in spaces]
        loaded = [load_file(place) for place in places]
        stacked = {name: torch.cat([one[f"linear.{name}"].float() for one in loaded]) for name in ("weight", "bias")}
        cast(MeanPooled, model).head.load_state_dict(stacked)
    else:
        model = encoders.load_with_standard_head(str(folder), num_labels=len(codes))
    model.eval()
    several = {} if "" in spaces else dict(zip(spaces, Fields(tuple(map(len, spaces.values()))).spans, strict=True))
    longest = int(tokenizer.model_max_length)
    return Released(model=model, tokenizer=tokenizer, codes=codes, max_length=longest, spans=several)


def _spaces(folder: Path) -> dict[str, tuple[str, ...]]:
    """The codes of each field in the order of their scores; the only one has the name ""."""
    labels = folder / LABELS
    if not labels.is_file():
        named = json.loads((folder / "config.json").read_text())["id2label"]
        return {"": tuple(named[str(i)] for i in range(len(named)))}
    content = json.loads(labels.read_text(encoding="utf-8"))
    if "fields" not in content:
        return {"": tuple(map(str, content["codes"]))}
    names = [str(name) for name in content["fields"]]
    if not all(map(str.isidentifier, names)):
        raise ValueError("no names of fields")
    files = {name: folder / name / LABELS for name in names}
    return {name: tuple(map(str, json.loads(file.read_bytes())["codes"])) for name, file in files.items()}
