"""SWAG-PPM (Chew et al.): one draw from a SWAG posterior in which each record's likelihood is
weighted.

Each round of the chain (`mechanisms.posterior.rounds`) fine-tunes, collects SWAG, and measures
risks or Delta. `fit` runs a round and those before it in one process, for your own model and for
audits. `train` runs the same chain as stages (`tasks.branches.swag_chain`), with the same seeds and
purposes, and comes to the same posteriors.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from mechanisms.audit import trials
from mechanisms.mechanism import (
    ClassifierModel,
    Fitted,
    Mechanism,
    Plan,
    Records,
    Reruns,
    Run,
    Task,
    registered,
)
from mechanisms.model import training
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.training import Progress
from mechanisms.posterior import risks, rounds, swag
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.posterior.rounds import ROUNDS, TABLE, RoundName, event_of


@registered
class SwagPpm(Mechanism, frozen=True, title="SWAG-PPM"):
    """One round of the chain. What is None is the retrain's own setting.

    >>> import numpy as np
    >>> from autocoder import PrivateClassifier
    >>> X, y = np.repeat([[1.0, 0.0], [0.0, 1.0]], 50, axis=0), np.repeat(["fall", "burn"], 50)
    >>> model = PrivateClassifier(SwagPpm(round="weighted"), classes=["burn", "fall"]).fit(X, y)
    >>> model.claim.guarantee_kind, model.claim.epsilon == 2 * model.claim.sensitivity
    ('asymptotic-local', True)
    """

    kind: Literal["swag-ppm"] = "swag-ppm"
    round: RoundName = Field(
        default="reweighted", title="Round", description="The posterior that is sampled."
    )
    fine_tune: OptimiserPhase | None = Field(default=None, title="Fine-tuning")
    collect: OptimiserPhase | None = Field(default=None, title="SWAG collection")
    moments: SwagConfig | None = Field(default=None, title="SWAG")
    pseudo_posterior: PseudoPosteriorConfig | None = Field(default=None, title="Pseudo posterior")

    @property
    def phases(self) -> tuple[OptimiserPhase, OptimiserPhase]:
        """Fine-tuning and collection; the paper's where nothing is set."""
        tune = self.fine_tune or OptimiserPhase(
            optimiser="adamw", learning_rate=5e-5, epochs=10, batch_size=8
        )
        collect = self.collect or OptimiserPhase(
            optimiser="sgd", learning_rate=0.01, epochs=20, batch_size=8
        )
        return tune, collect

    def audited_as(self, draws: int, *, batched: bool) -> tuple[Mechanism, str]:
        """Side by side one chain of reruns holds all rounds; draws take longer than fits, so fewer."""
        config = self.pseudo_posterior or PseudoPosteriorConfig()
        fewer = config.model_copy(update={"risk_draws": draws, "sensitivity_draws": draws})
        if not batched:
            return self.model_copy(update={"pseudo_posterior": fewer}), self.kind
        last = "reweighted" if config.reweight else "weighted"
        return self.model_copy(update={"round": last, "pseudo_posterior": fewer}), self.round

    def plan(self, task: Task) -> Plan:
        """Nothing is solved; Delta is known after the fit."""
        config = self.pseudo_posterior or PseudoPosteriorConfig()
        update = {"target_epsilon": None, "reweight": self.round == "reweighted"}
        tune, collect = self.phases
        settled = {
            "fine_tune": tune,
            "collect": collect,
            "moments": self.moments or SwagConfig(),
            "pseudo_posterior": config.model_copy(update=update),
        }
        return Plan(mechanism=self.model_copy(update=settled), task=task)

    @property
    def settings(self) -> tuple[SwagConfig, PseudoPosteriorConfig]:
        assert self.moments is not None
        assert self.pseudo_posterior is not None
        return self.moments, self.pseudo_posterior

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """All rounds up to this one; checkpoints an epoch, in a folder a round."""
        folder = run.folder or Path(tempfile.mkdtemp(prefix="swag-"))
        fitted = self._rounds(records, run, folder)
        if (
            run.folder is None
        ):  # a posterior's deviations are read from its files as long as the model lives
            weakref.finalize(fitted.model, shutil.rmtree, folder)
        return fitted

    def _rounds(self, records: Records, run: Run, folder: Path) -> Fitted:
        moments, config = self.settings
        classifier = run.classifier()
        start = classifier.flat.clone()
        figures: dict[str, Any] = {}
        alpha: Tensor | None = None

        def fit(name: RoundName, weights: Tensor | None) -> Tensor:
            nonlocal alpha
            alpha, draws = weights, TABLE[name].draws(config)
            classifier.flat.copy_(start)
            losses = self._posterior(classifier, records, run, folder / name, weights)
            measured = risks.risk_pass(
                classifier,
                records.inputs,
                records.labels,
                swag.load(folder / name, std_scale=moments.std_scale),
                draws=range(draws),
                seed=run.seed,
                purpose=TABLE[name].purpose,
                weights=weights,
            )
            figures.update(
                loss=losses[-1], losses=losses, draws=draws, sensitivity=measured.sensitivity
            )
            return measured.risk

        rounds.run(ROUNDS[self.round], fit, partial(risks.weights_of, config))
        posterior = swag.load(folder / self.round, std_scale=moments.std_scale)
        event = event_of(
            self.round,
            snapshots=posterior.snapshots,
            rank=posterior.rank,
            sensitivity=figures["sensitivity"],
            draws=figures["draws"],
        )
        model = PosteriorDraw(
            classifier,
            posterior,
            folder / self.round,
            seed=run.seed,
            purpose="evaluate",
            weights=alpha,
        )
        return Fitted(model, event, figures)

    def _posterior(
        self,
        classifier: Classifier,
        records: Records,
        run: Run,
        folder: Path,
        weights: Tensor | None,
    ) -> list[float]:
        tune, collect = self.phases
        descend = partial(
            training.train,
            classifier,
            records.inputs,
            records.labels,
            seed=run.seed,
            weights=weights,
            progress=run.progress,
        )
        for part in ("fine-tune", "collect"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        descend(phase=tune, purpose="fine-tune", folder=folder / "fine-tune")
        state = swag.init(classifier.num_parameters, rank=self.settings[0].rank, folder=folder)
        losses = descend(phase=collect, purpose="swag", folder=folder / "collect", state=state)
        swag.save(state)
        return losses

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> PosteriorDraw:
        """A repeatable draw of the posterior in the folder: never the one that is released."""
        scale = 1.0 if self.moments is None else self.moments.std_scale
        posterior = swag.load(folder, std_scale=scale)
        return PosteriorDraw(run.classifier(), posterior, folder, seed=run.seed, purpose=purpose)

    def fit_many(
        self, plan: Plan, pool: trials.Records, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """Runs the whole chain in each trial, batched over trials; one draw of each round's
        posterior.
        """
        moments, config = self.settings
        tune, collect = self.phases
        drawn = trials.chain(
            pool,
            initial,
            names=ROUNDS[self.round],
            fine_tune=tune,
            collect=collect,
            moments=moments,
            config=config,
            progress=progress,
        )
        return {name: self._reruns(name, draws, pool) for name, draws in drawn.items()}

    def _reruns(self, name: RoundName, drawn: trials.Drawn, pool: trials.Records) -> Reruns:
        moments, config = self.settings
        ell, right = trials.log_likelihood(drawn.theta, pool.with_bias, pool.labels)
        snapshots = self.phases[1].epochs
        events = tuple(
            event_of(
                name,
                snapshots=snapshots,
                rank=min(snapshots, moments.rank),
                sensitivity=float(sensitivity),
                draws=TABLE[name].draws(config),
            )
            for sensitivity in drawn.sensitivity
        )
        return Reruns(ell, right, events)


@dataclass(frozen=True)
class PosteriorDraw(ClassifierModel):
    """A posterior, and the classifier at one repeatable draw of it."""

    posterior: swag.Posterior
    folder: Path
    seed: int
    purpose: str
    weights: Tensor | None = None
    """Risk weights alpha of the fit, float32 [n]; None where there were none, or where it was read
    from a folder.
    """

    def __post_init__(self) -> None:
        risks.load_draw(
            self.classifier, self.posterior, seed=self.seed, purpose=self.purpose, draw=0
        )

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("*.safetensors"):
            shutil.copy2(file, folder / file.name)
