"""A graph of a released folder holds no weight, gives the folder's scores, and is the same whatever the weights are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mechanisms.errors import MechanismError
from mechanisms.model import classifier, export, lexicon, onnx_graph
from mechanisms.model.config import ModelConfig

pytest.importorskip("onnxruntime")
TEXTS = ["employee fell from a ladder and broke an arm", "burn", "cut by a saw"]
CODES = ["11", "12", "13", "14"]


def _release(folder: Path, encoder: Path, *, lexical: str = "none", seed: int = 0, precision: str = "float32") -> Path:
    model = ModelConfig.model_validate({"encoder": str(encoder), "trainable": "head", "pooling": "mean"})
    model = model.model_copy(update={"max_length": 16, "lexical": lexical})
    words = None
    if lexical != "none":
        features = classifier.build(model.frozen(), num_labels=2, seed=0).encode(classifier.tokenize(model, TEXTS))
        vocabulary = lexicon.vocabulary_of(TEXTS)
        words = lexicon.build("titles", vocabulary=vocabulary, texts=TEXTS, features=features.features)
    built = classifier.build(model, num_labels=len(CODES), seed=seed, lexicon=words)
    export.save(built, folder, codes=CODES, precision="bfloat16" if precision == "bfloat16" else "float32")
    return folder


@pytest.mark.parametrize("lexical", ["none", "titles"])
def test_the_graph_gives_the_scores_of_the_folder(tiny_bert: Path, tmp_path: Path, lexical: str) -> None:
    """For other numbers of records and tokens than it was traced with; other weights leave the graph as it is."""
    graphs: list[bytes] = []
    for seed in (0, 1):
        folder = _release(tmp_path / str(seed), tiny_bert, lexical=lexical, seed=seed)
        released = export.load(folder)
        graphs.append(onnx_graph.graph(released, folder))
        (folder / onnx_graph.FILE).write_bytes(graphs[-1])
        assert torch.allclose(onnx_graph.scores(folder, released, TEXTS), released.logits(TEXTS), atol=1e-5)
    assert graphs[0] == graphs[1]
    largest = max(file.stat().st_size for file in folder.rglob("*.safetensors"))
    assert len(graphs[0]) < largest + 200_000


def test_no_weight_is_in_the_graph(tiny_bert: Path, tmp_path: Path) -> None:
    """Every tensor with more than a few numbers is a place in a file of the folder."""
    import onnx

    folder = _release(tmp_path / "release", tiny_bert)
    graph = onnx.load_model_from_string(onnx_graph.graph(export.load(folder), folder))
    assert {entry.data_location for entry in graph.graph.initializer} == {onnx.TensorProto.EXTERNAL}
    assert all(not entry.raw_data and not entry.float_data for entry in graph.graph.initializer)
    constants = [a.t for node in graph.graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
    integers = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)  # positions of tokens, shapes
    assert max(len(one.raw_data) for one in constants if one.data_type not in integers) <= 8
    assert not any(node.doc_string for node in graph.graph.node)


def test_what_has_no_graph_is_refused(tiny_bert: Path, tiny_roberta: Path, tmp_path: Path) -> None:
    """Weights in bfloat16 and standard heads, with the setting to change."""
    folder = _release(tmp_path / "half", tiny_bert, precision="bfloat16")
    with pytest.raises(MechanismError, match=r"release\.precision"):
        onnx_graph.graph(export.load(folder), folder)
    model = ModelConfig.model_validate({"encoder": str(tiny_roberta), "trainable": "head", "max_length": 16})
    folder = tmp_path / "standard"
    export.save(classifier.build(model, num_labels=len(CODES), seed=0), folder, codes=CODES)
    with pytest.raises(MechanismError, match="one field"):
        onnx_graph.graph(export.load(folder), folder)
