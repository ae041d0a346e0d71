"""Exports the model of a released folder as ONNX graphs from narratives to codes, which need only
onnxruntime.

  session = onnxruntime.InferenceSession("model.onnx")
  codes, scores = session.run(["codes", "scores"], {"texts": ["Fell from a ladder."]})

Tokenizer, words and codes are part of the graph (`text_graph`). `model.onnx` contains no weights,
only references to safetensors files in the same folder, so that its bytes depend only on the
model's configuration. `model.int8.onnx` contains its weights, with an 8-bit encoder.
"""

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import encoder_files
from mechanisms.model.classifier import MeanPooled
from mechanisms.model.config import ModelConfig
from mechanisms.model.export import DENSE, ENCODER, Released
from mechanisms.model.scorer import GRAPH

OPSET, IR = 20, 9
"""Versions that onnxruntime 1.17 can read."""
_MOST_CODES = 5
"""Number of codes that are returned per text, best first."""


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, words: Tensor | None = None
    ) -> Tensor:
        if isinstance(self.model, MeanPooled):
            return self.model(input_ids, attention_mask, words)
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def exists_for(model: ModelConfig) -> bool:
    """Whether a model can be exported: its encoder reads BERT's word pieces, and it reads no hashed
    words.
    """
    from mechanisms.model import text_graph

    tokenizer = encoder_files.load_tokenizer(model.encoder).backend_tokenizer
    return model.lexical != "hashed" and text_graph.reads(json.loads(tokenizer.to_str()))


def graph(released: Released, folder: Path, *, int8: bool = False) -> bytes:
    """The serialised graph of a folder's model. The same configuration gives the same bytes, and
    with `int8` the same weights do.

    Args:
        int8: store the encoder's matrices in the graph with eight bits, instead of references to
            the folder's files. Only seven of the bits are used, so that processors without VNNI do
            not overflow. Words and head are not quantised.
    """
    import onnx
    from onnx import helper

    from mechanisms.model import text_graph

    g, out = text_graph.Nodes("text."), text_graph.Nodes("codes.")
    lexicon = released.model.lexicon if isinstance(released.model, MeanPooled) else None
    tokenizer = released.tokenizer.backend_tokenizer.to_str()
    pad_id, longest = int(released.tokenizer.pad_token_id), released.max_length
    columns = text_graph.inputs(g, "texts", tokenizer, lexicon, max_length=longest, pad_id=pad_id)
    begin = [helper.make_node("Identity", [column], [name]) for name, column in columns.items()]
    body = _traced(released, list(columns), int8=int8).graph
    weights, rounded = list(body.initializer), []
    if not int8:
        weights, rounded = _weights(
            [value.name for value in body.input if value.name not in columns], folder
        )
    best = np.array([min(_MOST_CODES, len(released.codes))])
    scores, places = out("TopK", out("Softmax", "logits", axis=-1), best, outputs=2)
    best_codes = out("Gather", list(released.codes), places)
    end = [
        helper.make_node("Identity", [scores], ["scores"]),
        helper.make_node("Identity", [best_codes], ["codes"]),
    ]
    for node in body.node:
        node.doc_string = ""
    complete = helper.make_graph(
        [*g.nodes, *begin, *rounded, *body.node, *out.nodes, *end],
        "autocoder",
        [helper.make_tensor_value_info("texts", onnx.TensorProto.STRING, ["records"])],
        [
            helper.make_tensor_value_info("codes", onnx.TensorProto.STRING, ["records", "best"]),
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["records", "best"]),
            helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["records", "every"]),
        ],
        [*g.constants, *out.constants, *weights],
    )
    domains = {"": OPSET, "com.microsoft": 1, "ai.onnx.ml": 3}
    opsets = [helper.make_opsetid(domain, number) for domain, number in domains.items()]
    return helper.make_model(complete, opset_imports=opsets, ir_version=IR).SerializeToString(
        deterministic=True
    )


def _traced(released: Released, names: Sequence[str], *, int8: bool) -> Any:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = released.model
    batch = [torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)]
    axes: dict[str, dict[int, str]] = {name: {0: "records", 1: "tokens"} for name in names[:2]}
    if isinstance(model, MeanPooled) and model.lexicon is not None:
        batch.append(torch.zeros(2, model.lexicon.columns))
        axes["words"] = {0: "records"}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracer warnings about shapes, which are dynamic here
        file = str(Path(place) / GRAPH)
        torch.onnx.export(
            _Logits(model).eval(),
            tuple(batch),
            file,
            export_params=int8,
            input_names=list(names),
            output_names=["logits"],
            dynamic_axes=axes | {"logits": {0: "records"}},
            opset_version=OPSET,
            do_constant_folding=int8,
            dynamo=False,
        )
        if int8:
            kinds = ["MatMul", "Gather"]  # the head is a Gemm
            quantize_dynamic(
                file, file, kinds, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
            )
        return onnx.load(file)


class _StoredTensor(TypedDict):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _weights(names: Sequence[str], folder: Path) -> tuple[list[Any], list[Any]]:
    from onnx import TensorProto, helper

    files = {"model.safetensors": ("model.", "")}
    if (folder / ENCODER).is_dir():
        files = {f"{ENCODER}/model.safetensors": ("model.encoder.", "")}
        files |= {f"{DENSE}/model.safetensors": ("model.head.", "linear.")}
    stored: dict[str, tuple[str, int, _StoredTensor]] = {}
    for file, (prefix, inner) in files.items():
        with (folder / file).open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
            for key, entry in json.loads(content.read(size)).items():
                stored[prefix + key.removeprefix(inner)] = (file, 8 + size, entry)
    weights, nodes = [], []
    for name in names:
        if name not in stored:
            raise MechanismError(
                f"model.onnx: the graph's weight {name[:100]} is in no file of the folder",
                kind="weight-without-file",
            )
        file, begin, entry = stored[name]
        first, last = entry["data_offsets"]
        tensor_name = name if entry["dtype"] == "F32" else f"{name}.bfloat16"
        kind = TensorProto.FLOAT if tensor_name == name else TensorProto.BFLOAT16
        weight = TensorProto(
            name=tensor_name,
            dims=entry["shape"],
            data_type=kind,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", file), ("offset", begin + first), ("length", last - first)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
        if tensor_name != name:
            nodes.append(helper.make_node("Cast", [tensor_name], [name], to=TensorProto.FLOAT))
    return weights, nodes
