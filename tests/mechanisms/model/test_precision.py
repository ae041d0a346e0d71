"""Which numbers an encoder computes with, and what hangs on it."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from mechanisms.model import classifier, training
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.precision import resolved, rounded_once
from mechanisms.model.training import train


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, "bfloat16"),
        ({"amx_bf16": False, "avx512_bf16": True}, "bfloat16"),
        ({"amx_tile": True, "avx512_f": True, "avx512_bf16": False}, "float32"),
        ({"architecture": "aarch64"}, "float32"),
    ],
)
def test_the_processors_flags_choose(
    flags: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By instructions only for bfloat16: tiles and AVX-512 without them do not help."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    assert resolved("auto", "cpu") == expected
    assert resolved("auto", "cpu") == expected
    assert resolved("float32", "cpu") == "float32"
    assert resolved("bfloat16", "cpu") == "bfloat16"


def test_a_configuration_says_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` never reaches a key or a plan; float32 leaves no trace, so that older releases are
    found.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert ModelConfig(precision="auto").model_dump()["precision"] == "bfloat16"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False})
    assert ModelConfig(precision="auto").model_dump()["precision"] == "float32"
    assert ModelConfig(precision="auto") == ModelConfig()


def test_features_are_those_of_float32_but_for_rounding(tiny_bert: Path, narratives: Any) -> None:
    """Stored as float32, of the same direction to a thousandth, and not the same numbers: bfloat16
    did run.
    """
    made = {}
    for precision in ("float32", "bfloat16"):
        config = ModelConfig(
            encoder=str(tiny_bert),
            trainable="head",
            pooling="mean",
            max_length=32,
            precision=precision,
        )
        built = classifier.build(config, num_labels=3, seed=0)
        made[precision] = built.encode(classifier.tokenize(config, narratives(12))).features
    exact, rounded = made["float32"], made["bfloat16"]
    assert rounded.dtype == torch.float32
    assert float(torch.cosine_similarity(exact, rounded).min()) > 0.999
    assert not torch.equal(exact, rounded)


def test_each_step_sees_the_weights_of_the_step_before(tiny_roberta: Path, narratives: Any) -> None:
    """Training in bfloat16 follows float32: weights kept from the first step would leave every loss
    after it behind. A cast of the weights that outlives a step is what autocast does inside one
    block.
    """
    losses = {}
    for precision in ("float32", "bfloat16"):
        config = ModelConfig(
            encoder=str(tiny_roberta), trainable="full", max_length=32, precision=precision
        )
        built = classifier.build(config, num_labels=3, seed=0)
        tokens = classifier.tokenize(config, narratives(12))
        phase = OptimiserPhase(learning_rate=1e-2, epochs=4, batch_size=4)
        labels = torch.tensor([0] * 11 + [1])
        losses[precision] = train(built, tokens, labels, phase=phase, seed=0, purpose="test")
        assert built.flat.dtype == torch.float32
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)
    assert losses["bfloat16"] != losses["float32"]
    assert losses["float32"][-1] < 0.9 * losses["float32"][0], (
        "nothing was learnt, so nothing was shown"
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_frozen_weights_are_rounded_once_with_the_same_results(
    tiny_bert: Path, narratives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features, hidden states and the training of adapters are those of rounding before each
    product, bit for bit.
    """
    settings: dict[str, Any] = {
        **{"encoder": str(tiny_bert), "pooling": "mean", "max_length": 32},
        **{"precision": "bfloat16", "lora_rank": 2},
    }
    head = ModelConfig(trainable="head", **settings)
    lora = ModelConfig(trainable="lora", lora_layers=1, **settings)
    tokens, rounded = classifier.tokenize(head, narratives(12)), list[int]()
    made: dict[str, list[torch.Tensor]] = {}
    for name in ("once", "each time"):
        if name == "each time":
            for module in (classifier, training):
                monkeypatch.setattr(module, "rounded_once", lambda *_: nullcontext())
        states = classifier.states(lora, tokens, device=torch.device("cpu"))
        assert states is not None
        built = classifier.build(lora, num_labels=3, seed=0)
        phase = OptimiserPhase(learning_rate=1e-2, epochs=2, batch_size=4)
        labels = torch.tensor([0, 1, 2] * 4)
        start = built.flat.clone()
        built.part.register_forward_pre_hook(
            lambda part, _: rounded.append(
                sum(weight.dtype == torch.bfloat16 for weight in part.parameters())
            )
        )
        train(
            built,
            replace(tokens, states=states),
            labels,
            phase=phase,
            seed=0,
            purpose="test",
        )
        assert not torch.equal(built.flat, start)
        features = classifier.build(head, num_labels=3, seed=0).encode(tokens).features
        made[name] = [states, built.flat, features]
    assert all(map(torch.equal, made["once"], made["each time"]))
    assert min(rounded[:6]) > 0
    assert rounded[6:] == [0] * 6


def test_weights_are_float32_again_after_an_error() -> None:
    """A trained weight, and one that is also an embedding, are never rounded."""
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Embedding(2, 2), nn.Linear(2, 2)])
    module[2].weight = module[3].weight
    module[1:].requires_grad_(False)
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    with pytest.raises(ZeroDivisionError), rounded_once(module, "bfloat16"):
        kinds = {name: weight.dtype for name, weight in module.named_parameters()}
        assert {name for name, kind in kinds.items() if kind == torch.bfloat16} == {
            "1.weight",
            "1.bias",
            "3.bias",
        }
        _ = 1 // 0
    for name, weight in module.named_parameters():
        assert torch.equal(weight, before[name])


def test_blocks_that_overlap_leave_float32_weights() -> None:
    """Encoders of a process share weights, and the block that began first may end first."""
    layer = nn.Linear(2, 2).requires_grad_(False)
    before = layer.weight.clone()
    first, second = rounded_once(layer, "bfloat16"), rounded_once(layer, "bfloat16")
    first.__enter__()
    second.__enter__()
    assert layer.weight.dtype == torch.bfloat16
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert torch.equal(layer.weight, before)


def test_a_head_on_features_trains_in_float32(tiny_bert: Path) -> None:
    """Outside an encoder bfloat16 has no work: the same losses to the bit."""
    losses = []
    for precision in ("float32", "bfloat16"):
        config = ModelConfig(
            encoder=str(tiny_bert), trainable="head", pooling="mean", precision=precision
        )
        built = classifier.build(config, num_labels=3, seed=0)
        width = cast(nn.Linear, built.part).in_features
        features = FeatureInputs(
            features=torch.randn(12, width, generator=torch.Generator().manual_seed(0))
        )
        phase = OptimiserPhase(learning_rate=1e-2, epochs=2, batch_size=4)
        losses.append(
            train(built, features, torch.tensor([0, 1, 2] * 4), phase=phase, seed=0, purpose="test")
        )
    assert losses[0] == losses[1]
