"""Training without privacy protection, as the baseline for all other methods. Never released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from mechanisms.mechanism import (
    ClassifierModel,
    Fitted,
    Mechanism,
    Plan,
    Records,
    Reruns,
    Run,
    Task,
    Workload,
    registered,
)
from mechanisms.model.config import OptimiserPhase
from mechanisms.privacy.events import NonPrivateEvent

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.audit import trials
    from mechanisms.model.training import Progress


@registered
class NonPrivate(Mechanism, frozen=True):
    """Minimises the mean loss in one optimiser phase.

    Examples:
        >>> import numpy as np
        >>> from autocoder import PrivateClassifier
        >>> X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 500, axis=0)
        >>> y = np.repeat(["fall", "burn"], 500)
        >>> PrivateClassifier(NonPrivate(), classes=["burn", "fall"]).fit(X, y).claim.guarantee_kind
        'none'
    """

    by_ranks: ClassVar[bool] = True
    shared: ClassVar[frozenset[str]] = frozenset({"phase"})
    kind: Literal["non-private"] = "non-private"
    phase: OptimiserPhase | None = None
    """None: the run's default phase."""

    def plan(self, task: Task) -> Plan:
        phase = self.phase or OptimiserPhase(
            optimiser="adamw", learning_rate=5e-5, epochs=30, batch_size=8
        )
        return Plan(mechanism=self.model_copy(update={"phase": phase}), task=task)

    def event(self, noise: float, task: Task) -> NonPrivateEvent:
        return NonPrivateEvent(epochs=self.settled.epochs)

    @property
    def settled(self) -> OptimiserPhase:
        assert self.phase is not None
        return self.phase

    @property
    def workload(self) -> Workload | None:
        return Workload(self.phase.epochs) if self.phase else None

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Trains all epochs. The event contains the number of epochs that ran."""
        from mechanisms.model import training

        classifier = run.classifier()
        losses = training.train(
            classifier,
            records.inputs,
            records.labels,
            phase=self.settled,
            seed=run.seed,
            purpose="non-private",
            folder=run.folder,
            checkpoint_seconds=run.checkpoint_seconds,
            progress=run.progress,
        )
        figures = {"epochs": len(losses), "loss": losses[-1], "losses": losses}
        return Fitted(ClassifierModel(classifier), NonPrivateEvent(epochs=len(losses)), figures)

    def fit_many(
        self, plan: Plan, pool: trials.Records, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """Trains all trials in one batched descent."""
        from mechanisms.audit import trials

        theta = initial.repeat(len(pool.seeds), 1, 1)
        phase = self.settled
        for epoch, _ in enumerate(
            trials.fit(theta, pool, phase=phase, purpose="non-private"), start=1
        ):
            if progress is not None:
                progress(epoch, phase.epochs)
        ell, right = trials.log_likelihood(theta, pool.with_bias, pool.labels)
        events = (NonPrivateEvent(epochs=phase.epochs),) * len(pool.seeds)
        return {self.kind: Reruns(ell, right, events)}
