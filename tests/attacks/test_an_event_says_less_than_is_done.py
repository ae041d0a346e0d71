"""Would win: a plan that states another event than its settings make, or a fit that runs another
than its plan's: a sensitivity, a curvature or an overlap written smaller lowers the noise, or the
price.
"""

from typing import Any, Literal

import pytest
import torch
from pydantic import ValidationError
from refusals import of_kind
from small_heads import claim, head_of
from torch import nn

from mechanisms import mechanism as registry
from mechanisms.errors import MechanismError
from mechanisms.mechanism import (
    CalibratedMechanism,
    ClassifierModel,
    Fitted,
    Plan,
    Records,
    Run,
    Task,
    kinds,
    registered,
)
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import GaussianReleaseEvent

DECLARES = """
the event is what the fit does
| noise, sensitivity, curvature and overlaps written smaller in the plan, in its JSON or in the fit
| code that is changed
"""

N, WIDTH = 60, 4
TASK = Task(records=N, classes=2, target_epsilon=1.0, delta=1e-5, features=WIDTH)
SETTINGS: dict[str, list[dict[str, Any]]] = {"dp-sgd": [{"batch_size": 20, "epochs": 2}]}
RIVALS = [
    pytest.param({"kind": kind} | settings, id=f"{kind} {settings or ''}")
    for kind, mechanism in kinds().items()
    if issubclass(mechanism, CalibratedMechanism) and mechanism.__module__.startswith("mechanisms.")
    for settings in SETTINGS.get(kind, [{}])
]


def planned(settings: dict[str, Any]) -> Plan:
    return kinds()[settings["kind"]].model_validate(settings).plan(TASK)


def fit(plan: Plan) -> Fitted:
    x = torch.rand(N, WIDTH, generator=torch.Generator().manual_seed(0))
    run = Run(classes=2, seed=0, classifier=lambda: head_of(nn.Linear(WIDTH, 2)))
    return plan.fit(Records(FeatureInputs(x), torch.arange(N) % 2), run)


@pytest.mark.parametrize("settings", RIVALS)
def test_an_event_edited_by_hand(settings: dict[str, Any]) -> None:
    """A plan has no place for one: written into its JSON it is refused. What the plan does state,
    noise and shape, the event follows: another shape is not fitted, and less noise is fitted and
    paid for.
    """
    plan = planned(settings)
    assert plan.event is not None
    said = plan.model_dump(mode="json")
    with pytest.raises(ValidationError, match="event"):
        Plan.model_validate(said | {"event": plan.event.model_dump(mode="json")})
    shapes = ({"features": 1}, {"classes": 3})
    for part in ({"records": N - 1}, *shapes):
        tampered = Plan.model_validate(said | {"task": said["task"] | part})
        if tampered.event == plan.event and part in shapes:
            continue  # it changes nothing of what is done
        with pytest.raises(MechanismError, check=of_kind("other-records")):
            fit(tampered)


class Foreign(CalibratedMechanism, frozen=True):
    """A mechanism of someone's own, outside this project: it sums bits, whose sensitivity is 1."""

    kind: Literal["sums-of-bits"] = "sums-of-bits"

    def calibrate(self, task: Task) -> float:
        assert self.target_epsilon is not None
        return task.records_per_unit / self.target_epsilon

    def event(self, noise: float, task: Task) -> GaussianReleaseEvent:
        return GaussianReleaseEvent(
            what="a sum of bits", noise_multiplier=noise, l2_sensitivity=1.0
        )

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        assert plan.event is not None
        return Fitted(ClassifierModel(run.classifier()), plan.event)


class Quieter(Foreign, frozen=True):
    """It runs at half of the noise that is planned, and says so in its event."""

    kind: Literal["sums-of-quiet-bits"] = "sums-of-quiet-bits"  # pyrefly: ignore[bad-override]

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        return super().fit(plan.model_copy(update={"noise": plan.noise / 2}), records, run)


def test_a_mechanism_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the noise in its plan is fitted, and claimed for what it is; half of it in its fit is
    not fitted.
    """
    monkeypatch.setattr(registry, "_KINDS", dict(kinds()))
    registered(Foreign)
    registered(Quieter)
    plan = Foreign().plan(TASK.model_copy(update={"records_per_unit": 3}))
    ran = fit(plan.model_copy(update={"noise": plan.noise / 2})).event
    said, quiet = claim(ran, delta=1e-5).epsilon, claim(plan.event, delta=1e-5).epsilon
    assert said is not None
    assert quiet is not None
    assert said > quiet
    with pytest.raises(MechanismError, check=of_kind("another-event")):
        fit(Quieter().plan(TASK))
