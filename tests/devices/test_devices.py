"""A card computes what the processor computes: the passes, fits and noise of the mechanisms, on both.

They import the mechanisms alone, so that a machine with a card needs little (`make gpu`). AUTOCODER_TEST_DEVICE=cpu
rehearses them without one: then both sides are the processor.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mechanisms import dp_sgd
from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Plan
from mechanisms.model import classifier
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.inputs import TokenInputs
from mechanisms.model.training import OptimiserPhase, train
from mechanisms.posterior import risks, swag
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream

DEVICE = os.environ.get("AUTOCODER_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
N, LABELS, VOCABULARY = 48, 5, 200


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A RoBERTa of two layers, without dropout: masks are drawn from each device's own generator."""
    from transformers import RobertaConfig, RobertaModel

    folder = tmp_path_factory.mktemp("encoder")
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=80,
        pad_token_id=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    RobertaModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def pair(encoder: str) -> tuple[Classifier, Classifier]:
    """The same untrained classifier on the processor and on the device."""
    config = ModelConfig(encoder=encoder)
    on_cpu, on_device = (classifier.build(config, num_labels=LABELS, seed=0, device=d) for d in ("cpu", DEVICE))
    assert on_device.flat.device.type == DEVICE
    return on_cpu, on_device


@pytest.fixture(scope="module")
def records() -> tuple[TokenInputs, Tensor]:
    """Token ids of uneven length, and labels."""
    g = torch.Generator().manual_seed(0)
    ids = [torch.randint(5, VOCABULARY, (int(n),), generator=g).tolist() for n in torch.randint(4, 60, (N,))]
    return TokenInputs.from_lists(ids, pad_id=1), torch.randint(LABELS, (N,), generator=g)


def posterior_of(theta: Tensor, folder: Path) -> swag.Posterior:
    """Four snapshots around theta."""
    g = torch.Generator().manual_seed(0)
    state = swag.init(theta.numel(), rank=4, folder=folder)
    for _ in range(4):
        swag.update(state, theta + 1e-2 * torch.randn(theta.numel(), generator=g))
    swag.save(state)
    return swag.load(folder)


def test_draws_and_their_risks_agree(
    pair: tuple[Classifier, Classifier], records: tuple[TokenInputs, Tensor], tmp_path: Path
) -> None:
    """Every record's risk and every draw's largest, to float32's rounding."""
    posterior = posterior_of(pair[0].flat, tmp_path)
    one, other = (risks.risk_pass(made, *records, posterior, draws=range(6), seed=0, purpose="risk") for made in pair)
    torch.testing.assert_close(other.risk, one.risk, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.draw_maxima, one.draw_maxima, rtol=1e-4, atol=1e-5)


def test_bfloat16_ends_with_the_sensitivity_of_float32(
    pair: tuple[Classifier, Classifier], records: tuple[TokenInputs, Tensor], tmp_path: Path
) -> None:
    """On the device itself: the second look makes Delta float32's, whatever the first pass rounded away."""
    posterior = posterior_of(pair[0].flat, tmp_path)
    passed = partial(risks.risk_pass, pair[1], *records, posterior, draws=range(6), seed=0, purpose="risk")
    assert passed(precision="bfloat16").sensitivity == pytest.approx(passed().sensitivity, rel=1e-5)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_training_agrees(
    pair: tuple[Classifier, Classifier], records: tuple[TokenInputs, Tensor], optimiser: str
) -> None:
    """Two epochs over the same batches end with the same log-likelihoods, and have moved."""
    phase = OptimiserPhase.model_validate({"optimiser": optimiser, "learning_rate": 1e-3, "epochs": 2})
    start = pair[0].flat.clone()
    losses = [train(made, *records, phase=phase, seed=0, purpose="fit") for made in pair]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert not torch.allclose(pair[0].flat, start)


def test_noise_is_the_same_on_both() -> None:
    """The secret stream's normals, so that a run may go on elsewhere than it began: the float32 next to each other."""
    stream = SecretStream(bytes(range(32)))
    one, other = (
        stream.normal_(torch.empty(100_000, device=d), purpose="gradient noise", step=3) for d in ("cpu", DEVICE)
    )
    torch.testing.assert_close(other.cpu(), one, rtol=1e-5, atol=1e-6)


def test_steps_of_dp_sgd_agree(
    pair: tuple[Classifier, Classifier], records: tuple[TokenInputs, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one key, three steps with clipped sums, noise and samples end at the same parameters, another key's not."""
    config = DpSgd(batch_size=16, epochs=1, optimiser="sgd", learning_rate=0.5)
    segment = NoiseSegment(steps=3, noise_multiplier=0.5, l2_clip_norm=1.0)
    event = DpSgdEvent(sampling_prob=16 / N, segments=(segment,))
    plan = Plan(mechanism=config, event=event, records=N)
    start, ends = pair[0].flat.clone(), []
    for made, key in ((pair[0], 1), (pair[1], 1), (pair[1], 2)):
        monkeypatch.setattr(dp_sgd, "new_key", lambda key=key: bytes([key]) * 32)
        made.flat.copy_(start)
        dp_sgd.run_plan(made, *records, plan=plan, num_labels=LABELS, seed=0, purpose="steps")
        ends.append(made.flat.cpu().clone())
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(ends[2], ends[0], atol=1e-2)
