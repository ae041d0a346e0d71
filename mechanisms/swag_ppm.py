"""SWAG-PPM (Chew et al.): one draw from a SWAG posterior in which each record's likelihood is
weighted.

Each round of the chain (`mechanisms.posterior.rounds`) fine-tunes, collects SWAG, and measures
risks or Delta. A round goes on from the fit of the round before (`SwagPpm.continues`), which a
training run has as a stage of its own; without it `fit` runs all rounds. With a target epsilon, c
is searched over the same base round.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from mechanisms.mechanism import (
    ClassifierModel,
    Fitted,
    Mechanism,
    Plan,
    Records,
    Reruns,
    Run,
    Search,
    SearchTrial,
    Task,
    Workload,
    registered,
)
from mechanisms.model.config import OptimiserPhase
from mechanisms.posterior import rounds
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.posterior.rounds import ROUNDS, TABLE, RoundName, event_of
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.numerics import failure_probability

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.audit import trials
    from mechanisms.model.classifier import Classifier
    from mechanisms.model.training import Progress
    from mechanisms.posterior import swag

_WEIGHTS = "weights.safetensors"
_UNREAD: Mapping[str, tuple[str, ...]] = {
    "base": ("sensitivity_draws", "c", "g", "k"),
    "weighted": ("k",),
    "reweighted": (),
}
"""Settings of the pseudo posterior that a round does not depend on."""
_WHOLE = 1000
"""Into how many parts the progress of a fit is cut."""
_PRODUCTS_A_STEP = 7e6
"""Products of a linear head that take about as long as one step of its training."""


@registered
class SwagPpm(Mechanism, frozen=True, title="SWAG-PPM"):
    """One round of the chain. What is None is the retrain's own setting.

    Examples:
        >>> import numpy as np
        >>> from autocoder import PrivateClassifier
        >>> X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 50, axis=0)
        >>> y = np.repeat(["fall", "burn"], 50)
        >>> model = PrivateClassifier(SwagPpm(round="weighted"), classes=["burn", "fall"]).fit(X, y)
        >>> model.claim.guarantee_kind, model.claim.epsilon == 2 * model.claim.sensitivity
        ('asymptotic-local', True)
    """

    draws: ClassVar[bool] = True
    by_ranks: ClassVar[bool] = True
    shared: ClassVar[frozenset[str]] = frozenset(
        {"fine_tune", "collect", "moments", "pseudo_posterior"}
    )
    kind: Literal["swag-ppm"] = "swag-ppm"
    round: RoundName = Field(
        default="reweighted", title="Round", description="The posterior that is sampled."
    )
    target_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description="What one sample may cost: c is searched for it, g is 0. Empty: c and g as "
        "given.",
    )
    fine_tune: OptimiserPhase | None = Field(default=None, title="Fine-tuning")
    collect: OptimiserPhase | None = Field(
        default=None,
        title="SWAG collection",
        description="Constant rate; one snapshot per epoch.",
    )
    moments: SwagConfig | None = Field(default=None, title="SWAG")
    pseudo_posterior: PseudoPosteriorConfig | None = Field(default=None, title="Pseudo posterior")

    @model_validator(mode="after")
    def _consistent(self) -> SwagPpm:
        if self.collect is None:
            return self
        if self.collect.schedule != "constant":
            raise ValueError(
                "collect.schedule is not `constant`. SWAG needs a constant rate: set it to "
                "`constant`"
            )
        if self.moments is not None and self.moments.rank > self.collect.epochs:
            raise ValueError(
                f"moments.rank ({self.moments.rank}) exceeds the snapshots (collect.epochs = "
                f"{self.collect.epochs}). Lower the rank or raise the epochs"
            )
        return self

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

    @property
    def stage(self) -> str:
        return self.round

    @property
    def workload(self) -> Workload:
        """A round. A search is two fits of each round after the base round, as a rule."""
        moments, config = self.moments or SwagConfig(), self.pseudo_posterior
        draws = TABLE[self.round].draws(config or PseudoPosteriorConfig())
        fits = 2 * (len(ROUNDS[self.round]) - 1) if self.searches else 1
        epochs = sum(phase.epochs for phase in self.phases)
        return Workload(fits * epochs, fits * draws, fits * (moments.rank + 3))

    def audited_as(self, draws: int, *, batched: bool) -> tuple[Mechanism, str]:
        """Side by side one chain of reruns holds all rounds; draws take longer than
        fits, so fewer.
        """
        config = self.pseudo_posterior or PseudoPosteriorConfig()
        fewer = config.model_copy(update={"risk_draws": draws, "sensitivity_draws": draws})
        if not batched:
            return self.model_copy(update={"pseudo_posterior": fewer}), self.kind
        chain = {"round": "reweighted", "pseudo_posterior": fewer}
        return self.model_copy(update=chain), self.round

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """Also reset what the round does not depend on, so that equal rounds are one fit."""
        filled = super().with_defaults(defaults)
        tune, collect = filled.phases
        update: dict[str, Any] = {
            "fine_tune": tune,
            "collect": collect,
            "moments": filled.moments or SwagConfig(),
            "pseudo_posterior": filled._read(filled.round),
        }
        if filled.round == "base":
            update["target_epsilon"] = None
        return filled.model_copy(update=update)

    def _read(self, name: RoundName) -> PseudoPosteriorConfig:
        """The settings that a round depends on; the others at their defaults."""
        config, usual = self.pseudo_posterior or PseudoPosteriorConfig(), PseudoPosteriorConfig()
        unread = _UNREAD[name]
        if self.searches:
            unread = (*unread, "c", "g")
        update: dict[str, Any] = {setting: getattr(usual, setting) for setting in unread}
        return config.model_copy(update=update)

    @property
    def continues(self) -> SwagPpm | None:
        """The round before; a search of c, the base round, which depends on no c."""
        before = TABLE[self.round].after
        if before is None:
            return None
        if self.searches:
            before = "base"
        update: dict[str, Any] = {"round": before}
        if before == "base":
            update["target_epsilon"] = None
        if self.pseudo_posterior is None:
            return self.model_copy(update=update)
        return self.model_copy(update=update | {"pseudo_posterior": self._read(before)})

    def plan(self, task: Task) -> Plan:
        """Nothing is solved; Delta is known after the fit."""
        tune, collect = self.phases
        settled = {
            "fine_tune": tune,
            "collect": collect,
            "moments": self.moments or SwagConfig(),
            "pseudo_posterior": self._read(self.round),
        }
        return Plan(mechanism=self.model_copy(update=settled), task=task)

    @property
    def settings(self) -> tuple[SwagConfig, PseudoPosteriorConfig]:
        assert self.moments is not None
        assert self.pseudo_posterior is not None
        return self.moments, self.pseudo_posterior

    @property
    def searches(self) -> bool:
        return self.target_epsilon is not None

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """The rounds that `run.earlier` does not have, in a folder each, with a checkpoint an
        epoch.

        With a target epsilon, c is searched: every c is a fit of the rounds after the base round,
        and a finished round is not fitted again.
        """
        folder = run.folder or Path(tempfile.mkdtemp(prefix="swag-"))
        temporary = run.folder is None
        classifier = run.classifier()
        start = classifier.flat.clone()

        def untrained() -> Classifier:
            classifier.flat.copy_(start)
            return classifier

        run = replace(run, folder=folder, classifier=untrained)
        earlier = None if run.earlier is None else Measured.load(run.earlier)
        target = self.target_epsilon
        if target is None:
            fitted = self._fit_rounds(folder, records, run, earlier)
        else:
            fitted = self._search(target, plan.task, records, run, earlier)
        if temporary:  # deviations are read from their files as long as the model lives
            weakref.finalize(fitted.model, shutil.rmtree, folder)
        return fitted

    def _search(
        self, target: float, task: Task, records: Records, run: Run, base: Measured | None
    ) -> Fitted:
        from mechanisms.posterior.target import search

        assert run.folder is not None
        if base is None:
            unweighted = self.continues
            assert unweighted is not None
            unweighted._fit_rounds(run.folder, records, run, None)
            base = Measured.load(run.folder / "base")
        done: dict[float, tuple[SwagPpm, Fitted]] = {}

        def fit(c: float) -> float:
            assert run.folder is not None
            config = self.settings[1]
            at_c = config.model_copy(update={"c": c, "g": 0.0})
            this = self.model_copy(update={"target_epsilon": None, "pseudo_posterior": at_c})
            folder, left = run.folder / f"c-{c:g}", 0.5 ** len(done)
            # nobody knows how many fits will follow: each has half of what is left
            half = replace(run, progress=_within(run.progress, 1 - left, left / 2))
            done[c] = this, this._fit_rounds(folder, records, half, base)
            return float(done[c][1].figures["sensitivity"])

        kept = search(target / _epsilon_of_one_nat(task), risk=base.risk, fit=fit)
        settled, fitted = done[kept]
        trials = tuple(
            SearchTrial(settings={"c": c}, event=each.event, kept=c == kept)
            for c, (_, each) in done.items()
        )
        figures = dict(fitted.figures) | {"c": kept, "fits": len(trials)}
        found = Search(target_epsilon=target, settled=settled, trials=trials)
        # later fits used the classifier again
        here = run.folder / f"c-{kept:g}" / self.round
        model = settled._draw(run.classifier(), here, seed=run.seed, purpose="evaluate")
        return replace(fitted, model=model, search=found, figures=figures)

    def _fit_rounds(
        self, folder: Path, records: Records, run: Run, earlier: Measured | None
    ) -> Fitted:
        """Fits the rounds after the earlier one up to this mechanism's, each in a folder below."""
        from mechanisms.posterior import risks, swag

        moments, config = self.settings
        names = ROUNDS[self.round]
        left = names if earlier is None else names[names.index(earlier.round) + 1 :]
        losses: list[float] = []

        def fit(name: RoundName, weights: Tensor | None) -> Tensor:
            share = left.index(name) / len(left), 1 / len(left)
            this = self.model_copy(update={"round": name, "pseudo_posterior": self._read(name)})
            within = replace(run, progress=_within(run.progress, *share))
            losses[:] = this._posterior(records, within, folder / name, weights)
            this._measure(records, within, folder / name, weights)
            return Measured.load(folder / name).risk

        rounds.run(
            names,
            fit,
            partial(risks.weights_of, config),
            earlier=None if earlier is None else (earlier.round, earlier.alpha, earlier.risk),
        )
        here = folder / self.round
        measured, posterior = Measured.load(here), swag.load(here, std_scale=moments.std_scale)
        draws = TABLE[self.round].draws(config)
        sensitivity = float(measured.draw_maxima.max())
        event = event_of(
            self.round,
            snapshots=posterior.snapshots,
            rank=posterior.rank,
            sensitivity=sensitivity,
            draws=draws,
        )
        figures = {
            "loss": losses[-1],
            "losses": losses,
            "snapshots": posterior.snapshots,
            "rank": posterior.rank,
            "parameters": posterior.mean.numel(),
            "draws": draws,
            "sensitivity": sensitivity,
            "mc_failure_prob": failure_probability(draws),
        }
        if measured.alpha is not None:
            figures["mean_weight"] = float(measured.alpha.mean())
            figures["share_at_one"] = float((measured.alpha >= 1).float().mean())
        model = self._draw(run.classifier(), here, seed=run.seed, purpose="evaluate")
        return Fitted(model, event, figures)

    def _posterior(
        self, records: Records, run: Run, folder: Path, weights: Tensor | None
    ) -> list[float]:
        """Fine-tunes and collects SWAG; goes on from the checkpoints of the folder."""
        from mechanisms.model import ranks, training
        from mechanisms.posterior import swag

        tune, collect = self.phases
        classifier = run.classifier()
        steps = [phase.steps(len(records)) for phase in (tune, collect)]
        whole = sum(steps) + self._steps_of_pass(records, classifier)
        descend = partial(
            training.train,
            classifier,
            records.inputs,
            records.labels,
            seed=run.seed,
            weights=weights,
        )
        for part in ("fine-tune", "collect"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        descend(
            phase=tune,
            purpose="fine-tune",
            folder=folder / "fine-tune",
            progress=_within(run.progress, 0, steps[0] / whole),
        )
        rank = self.settings[0].rank
        state = None  # other ranks than the first write nothing
        if not ranks.rank():
            state = swag.init(classifier.num_parameters, rank=rank, folder=folder)
        losses = descend(
            phase=collect,
            purpose="swag",
            folder=folder / "collect",
            state=state,
            progress=_within(run.progress, steps[0] / whole, steps[1] / whole),
        )
        if state is not None:
            swag.save(state)
        return losses

    def _steps_of_pass(self, records: Records, classifier: Classifier) -> float:
        """About how many training steps take as long as the pass over draws."""
        from mechanisms.model.inputs import FeatureInputs

        draws, n = TABLE[self.round].draws(self.settings[1]), len(records)
        if isinstance(records.inputs, FeatureInputs):
            return draws * n * classifier.num_parameters / _PRODUCTS_A_STEP
        return draws * n / (3 * self.phases[1].batch_size)

    def _measure(self, records: Records, run: Run, folder: Path, weights: Tensor | None) -> None:
        """Measures risks or Delta over draws of the posterior in a folder, and saves them there.

        The first rank measures while the others wait.
        """
        from mechanisms.model import checkpoint, ranks
        from mechanisms.posterior import risks
        from mechanisms.posterior.risks import RiskPass

        if not ranks.rank() and not (folder / Measured.FILE).exists():
            files = folder / "posterior"
            _link(folder, files)
            alpha = {} if weights is None else {"alpha": weights}
            checkpoint.save(files / _WEIGHTS, alpha, {"round": self.round})
            draws = TABLE[self.round].draws(self.settings[1])
            whole = sum(phase.steps(len(records)) for phase in self.phases)
            passed = self._steps_of_pass(records, run.classifier())
            share = passed / (whole + passed)
            parts = run.map(
                self,
                draws,
                files,
                records,
                replace(run, progress=_within(run.progress, 1 - share, share)),
            )
            done = risks.merge([RiskPass(**part) for part in parts])
            shutil.rmtree(files)
            Measured(self.round, weights, done.risk, done.draw_maxima).save(folder)
        ranks.wait()

    def compute(
        self, units: range, folder: Path, records: Records, run: Run
    ) -> Mapping[str, Tensor]:
        """A pass over these draws of the posterior in a folder, with the weights beside it."""
        from mechanisms.model import checkpoint
        from mechanisms.posterior import risks, swag

        done = risks.risk_pass(
            run.classifier(),
            records.inputs,
            records.labels,
            swag.load(folder, std_scale=self.settings[0].std_scale),
            draws=units,
            seed=run.seed,
            purpose=TABLE[self.round].purpose,
            weights=checkpoint.load(folder / _WEIGHTS)[0].get("alpha"),
            progress=run.progress,
        )
        return {"risk": done.risk, "draw_maxima": done.draw_maxima}

    def running_sensitivity(self, folder: Path) -> list[float]:
        """Delta after each draw: the cumulative maximum over draws of a saved fit."""
        return Measured.load(folder).draw_maxima.cummax(0).values.tolist()

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> PosteriorDraw:
        """A repeatable draw of the posterior in the folder, never the one that is released; of the
        base round its mean, since nothing of that round is drawn.
        """
        return self._draw(run.classifier(), folder, seed=run.seed, purpose=purpose)

    def _draw(
        self, classifier: Classifier, folder: Path, *, seed: int, purpose: str
    ) -> PosteriorDraw:
        from mechanisms.posterior import swag

        scale = 1.0 if self.moments is None else self.moments.std_scale
        posterior = swag.load(folder, std_scale=scale)
        at = None if TABLE[self.round].after is None else purpose
        return PosteriorDraw(classifier, posterior, folder, seed=seed, purpose=at)

    def fit_many(
        self, plan: Plan, pool: trials.Records, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """Runs the whole chain in each trial, batched over trials; one draw of each round's
        posterior.
        """
        from mechanisms.audit import trials

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
        from mechanisms.audit import trials

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
class Measured:
    """What the pass of a round measured, beside its posterior.

    alpha: risk weights of the fit, float32 [n]; None where all are 1. risk float32 [n];
    draw_maxima float32 [S], as of `risks.RiskPass`.
    """

    FILE: ClassVar[str] = "measured.safetensors"

    round: RoundName
    alpha: Tensor | None
    risk: Tensor
    draw_maxima: Tensor

    def save(self, folder: Path) -> None:
        from mechanisms.model import checkpoint

        tensors = {"risk": self.risk, "draw_maxima": self.draw_maxima}
        weights = {} if self.alpha is None else {"alpha": self.alpha}
        checkpoint.save(folder / self.FILE, tensors | weights, {"round": self.round})

    @staticmethod
    def load(folder: Path) -> Measured:
        from mechanisms.model import checkpoint

        tensors, meta = checkpoint.load(folder / Measured.FILE)
        return Measured(meta["round"], tensors.pop("alpha", None), **tensors)


@dataclass(frozen=True)
class PosteriorDraw(ClassifierModel):
    """A posterior, and the classifier at one repeatable draw of it, or at its mean."""

    posterior: swag.Posterior
    folder: Path
    seed: int
    purpose: str | None
    """Of the draw; None: the mean."""

    def __post_init__(self) -> None:
        from mechanisms.posterior import risks

        if self.purpose is None:
            self.classifier.flat.copy_(self.posterior.mean)
            return
        risks.load_draw(
            self.classifier, self.posterior, seed=self.seed, purpose=self.purpose, draw=0
        )

    def draw(self, normal: swag.Normal) -> Tensor:
        from mechanisms.posterior import swag

        return swag.sample(self.posterior, normal=normal)

    def could_draw(self, theta: Tensor) -> bool:
        from mechanisms.posterior import swag

        return swag.within_reach(self.posterior, theta)

    def sensitivity_at(self, theta: Tensor, records: Records) -> float:
        import torch

        from mechanisms.posterior import risks

        self.classifier.flat.copy_(theta)
        alpha = Measured.load(self.folder).alpha
        return risks.at_draw(
            self.classifier,
            records.inputs,
            records.labels,
            weights=torch.ones(len(records)) if alpha is None else alpha,
        )

    def save(self, folder: Path) -> None:
        _link(self.folder, folder)


def _link(folder: Path, to: Path) -> None:
    """Puts a posterior's files into another folder, as links where the file system has them."""
    to.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.safetensors"):
        there = to / file.name
        there.unlink(missing_ok=True)
        try:
            os.link(file, there)
        except OSError:
            shutil.copy2(file, there)


def _within(progress: Progress | None, start: float, share: float) -> Progress | None:
    """Reports one phase as its share of a whole, in thousandths."""
    if progress is None:
        return None
    whole = progress

    def report(done: int, total: int) -> None:
        whole(int(_WHOLE * (start + share * done / max(total, 1))), _WHOLE)

    return report


def _epsilon_of_one_nat(task: Task) -> float:
    """Returns the epsilon of a unit at a Delta of 1, to which any other is proportional."""
    event = event_of("weighted", snapshots=2, rank=2, sensitivity=1.0, draws=1)
    epsilon = claim_of(
        event,
        delta=None,
        privacy_unit="unit",
        max_records_per_unit=task.records_per_unit,
        unprotected_inputs=(),
    ).epsilon
    assert epsilon is not None
    return epsilon
