"""SWAG-PPM (Chew et al.): one draw from a SWAG posterior with a weighted likelihood for each
record.

Each round (`mechanisms.posterior.rounds`) fine-tunes, collects SWAG, and measures risks or Delta. A
round continues from the fit of the preceding round (`SwagPpm.continues`), which is a separate stage
of a training run; otherwise `fit` runs all rounds. With a target epsilon, the fit searches for c on
one base round.
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
from typing import TYPE_CHECKING, ClassVar, Literal, Self

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
"""Settings of the pseudo posterior on which a round does not depend."""
_WHOLE = 1000
"""Resolution of the progress of a fit."""
_PRODUCTS_A_STEP = 7e6
"""Number of products of a linear head that take about as long as one step of its training."""


@registered
class SwagPpm(Mechanism, frozen=True, title="SWAG-PPM"):
    """One round of SWAG-PPM. Settings that are None come from the training run.

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
        default="reweighted",
        title="Round",
        description="The posterior from which the sample is drawn.",
    )
    target_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description=(
            "Epsilon of one sample. The fit searches for c, with g = 0. Empty: c and g "
            "are used as set."
        ),
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
        """Fine-tuning and collection; the paper's phases if unset."""
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
        """Cost of one round. A search is counted as two fits of each round after the base round,
        the typical number.
        """
        moments, config = self.moments or SwagConfig(), self.pseudo_posterior
        draws = TABLE[self.round].draws(config or PseudoPosteriorConfig())
        fits = 2 * (len(ROUNDS[self.round]) - 1) if self.searches else 1
        epochs = sum(phase.epochs for phase in self.phases)
        return Workload(fits * epochs, fits * draws, fits * (moments.rank + 3))

    def audited_as(self, draws: int, *, batched: bool) -> tuple[Mechanism, str]:
        """Batched reruns compute all rounds in one sequence. Draws take longer than fits, so there
        are fewer.
        """
        config = self.pseudo_posterior or PseudoPosteriorConfig()
        fewer = config.model_copy(update={"risk_draws": draws, "sensitivity_draws": draws})
        if not batched:
            return self.model_copy(update={"pseudo_posterior": fewer}), self.kind
        chain = {"round": "reweighted", "pseudo_posterior": fewer}
        return self.model_copy(update=chain), self.round

    def with_defaults(self, defaults: Mapping[str, object]) -> Self:
        """Also resets settings on which the round does not depend, so that equal rounds share one
        fit.
        """
        filled = super().with_defaults(defaults)
        tune, collect = filled.phases
        update: dict[str, object] = {
            "fine_tune": tune,
            "collect": collect,
            "moments": filled.moments or SwagConfig(),
            "pseudo_posterior": filled._read(filled.round),
        }
        if filled.round == "base":
            update["target_epsilon"] = None
        return filled.model_copy(update=update)

    def _read(self, name: RoundName) -> PseudoPosteriorConfig:
        """The settings on which a round depends, with defaults for the others."""
        config, usual = self.pseudo_posterior or PseudoPosteriorConfig(), PseudoPosteriorConfig()
        unread = _UNREAD[name]
        if self.searches:
            unread = (*unread, "c", "g")
        update: dict[str, object] = {setting: getattr(usual, setting) for setting in unread}
        return config.model_copy(update=update)

    @property
    def continues(self) -> SwagPpm | None:
        """The preceding round. For a search of c this is the base round, which does not depend on
        c.
        """
        before = TABLE[self.round].after
        if before is None:
            return None
        if self.searches:
            before = "base"
        update: dict[str, object] = {"round": before}
        if before == "base":
            update["target_epsilon"] = None
        if self.pseudo_posterior is None:
            return self.model_copy(update=update)
        return self.model_copy(update=update | {"pseudo_posterior": self._read(before)})

    def plan(self, task: Task) -> Plan:
        """Nothing is solved, because Delta is known only after the fit."""
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
        """Whether a fit searches for c."""
        return self.target_epsilon is not None

    @property
    def search_text(self) -> str | None:
        from mechanisms.posterior.target import MAX_FITS

        if self.target_epsilon is None:
            return None
        return (
            f"c for epsilon {self.target_epsilon:g}: fits of all rounds, decided one by "
            f"one, at most {MAX_FITS}; "
            "finished ones are reused"
        )

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Fits the rounds that `run.earlier` does not contain, each in its own folder with
        checkpoints.

        With a target epsilon, the fit searches for c. Every c is a fit of the rounds after the base
        round, and a finished round is not fitted again.
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
        if temporary:  # deviations are read from their files as long as the model exists
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
            folder, remaining = run.folder / f"c-{c:g}", 0.5 ** len(done)
            # the number of further fits is unknown, so each one gets half of the remaining progress
            half = replace(run, progress=_within(run.progress, 1 - remaining, remaining / 2))
            done[c] = this, this._fit_rounds(folder, records, half, base)
            return float(done[c][1].figures["sensitivity"])

        kept = search(target / _epsilon_of_one_nat(task), risk=base.risk, fit=fit)
        settled, fitted = done[kept]
        trials = tuple(
            SearchTrial(settings={"c": c}, event=trial.event, kept=c == kept)
            for c, (_, trial) in done.items()
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
        """Fits the rounds after `earlier` up to this mechanism's, each in its own subfolder."""
        from mechanisms.posterior import risks, swag

        moments, config = self.settings
        names = ROUNDS[self.round]
        remaining = names if earlier is None else names[names.index(earlier.round) + 1 :]
        losses: list[float] = []

        def fit(name: RoundName, weights: Tensor | None) -> Tensor:
            share = remaining.index(name) / len(remaining), 1 / len(remaining)
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
        """Fine-tunes and collects SWAG, resuming from checkpoints in the folder."""
        from mechanisms.model import ranks, training
        from mechanisms.posterior import swag

        tune, collect = self.phases
        classifier = run.classifier()
        steps = [phase.steps(len(records)) for phase in (tune, collect)]
        total_steps = sum(steps) + self._steps_of_pass(records, classifier)
        descend = partial(
            training.train,
            classifier,
            records.inputs,
            records.labels,
            seed=run.seed,
            weights=weights,
            checkpoint_seconds=run.checkpoint_seconds,
        )
        for part in ("fine-tune", "collect"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        descend(
            phase=tune,
            purpose="fine-tune",
            folder=folder / "fine-tune",
            progress=_within(run.progress, 0, steps[0] / total_steps),
        )
        rank = self.settings[0].rank
        state = None  # only the first rank writes
        if not ranks.rank():
            state = swag.init(classifier.num_parameters, rank=rank, folder=folder)
        losses = descend(
            phase=collect,
            purpose="swag",
            folder=folder / "collect",
            state=state,
            progress=_within(run.progress, steps[0] / total_steps, steps[1] / total_steps),
        )
        if state is not None:
            swag.save(state)
        return losses

    def _steps_of_pass(self, records: Records, classifier: Classifier) -> float:
        """The approximate number of training steps that take as long as the pass over draws."""
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
            training_steps = sum(phase.steps(len(records)) for phase in self.phases)
            passed = self._steps_of_pass(records, run.classifier())
            share = passed / (training_steps + passed)
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
        """A pass over these draws of the posterior in a folder, with the weights stored next to
        it.
        """
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
        """Delta after each draw of a saved fit: the cumulative maximum over draws."""
        return Measured.load(folder).draw_maxima.cummax(0).values.tolist()

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> PosteriorDraw:
        """A repeatable draw from the posterior in the folder, never the released one. For the base
        round it is the posterior mean, because nothing is drawn from that round.
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
        """Runs all rounds in each trial, batched over trials, with one draw from the posterior of
        each round.
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
    """The measurements of a round's pass over draws, stored next to its posterior.

    Attributes:
        alpha: risk weights of the fit, float32 [n]; None if all are 1.
        risk: float32 [n], as in `risks.RiskPass`.
        draw_maxima: float32 [S], as in `risks.RiskPass`.
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
    """A posterior, and the classifier at one repeatable draw from it, or at its mean."""

    posterior: swag.Posterior
    folder: Path
    seed: int
    purpose: str | None
    """Purpose of the draw; None means the mean."""

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
    """Adds a posterior's files to another folder, as hard links if the file system supports
    them.
    """
    to.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.safetensors"):
        there = to / file.name
        there.unlink(missing_ok=True)
        try:
            os.link(file, there)
        except OSError:
            shutil.copy2(file, there)


def _within(progress: Progress | None, start: float, share: float) -> Progress | None:
    """Reports one phase as a part of the total progress, in thousandths."""
    if progress is None:
        return None
    report_total = progress

    def report(done: int, total: int) -> None:
        report_total(int(_WHOLE * (start + share * done / max(total, 1))), _WHOLE)

    return report


def _epsilon_of_one_nat(task: Task) -> float:
    """The epsilon of a unit at a Delta of 1. Epsilon is proportional to Delta."""
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
