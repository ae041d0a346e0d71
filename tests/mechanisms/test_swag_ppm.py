"""SWAG-PPM as one program: rounds that are gone on with, the search of c, and passes in parts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import of_kind
from small_heads import head_of
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.mechanism import Divisible, Fitted, Plan, Records, Run, Task
from mechanisms.model import training
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.privacy.events import SwagPpmEvent
from mechanisms.swag_ppm import Measured, SwagPpm

N, CLASSES, WIDTH = 60, 3, 6


def mechanism(**config: Any) -> SwagPpm:
    draws = {"risk_draws": 20, "sensitivity_draws": 20}
    return SwagPpm(
        fine_tune=OptimiserPhase(optimiser="adamw", learning_rate=0.02, epochs=2, batch_size=8),
        collect=OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=3, batch_size=8),
        moments=SwagConfig(rank=2),
        pseudo_posterior=PseudoPosteriorConfig.model_validate(draws | config),
    )


def planned(this: SwagPpm) -> Plan:
    return this.plan(Task(records=N, classes=CLASSES, features=WIDTH))


def records() -> Records:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(N) % CLASSES
    noise = torch.randn(N, WIDTH, generator=generator)
    return Records(FeatureInputs(torch.eye(CLASSES, WIDTH)[labels] + noise), labels)


def classifier() -> Classifier:
    part = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        part.weight.zero_()
        part.bias.zero_()
    return head_of(part)


def run(**how: Any) -> Run:
    return Run(classes=CLASSES, seed=5, classifier=classifier, **how)


def sensitivity(fitted: Fitted) -> float:
    assert isinstance(fitted.event, SwagPpmEvent)
    return fitted.event.sensitivity


def test_a_round_goes_on_from_the_saved_one_before(tmp_path: Path) -> None:
    """Three fits, each from the folder of the one before, come to what one fit of all comes to; the
    base round is the same whatever c is.
    """
    last = mechanism()
    chain = [last]
    while chain[0].continues is not None:
        chain.insert(0, chain[0].continues)
    assert [each.round for each in chain] == ["base", "weighted", "reweighted"]
    assert mechanism(c=0.3, k=0.5).continues != mechanism().continues
    assert chain[0] == SwagPpm.model_validate(
        mechanism(c=0.3, k=0.5).model_copy(update={"round": "weighted"}).continues
    )
    earlier: Path | None = None
    for each in chain:
        fitted = planned(each).fit(
            records(), run(folder=tmp_path / f"work-{each.round}", earlier=earlier)
        )
        earlier = tmp_path / each.round
        fitted.model.save(earlier)
    whole = planned(last).fit(records(), run())
    assert fitted.event == whole.event
    inputs = records().inputs
    assert torch.equal(
        fitted.model.log_probabilities(inputs), whole.model.log_probabilities(inputs)
    )


def test_a_pass_in_parts_is_the_pass(tmp_path: Path) -> None:
    """Whatever parts the units are cut into: the same Delta, and every draw in it once."""

    def by_sevens(
        this: Divisible, count: int, folder: Path, some: Records, run: Run
    ) -> Sequence[Mapping[str, Tensor]]:
        starts = range(0, count, 7)
        return [
            this.compute(range(first, min(first + 7, count)), folder, some, run) for first in starts
        ]

    plan = planned(mechanism())
    whole = plan.fit(records(), run(folder=tmp_path / "whole"))
    parts = plan.fit(records(), run(folder=tmp_path / "parts", map=by_sevens))
    assert parts.event == whole.event
    one, other = (
        Measured.load(tmp_path / name / "reweighted").draw_maxima for name in ("whole", "parts")
    )
    assert torch.equal(one, other)
    assert len(one) == 20


@pytest.mark.parametrize("name", ["weighted", "reweighted"])
def test_the_search_meets_its_target_over_one_base_round(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a unit of two records: epsilon is at most the target and not far below; every c that was
    tried is told, and the kept one fits alone to the same Delta. A killed search goes on.
    """
    goal = mechanism().model_copy(update={"round": name, "target_epsilon": 3.0})
    task = Task(records=N, classes=CLASSES, features=WIDTH, records_per_unit=2)
    fits: list[str] = []
    real = training.train

    class Killed(BaseException):
        pass

    def counted(*args: Any, **how: Any) -> list[float]:
        fits.append(f"{how['purpose']} {how['folder'].parent}")
        if len(fits) == 4:
            raise Killed
        return real(*args, **how)

    monkeypatch.setattr(training, "train", counted)
    plan = goal.plan(task)
    with pytest.raises(Killed):
        plan.fit(records(), run(folder=tmp_path))
    fitted = plan.fit(records(), run(folder=tmp_path))
    epsilon = 2 * 2 * sensitivity(fitted)
    assert 0.8 * 3.0 <= epsilon <= 3.0
    assert fitted.search is not None
    settled = fitted.search.settled
    assert isinstance(settled, SwagPpm)
    config = settled.settings[1]
    assert settled.target_epsilon is None
    (kept,) = (trial for trial in fitted.search.trials if trial.kept)
    assert (kept.settings, kept.event) == ({"c": config.c}, fitted.event)
    alone = settled.plan(task).fit(records(), run())
    assert alone.event == fitted.event
    base = [fit for fit in fits if fit.startswith("fine-tune") and fit.endswith("/base")]
    assert len(base) == 3, "twice by the search that was killed, and once alone"
    with pytest.raises(MechanismError, check=of_kind("another-fit", saying=("event", "config"))):
        planned(mechanism()).fit(records(), run(folder=tmp_path))
