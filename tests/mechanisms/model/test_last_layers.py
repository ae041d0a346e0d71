"""Adapters in the last layers read the states below them, and give what the whole encoder gives
from tokens.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import of_kind
from small_heads import clipped_sum

from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model import classifier, encoders, lexicon
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.inputs import TokenInputs, load
from mechanisms.model.lexicon import Lexicon
from mechanisms.model.training import train

CPU = torch.device("cpu")
TEXTS = [
    "employee fell from a ladder and broke an arm",
    "burn",
    "cut by a saw",
    "the hand was caught in a machine",
]


def _words(model: ModelConfig) -> Lexicon:
    features = (
        classifier.build(model.frozen(), num_labels=2, seed=0)
        .encode(classifier.tokenize(model, TEXTS))
        .features
    )
    vocabulary = lexicon.vocabulary_of(TEXTS)
    return lexicon.build("titles", vocabulary=vocabulary, texts=TEXTS, features=features)


def _build(encoder: Path, **settings: object) -> tuple[Classifier, TokenInputs, TokenInputs]:
    """Returns a classifier whose adapters are not zero, its records with states, and the same with
    only ids.
    """
    model = ModelConfig.model_validate(
        {
            "encoder": str(encoder),
            "trainable": "lora",
            "pooling": "mean",
            "max_length": 16,
            "lora_rank": 2,
        }
        | {"lora_layers": 1, "lexical": "titles"}
        | settings
    )
    words = _words(model)
    built = classifier.build(model, num_labels=3, seed=0, lexicon=words)
    built.flat.copy_(
        torch.randn(built.num_parameters, generator=torch.Generator().manual_seed(1)) / 4
    )
    tokens = replace(classifier.tokenize(model, TEXTS), words=words.words(TEXTS))
    return built, replace(tokens, states=classifier.states(model, tokens, device=CPU)), tokens


def test_states_give_the_scores_of_tokens(tiny_bert: Path, tmp_path: Path) -> None:
    """Within rounding, before and after the adapters are merged; and files give the
    records back.
    """
    built, states, tokens = _build(tiny_bert)
    assert torch.allclose(built.predict(states), built.predict(tokens), atol=1e-4)
    states.save(tmp_path / "states.safetensors")
    again = load(tmp_path / "states.safetensors")
    assert torch.equal(built.predict(again), built.predict(states))
    order = torch.tensor([3, 1])
    assert torch.allclose(
        built.predict(states.select(order)), built.predict(states)[order], atol=1e-5
    )
    before = built.predict(tokens)
    merged = built.releasable()
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    with torch.no_grad():
        after = merged(**tokens.batch(torch.arange(4), CPU))
    assert torch.allclose(before, after, atol=1e-4)


def test_only_the_last_layers_and_the_head_train(tiny_bert: Path) -> None:
    """Every linear map of the last layer has an adapter; no other layer has one."""
    built, _, _ = _build(tiny_bert)
    count = len(encoders.layers(encoders.load_encoder(str(tiny_bert))))
    names = [name for name, p in built.whole.named_parameters() if p.requires_grad]
    assert {name for name in names if "lora" not in name} == {"head.weight", "head.bias"}
    adapted = [name for name in names if "lora_A" in name]
    assert len(adapted) == 6
    assert all(f"layer.{count - 1}." in name for name in adapted)


def test_clipped_sums_are_those_of_each_record_alone(tiny_bert: Path) -> None:
    """Clipping of states: the sum over a batch is the sum over its records, each at
    most the clip.
    """
    built, states, _ = _build(tiny_bert)
    labels = torch.tensor([0, 1, 2, 0])

    def summed(index: torch.Tensor) -> torch.Tensor:
        return clipped_sum(
            built, states.batch(index, CPU), labels[index], lambda n: (0.1 / n).clamp(max=1)
        )[1]

    alone = [summed(torch.tensor([at])) for at in range(4)]
    assert all(float(one.norm()) <= 0.1 + 1e-6 for one in alone)
    # The norms are of float32 gradients, whose rounding depends on the batch.
    assert torch.allclose(summed(torch.arange(4)), torch.stack(alone).sum(0), atol=1e-5)
    assert float(alone[0].norm()) > 0.09


def test_what_cannot_be_is_refused(tiny_bert: Path) -> None:
    """More layers than the encoder has, adapters that a head has none of, and words next to a whole
    encoder.
    """
    with pytest.raises(MechanismError, check=of_kind("too-many-layers")):
        _build(tiny_bert, lora_layers=12)
    for settings in ({"trainable": "head"}, {"pooling": "first", "lexical": "none"}):
        with pytest.raises(ValueError, match="lora_layers goes with"):
            _build(tiny_bert, **settings)
    with pytest.raises(ValueError, match="`head` or `lora`"):
        _build(tiny_bert, trainable="full", lora_layers=None)


def test_the_head_has_a_rate_of_its_own(tiny_bert: Path) -> None:
    """One step of SGD moves the head by its rate and the adapters by the other, without privacy and
    with it.
    """
    labels, moved = torch.tensor([0, 1, 2, 0]), list[tuple[float, float]]()
    for rate in (1.0, 5.0):
        built, states, _ = _build(tiny_bert)
        before = built.flat.clone()
        phase = OptimiserPhase(
            optimiser="sgd", learning_rate=0.01, head_rate=rate, epochs=1, batch_size=4
        )
        train(built, states, labels, phase=phase, seed=0, purpose="test")
        moved.append(_moved(built, before))
    assert moved[1] == pytest.approx((moved[0][0], 5 * moved[0][1]), rel=1e-3)

    noisy = list[tuple[float, float]]()
    task = Task(records=4, classes=3, target_epsilon=5.0, delta=1e-5)
    for rate in (1.0, 5.0):
        settings: dict[str, Any] = {
            "optimiser": "sgd",
            "learning_rate": 0.01,
            "epochs": 1,
            "sampling_prob": 1.0,
        }
        plan = DpSgd(**settings, head_rate=rate).plan(task)
        assert plan.event == DpSgd(**settings).plan(task).event
        built, states, _ = _build(tiny_bert)
        before = built.flat.clone()
        plan.fit(Records(states, labels), Run(3, 0, lambda built=built: built, key=bytes(32)))
        noisy.append(_moved(built, before))
    assert noisy[1] == pytest.approx((noisy[0][0], 5 * noisy[0][1]), rel=1e-3)


def _moved(built: Classifier, before: torch.Tensor) -> tuple[float, float]:
    step = built.flat - before
    head = torch.zeros_like(step, dtype=torch.bool)
    for parameter in built.head_parameters:
        head[built.spans[id(parameter)]] = True
    return float(step[~head].norm()), float(step[head].norm())
