"""A card computes what the processor computes: the passes, fits and noise of the mechanisms, on
both. They import the mechanisms alone, so that a machine with a card needs little (`make gpu`).
AUTOCODER_TEST_DEVICE=card rehearses them without one, on a pretended card (`pretended`); with `cpu`
both sides are the processor.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Mechanism, Records, Run, Task
from mechanisms.model import classifier, export
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.feed import Feed
from mechanisms.model.inputs import FeatureInputs, TokenInputs
from mechanisms.model.seeding import generator
from mechanisms.model.training import train
from mechanisms.posterior import risks, swag
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy import noise
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream
from mechanisms.swag_ppm import SwagPpm

DEVICE = os.environ.get("AUTOCODER_TEST_DEVICE", "cuda")
if DEVICE == "card":
    import pretended as pretended  # makes the device
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch sees no CUDA device"
    ),
]
N, LABELS, VOCABULARY = 48, 5, 200


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A RoBERTa of two layers, without dropout: masks are drawn from each device's
    own generator.
    """
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
    config = ModelConfig(encoder=encoder)
    on_cpu, on_device = (
        classifier.build(config, num_labels=LABELS, seed=0, device=d) for d in ("cpu", DEVICE)
    )
    assert on_device.flat.device.type == DEVICE
    return on_cpu, on_device


@pytest.fixture(scope="module")
def records() -> tuple[TokenInputs, Tensor]:
    g = torch.Generator().manual_seed(0)
    ids = [
        torch.randint(5, VOCABULARY, (int(n),), generator=g).tolist()
        for n in torch.randint(4, 60, (N,))
    ]
    return TokenInputs.from_lists(ids, pad_id=1), torch.randint(LABELS, (N,), generator=g)


def posterior_of(theta: Tensor, folder: Path) -> swag.Posterior:
    g = torch.Generator().manual_seed(0)
    state = swag.init(theta.numel(), rank=4, folder=folder)
    for _ in range(4):
        swag.update(state, theta + 1e-2 * torch.randn(theta.numel(), generator=g))
    swag.save(state)
    return swag.load(folder)


@contextmanager
def normals_of_the_processor(
    device: torch.device, seed: int, purpose: str, draw: int
) -> Iterator[swag.Normal]:
    """The normals that a processor draws, copied to the card, whose own differ."""
    g = generator(seed, purpose, "draw", draw)
    yield lambda out: out.copy_(torch.empty(out.shape).normal_(generator=g))


def test_draws_and_their_risks_agree(
    pair: tuple[Classifier, Classifier],
    records: tuple[TokenInputs, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every record's risk and every draw's largest, to float32's rounding."""
    monkeypatch.setattr(risks, "_seeded_on_card", normals_of_the_processor)
    posterior = posterior_of(pair[0].flat, tmp_path)
    one, other = (
        risks.risk_pass(made, *records, posterior, draws=range(6), seed=0, purpose="risk")
        for made in pair
    )
    torch.testing.assert_close(other.risk, one.risk, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.draw_maxima, one.draw_maxima, rtol=1e-4, atol=1e-5)


def test_draws_of_a_card_are_repeated_in_every_part(
    pair: tuple[Classifier, Classifier], records: tuple[TokenInputs, Tensor], tmp_path: Path
) -> None:
    """A draw depends on its number alone, bit for bit, not on the draws before it, and another
    number is another draw. The classifier has its own parameters again.
    """
    there, posterior = pair[1], posterior_of(pair[0].flat, tmp_path)
    start = there.flat.clone()
    measure = partial(risks.risk_pass, there, *records, posterior, seed=0, purpose="risk")
    whole, part = measure(draws=range(5)), measure(draws=range(3, 5))
    assert torch.equal(whole.draw_maxima[3:], part.draw_maxima)
    assert len(whole.draw_maxima.unique()) == 5
    assert torch.equal(there.flat, start)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_fits_agree(
    pair: tuple[Classifier, Classifier], records: tuple[TokenInputs, Tensor], optimiser: str
) -> None:
    """Two epochs over the same batches end with the same log-likelihoods, and have moved."""
    phase = OptimiserPhase.model_validate(
        {"optimiser": optimiser, "learning_rate": 1e-3, "epochs": 2}
    )
    start = pair[0].flat.clone()
    losses = [train(made, *records, phase=phase, seed=0, purpose="fit") for made in pair]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert not torch.allclose(pair[0].flat, start)


@pytest.mark.parametrize("width", [0, 3])
def test_batches_that_are_padded_on_the_card_agree(
    records: tuple[TokenInputs, Tensor], width: int
) -> None:
    """Ids or hidden states, mask and words, bit for bit, of any records in any order."""
    g = torch.Generator().manual_seed(0)
    inputs = replace(records[0], words=torch.randn(N, 2, generator=g))
    if width:
        inputs = replace(inputs, states=torch.randn(len(inputs.ids), width, generator=g))
    indices = torch.randperm(N, generator=g).split(7)
    feed = Feed.of(inputs, torch.device(DEVICE))
    assert (feed.resident is None) == (DEVICE == "cpu")
    for index, (place, batch) in zip(indices, feed.batches(indices), strict=True):
        assert torch.equal(place.cpu(), index)
        expected = inputs.batch(index, torch.device("cpu"))
        assert batch.keys() == expected.keys()
        for name, values in batch.items():
            assert values.device.type == DEVICE
            assert torch.equal(values.cpu(), expected[name])
    assert list(feed.batches([])) == []


if DEVICE == "card":

    @pytest.mark.parametrize("batch_size", [24, 4])
    def test_an_epoch_copies_one_list_of_indices_to_the_card(
        pair: tuple[Classifier, Classifier],
        records: tuple[TokenInputs, Tensor],
        monkeypatch: pytest.MonkeyPatch,
        batch_size: int,
    ) -> None:
        """However many steps it has. A second epoch tells its copies from those of the records."""
        run, copied = pretended._run, list[torch.Size]()

        def counted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if func.overloadpacket.__name__ == "copy_" and isinstance(args[0], pretended.OnCard):
                copied.extend(
                    value.shape
                    for value in args[1:2]
                    if not isinstance(value, pretended.OnCard) and value.dim() > 0
                )
            return run(func, args, kwargs)

        monkeypatch.setattr(pretended, "_run", counted)
        found = []
        for epochs in (1, 2):
            copied.clear()
            phase = OptimiserPhase(
                optimiser="sgd", learning_rate=1e-3, epochs=epochs, batch_size=batch_size
            )
            train(pair[1], *records, phase=phase, seed=0, purpose="fit")
            found.append([*copied])
        assert found[1] == [*found[0], torch.Size([N])]


def test_noise_is_the_same_on_both() -> None:
    """The secret stream's normals, so that a run may go on elsewhere than it began: the float32
    next to each other.
    """
    stream = SecretStream(bytes(range(32)))
    one, other = (
        stream.normal_(torch.empty(100_000, device=d), purpose="gradient noise", step=3)
        for d in ("cpu", DEVICE)
    )
    torch.testing.assert_close(other.cpu(), one, rtol=1e-5, atol=1e-6)


def test_steps_of_dp_sgd_agree(
    pair: tuple[Classifier, Classifier], records: tuple[TokenInputs, Tensor]
) -> None:
    """With one key, three steps with clipped sums, noise and samples end at the same parameters,
    another key's not.
    """
    config = DpSgd(batch_size=16, epochs=1, optimiser="sgd", learning_rate=0.5)
    segment = NoiseSegment(steps=3, noise_multiplier=0.5, l2_clip_norm=1.0)
    event = DpSgdEvent(sampling_prob=16 / N, segments=(segment,))
    start, ends = pair[0].flat.clone(), []
    for made, key in ((pair[0], 1), (pair[1], 1), (pair[1], 2)):
        made.flat.copy_(start)
        run = Run(LABELS, 0, lambda made=made: made, key=bytes([key]) * 32)
        dp_sgd.descend(config, event, Records(*records), run)
        ends.append(made.flat.cpu().clone())
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(ends[2], ends[0], atol=1e-2)


WIDTH = 8
MECHANISMS: tuple[Mechanism, ...] = (
    DpSgd(optimiser="sgd", learning_rate=1.0, epochs=3, sampling_prob=0.5),
    DpSgd(
        optimiser="sgd",
        epochs=3,
        sampling_prob=1.0,
        class_weights=ClassWeightsConfig(noise_multiplier=2.0),
    ),
    PriorDescent(steps=3),
    SwagPpm(
        round="reweighted",
        fine_tune=OptimiserPhase(optimiser="adamw", learning_rate=0.02, epochs=2),
        collect=OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=3),
        moments=SwagConfig(rank=2),
        pseudo_posterior=PseudoPosteriorConfig(risk_draws=5, sensitivity_draws=5),
    ),
)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: one.kind)
def test_a_fit_agrees(
    mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every mechanism that trains on the device, with one key: what the head says is the same on
    both.
    """
    monkeypatch.setattr(noise, "new_key", lambda: bytes(range(32)))
    monkeypatch.setattr(risks, "_seeded_on_card", normals_of_the_processor)
    g = torch.Generator().manual_seed(0)
    features = torch.randn(N, WIDTH, generator=g)
    labels = torch.randint(LABELS, (N,), generator=g)
    task = Task(records=N, classes=LABELS, target_epsilon=5.0, delta=1e-5)

    def head(device: str) -> Classifier:
        torch.manual_seed(0)
        part = nn.Linear(WIDTH, LABELS).to(device)
        config = ModelConfig(encoder="none", trainable="head", pooling="mean")
        return Classifier(
            config=config, whole=part, part=part, pool=None, device=torch.device(device)
        )

    said = []
    for device in ("cpu", DEVICE):
        run = Run(LABELS, 0, partial(head, device), folder=tmp_path / device)
        fitted = mechanism.plan(task).fit(Records(FeatureInputs(features), labels), run)
        said.append(fitted.model.log_probabilities(FeatureInputs(features)))
    torch.testing.assert_close(said[1], said[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("trainable", "precision"), [("head", "float32"), ("head", "bfloat16"), ("full", "float32")]
)
def test_the_encoder_agrees(
    encoder: str, records: tuple[TokenInputs, Tensor], trainable: Any, precision: Any
) -> None:
    config = ModelConfig(encoder=encoder, trainable=trainable, pooling="mean", precision=precision)
    made = [classifier.build(config, num_labels=LABELS, seed=0, device=d) for d in ("cpu", DEVICE)]
    read = [one.encode(records[0]) if trainable == "head" else records[0] for one in made]
    one, other = (own.predict(inputs) for own, inputs in zip(made, read, strict=True))
    close = 0.02 if precision == "bfloat16" else 1e-4
    torch.testing.assert_close(other, one, rtol=10 * close, atol=close)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_released_model_agrees(
    encoder: str, records: tuple[TokenInputs, Tensor], pooling: Any
) -> None:
    """Coding on a card: scores come back to the processor, in float32."""
    said = []
    for device in ("cpu", DEVICE):
        config = ModelConfig(encoder=encoder, pooling=pooling)
        model = (
            classifier.build(config, num_labels=LABELS, seed=0, device=device).releasable().eval()
        )
        codes = tuple(map(str, range(LABELS)))
        said.append(
            export.Released(model, None, codes, 64, device=torch.device(device)).scores(records[0])
        )
    assert said[1].device.type == "cpu"
    torch.testing.assert_close(said[1], said[0], rtol=1e-3, atol=1e-4)


if DEVICE != "cpu":

    def test_what_was_left_on_the_other_side_is_refused() -> None:
        there, here = torch.ones(3, device=DEVICE), torch.ones(3)
        with pytest.raises(RuntimeError, match="same device"):
            there.add(here)
        with pytest.raises(RuntimeError, match="same device"):
            torch.cat([here, there])
        with pytest.raises(TypeError, match="cpu"):
            there.numpy()
        with pytest.raises(RuntimeError, match="generator"):
            there.normal_(generator=torch.Generator())
        assert (there.cpu() + here).tolist() == [2, 2, 2]
