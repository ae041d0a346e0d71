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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.audit import posterior_trials, trials
from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.mechanism import Aimed, ClassifierModel, Fitted, Plan, Records, Reruns, Run, Task, registered
from mechanisms.model import checkpoint
from mechanisms.model.config import Positive
from mechanisms.model.fields import Fields
from mechanisms.model.linear_head import cut, features_of, load_parameters, parameters_of
from mechanisms.model.training import Progress
from mechanisms.posterior.convergence import SAMPLED, draws_of
from mechanisms.posterior.gibbs import LIPSCHITZ, SoftmaxPosterior
from mechanisms.posterior.hmc import SamplerConfig
from mechanisms.privacy import gaussian_cost, noise
from mechanisms.privacy.claims import EXACT_DRAW, claims, gaussian
from mechanisms.privacy.events import Claim, ComposedEvent, Event, GaussianReleaseEvent

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
    """Composes the draw (Gopi, Lee and Liu 2022) with the release."""
    return gaussian(
        event,
        delta=delta,
        unit=unit,
        gaussians=event.gaussian,
        accountant=f"w L tau-GDP (Gopi, Lee and Liu 2022), by {gaussian_cost.accountant(event.gaussian)}",
        remedy="lower prior_std",
        group="a unit's {m} records move the log-likelihood by {m} times as much",
        assumptions=(
            f"conditional on exact sampling: {SAMPLED}",
            "the number of records n, which the noisy sum of features is divided by, is public",
            *EXACT_DRAW,
        ),
    )


@dataclass(frozen=True)
class _Release:
    """Holds the noisy sum of the features and class counts, float32 [width + classes]."""

    FILE: ClassVar[str] = "release.safetensors"

    vector: Tensor

    def save(self, folder: Path) -> None:
        """Writes one vector."""
        checkpoint.save(folder / _Release.FILE, {"vector": self.vector}, {})

    @staticmethod
    def load(folder: Path) -> _Release:
        """Reads what `save` wrote."""
        return _Release(checkpoint.load(folder / _Release.FILE)[0]["vector"])


@registered
class FormalPosterior(Aimed, frozen=True, title="Formal posterior"):
    """Budget, its split, and the likelihood's weight. The prior's width follows from them.

    R is the best of 1 and 2 with titles as the prior's mean (of 1 to 4 without: 1), by one draw each on a held-out
    fifth of the training half of public OSHA reports, MiniLM features, epsilon 5; a weight of 1/2 did as well as 1.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["formal-posterior"] = "formal-posterior"
    likelihood_weight: Positive = Field(
        default=1.0,
        le=1000,
        title="Weight w of the likelihood",
        description="1 is the posterior. More of it leaves a narrower prior: w tau is fixed by the target.",
    )
    release_share: float = Field(
        default=0.05, gt=0, lt=1, title="Share of the release", description="Of rho; the draw gets the rest."
    )
    mean_clip_norm: Positive = Field(default=4.0, title="Norm R0", description="Features are cut to it in the mean.")
    feature_clip_norm: Positive = Field(
        default=2.0,
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

    def event(self, noise: float, task: Task) -> FormalPosteriorEvent:
        """Returns the event that costs as much as one Gaussian release of this noise multiplier, split by share of rho.

        A record of F fields is counted once in each, and its log-likelihood is sqrt(F) times as steep.
        """
        fields = len(task.fields) or 1
        lipschitz = LIPSCHITZ * math.sqrt(fields)
        release = GaussianReleaseEvent(
            what="mean of features and class counts",
            noise_multiplier=noise / math.sqrt(self.release_share),
            l2_sensitivity=math.hypot(1, self.count_scale * math.sqrt(fields)),
        )
        gdp = math.sqrt(1 - self.release_share) / noise
        return FormalPosteriorEvent(
            release=release,
            likelihood_weight=self.likelihood_weight,
            lipschitz=lipschitz,
            prior_std=gdp / (self.likelihood_weight * lipschitz),
        )

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """The prior's width, its GDP parameter, and epsilon by several accountants."""
        event, delta = plan.event, self.delta or task.delta
        assert isinstance(event, FormalPosteriorEvent)
        figures = asdict(gaussian_cost.cost(event.gaussian, delta=delta, records_per_unit=task.records_per_unit))
        known = {name: value for name, value in figures.items() if value is not None}
        gdp = event.likelihood_weight * event.lipschitz * event.prior_std
        return {"prior_std": event.prior_std, "gdp": gdp} | known

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release mean and counts, sample, and keep one draw; refuses draws that are not to be trusted."""
        event, features, classifier = plan.event, features_of(records.inputs).cpu().float(), run.classifier()
        fields = run.layout
        assert isinstance(event, FormalPosteriorEvent)
        fields.check(records.labels)
        untrained = parameters_of(classifier, run.classes)

        def release(state: KeyedState) -> _Release:
            return self._release(event.release, features, records.labels, fields, state.stream)

        vector = fit_or_load(run.folder, _Release.FILE, new_key=run.new_key, load=_Release.load, fit=release).vector
        released = self._centre(vector, plan.records, fields)
        target, shortened = self._posterior(event, features, records.labels, untrained, released, run.fields)
        drawn, figures = draws_of(
            target,
            target.prior_mean,
            self.sampler,
            self.draws,
            purpose="formal posterior",
            folder=run.folder,
            key=run.key,
            progress=run.progress,
        )
        load_parameters(classifier, self._head(drawn.theta[0], released))
        return Fitted(
            ClassifierModel(classifier), event, figures | {"step_size": drawn.step_size, "shortened": shortened}
        )

    def fit_many(
        self, plan: Plan, pool: trials.Records, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """A release and a chain a trial, from its mode (`mechanisms.audit.posterior_trials`)."""
        event, fields = plan.event, pool.fields or Fields((len(initial),))
        assert isinstance(event, FormalPosteriorEvent)
        released, posteriors = [], []
        for own in pool.included:
            features, labels = pool.features[own].float(), pool.labels[own]
            stream = noise.SecretStream(noise.new_key())
            vector = self._release(event.release, features, labels, fields, stream).vector
            released.append(self._centre(vector, plan.records, fields))
            posteriors.append(self._posterior(event, features, labels, initial, released[-1], pool.fields)[0])
        theta, _ = posterior_trials.sample(posteriors, posteriors[0].prior_mean, progress=progress)
        heads = torch.stack([self._head(*both) for both in zip(theta, released, strict=True)])
        ell, right = trials.log_likelihood(heads, pool.with_bias, pool.labels, pool.fields)
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

    def _release(
        self,
        release: GaussianReleaseEvent,
        features: Tensor,
        labels: Tensor,
        fields: Fields,
        stream: noise.SecretStream,
    ) -> _Release:
        total = cut(features, self.mean_clip_norm).sum(0) / self.mean_clip_norm
        counts = fields.counts(labels) * self.count_scale
        vector = torch.cat([total, counts.double()])
        return _Release(stream.add_normal_(vector, std=release.std, purpose="mean and counts", step=0).float())

    def _centre(self, vector: Tensor, planned: int, fields: Fields) -> tuple[Tensor, Tensor]:
        """Returns the noisy mean of the features [width] and the logarithms of the noisy class shares [classes], of
        each field its own."""
        width = len(vector) - fields.classes
        counts = (vector[width:] / self.count_scale).clamp(min=_SMALLEST_COUNT)
        return vector[:width] * (self.mean_clip_norm / planned), fields.log_shares(counts)
