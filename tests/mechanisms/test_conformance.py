"""What every registered mechanism has to keep, asked of all of them: a new one is asked without a
line here. Statistical tests fix the key of the noise, so that they cannot fail by chance; the level
that they would have with a fresh key is stated with each.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from refusals import of_kind
from small_heads import claim, head_of, noisy_sums, scale_p_value
from torch import Tensor, nn

from mechanisms.descent import exact_sums
from mechanisms.errors import MechanismError
from mechanisms.mechanism import (
    ENTRY_POINTS,
    CalibratedMechanism,
    Fitted,
    Mechanism,
    Model,
    Plan,
    Records,
    Run,
    Task,
    kinds,
)
from mechanisms.model import checkpoint
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.identity import IDENTITY
from mechanisms.model.inputs import FeatureInputs
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.claims import formal
from mechanisms.privacy.events import (
    ComposedEvent,
    DpSgdEvent,
    Event,
    NoiseSegment,
    decode,
    descent_of,
)
from mechanisms.privacy.noise import SecretStream
from mechanisms.privacy.scaled import noise_scaled

WIDTH, CLASSES, N = 6, 3, 60
SMALL: dict[str, Any] = {
    "phase": OptimiserPhase(optimiser="adamw", learning_rate=0.02, epochs=3, batch_size=8),
    "fine_tune": OptimiserPhase(optimiser="adamw", learning_rate=0.02, epochs=2, batch_size=8),
    "collect": OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=3, batch_size=8),
    "moments": SwagConfig(rank=2),
    "pseudo_posterior": PseudoPosteriorConfig(risk_draws=5, sensitivity_draws=5),
    "epochs": 12,
    "batch_size": 20,
}
"""What the runs of this suite leave to a mechanism, by the names that branches are filled in with.
"""
TASK = Task(records=N, classes=CLASSES, target_epsilon=4.0, delta=1e-4, features=WIDTH)
ANNOUNCED = {entry.module for entry in entry_points(group=ENTRY_POINTS)}
KINDS = sorted(
    kind
    for kind, mechanism in kinds().items()
    if mechanism.__module__.startswith("mechanisms.") or mechanism.__module__ in ANNOUNCED
)
"""The program's own, and those that installed packages announce."""


def made(kind: str) -> Mechanism:
    few = {"steps": 20} if kind == "prior-descent" else {}
    return kinds()[kind].model_validate(few).with_defaults(SMALL)


@cache
def planned(kind: str) -> Plan:
    return made(kind).plan(TASK)


def descends(event: Event | None) -> bool:
    parts = event.events if isinstance(event, ComposedEvent) else (event,)
    return any(isinstance(part, DpSgdEvent) for part in parts)


def classifier() -> Classifier:
    part = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        part.weight.zero_()
        part.bias.zero_()
    return head_of(part)


def records(n: int = N, *, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    return Records(
        FeatureInputs(
            torch.eye(CLASSES, WIDTH)[labels] + torch.randn(n, WIDTH, generator=generator)
        ),
        labels,
    )


def run(**how: Any) -> Run:
    """A run whose noise follows from one key; `key=None`: from a secret one. Every epoch has a
    checkpoint.
    """
    how.setdefault("key", bytes(range(32)))
    how.setdefault("checkpoint_seconds", 0)
    return Run(classes=CLASSES, seed=5, classifier=classifier, **how)


def said(fitted: Fitted) -> Tensor:
    return fitted.model.log_probabilities(records(seed=1).inputs)


@pytest.mark.parametrize("kind", KINDS)
class TestEvery:
    def test_settings_and_plan_survive_json(self, kind: str) -> None:
        """Both come back equal, by their tags; a plan's event is JSON that another accountant can
        read.
        """
        plan = planned(kind)
        assert Plan.model_validate_json(plan.model_dump_json()) == plan
        assert plan.event is None or decode(plan.event.model_dump(mode="json")) == plan.event

    def test_what_ran_is_what_was_planned_and_claimed(self, kind: str) -> None:
        """The fit's event is the plan's, an accountant knows it, and a solved target is met and not
        by far.
        """
        plan = planned(kind)
        fitted = plan.fit(records(), run())
        assert plan.event in (None, fitted.event)
        delta = TASK.delta if formal(fitted.event) else None
        one, two = (claim(fitted.event, delta=delta, m=m) for m in (1, 2))
        assert (one.max_records_per_unit, two.max_records_per_unit) == (1, 2)
        if one.epsilon is None or two.epsilon is None:
            assert one.guarantee_kind == two.guarantee_kind == "none"
            return
        assert not isinstance(plan.mechanism, CalibratedMechanism) or 0.99 * 4 <= one.epsilon <= 4
        assert two.epsilon > 1.5 * one.epsilon, "a unit of two records costs more than one of one"

    def test_it_runs_with_half_of_its_noise(self, kind: str) -> None:
        """What an audit's power is measured on: of the plan's kind, and the noise
        that ran is half.
        """
        plan = planned(kind)
        rate = None
        with suppress(MechanismError):
            rate = None if plan.event is None else gaussian_cost.gaussian_rate(plan.event)
        if plan.event is None or rate is None:
            pytest.skip("not of Gaussian noise alone: no curve is tested")
        halved = noise_scaled(plan.event, 0.5)
        fitted = plan.model_copy(update={"noise_factor": 0.5}).fit(records(), run())
        assert fitted.event == halved
        assert gaussian_cost.gaussian_rate(fitted.event) == pytest.approx(2 * rate)

    def test_a_target_is_that_of_a_unit(self, kind: str) -> None:
        """Planned for units of two records, it claims the target for such a unit: no place leaves
        the factor out.
        """
        task = TASK.model_copy(update={"records_per_unit": 2, "target_epsilon": 1.0})
        mechanism = made(kind)
        if not mechanism.needs_target_epsilon:
            pytest.skip("nothing is solved for a target")
        event = mechanism.plan(task).fit(records(), run()).event
        epsilon = claim(event, delta=1e-4, m=2).epsilon
        assert epsilon is not None
        assert 0.99 <= epsilon <= 1

    def test_it_answers_with_probabilities_and_loads_itself(
        self, kind: str, tmp_path: Path
    ) -> None:
        """Log-probabilities sum to one in float64, and a saved model says the same again."""
        mechanism = planned(kind).mechanism
        fitted = planned(kind).fit(records(), run(folder=tmp_path / "work"))
        assert isinstance(fitted.model, Model)
        scores = said(fitted)
        assert scores.shape == (N, CLASSES)
        torch.testing.assert_close(scores.exp().sum(1), torch.ones(N, dtype=torch.float64))
        (tmp_path / "kept").mkdir()
        fitted.model.save(tmp_path / "kept")
        loaded = mechanism.load(tmp_path / "kept", run())
        torch.testing.assert_close(loaded.log_probabilities(records(seed=1).inputs), scores)

    @pytest.mark.parametrize("stop", [1, 2])
    def test_a_resumed_fit_equals_an_unbroken_one(
        self, kind: str, tmp_path: Path, stop: int
    ) -> None:
        """Killed at its `stop`-th progress report, and continued from the same
        folder: bit for bit.
        """

        class Killed(BaseException):
            pass

        told = []

        def kill(done: int, total: int | None) -> None:
            told.append(done)
            if len(told) == stop:
                raise Killed

        plan = planned(kind)
        unbroken = said(plan.fit(records(), run(folder=tmp_path / "unbroken")))
        with suppress(
            Killed
        ):  # one that tells no progress is not interrupted, and has to find itself finished
            plan.fit(records(), run(folder=tmp_path / "broken", progress=kill))
        assert len(told) in (0, stop)
        resumed = plan.fit(records(), run(folder=tmp_path / "broken"))
        assert torch.equal(said(resumed), unbroken)

    def test_other_records_than_planned_are_refused(self, kind: str) -> None:
        """Except for an audit's reruns, which keep the plan's noise and event on records of another
        number.
        """
        plan = planned(kind)
        with pytest.raises(
            MechanismError, check=of_kind("other-records", saying=(f"{N} records", N - 1))
        ):
            plan.fit(records(N - 1), run())
        rerun = plan.fit(records(N - 1), run(resampled=True))
        assert plan.event in (None, rerun.event)

    def test_an_event_follows_from_settings_noise_and_shape(self, kind: str) -> None:
        """A plan states none, so that none can be edited: other noise makes another event, which is
        paid for, and a plan whose event would be another for the records at hand is refused.
        """
        plan = planned(kind)
        assert "event" not in plan.model_dump()
        with pytest.raises(ValidationError, match="Extra inputs"):
            Plan.model_validate(
                plan.model_dump()
                | {"event": None if plan.event is None else plan.event.model_dump()}
            )
        if plan.noise:
            assert plan.model_copy(update={"noise": 1.25 * plan.noise}).event != plan.event
        for shape in ({"classes": 7}, {"features": 4}):
            other = plan.model_copy(update={"task": TASK.model_copy(update=shape)})
            if other.event == plan.event:
                continue
            with pytest.raises(MechanismError, check=of_kind("other-shape")):
                other.fit(records(), run())

    def test_a_folder_is_gone_on_with_by_its_own_fit_alone(self, kind: str, tmp_path: Path) -> None:
        """A finished fit is neither another plan's nor other records', and the refusal says which;
        without its identity it is no one's. Its own fit finds it all the same.
        """
        plan, here = planned(kind), run(folder=tmp_path)
        first = said(plan.fit(records(), here))
        if plan.mechanism.needs_target_epsilon:
            quiet = made(kind).plan(TASK.model_copy(update={"target_epsilon": 3.0}))
            with pytest.raises(
                MechanismError, check=of_kind("another-fit", saying=("event", "config"))
            ):
                quiet.fit(records(), here)
        with pytest.raises(MechanismError, check=of_kind("another-fit"), match=r"records"):
            plan.fit(records(seed=2), here)
        with pytest.raises(MechanismError, check=of_kind("another-fit"), match=r"records"):
            plan.fit(records(N - 1), replace(here, resampled=True))
        relabelled = Records(records().inputs, records().labels.flip(0))
        with pytest.raises(
            MechanismError, check=of_kind("another-fit"), match=r"records and another seed"
        ):
            plan.fit(relabelled, replace(here, seed=6))
        assert torch.equal(said(plan.fit(records(), here)), first)
        (tmp_path / IDENTITY).unlink()
        with pytest.raises(MechanismError, check=of_kind("unknown-fit")):
            plan.fit(records(), here)

    def test_figures_hold_no_record(self, kind: str) -> None:
        """Aggregates alone: numbers, words and lists by epoch, none of them with an
        entry a record.
        """
        figures = planned(kind).fit(records(), run()).figures
        for name, value in figures.items():
            assert isinstance(value, int | float | str | list | tuple), name
            assert not isinstance(value, list | tuple) or len(value) not in (N, CLASSES * N), name


class Killed(BaseException):
    """As if the process had ended."""


class Draws:
    """Every address of noise that is drawn at, with the keys that it was drawn under, and a kill at
    one draw or save. A kill before a save leaves what was drawn unwritten: with another key its
    noise would be drawn a second time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: dict[tuple[str, int], set[bytes]] = {}
        self.events, self.kill_at = 0, -1
        source, save = SecretStream._source, checkpoint.save

        def drawn(stream: SecretStream, purpose: str, step: int) -> Any:
            self._count()
            self.keys.setdefault((purpose, step), set()).add(stream._key)
            return source(stream, purpose, step)

        def saved(*args: Any) -> None:
            if self.keys:
                self._count()
            save(*args)

        monkeypatch.setattr(SecretStream, "_source", drawn)
        monkeypatch.setattr(checkpoint, "save", saved)

    def _count(self) -> None:
        self.events += 1
        if self.events == self.kill_at:
            raise Killed


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_fit_draws_no_noise_twice(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keys of the operating system: killed after its first draw, halfway, and before its last
    file, and fitted again, each address of noise has the key that it was first drawn under; the
    finished fit's folder holds no key.
    """
    plan, draws = planned(kind), Draws(monkeypatch)
    plan.fit(records(), run(folder=tmp_path / "unbroken", key=None))
    if not draws.keys:
        pytest.skip("draws no secret noise")
    once, last = {address: len(keys) for address, keys in draws.keys.items()}, draws.events
    for kill_at in sorted({2, 1 + last // 2, last}):
        folder = killed_at(
            kill_at,
            lambda folder: plan.fit(records(), run(folder=folder, key=None)),
            draws,
            tmp_path,
        )
        assert draws.keys, "killed after it drew"
        draws.kill_at = -1
        plan.fit(records(), run(folder=folder, key=None))
        # a chain that its diagnostics make longer has addresses of its own, each under one key as
        # well
        assert all(len(keys) == once.get(address, 1) for address, keys in draws.keys.items())
        for file in folder.rglob("*.safetensors"):
            assert not any("key" in name for name in checkpoint.load(file)[0])


def killed_at(event: int, fit: Callable[[Path], Any], draws: Draws, parent: Path) -> Path:
    """Returns the folder of a fit that was killed at an event, or at its last one where its chain
    was shorter.
    """
    for attempt in range(10):
        draws.keys, draws.events, draws.kill_at = {}, 0, event
        folder = parent / f"{event}-{attempt}"
        try:
            fit(folder)
        except Killed:
            return folder
        event = draws.events
    raise AssertionError("no fit was killed")


NOISY = [kind for kind in KINDS if descends(planned(kind).event)]
"""Those that take noisy steps; the noise of a release is asked for in its mechanism's own tests."""


def unit_of(kind: str, segment: NoiseSegment) -> float:
    """Returns how many units of its sums are 1."""
    return 2.0 ** (exact_sums.SUM_BITS if kind == "prior-descent" else exact_sums.bits_of(segment))


@pytest.mark.parametrize("kind", NOISY)
@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_steps_have_the_events_noise(
    kind: str, factor: float, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square over every coordinate of every step: sigma C of the event passes at level 1e-6,
    2/3 and 3/2 do not.
    """
    sums = noisy_sums(monkeypatch)["gradient noise"]
    plan = planned(kind)
    plan.fit(records(), run())
    descent = descent_of(plan.event)
    segments = [s for s in descent.segments for _ in range(s.steps)]
    assert len(sums) == len(segments), "one noisy sum a step, and no other"
    stds = [s.noise_multiplier * s.l2_clip_norm * unit_of(kind, s) for s in segments]
    noise = torch.cat([z / std for (_, z, _), std in zip(sums, stds, strict=True)])
    assert (scale_p_value(noise, std=factor) > 1e-6) == accepted


@pytest.mark.parametrize("kind", NOISY)
def test_a_record_moves_the_first_step_by_no_more_than_the_clip(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same key, and all records in every step, neighbours' clipped sums differ by at most
    C; the largest of five records far from the others comes near it, so that the bound is one that
    binds.
    """
    sums = noisy_sums(monkeypatch)["gradient noise"]
    sampled = {"sampling_prob": 1.0} if "sampling_prob" in kinds()[kind].model_fields else {}
    mechanism = kinds()[kind].model_validate({"kind": kind, **sampled}).with_defaults(SMALL)
    plan = mechanism.plan(TASK)
    everything = records()
    assert isinstance(everything.inputs, FeatureInputs)
    features = everything.inputs.features.clone()
    features[:5] *= 50
    first = descent_of(plan.event).segments[0]
    clip = first.l2_clip_norm * unit_of(kind, first)

    def first_sum(kept: Tensor) -> Tensor:
        sums.clear()
        plan.fit(
            Records(FeatureInputs(features[kept]), everything.labels[kept]), run(resampled=True)
        )
        return sums[0][0]

    whole = first_sum(torch.arange(N))
    moves = [float((whole - first_sum(torch.arange(N) != i)).norm()) for i in range(5)]
    assert max(moves) <= clip * (1 + 1e-4)
    assert max(moves) > 0.9 * clip
