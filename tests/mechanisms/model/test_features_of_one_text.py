"""A text's features and scores are a function of that text alone, bit for bit: neither the texts
beside it, nor its place among them, nor the number of threads moves a coordinate.

The claims of formal mechanisms rest on it: without one record, every other record's features are
what they were. It is tested with the packaged encoder, whose sums are as long as a release's.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mechanisms.model import classifier, encoder_files, export, onnx_graph
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import LENGTHS, TokenInputs, blocks
from mechanisms.model.precision import Precision
from mechanisms.model.scorer import GRAPH, Graph

CODES = ("111", "222", "333")
LONG = " ".join(["while the conveyor was moving"] * 20)


@pytest.fixture(scope="module")
def texts(narratives: Callable[..., list[str]]) -> list[str]:
    """Of most lengths that a block has, one of them twice, one longer than the encoder reads."""
    some = narratives(6, seed=3)
    return ["Fell.", LONG, *some, some[0], f"{some[1]} {some[2]} {some[3]}"]


def head(precision: Precision) -> Classifier:
    config = ModelConfig(
        encoder=encoder_files.PACKAGED,
        trainable="head",
        pooling="mean",
        max_length=64,
        precision=precision,
        lexical="none",
    )
    made = classifier.build(config, num_labels=len(CODES), seed=0)
    made.flat.add_(torch.randn(made.num_parameters, generator=torch.Generator().manual_seed(1)))
    return made


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def check_alone(answers: Callable[[list[str]], Tensor], texts: list[str]) -> None:
    """Each text by itself, in another order, and without one of the others."""
    together = answers(texts)
    places = torch.randperm(len(texts), generator=torch.Generator().manual_seed(2)).tolist()
    assert torch.equal(answers([texts[place] for place in places]), together[places])
    for left_out in (0, len(texts) - 1):
        rest = [place for place in range(len(texts)) if place != left_out]
        assert torch.equal(answers([texts[place] for place in rest]), together[rest])
    for place in range(0, len(texts), 4):
        assert torch.equal(answers([texts[place]])[0], together[place])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_features_are_a_function_of_one_text(
    precision: Precision, texts: list[str], threads: int
) -> None:
    made = head(precision)
    read = classifier.tokenizer(made.config)
    check_alone(lambda some: made.encode(read(some)).features, texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    released = tmp_path_factory.mktemp("released")
    export.save(head("float32"), released, codes=CODES)
    loaded = export.load(released)
    (released / GRAPH).write_bytes(onnx_graph.graph(loaded, released))
    return released


def test_scores_in_torch_are_a_function_of_one_text(
    folder: Path, texts: list[str], threads: int
) -> None:
    check_alone(export.load(folder).logits, texts)


def test_scores_of_the_graph_are_a_function_of_one_text(
    folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one core and with three the bits are the same, too."""
    graph = Graph.load(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = graph.logits(texts)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    check_alone(lambda some: torch.from_numpy(graph.logits(some)), texts)
    assert np.array_equal(graph.logits(texts), one)


def test_the_last_layers_read_states_of_one_text(texts: list[str], threads: int) -> None:
    """The states below the layers that train, token by token."""
    config = ModelConfig(
        encoder=encoder_files.PACKAGED,
        trainable="lora",
        pooling="mean",
        max_length=64,
        precision="float32",
        lexical="none",
        lora_layers=1,
    )
    read = classifier.tokenizer(config)
    some = texts[:4]

    def states(of: list[str]) -> Tensor:
        found = classifier.states(config, read(of), device=torch.device("cpu"))
        assert found is not None
        return found

    together = states(some).split(read(some).lengths.tolist())
    for place, alone in enumerate(together):
        assert torch.equal(states([some[place]]), alone)


@pytest.mark.parametrize("budget", [1, 64, 384])
def test_a_blocks_shape_follows_from_a_records_length(budget: int) -> None:
    """Every record comes once, in a block that it fits in and that has its rows
    whoever is there.
    """
    lengths = [1, 3, 8, 9, 40, 41, 64, 300, 512, 600]
    tokens = TokenInputs.from_lists([[7] * length for length in lengths] * 5, pad_id=0)
    cut = list(blocks(tokens, budget=budget))
    assert sorted(torch.cat([block.index for block in cut]).tolist()) == list(range(len(tokens)))
    for block in cut:
        own = tokens.lengths[block.index]
        fitting = [length for length in LENGTHS if length >= int(own.max())]
        assert block.length == (fitting[0] if fitting else int(own.max()))
        assert block.rows == max(1, budget // block.length)
        batch = block.batch(tokens, torch.device("cpu"))
        assert batch["input_ids"].shape == batch["attention_mask"].shape
        assert batch["input_ids"].shape == (block.rows, block.length)
        assert torch.equal(batch["attention_mask"][: len(own)].sum(1), own)
        assert bool((batch["attention_mask"][len(own) :].sum(1) == 1).all())
    nothing = TokenInputs.from_lists([], pad_id=0)
    assert list(blocks(nothing, budget=budget)) == []
