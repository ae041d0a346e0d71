"""The training loop: the weighted loss worked manually, and a resumed run equal to an unbroken one
bit for bit.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import of_kind
from small_heads import Fresh, MakeLinear, head_of
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint, pace
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs, TokenInputs
from mechanisms.model.pace import Pace
from mechanisms.model.training import EpochState, train
from mechanisms.posterior import swag

PARTS = ("full", "lora", "head")
SGD = OptimiserPhase(optimiser="sgd", learning_rate=0.5, epochs=1, batch_size=8)


class TestLoss:
    def test_one_step_by_hand(self) -> None:
        """Two records, one feature, two labels, theta = 0, rate 1; so p = 1/2 everywhere. x = 2, y
        = 0, alpha = 1 and x = 1, y = 1, alpha = 1/2. The gradient of w_0 is (1/2)(1 (-1/2) 2 + 1/2
        (1/2) 1) = -3/8, of b_0 (1/2)(-1/2 + 1/4) = -1/8; label 1 has the opposite. Divided by the
        sum of the weights instead, w_0 would become 1/2.
        """
        part = nn.Linear(1, 2)
        made = head_of(part)
        made.flat.zero_()
        inputs = FeatureInputs(features=torch.tensor([[2.0], [1.0]]))
        phase = OptimiserPhase(optimiser="sgd", learning_rate=1.0, epochs=1, batch_size=2)
        losses = train(
            made,
            inputs,
            torch.tensor([0, 1]),
            phase=phase,
            seed=0,
            purpose="x",
            weights=torch.tensor([1.0, 0.5]),
        )
        assert made.flat.tolist() == [0.375, -0.375, 0.125, -0.125]
        assert losses == pytest.approx([0.75 * torch.tensor(2.0).log().item()])

    @pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
    def test_alpha_one_is_unweighted(self, linear: MakeLinear, optimiser: Any) -> None:
        ended = []
        for weights in (None, torch.ones(30)):
            made, inputs, labels = linear(30)
            phase = OptimiserPhase(optimiser=optimiser, learning_rate=0.1, epochs=3, batch_size=8)
            losses = train(made, inputs, labels, phase=phase, seed=0, purpose="x", weights=weights)
            ended.append((made.flat.clone(), losses))
        assert torch.equal(ended[0][0], ended[1][0])
        assert ended[0][1] == ended[1][1]

    @pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
    @pytest.mark.parametrize("trainable", PARTS)
    def test_weight_zero_is_no_influence(
        self, fresh: Fresh, trainable: str, optimiser: Any
    ) -> None:
        """Other labels and (at equal length) other words change no bit at weight 0, and do at
        weight 1.
        """
        weights = torch.ones(20)
        weights[[3, 4, 11]] = 0

        def run(weights: Tensor, *, altered: bool) -> Tensor:
            made, inputs, labels = fresh(trainable)
            if altered:
                for i in (3, 4, 11):
                    labels[i] = (labels[i] + 1) % 5
                    if isinstance(inputs, TokenInputs):
                        inputs.ids[inputs.offsets[i] + 1 : inputs.offsets[i + 1] - 1] = 77
                    else:
                        inputs.features[i] = 1.0
            phase = OptimiserPhase(optimiser=optimiser, learning_rate=0.01, epochs=2, batch_size=8)
            train(made, inputs, labels, phase=phase, seed=0, purpose="x", weights=weights)
            return made.flat.clone()

        assert torch.equal(run(weights, altered=False), run(weights, altered=True))
        assert not torch.equal(
            run(torch.ones(20), altered=False), run(torch.ones(20), altered=True)
        )

    def test_a_record_of_weight_zero_makes_no_neighbour_louder(self, linear: MakeLinear) -> None:
        """Half of a batch at weight 0: the step is half of that on the other half,
        not equal to it.
        """
        made, inputs, labels = linear(8)
        start = made.flat.clone()
        weights = torch.tensor([1.0] * 4 + [0.0] * 4)
        train(made, inputs, labels, phase=SGD, seed=0, purpose="x", weights=weights)
        step = made.flat - start
        made.flat.copy_(start)
        kept = FeatureInputs(features=inputs.features[:4])
        train(made, kept, labels[:4], phase=SGD, seed=0, purpose="x")
        torch.testing.assert_close(2 * step, made.flat - start)

    def test_training_learns(self, fresh: Fresh) -> None:
        """The mean loss starts at that of guessing, ln 5, and falls, with every trainable part."""
        for trainable in PARTS:
            made, inputs, labels = fresh(trainable, n=16)
            phase = OptimiserPhase(learning_rate=0.05, epochs=20, batch_size=8)
            losses = train(made, inputs, labels, phase=phase, seed=0, purpose="x")
            assert losses[0] == pytest.approx(1.609, abs=0.1)
            assert losses[-1] < losses[0] - 0.05, trainable


class TestPhase:
    """Schedules and caps, on a loss whose gradient is 1 in each weight."""

    @pytest.fixture
    def slope(
        self, linear: MakeLinear, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[OptimiserPhase], Tensor]:
        """Run a phase on l = sum of the 12 weights (4 steps an epoch) and return how far each
        weight went.
        """

        def log_likelihood(self: Classifier, batch: Any, labels: Tensor) -> Tensor:
            return self.parameters[0].sum().expand(len(labels)) + 0 * self.parameters[1].sum()

        monkeypatch.setattr(Classifier, "log_likelihood", log_likelihood)

        def run(phase: OptimiserPhase, start: float = 0.0) -> Tensor:
            made, inputs, labels = linear(32)
            made.flat.fill_(start)
            train(made, inputs, labels, phase=phase, seed=0, purpose="x")
            assert torch.equal(made.flat[12:], torch.full_like(made.flat[12:], start))
            return made.flat[:12].clone()

        return run

    @pytest.mark.parametrize(
        ("change", "moved"),
        [
            ({"epochs": 2}, 4.0),  # eight steps of 0.5
            (
                {"epochs": 2, "schedule": "linear"},
                2.25,
            ),  # 0.5 (1 - t/8) for t = 0 to 7 sum to 0.5 * 4.5
            ({"max_grad_norm": 1.0}, 4 * 0.5 / 12**0.5),  # the gradient has norm sqrt 12
            ({"momentum": 0.5}, 0.5 * 6.125),  # velocities 1, 3/2, 7/4, 15/8
        ],
    )
    def test_sgd(self, slope: Any, change: dict[str, Any], moved: float) -> None:
        """Schedule, cap and momentum: how far each weight goes, manually."""
        torch.testing.assert_close(
            slope(SGD.model_copy(update=change)), torch.full((12,), moved), rtol=1e-5, atol=0
        )

    def test_a_pull_draws_back_to_the_start(self, slope: Any) -> None:
        """Four steps of 0.5 along a slope of 1, less the pull times the way from the start, which
        is 0 or 7.
        """
        expected = 0.0
        for _ in range(4):
            expected += 0.5 * (1 - 0.4 * expected)
        for start in (0.0, 7.0):
            moved = slope(SGD.model_copy(update={"pull": 0.4}), start=start) - start
            torch.testing.assert_close(moved, torch.full((12,), expected), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        "wrong",
        [
            *(
                {"learning_rate": -0.1},
                {"learning_rate": float("nan")},
                {"epochs": 0},
                {"batch_size": 0},
            ),
            *({"optimiser": "adamw", "momentum": 0.9}, {"momentun": 0.9}),
        ],
    )
    def test_out_of_range_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError):
            OptimiserPhase(**wrong)


class Killed(BaseException):
    """Stands for a kill: nothing in the loop may catch it."""


class KilledState(EpochState):
    """Passes everything to another state and dies at one moment of one epoch."""

    def __init__(self, inner: EpochState, *, epoch: int, moment: str) -> None:
        self.inner, self.epoch, self.moment = inner, epoch, moment
        self.tensors, self.restore = inner.tensors, inner.restore

    def after_epoch(self, epoch: int, theta: Tensor) -> None:
        self.inner.after_epoch(epoch, theta)
        if epoch == self.epoch and self.moment == "before the checkpoint":
            raise Killed

    def reported(self, done: int, total: int) -> None:
        """The progress of training, which reports an epoch after its checkpoint."""
        if done == self.epoch * STEPS and self.moment == "after the checkpoint":
            raise Killed


ADAMW = OptimiserPhase(
    learning_rate=0.01, epochs=2, batch_size=8, schedule="linear", length_bucketing=True
)
COLLECT = OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=4, batch_size=8, momentum=0.5)
STEPS = 3
"""Steps of an epoch: 20 records in batches of 8."""


Tuned = tuple[Tensor, list[float]]
"""Where the first phase ended: its parameters and losses."""


def whole_fit(
    fresh: Fresh,
    trainable: str,
    folder: Path,
    *,
    kill: tuple[str, int, str] | None = None,
    tuned: Tuned | None = None,
    checkpoint_seconds: float = 0,
) -> tuple[Tensor, swag.Posterior, list[list[float]], Tuned]:
    """AdamW, then SGD with SWAG, each phase on a newly built classifier as the stages do;
    optionally killed in one. A killed phase starts over in a new classifier on the same folder.

    Args:
        tuned: goes on from an unbroken first phase, which is not repeated.
    """
    losses = []
    theta: Tensor | None = None
    state: EpochState | None = None
    phases = [("adamw", ADAMW), ("sgd", COLLECT)]
    if tuned is not None:
        theta, losses, phases = tuned[0], [tuned[1]], phases[1:]
    for name, phase in phases:
        scratch = folder / name
        scratch.mkdir(parents=True, exist_ok=True)

        def attempt(
            kill: tuple[str, int, str] | None,
            name: str = name,
            phase: OptimiserPhase = phase,
            theta: Tensor | None = theta,
        ) -> Any:
            made, inputs, labels = fresh(trainable)
            if theta is not None:
                made.flat.copy_(theta)
            state = (
                swag.init(made.num_parameters, rank=3, folder=folder / "swag")
                if name == "sgd"
                else EpochState()
            )
            seen: EpochState = state
            progress = None
            if kill is not None and kill[0] == name:
                seen = killed = KilledState(state, epoch=kill[1], moment=kill[2])
                progress = killed.reported
            weights = torch.linspace(0, 1, 20)
            told = train(
                made,
                inputs,
                labels,
                phase=phase,
                seed=5,
                purpose=name,
                weights=weights,
                folder=folder / name,
                checkpoint_seconds=checkpoint_seconds,
                state=seen,
                progress=progress,
            )
            return made.flat.clone(), state, told

        if kill is not None and kill[0] == name:
            with pytest.raises(Killed):
                attempt(kill)
        theta, state, told = attempt(None)
        losses.append(told)
        if name == "adamw":
            tuned = (theta, told)
    assert isinstance(state, swag.State)
    assert theta is not None
    assert tuned is not None
    swag.save(state)
    return theta, swag.load(folder / "swag"), losses, tuned


@pytest.mark.parametrize("trainable", PARTS)
def test_resumed_equals_unbroken(fresh: Fresh, tmp_path: Path, trainable: str) -> None:
    """Killed after any epoch, before its checkpoint or after it: the same parameters, posterior and
    losses to the bit. With dropout, a linear rate, momentum, bucketing and weights.
    """
    theta, post, losses, tuned = whole_fit(fresh, trainable, tmp_path / "unbroken")
    assert post.rank == 3
    moments = [("adamw", e) for e in (1, 2)] + [("sgd", e) for e in (1, 2, 3, 4)]
    for phase, epoch in moments:
        for moment in ("before the checkpoint", "after the checkpoint"):
            folder = tmp_path / f"{phase}{epoch}{moment[:5]}"
            again, post_again, losses_again, _ = whole_fit(
                fresh,
                trainable,
                folder,
                kill=(phase, epoch, moment),
                tuned=None if phase == "adamw" else tuned,
            )
            assert torch.equal(again, theta), (phase, epoch, moment)
            assert torch.equal(post_again.mean, post.mean)
            assert torch.equal(post_again.diag_std, post.diag_std)
            assert all(
                torch.equal(a, b)
                for a, b in zip(post_again.deviations, post.deviations, strict=True)
            )
            assert losses_again == losses


@pytest.mark.parametrize("epochs", [2, 100])
def test_resumed_from_an_older_epoch_equals_unbroken(
    fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """A checkpoint in every other epoch, or none before the end: killed in any epoch of the
    collection, the epochs after the last checkpoint are computed again, with the same parameters,
    deviations and losses.
    """
    theta, post, losses, tuned = whole_fit(fresh, "head", tmp_path / "unbroken")
    asked, resumed_at = 0, list[int]()

    def now_and_then(self: Pace) -> bool:
        nonlocal asked
        asked += 1
        return asked % epochs == 0

    def restored(self: swag.State, tensors: Mapping[str, Tensor], epoch: int) -> None:
        resumed_at.append(epoch)
        restore(self, tensors, epoch)

    restore = swag.State.restore
    monkeypatch.setattr(swag.State, "restore", restored)
    monkeypatch.setattr(Pace, "is_due", now_and_then)
    for epoch in (1, 2, 3):
        folder, asked = tmp_path / str(epoch), 0
        resumed_at.clear()
        file = folder / "sgd" / "checkpoint.safetensors"
        kill = ("sgd", epoch, "after the checkpoint")
        again, post_again, losses_again, _ = whole_fit(
            fresh, "head", folder, kill=kill, tuned=tuned
        )
        assert resumed_at == ([2] if epochs == 2 and epoch >= 2 else [])
        assert len(checkpoint.load(file)[1]["losses"]) == COLLECT.epochs
        assert torch.equal(again, theta)
        assert torch.equal(post_again.mean, post.mean)
        assert all(map(torch.equal, post_again.deviations, post.deviations))
        assert losses_again == losses


def test_checkpoints_are_written_by_time(
    linear: MakeLinear, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of 100 seconds and a checkpoint every 250: after epochs 3, 6 and the last."""
    clock = 0.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: clock)

    class Slow(EpochState):
        def after_epoch(self, epoch: int, theta: Tensor) -> None:
            nonlocal clock
            clock += 100

    written: list[int] = []
    save = checkpoint.save
    monkeypatch.setattr(
        checkpoint,
        "save",
        lambda path, tensors, meta: (
            written.append(len(meta["losses"])) or save(path, tensors, meta)
        ),
    )
    made, inputs, labels = linear()
    train(
        made,
        inputs,
        labels,
        phase=SGD.model_copy(update={"epochs": 7}),
        seed=0,
        purpose="x",
        folder=tmp_path,
        checkpoint_seconds=250,
        state=Slow(),
    )
    assert written == [3, 6, 7]


def test_dropout_is_on_while_training_and_off_after(fresh: Fresh) -> None:
    """The bit-for-bit test means something only if masks are drawn: the seed of the phase changes
    the result.
    """
    ended = []
    for seed in (0, 0, 1):
        made, inputs, labels = fresh("full", n=8)
        one_batch = OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=1, batch_size=8)
        train(made, inputs, labels, phase=one_batch, seed=seed, purpose="x")
        assert not made.part.training
        ended.append(made.flat.clone())
    assert torch.equal(ended[0], ended[1])
    # One batch holds all records, so the order within it moves the sums by rounding alone: this is
    # the masks.
    assert float((ended[0] - ended[2]).abs().max()) > 1e-4


def test_training_leaves_the_global_generator_alone(linear: MakeLinear) -> None:
    """Seeding inside does not reseed the caller."""
    made, inputs, labels = linear()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(made, inputs, labels, phase=SGD, seed=0, purpose="x")
    assert torch.equal(torch.rand(3), expected)


def test_the_encoder_of_a_head_stays_as_it_was(fresh: Fresh) -> None:
    """`head` trains what follows the features; `lora` only adapters and head; `full` everything
    that has a gradient.
    """
    for trainable, pattern in (
        ("head", "classifier."),
        ("lora", ("lora_", "modules_to_save")),
        ("full", ""),
    ):
        made, inputs, labels = fresh(trainable)
        before = {name: p.detach().clone() for name, p in made.whole.named_parameters()}
        train(made, inputs, labels, phase=SGD, seed=0, purpose="x")
        for name, p in made.whole.named_parameters():
            if torch.equal(p, before[name]):
                continue
            wanted = (pattern,) if isinstance(pattern, str) else pattern
            assert any(w in name for w in wanted), (trainable, name)


class TestDivergence:
    """A loss that is no number stops the phase with a text that says what to change."""

    def test_clear_error(self, linear: MakeLinear, tmp_path: Path) -> None:
        """Names the epoch, the phase and the rate, and leaves no checkpoint of the broken epoch."""
        made, inputs, labels = linear(40)
        inputs.features.mul_(1e30)
        phase = OptimiserPhase(optimiser="sgd", learning_rate=100, epochs=3, batch_size=8)
        with pytest.raises(
            MechanismError,
            check=of_kind("diverged"),
            match=r"\b1\b.*fine-tune \(sgd",
        ):
            train(made, inputs, labels, phase=phase, seed=0, purpose="fine-tune", folder=tmp_path)
        assert list(tmp_path.iterdir()) == []
        assert not made.part.training

    def test_parameters_count_even_if_the_loss_looks_well(self, linear: MakeLinear) -> None:
        """Parameters that overflow in the last step of an epoch are seen, before SWAG or a
        checkpoint takes them.
        """
        made, inputs, labels = linear(8)
        inputs.features.mul_(1e38)
        made.flat.zero_()
        with pytest.raises(MechanismError, check=of_kind("diverged")):
            train(
                made,
                inputs,
                labels,
                phase=SGD.model_copy(update={"learning_rate": 100.0}),
                seed=0,
                purpose="x",
            )


class TestForeignCheckpoint:
    """A checkpoint of another run is refused, not mixed in."""

    @pytest.mark.parametrize("change", ["phase", "seed", "purpose", "records", "model"])
    def test_refused(self, linear: MakeLinear, tmp_path: Path, change: str) -> None:
        made, inputs, labels = linear(8)
        options: dict[str, Any] = {"phase": SGD, "seed": 0, "purpose": "x"}
        train(made, inputs, labels, **options, folder=tmp_path)
        if change == "phase":
            options["phase"] = SGD.model_copy(update={"learning_rate": 0.4})
        elif change == "model":
            made, inputs, labels = linear(8, width=4)
        elif change == "records":
            made, inputs, labels = linear(9)
        else:
            options[change] = 1 if change == "seed" else "y"
        with pytest.raises(MechanismError, check=of_kind("another-checkpoint")):
            train(made, inputs, labels, **options, folder=tmp_path)


def test_progress_counts_steps(linear: MakeLinear) -> None:
    """From 0 to all the steps of the phase, never backwards."""
    made, inputs, labels = linear(30)
    seen: list[tuple[int, int]] = []
    phase = SGD.model_copy(update={"epochs": 6})
    train(
        made,
        inputs,
        labels,
        phase=phase,
        seed=0,
        purpose="x",
        progress=lambda done, total: seen.append((done, total)),
    )
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert (done[-1], seen[0][1]) == (24, 24)
