"""Writes a released folder's model as an ONNX graph whose weights are the folder's own safetensors files.

    session = onnxruntime.InferenceSession("model.onnx")
    scores = session.run(None, {"input_ids": …, "attention_mask": …, "words": …})

`words` is the lexicon's block, where the model reads words. The graph holds no weight: each one is a place in
`0_Transformer/model.safetensors` or `2_Dense/model.safetensors`, so that the file is small and follows from the model's
configuration alone.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import encoders
from mechanisms.model.classifier import MeanPooled
from mechanisms.model.export import DENSE, ENCODER, Released

FILE = "model.onnx"
OPSET = 18


class _Scores(nn.Module):
    """Gives a mean-pooled model positional inputs, as an exporter traces them."""

    def __init__(self, model: MeanPooled) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, words: Tensor | None = None) -> Tensor:
        return self.model(input_ids, attention_mask, words)


def graph(released: Released, folder: Path) -> bytes:
    """Returns the graph of a folder's model, the same bytes for the same configuration.

    Raises:
        MechanismError: the model has several fields, a standard head or weights in bfloat16, or a weight of the graph
            is in none of the folder's files.
    """
    import onnx

    model = released.model
    if not isinstance(model, MeanPooled):
        raise MechanismError("release.onnx: needs one field and pooling `mean`. Leave it out")
    batch: dict[str, Any] = {"input_ids": torch.ones(2, 8, dtype=torch.int64)}
    batch["attention_mask"] = torch.ones(2, 8, dtype=torch.int64)
    if model.lexicon is not None:
        batch["words"] = torch.zeros(2, model.lexicon.columns)
    axes = {name: {0: "records", 1: "tokens"} for name in ("input_ids", "attention_mask")}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about shapes that are free here
        file = str(Path(place) / FILE)
        torch.onnx.export(
            _Scores(model).eval(),
            tuple(batch.values()),
            file,
            input_names=list(batch),
            output_names=["scores"],
            dynamic_axes=axes | {name: {0: "records"} for name in ("words", "scores") if name in (*batch, "scores")},
            opset_version=OPSET,
            do_constant_folding=False,
            dynamo=False,
        )
        traced: Any = onnx.load(file)
    places = _places(folder)
    for weight in traced.graph.initializer:
        _refer(weight, places)
    for node in traced.graph.node:
        node.doc_string = ""
    return traced.SerializeToString(deterministic=True)


def scores(folder: Path, released: Released, texts: Sequence[str]) -> Tensor:
    """Scores texts by `model.onnx` of a folder in onnxruntime: float32 [texts, codes]."""
    import onnxruntime

    tokens = encoders.token_inputs(released.tokenizer, texts, max_length=released.max_length)
    batch = dict(tokens.batch(torch.arange(len(texts)), torch.device("cpu")))
    lexicon = released.model.lexicon if isinstance(released.model, MeanPooled) else None
    if lexicon is not None:
        batch["words"] = lexicon.words(texts)
    session: Any = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: values.numpy() for name, values in batch.items()})[0])


def _places(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Returns where the bytes of each float32 parameter are, by its name in the graph: file, offset and length."""
    places: dict[str, tuple[str, int, int]] = {}
    for within, prefix, inner in ((ENCODER, "model.encoder.", ""), (DENSE, "model.head.", "linear.")):
        name = f"{within}/model.safetensors"
        with (folder / name).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            if entry["dtype"] != "F32":
                raise MechanismError("release.onnx: needs weights in float32. Set release.precision to float32")
            start, end = entry["data_offsets"]
            places[prefix + key.removeprefix(inner)] = (name, 8 + size + start, end - start)
    return places


def _refer(weight: Any, places: dict[str, tuple[str, int, int]]) -> None:
    """Puts the place of a weight's bytes in place of them."""
    import onnx

    if weight.name not in places:
        raise MechanismError(f"release.onnx: the graph's weight {weight.name[:100]} is in no file of the folder")
    location, offset, length = places[weight.name]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    del weight.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
