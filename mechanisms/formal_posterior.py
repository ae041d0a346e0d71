"""A posterior draw of a head with a formal guarantee: the exponential mechanism of a regularised log-likelihood.

    theta drawn from density proportional to exp( w sum_i l_i(theta) ) N(theta; theta_0, tau^2 I)

**Theorem** (Gopi, Lee and Liu 2022, "Private convex optimization via exponential mechanism", arXiv 2203.00263: GDP of
the exponential mechanism). Let F and F' be mu-strongly convex on R^d and F - F' be G-Lipschitz. Then the densities
proportional to exp(-F) and exp(-F') are told apart no better than N(0, 1) and N(G / sqrt(mu), 1): the mechanism is
G/sqrt(mu)-GDP.

**Its conditions here.** F = -w sum_i l_i + |theta - theta_0|^2 / (2 tau^2) over the weights theta [classes, width].

- Convex: each -l_i is log-sum-exp of functions linear in theta minus a linear one; so F of any data set is
  1/tau^2-strongly convex on all of R^d, and F of its neighbour too.
- Neighbours by adding or removing record d: F - F' = +- w l_d, whose gradient has norm w |p - e_y| |x_d| <= w sqrt(2),
  since features are cut to norm 1 and |p - e_y| <= sqrt(2) for any probabilities p. So G = w sqrt(2), for a unit of m
  records m times that.
- theta_0, tau, w and the features' clip are the same for both: theta_0 is the untrained head, which no record reaches.
- The bias is not sampled and has no gradient: it is the logarithm of noisy class counts, fixed before the draw.
- Of F fields l_d is the sum over those that the record has, e its residuals side by side (`mechanisms.model.fields`):
  |e|^2 <= 2 F, so G = w sqrt(2 F).

So the draw costs what one Gaussian release of noise multiplier 1 / (G tau) costs. Before it, one Gaussian release of
(sum of x cut to norm R0, in units of R0; s times the class counts), of sensitivity sqrt(1 + F s^2), gives the mean that
features are centred by, before they are cut, and the counts. Given what it released, the draw is the mechanism above;
the two compose adaptively, as Gaussians do.

Centred features are cut to R and divided by it: with z = (x - m) / R the logits are theta z + b, and the released head
is the same function without the cut, weight theta / R and bias b - theta m / R.

**What is assumed**: that the draw is one of that density. Chains approach it; the steps after which a bound on their
distance is proven go with (G n)^2 / mu, here tens of millions, and are not taken. The claim says so, and the draw is
refused where diagnostics speak against it. There is no clipping of gradients and no noise but the posterior's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.audit import posterior_trials, trials
from mechanisms.errors import MechanismError
from mechanisms.exact_posterior import SAMPLED, draws_of, parameters_of, put
from mechanisms.formal_head import features_of
from mechanisms.mechanism import Aimed, ClassifierModel, Fitted, Plan, Records, Reruns, Run, Task, registered
from mechanisms.model import checkpoint
from mechanisms.model.fields import Fields
from mechanisms.model.training import Progress
from mechanisms.posterior.gibbs import LIPSCHITZ, SoftmaxPosterior
from mechanisms.posterior.hmc import SamplerConfig
from mechanisms.privacy import gaussian_cost, noise
from mechanisms.privacy.claims import claims
from mechanisms.privacy.events import Claim, ComposedEvent, Event, GaussianReleaseEvent
from mechanisms.privacy.likeness import alike

if TYPE_CHECKING:
    from mechanisms.audit.trials import Records as Pool

_SMALLEST_COUNT = 1.0
"""Noisy class counts below it are raised to it before the logarithm."""


class FormalPosteriorEvent(Event, frozen=True):
    """A noisy mean and counts, then one draw from exp(w sum l) N(theta_0, tau^2 I) with l Lipschitz."""

    mechanism: Literal["formal-posterior"] = "formal-posterior"
    release: GaussianReleaseEvent
    likelihood_weight: float = Field(gt=0, allow_inf_nan=False)
    """w."""
    lipschitz: float = Field(gt=0, allow_inf_nan=False)
    """Of one record's log-likelihood in the sampled parameters."""
    prior_std: float = Field(gt=0, allow_inf_nan=False)
    """tau, on features of norm at most 1."""

    @property
    def gaussian(self) -> ComposedEvent:
        """Gaussian releases that are told apart no worse."""
        multiplier = 1 / (self.likelihood_weight * self.lipschitz * self.prior_std)
        draw = GaussianReleaseEvent(what="a posterior draw", noise_multiplier=multiplier, l2_sensitivity=1.0)
        return ComposedEvent(events=(self.release, draw))

    def with_noise(self, factor: float) -> FormalPosteriorEvent:
        """A release of so many times the noise, and a draw from under a prior so many times narrower."""
        release = self.release.model_copy(update={"noise_multiplier": factor * self.release.noise_multiplier})
        return self.model_copy(update={"release": release, "prior_std": self.prior_std / factor})


@claims(FormalPosteriorEvent, formal=True)
def _claim(event: FormalPosteriorEvent, *, delta: float | None, unit: dict[str, Any]) -> Claim:
    """Gopi, Lee and Liu 2022, composed with the release.

    Raises:
        MechanismError: delta is missing, or no finite epsilon comes out.
    """
    if delta is None:
        raise MechanismError(f"event `{event.mechanism}` makes a formal claim, which needs a delta")
    m = int(unit["max_records_per_unit"])
    figures = gaussian_cost.cost(event.gaussian, delta=delta, records_per_unit=m)
    if not math.isfinite(figures.epsilon):
        raise MechanismError(f"event `{event.mechanism}` has no finite epsilon at delta {delta:g}: lower prior_std")
    replaced = (
        f"replacing one record costs epsilon {figures.epsilon_replace_one:.4g} at the same delta"
        if figures.epsilon_replace_one is not None
        else f"a unit's {m} records move the log-likelihood by {m} times as much"
    )
    return Claim(
        guarantee_kind="formal",
        epsilon=figures.epsilon,
        delta=delta,
        epsilon_add_remove=figures.epsilon,
        neighbouring_relation="add-remove",
        accountant=f"w L tau-GDP (Gopi, Lee and Liu 2022), by {gaussian_cost.ACCOUNTANT}",
        assumptions=(
            f"neighbours differ by one unit added or removed; {replaced}",
            f"conditional on exact sampling: {SAMPLED}",
            "the number of records n, which the noisy sum of features is divided by, is public",
            "the prior's mean, the untrained head, was made without the records",
            "hyperparameters were not chosen on these records, or their choice is listed as unprotected",
            "one draw is released; each further draw costs as much again",
            "noise is sampled in floating point (float64 Box-Muller from 53-bit uniforms of a secret AES-256 stream, "
            "rounded to float32), energies are summed in float64: attacks on low-order bits are not covered",
        ),
        **unit,
    )


@registered
class FormalPosterior(Aimed, frozen=True, title="Formal posterior"):
    """Budget, its split, and the likelihood's weight. The prior's width follows from them.

    R is the best of 1 and 2 with titles as the prior's mean (of 1 to 4 without: 1), by one draw each on a held-out
    fifth of the training half of public OSHA reports, MiniLM features, epsilon 5; a weight of 1/2 did as well as 1.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["formal-posterior"] = "formal-posterior"
    likelihood_weight: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Weight w of the likelihood",
        description="1 is the posterior. More of it leaves a narrower prior: w tau is fixed by the target.",
    )
    release_share: float = Field(
        default=0.05, gt=0, lt=1, title="Share of the release", description="Of rho; the draw gets the rest."
    )
    mean_clip_norm: float = Field(
        default=4.0, gt=0, allow_inf_nan=False, title="Norm R0", description="Features are cut to it in the mean."
    )
    feature_clip_norm: float = Field(
        default=2.0,
        gt=0,
        allow_inf_nan=False,
        title="Norm R",
        description="Centred features are cut to it. Set both from the encoder, not from the records.",
    )
    count_scale: float = Field(default=0.25, gt=0, le=100, title="Scale s of the counts")
    draws: int = Field(
        default=400,
        ge=1,
        le=1_000_000,
        title="Draws",
        description="That the chains' agreement is judged on, 100 a chain at least; one more is released.",
    )
    sampler: SamplerConfig = Field(default=SamplerConfig(), title="Sampler")

    def plan(self, task: Task) -> Plan:
        """Solve the prior's width so that release and draw together meet the target.

        Raises:
            MechanismError: the target cannot be met.
        """
        settled = self.at(task)
        assert settled.target_epsilon is not None
        assert settled.delta is not None
        make = partial(_event, settled, len(task.fields) or 1)
        multiplier = gaussian_cost.calibrate(
            lambda sigma: make(sigma).gaussian,
            target_epsilon=settled.target_epsilon,
            delta=settled.delta,
            records_per_unit=task.records_per_unit,
        )
        return Plan(mechanism=settled, event=make(multiplier), records=task.records)

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """The prior's width, its GDP parameter, and epsilon by several accountants."""
        event, delta = plan.event, self.delta or task.delta
        assert isinstance(event, FormalPosteriorEvent)
        figures = asdict(gaussian_cost.cost(event.gaussian, delta=delta, records_per_unit=task.records_per_unit))
        known = {name: value for name, value in figures.items() if value is not None}
        gdp = event.likelihood_weight * event.lipschitz * event.prior_std
        return {"prior_std": event.prior_std, "gdp": gdp} | known

    def makes(self, event: Event | None, task: Task) -> bool:
        """Release and draw at one noise, and the prior's width that follows from it."""
        return isinstance(event, FormalPosteriorEvent) and _is_of(self, len(task.fields) or 1, event)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release mean and counts, sample, and keep one draw.

        Raises:
            MechanismError: the head is not linear, or the draws are not to be trusted.
        """
        event, features, classifier = plan.event, features_of(records).cpu().float(), run.classifier()
        fields = run.layout
        assert isinstance(event, FormalPosteriorEvent)
        fields.check(records.labels)
        untrained = parameters_of(classifier, run.classes)
        file = None if run.folder is None else run.folder / "release.safetensors"
        released = self._released(event.release, features, records.labels, plan.records, fields, file=file)
        target, shortened = self._posterior(event, features, records.labels, untrained, released, run.fields)
        drawn, figures = draws_of(
            target,
            target.prior_mean,
            self.sampler,
            self.draws,
            purpose="formal posterior",
            run=run,
            progress=run.progress,
        )
        put(classifier, self._head(drawn.theta[0], released))
        return Fitted(
            ClassifierModel(classifier), event, figures | {"step_size": drawn.step_size, "shortened": shortened}
        )

    def fit_many(
        self, plan: Plan, pool: Pool, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """A release and a chain a trial, from its mode (`mechanisms.audit.posterior_trials`)."""
        event, fields = plan.event, pool.fields or Fields((len(initial),))
        assert isinstance(event, FormalPosteriorEvent)
        released, posteriors = [], []
        for own in pool.included:
            features, labels = pool.features[own].float(), pool.labels[own]
            released.append(self._released(event.release, features, labels, plan.records, fields))
            posteriors.append(self._posterior(event, features, labels, initial, released[-1], pool.fields)[0])
        theta, _ = posterior_trials.sample(posteriors, posteriors[0].prior_mean, progress=progress)
        heads = torch.stack([self._head(*both) for both in zip(theta, released, strict=True)])
        ell, right = trials.log_likelihood(heads, pool.padded, pool.labels, pool.fields)
        return {self.kind: Reruns(ell, right, (event,) * len(theta))}

    def _posterior(
        self,
        event: FormalPosteriorEvent,
        features: Tensor,
        labels: Tensor,
        untrained: Tensor,
        released: tuple[Tensor, Tensor],
        fields: Fields | None,
    ) -> tuple[SoftmaxPosterior, float]:
        """The density over [classes, width] that is drawn from, and the share of records whose features were cut.

        Args:
            untrained: float32 [classes, width + 1], the bias last.
            released: mean and bias.
            fields: of a joint head.
        """
        mean, bias = released
        centred = features - mean
        norms = centred.norm(dim=1, keepdim=True)
        target = SoftmaxPosterior(
            (centred / norms.clamp(min=self.feature_clip_norm)).contiguous(),
            labels,
            untrained[:, :-1] * self.feature_clip_norm,
            event.prior_std,
            weights=torch.full((len(features),), event.likelihood_weight),
            offset=bias,
            fields=fields,
        )
        return target, float((norms > self.feature_clip_norm).double().mean())

    def _head(self, theta: Tensor, released: tuple[Tensor, Tensor]) -> Tensor:
        """The sampled function of features as they come, float32 [classes, width + 1]."""
        mean, bias = released
        weight = theta / self.feature_clip_norm
        return torch.cat([weight, (bias - weight @ mean)[:, None]], 1)

    def _released(
        self,
        release: GaussianReleaseEvent,
        features: Tensor,
        labels: Tensor,
        planned: int,
        fields: Fields,
        *,
        file: Path | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Noisy mean of the features [width] and logarithms of the noisy class shares [classes], of each field its own,
        drawn once a file."""
        if file is not None and file.exists():
            vector = checkpoint.load(file)[0]["vector"]
        else:
            cut = features / features.norm(dim=1, keepdim=True).clamp(min=self.mean_clip_norm)
            counts = fields.counts(labels) * self.count_scale
            vector = torch.cat([cut.sum(0, dtype=torch.float64), counts.double()])
            std = release.noise_multiplier * release.l2_sensitivity
            stream = noise.SecretStream(noise.new_key())
            vector = stream.add_normal_(vector, std=std, purpose="mean and counts", step=0).float()
            if file is not None:
                checkpoint.save(file, {"vector": vector}, {})
        width = features.shape[1]
        counts = (vector[width:] / self.count_scale).clamp(min=_SMALLEST_COUNT)
        return vector[:width] * (self.mean_clip_norm / planned), fields.log_shares(counts)


def _event(config: FormalPosterior, fields: int, multiplier: float) -> FormalPosteriorEvent:
    """What costs one Gaussian release of this noise multiplier, split by the share of rho.

    A record of F fields is counted once in each, and its log-likelihood is sqrt(F) times as steep.
    """
    lipschitz = LIPSCHITZ * math.sqrt(fields)
    release = GaussianReleaseEvent(
        what="mean of features and class counts",
        noise_multiplier=multiplier / math.sqrt(config.release_share),
        l2_sensitivity=math.hypot(1, config.count_scale * math.sqrt(fields)),
    )
    gdp = math.sqrt(1 - config.release_share) / multiplier
    return FormalPosteriorEvent(
        release=release,
        likelihood_weight=config.likelihood_weight,
        lipschitz=lipschitz,
        prior_std=gdp / (config.likelihood_weight * lipschitz),
    )


def _is_of(config: FormalPosterior, fields: int, event: FormalPosteriorEvent) -> bool:
    """Whether this config makes such an event of so many fields, whose floats are told again but for rounding."""
    return alike(event, _event(config, fields, _multiplier(config, event)))


def _multiplier(config: FormalPosterior, event: FormalPosteriorEvent) -> float:
    """The noise multiplier that an event of this config was made from."""
    return event.release.noise_multiplier * math.sqrt(config.release_share)
