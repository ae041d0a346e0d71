"""A graph of a released folder takes texts, gives the folder's scores, and holds no weight but in
eight bits.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from refusals import of_kind

from mechanisms.errors import MechanismError
from mechanisms.model import classifier, encoder_files, export, lexicon, onnx_graph, text_graph
from mechanisms.model.config import ModelConfig
from mechanisms.model.lexicon import Lexicon
from mechanisms.model.scorer import GRAPH, INT8, Graph

TEXTS = ["employee fell from a ladder and broke an arm", "burn", "cut by a saw", ""]
CODES = ["11", "12", "13", "14"]
AWKWARD = [
    *(
        "",
        " ",
        "x",
        "...",
        "a" * 99,
        "b" * 100,
        "c" * 101,
        "ladder " * 300,
        "fell\tfrom\na\u00a0ladder\u3000",
    ),
    "[é] naïve café — “quoted” l5disc x-ray ½ Ⅳ ﬁre STRASSE ẞ ΣΑΣ 手術だ 한국어 e\u0301",
    (
        "soft\u00adhyphen ab\u200bcd e\x0bf ≠ `^$+<=>|~ \U0001f600 \ufffd burned LADDERS ladders' "
        "https://a.example/?x=1"
    ),
]


def _release(
    folder: Path, encoder: Path, *, lexical: str = "none", seed: int = 0, precision: str = "float32"
) -> Path:
    model = ModelConfig.model_validate(
        {"encoder": str(encoder), "trainable": "head", "pooling": "mean"}
    )
    model = model.model_copy(update={"max_length": 16, "lexical": lexical})
    built = classifier.build(
        model,
        num_labels=len(CODES),
        seed=seed,
        lexicon=None if lexical == "none" else _words(encoder),
    )
    export.save(
        built, folder, codes=CODES, precision="bfloat16" if precision == "bfloat16" else "float32"
    )
    return folder


def _words(encoder: Path) -> Lexicon:
    model = ModelConfig(encoder=str(encoder), trainable="head", pooling="mean", max_length=16)
    features = (
        classifier.build(model, num_labels=2, seed=0)
        .encode(classifier.tokenize(model, TEXTS))
        .features
    )
    stems = lexicon.vocabulary_of(TEXTS)
    table: lexicon.Table = {
        "ladders": ((0, 200), (2, 30)),
        "burned": ((1, 90),),
        "saw": ((len(stems) - 1, 255), (0, 3)),
    }
    return lexicon.build("titles", vocabulary=stems, table=table, texts=TEXTS, features=features)


@pytest.mark.parametrize(
    ("lexical", "precision"), [("none", "float32"), ("titles", "float32"), ("titles", "bfloat16")]
)
def test_the_graph_gives_the_codes_of_the_folder(
    tiny_bert: Path, tmp_path: Path, lexical: str, precision: str
) -> None:
    """For other numbers of records and tokens than it was traced with; other weights leave the
    graph as it is.
    """
    graphs: list[bytes] = []
    for seed in (0, 1):
        folder = _release(
            tmp_path / str(seed), tiny_bert, lexical=lexical, seed=seed, precision=precision
        )
        released = export.load(folder)
        graphs.append(onnx_graph.graph(released, folder))
        (folder / GRAPH).write_bytes(graphs[-1])
        exact = released.logits(TEXTS)
        assert np.allclose(Graph.load(folder).logits(TEXTS), exact, atol=1e-5)
        model: Any = onnxruntime.InferenceSession(str(folder / GRAPH))
        codes, scores = model.run(["codes", "scores"], {"texts": TEXTS})
        assert codes[:, 0].tolist() == [CODES[place] for place in exact.argmax(1).tolist()]
        assert np.allclose(scores, exact.softmax(1).sort(1, descending=True).values, atol=1e-5)
        (of_blank,) = model.run(["codes"], {"texts": [""]})
        assert of_blank[0, 0] in CODES, "the documentation says to leave blank narratives out"
    assert graphs[0] == graphs[1]


def test_texts_become_what_tokenizer_and_lexicon_make_of_them(tiny_bert: Path) -> None:
    """Of unusual signs, of words that are too long, of none at all; alone and together."""
    tokenizer, words = encoder_files.load_tokenizer(str(tiny_bert)), _words(tiny_bert)
    nodes = text_graph.Nodes("")
    made = text_graph.inputs(
        nodes, "texts", tokenizer.backend_tokenizer.to_str(), words, max_length=24, pad_id=0
    )
    kinds = dict.fromkeys(made, TensorProto.INT64) | {"words": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes.nodes,
        "texts",
        [helper.make_tensor_value_info("texts", TensorProto.STRING, ["records"])],
        [helper.make_tensor_value_info(made[name], kinds[name], None) for name in made],
        nodes.constants,
    )
    domains = {"": onnx_graph.OPSET, "com.microsoft": 1, "ai.onnx.ml": 3}
    opsets = [helper.make_opsetid(name, number) for name, number in domains.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=onnx_graph.IR)
    session: Any = onnxruntime.InferenceSession(model.SerializeToString())
    for texts in (AWKWARD, *([text] for text in AWKWARD)):
        ids, mask, block = session.run(list(made.values()), {"texts": texts})
        tokens = [row[: int(kept.sum())].tolist() for row, kept in zip(ids, mask, strict=True)]
        assert tokens == tokenizer(texts, truncation=True, max_length=24)["input_ids"]
        assert torch.equal(torch.from_numpy(block), words.words(texts))


def test_no_weight_is_in_the_graph(tiny_bert: Path, tmp_path: Path) -> None:
    """Every tensor of floats with more than a few is a place in a file of the folder."""
    folder = _release(tmp_path / "release", tiny_bert)
    graph = onnx.load_model_from_string(onnx_graph.graph(export.load(folder), folder)).graph
    constants = [
        a.t for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR
    ]
    floats = (TensorProto.FLOAT, TensorProto.BFLOAT16)
    inside = [
        one for one in (*graph.initializer, *constants) if one.data_location != TensorProto.EXTERNAL
    ]
    assert all(
        len(one.raw_data) <= 8 and not one.float_data for one in inside if one.data_type in floats
    )
    assert any(one.data_location == TensorProto.EXTERNAL for one in graph.initializer)
    assert not any(node.doc_string for node in graph.node)


def test_eight_bits_stand_alone(tiny_bert: Path, tmp_path: Path) -> None:
    """Their graph moves scores a little; the same weights give the same bytes."""
    folder = _release(tmp_path / "release", tiny_bert, lexical="titles")
    released = export.load(folder)
    first, second = (onnx_graph.graph(released, folder, int8=True) for _ in range(2))
    assert first == second
    (folder / INT8).write_bytes(first)
    (folder / GRAPH).write_bytes(onnx_graph.graph(released, folder))
    moved = np.abs(
        Graph.load(folder, int8=True).rounded(TEXTS) - released.logits(TEXTS).numpy()
    ).max()
    assert 0 < float(moved) < 0.1


def test_what_has_no_graph_is_refused(tiny_bert: Path, tiny_roberta: Path, tmp_path: Path) -> None:
    """Tokenizers other than BERT's, and hashed words."""
    model = ModelConfig.model_validate(
        {"encoder": str(tiny_roberta), "trainable": "head", "max_length": 16}
    )
    assert not onnx_graph.exists_for(model)
    worded = ModelConfig.model_validate(
        {"encoder": str(tiny_bert), "trainable": "head", "pooling": "mean"}
    )
    assert onnx_graph.exists_for(worded)
    assert not onnx_graph.exists_for(worded.model_copy(update={"lexical": "hashed"}))
    folder = tmp_path / "standard"
    export.save(classifier.build(model, num_labels=len(CODES), seed=0), folder, codes=CODES)
    with pytest.raises(MechanismError, check=of_kind("no-word-pieces")):
        onnx_graph.graph(export.load(folder), folder)
