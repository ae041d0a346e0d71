"""Would win: a plan whose event was edited by hand. A sensitivity, a curvature or an overlap written smaller lowers the
noise, or the price, and the claim follows the event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from small_heads import claim, head_of
from torch import nn

from mechanisms import mechanism as registry
from mechanisms.bounded_posterior import BoundedPosterior
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Aimed, Fitted, Plan, Records, Run, Task, kinds, registered
from mechanisms.model.inputs import FeatureInputs
from mechanisms.plain_logistic import PlainLogistic
from mechanisms.privacy.events import GaussianReleaseEvent, decode

N, WIDTH = 60, 4
TASK = Task(records=N, classes=2, target_epsilon=1.0, delta=1e-5, features=WIDTH, columns=WIDTH)
SMALLER = {
    "l1_sensitivity": 1e-6, "l2_sensitivity": 1e-6, "utility_sensitivity": 1e-6, "curvature": 1e-6, "lipschitz": 1e-6,
    "overlap": "none", "weights": "none", "by_class": True, "records": 10**6, "releases": 1, "choices": 1,
    "problems": 1, "fields": 2, "steps": 1, "sampling_prob": 0.01, "prior_std": 1e-3,
}  # fmt: skip
"""What would be cheaper."""
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "bagging": [{"split": split} for split in ("subsamples", "disjoint", "stratified")],
    "objective-perturbation": [{}, {"weights": "frequencies"}, {"regularisation": 1e-6}],
    "dp-sgd": [{"batch_size": 20, "epochs": 2}],
}
RIVALS = [
    pytest.param({"kind": kind} | settings, id=f"{kind} {settings or ''}")
    for kind, mechanism in kinds().items()
    if issubclass(mechanism, Aimed | BoundedPosterior) and mechanism.__module__.startswith("mechanisms.")
    for settings in SETTINGS.get(kind, [{}])
]


def planned(settings: dict[str, Any]) -> Plan:
    return kinds()[settings["kind"]].model_validate(settings).plan(TASK)


def edited(said: Any) -> Iterator[tuple[str, Any]]:
    """An event's JSON with one thing smaller, every way."""
    parts = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ()
    for name, part in parts:
        here = said.copy()
        if name in SMALLER and part != SMALLER[name]:
            here[name] = SMALLER[name]
            yield str(name), here
        for what, other in edited(part):
            there = said.copy()
            there[name] = other
            yield f"{name}.{what}", there


def fit(plan: Plan) -> Fitted:
    x = torch.rand(N, WIDTH, generator=torch.Generator().manual_seed(0))
    run = Run(classes=2, seed=0, classifier=lambda: head_of(nn.Linear(WIDTH, 2)))
    return plan.fit(Records(FeatureInputs(x), torch.arange(N) % 2), run)


@pytest.mark.parametrize("settings", RIVALS)
def test_an_event_edited_by_hand(settings: dict[str, Any]) -> None:
    """Read back from JSON as a plan is, so that every field is within its bounds: none is fitted. Nor is another
    mechanism's event, or none."""
    plan = planned(settings)
    assert plan.event is not None
    edits = [decode(said) for _, said in edited(plan.event.model_dump(mode="json"))]
    assert edits
    for event in [*edits, None, PlainLogistic().plan(TASK).event]:
        tampered = Plan.model_validate_json(plan.model_copy(update={"event": event}).model_dump_json())
        with pytest.raises(MechanismError, match="settings: plan again"):
            fit(tampered)


class Foreign(Aimed, frozen=True):
    """A mechanism of somebody's own, which says nothing of its events: it sums bits, whose sensitivity is 1."""

    kind: Literal["sums-of-bits"] = "sums-of-bits"

    def plan(self, task: Task) -> Plan:
        own = self.at(task)
        assert own.target_epsilon is not None
        noise = task.records_per_unit / own.target_epsilon
        event = GaussianReleaseEvent(what="a sum of bits", noise_multiplier=noise, l2_sensitivity=1.0)
        return Plan(mechanism=own, event=event, records=task.records)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        assert plan.event is not None
        return Fitted(PlainLogistic().fit(plan, records, run).model, plan.event)


def test_a_mechanism_that_says_nothing_of_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface asks it what it plans, for its own target and for another: what that moves is noise, and may be
    another. Half of the noise is fitted, and claimed for what it is; half of the sensitivity is not."""
    monkeypatch.setattr(registry, "_KINDS", dict(kinds()))
    registered(Foreign)
    plan = Foreign().plan(TASK.model_copy(update={"records_per_unit": 3}))
    assert isinstance(plan.event, GaussianReleaseEvent)
    half = plan.event.model_copy(update={"noise_multiplier": plan.event.noise_multiplier / 2})
    ran = fit(plan.model_copy(update={"event": half})).event
    said, quiet = claim(ran, delta=1e-5).epsilon, claim(plan.event, delta=1e-5).epsilon
    assert said is not None
    assert quiet is not None
    assert said > quiet
    for change in ({"l2_sensitivity": 0.5}, {"what": "a sum of halves"}):
        with pytest.raises(MechanismError, match="plan again"):
            fit(plan.model_copy(update={"event": plan.event.model_copy(update=change)}))
