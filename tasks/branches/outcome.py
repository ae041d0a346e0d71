"""One branch at one seed: what it is run with, and what comes of it. Who runs it is told by its mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

from mechanisms.mechanism import Mechanism, Task
from mechanisms.privacy import claims
from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef
from tasks.branches.branch import Branch, CompareParameters
from tasks.parameters import RetrainParameters
from tasks.releasing import delta
from tasks.releasing.claims import MATCHED, privacy_unit, public_inputs, unprotected_inputs
from tasks.running.stage import Context, Step

SMALLEST_EPSILON = 1e-4
"""Stated instead of less: at a delta near 1 epsilon 0 suffices, and a ledger's amount is above zero. A claim with a
larger epsilon holds as well."""

# Seeds of a branch share one event, and accounting for it takes seconds.
_claim_of = lru_cache(maxsize=64)(claims.claim_of)


@dataclass(frozen=True)
class Study:
    """What the branches of a comparison or an audit share: records, settings, and how a stage is run."""

    context: Context
    parameters: RetrainParameters
    settings: CompareParameters
    dataset: ArtifactRef
    prepared: ArtifactRef
    facts: Mapping[str, Any]
    """Figures of the ingest."""
    do: Callable[[Step], ArtifactRef]
    target: float | None = None
    """Epsilon of one unit, for branches that aim at one."""

    @property
    def records(self) -> Any:
        """The references that every stage of a branch reads, by name."""
        return {"dataset": self.dataset, "prepared": self.prepared}

    def aimed_at(self, target: float | None) -> Study:
        """The same with this target."""
        return replace(self, target=target)

    def at_seed(self, seed: int) -> RetrainParameters:
        """The run's parameters with another seed."""
        return self.parameters.model_copy(update={"fit": self.parameters.fit.model_copy(update={"seed": seed})})

    def delta(self, branch: Branch) -> float:
        """Of a branch's formal claim."""
        return branch.delta or self.usual_delta

    @cached_property
    def usual_delta(self) -> float:
        """Of formal claims that have none of their own: the run's, or what the policy allows."""
        return self.settings.delta or delta.usual_delta(self.context, self.parameters)

    def mechanism(self, branch: Branch) -> Mechanism:
        """With what it leaves open taken from the run."""
        return branch.settled(self.parameters, self.settings)

    def task(self, branch: Branch) -> Task:
        """What a plan of this branch may depend on."""
        return Task(
            records=self.facts["train"],
            classes=self.facts["label_space"],
            records_per_unit=privacy_unit(self.parameters.data.ingest)[1],
            target_epsilon=self.target,
            delta=self.delta(branch),
            features=self.facts.get("features"),
            columns=self.facts.get("columns"),
            fields=tuple(field["label_space"] for field in self.facts.get("fields", ())),
        )

    def claim(self, branch: Branch, event: Event) -> Claim:
        """The claim that an event of this branch supports."""
        unit, most = privacy_unit(self.parameters.data.ingest)
        claim = _claim_of(
            event,
            delta=self.delta(branch) if claims.formal(event) else None,
            privacy_unit=unit,
            max_records_per_unit=most,
            unprotected_inputs=(
                *unprotected_inputs(self.facts, weights=event.risk_weights),
                *((MATCHED,) if branch.takes_target_from_records(self.settings) else ()),
                *branch.unprotected,
            ),
            public_inputs=public_inputs(branch.model(self.parameters)),
        )
        if claim.epsilon is not None and claim.epsilon < SMALLEST_EPSILON:
            raised = {"epsilon": SMALLEST_EPSILON, "epsilon_add_remove": SMALLEST_EPSILON}
            claim = claim.model_copy(update=raised)
        return claim


@dataclass(frozen=True)
class Outcome:
    """One branch at one seed, fitted and scored on the test half."""

    branch: Branch
    seed: int
    mechanism: Mechanism
    """Settled, as it ran."""
    event: Event
    claim: Claim
    fitted: ArtifactRef
    measured: ArtifactRef
    """The stage of its scores."""
    figures: Mapping[str, Any]
    losses: list[float]
    cost: Mapping[str, Any]
    """Figures of the accountants; empty where there is no formal cost."""
    sensitivity: ArtifactRef | None = None
    """The stage that measured risks or Delta over draws of a posterior; None where the fit itself is the candidate."""


class Runner(Protocol):
    """Runs a branch at one seed, stage by stage."""

    def __call__(self, study: Study, branch: Branch, seed: int) -> Outcome:
        """Every stage up to the scores on the test half."""
        ...


_RUNNERS: dict[type[Mechanism], Runner] = {}


def runs(mechanism: type[Mechanism]) -> Callable[[Runner], Runner]:
    """Register the decorated function for mechanisms whose fit is more than one stage."""

    def register(runner: Runner) -> Runner:
        _RUNNERS[mechanism] = runner
        return runner

    return register


def runner_of(mechanism: Mechanism, default: Runner) -> Runner:
    """Who runs this mechanism."""
    return _RUNNERS.get(type(mechanism), default)
