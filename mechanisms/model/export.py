"""Saves a classifier as a folder that standard libraries can load, and loads it again.

A standard head becomes a transformers folder (`pipeline("text-classification", folder)`). A
mean-pooled head becomes the sentence-transformers module layout (transformer, pooling, dense), with
`encode` returning the logits. Labels are codes.

A head that also reads words has `lexicon.json` and a dense layer on both blocks, and no
`modules.json`, because sentence-transformers would return the encoder's features instead of scores.
`onnx_graph` exports it completely.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import encoder_files, encoders
from mechanisms.model.classifier import Classifier, MeanPooled
from mechanisms.model.config import Precision
from mechanisms.model.inputs import Block, TokenInputs, blocks
from mechanisms.model.lexicon import Lexicon
from mechanisms.model.precision import computing
from mechanisms.model.scorer import LABELS, MOST_CHARACTERS, codes_of
from mechanisms.model.threads import block_tokens, forward_passes
from mechanisms.model.transfer import brought_back, to_device

ENCODER = "0_Transformer"
"""Folder of a mean-pooled model's encoder. It is not the bundle itself: next to the names of codes,
transformers would invent a head for it and answer with those names.
"""
DENSE = "2_Dense"

CPU = torch.device("cpu")
Shapes = dict[str, tuple[int, ...]]


def save(
    classifier: Classifier, folder: Path, *, codes: Sequence[str], precision: Precision = "float32"
) -> dict[str, Shapes]:
    """Writes the complete model with its current parameters; returns the shape of each written
    weight by file and name.

    Args:
        codes: the labels, in the order of the outputs.
        precision: precision of the stored weights. bfloat16 halves the file and rounds each weight
            to 8 bits.
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
    _join_merges(within / "tokenizer.json")
    _set(within / "config.json")
    _set(within / "tokenizer_config.json")
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


_LAST_LAYERS = (
    (f"{DENSE}/model.safetensors", "linear"),
    ("model.safetensors", "classifier.out_proj"),
    ("model.safetensors", "classifier"),
)
"""File and name of the layer that computes the scores, in each layout."""


def divide_scores(folder: Path, temperature: float, *, codes: int) -> None:
    """Divides the logits of a saved folder by a temperature, in the weights and bias of the last
    layer, so that every program that reads the folder computes the same probabilities.

    Raises:
        MechanismError: the model does not end in a linear layer with a bias.
    """
    for file, layer in _LAST_LAYERS:
        tensors = load_file(folder / file) if (folder / file).is_file() else {}
        names = (f"{layer}.weight", f"{layer}.bias")
        if all(name in tensors and len(tensors[name]) == codes for name in names):
            break
    else:
        raise MechanismError(
            "this encoder's head does not end in a linear layer with a bias", kind="no-linear-end"
        )
    if temperature != 1:
        for name in names:
            divided = tensors[name].double() / temperature
            tensors[name] = divided.to(tensors[name].dtype)
        save_file(tensors, folder / file, metadata={"format": "pt"})


def _halve(path: Path) -> None:
    weights = {name: weight.to(torch.bfloat16) for name, weight in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


_ORIGIN = {"_name_or_path", "name_or_path", "local_files_only", "is_local"}


def _set(path: Path, **values: Any) -> None:
    content = {k: v for k, v in json.loads(path.read_text()).items() if k not in _ORIGIN}
    path.write_text(json.dumps(content | values, indent=2, sort_keys=True) + "\n")


def _save_modules(model: MeanPooled, tokenizer: Any, folder: Path, *, codes: Sequence[str]) -> None:
    """Writes the oldest layout of sentence-transformers, which every version can read.

    The library itself is not used: its imports would add a second to every release, and it would
    load the encoder again to save it.
    """
    within = folder / ENCODER
    cast(Any, model.encoder).save_pretrained(within)
    if "use_cache" in json.loads((within / "config.json").read_text()):
        _set(within / "config.json", use_cache=False)  # only for decoders: the library disables it
    tokenizer.save_pretrained(within)
    _save_dense(model.head, folder / DENSE)
    _write(folder / LABELS, {"codes": list(codes)})
    if model.lexicon is not None:
        model.lexicon.save(folder)
        return
    _write(
        within / "sentence_bert_config.json",
        {"max_seq_length": tokenizer.model_max_length, "do_lower_case": False},
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": encoders.width(model), "pooling_mode_mean_tokens": True}
    unused_modes = dict.fromkeys(("pooling_mode_cls_token", "pooling_mode_max_tokens"), False)
    _write(folder / "1_Pooling" / "config.json", pooling | unused_modes)
    modules = [
        {
            "idx": idx,
            "name": str(idx),
            "path": f"{idx}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for idx, name in enumerate(("Transformer", "Pooling", "Dense"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")


def _save_dense(head: nn.Linear, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "in_features": head.in_features,
        "out_features": head.out_features,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    _write(folder / "config.json", settings)
    weights = {
        f"linear.{name}": weight.detach().cpu().contiguous()
        for name, weight in head.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")


def _write(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _join_merges(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    merges = content.get("model", {}).get("merges")
    if merges and all(
        isinstance(pair, list) and not any(" " in part for part in pair) for pair in merges
    ):
        content["model"]["merges"] = [" ".join(pair) for pair in merges]
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


@dataclass(frozen=True)
class Released:
    """A released folder, loaded: texts in, scores out."""

    model: nn.Module
    tokenizer: Any
    codes: tuple[str, ...]
    max_length: int
    precision: Literal["float32"] = "float32"
    near_tie: float = 0.0
    device: torch.device = CPU

    def logits(self, texts: Sequence[str]) -> Tensor:
        """Scores float32 [n, codes], in the order of the texts. Texts are truncated to `max_length`
        tokens.

        Only the first 32,768 characters of a text are read, many times the length of `max_length`
        tokens of prose. This bounds the cost of a text of any size.
        """
        tokens = encoders.token_inputs(
            self.tokenizer, [text[:MOST_CHARACTERS] for text in texts], max_length=self.max_length
        )
        lexicon = self.model.lexicon if isinstance(self.model, MeanPooled) else None
        return self.scores(tokens, None if lexicon is None else lexicon.words(texts))

    def scores(self, tokens: TokenInputs, words: Tensor | None = None) -> Tensor:
        """Scores float32 [n, codes] on the CPU, from tokens and, if the head reads them, word
        columns.
        """
        out = torch.empty(len(tokens), len(self.codes))

        def forward(block: Block) -> tuple[Tensor, Tensor]:
            read = dict(block.batch(tokens, self.device))
            if words is not None:
                read["words"] = torch.zeros(block.rows, words.shape[1])
                read["words"][: len(block.index)] = words[block.index]
                read["words"] = to_device(read["words"], self.device)
            with torch.no_grad(), computing("float32", self.device):
                answer = self.model(**read)
            logits = answer if isinstance(answer, Tensor) else answer.logits
            return block.index, logits[: len(block.index)].float()

        cut = blocks(tokens, budget=block_tokens(self.device))
        with forward_passes(tokens, self.device) as over:
            for index, answer in brought_back(over(forward, cut)):
                out[index] = answer
        return out


def load(folder: Path, device: torch.device = CPU) -> Released:
    """Opens a folder that `save` wrote, on the CPU or another device, and refuses any other
    folder.
    """
    labels = folder / LABELS
    encoder_folder = folder / ENCODER if labels.is_file() else folder
    try:
        codes = codes_of(folder)
    except (OSError, ValueError, KeyError, TypeError):
        raise MechanismError(
            f"{folder} is not a released model: {LABELS} or config.json is missing, or lists no "
            "codes",
            kind="not-a-released-model",
        ) from None
    tokenizer = encoder_files.load_tokenizer(str(encoder_folder))
    if labels.is_file():
        encoder = encoders.load_frozen(str(encoder_folder))
        model: nn.Module = MeanPooled(
            encoder, encoders.width(encoder), len(codes), Lexicon.load(folder)
        )
        dense = load_file(folder / DENSE / "model.safetensors")
        cast(MeanPooled, model).head.load_state_dict(
            {name: dense[f"linear.{name}"].float() for name in ("weight", "bias")}
        )
    else:
        model = encoders.load_with_standard_head(str(folder), num_labels=len(codes))
    model.eval().to(device)
    return Released(model, tokenizer, codes, int(tokenizer.model_max_length), device=device)
