"""The pseudo posterior mechanism with draws from the posterior itself: SWAG-PPM's pipeline for a head, without SWAG.

    base        xi(theta) prod_i p(y_i | x_i, theta)                 -> risks over draws -> weights alpha
    weighted    xi(theta) prod_i p(y_i | x_i, theta)^alpha_i         -> sensitivity Delta, one draw
    reweighted  equation 7, then the same again                      -> Delta, measured anew, one draw

Rounds, weights and Delta are SWAG-PPM's (`mechanisms.posterior.rounds`, `risks`). What SWAG approximates is sampled
here: on frozen features the posterior of a linear softmax head under the prior xi = N(theta_0, tau^2 I) is log-concave,
and Metropolis-corrected Hamiltonian Monte Carlo (`mechanisms.posterior.hmc`) leaves it invariant. theta_0 is the
untrained head. Draws that the diagnostics do not bear out (`mechanisms.posterior.convergence`) are refused.

The S draws measure risks and Delta; the released one is a further draw of the first chain, and counts in Delta too.
All of them come from a key of the operating system's entropy, which goes when the fit ends: nothing is drawn again.

The claim is of SWAG-PPM's kind: 2 Delta, asymptotic and local. It is free of one assumption, that SWAG is the
posterior, and of no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.audit import posterior_trials, trials
from mechanisms.mechanism import ClassifierModel, Fitted, Mechanism, Plan, Records, Reruns, Run, Task, registered
from mechanisms.model.config import Positive
from mechanisms.model.linear_head import features_of, load_parameters, parameters_of, with_bias
from mechanisms.model.training import Progress
from mechanisms.posterior import risks, rounds
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.convergence import SAMPLED, draws_of
from mechanisms.posterior.gibbs import SoftmaxPosterior
from mechanisms.posterior.hmc import Draws, SamplerConfig
from mechanisms.posterior.risks import RiskPass
from mechanisms.posterior.rounds import ROUNDS, TABLE, RoundName
from mechanisms.privacy.claims import claims, pseudo_posterior
from mechanisms.privacy.events import Claim, Event


class ExactPosteriorEvent(Event, frozen=True):
    """One draw from the posterior of a linear head whose likelihood was raised to risk weights, sampled by HMC."""

    mechanism: Literal["exact-posterior"] = "exact-posterior"
    round: Literal["base", "weighted", "reweighted"]
    prior_std: float = Field(gt=0, allow_inf_nan=False)
    sensitivity_draws: int = Field(ge=1)
    """Draws S over which the sensitivity was taken, beside the released one."""
    sensitivity: float = Field(gt=0, allow_inf_nan=False)
    """Delta over them and at the released draw: max over records of alpha_i times |log-likelihood_i|, in nats."""

    @property
    def risk_weights(self) -> bool:
        """In all rounds but the base."""
        return self.round != "base"


@claims(ExactPosteriorEvent)
def _claim(event: ExactPosteriorEvent, *, delta: float | None, unit: dict[str, Any]) -> Claim:
    """Claims 2 Delta for one draw (Chew et al., section 2.1); the proof is SWAG-PPM's accountant's."""
    return pseudo_posterior(
        event.sensitivity,
        event.sensitivity_draws,
        delta=delta,
        unit=unit,
        over=f"{event.sensitivity_draws} draws and the released one",
        sampled=SAMPLED,
        evidence="audit it",
    )


@registered
class ExactPosterior(Mechanism, frozen=True, title="Exact posterior"):
    """One round of the chain. What is None is the retrain's own setting."""

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["exact-posterior"] = "exact-posterior"
    round: Literal["base", "weighted", "reweighted"] = Field(
        default="weighted", title="Round", description="The posterior that is drawn from."
    )
    prior_std: Positive = Field(
        default=1.0,
        title="Standard deviation of the prior",
        description="Of each weight and bias, around the untrained head.",
    )
    sampler: SamplerConfig = Field(default=SamplerConfig(), title="Sampler")
    pseudo_posterior: PseudoPosteriorConfig | None = Field(default=None, title="Pseudo posterior")

    def audited_as(self, draws: int, *, batched: bool) -> tuple[Mechanism, str]:
        """The same, with fewer draws for risks and Delta."""
        config = self.pseudo_posterior or PseudoPosteriorConfig()
        fewer = config.model_copy(update={"risk_draws": draws, "sensitivity_draws": draws})
        return self.model_copy(update={"pseudo_posterior": fewer}), self.kind

    def plan(self, task: Task) -> Plan:
        """Nothing is solved; Delta is known after the fit."""
        config = self.pseudo_posterior or PseudoPosteriorConfig()
        update = {"mechanism": "weighted", "target_epsilon": None, "reweight": self.round == "reweighted"}
        settled = self.model_copy(update={"pseudo_posterior": config.model_copy(update=update)})
        return Plan(mechanism=settled, task=task)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """All rounds up to this one, and one draw of the last; refuses draws that are not to be trusted."""
        config, classifier = self.pseudo_posterior, run.classifier()
        assert config is not None
        start, features = parameters_of(classifier, run.classes), with_bias(features_of(records.inputs))
        names = ROUNDS[self.round]
        figures: dict[str, Any] = {}
        measured: dict[RoundName, RiskPass] = {}

        def fit(name: RoundName, weights: Tensor | None) -> Tensor:
            target = SoftmaxPosterior(
                features, records.labels, start, self.prior_std, weights=weights, fields=run.fields
            )
            draws = TABLE[name].draws(config)
            progress = sub_progress(run.progress, names.index(name), len(names))
            drawn, checked = draws_of(
                target, start, self.sampler, draws, purpose=name, folder=run.folder, key=run.key, progress=progress
            )
            measured[name] = risk_pass(drawn, weights)
            load_parameters(classifier, drawn.theta[0])
            sensitivity = measured[name].sensitivity
            figures.update(checked, draws=drawn.count, sensitivity=sensitivity, step_size=drawn.step_size)
            return measured[name].risk

        rounds.run(names, fit, partial(risks.weights_of, config))
        return Fitted(ClassifierModel(classifier), self._event(measured[self.round]), figures)

    def fit_many(
        self, plan: Plan, pool: trials.Records, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """All rounds of every trial, a chain each (`mechanisms.audit.posterior_trials`)."""
        config, members = self.pseudo_posterior, [own.nonzero()[:, 0] for own in pool.included]
        assert config is not None
        weights_of = partial(risks.weights_of, config)
        names, theta = ROUNDS[self.round], initial

        def fit(name: RoundName, weights: list[Tensor] | None) -> list[RiskPass]:
            nonlocal theta
            alphas = weights or [None] * len(members)
            theta, losses = posterior_trials.sample(
                [
                    SoftmaxPosterior(
                        pool.with_bias[own],
                        pool.labels[own],
                        initial,
                        self.prior_std,
                        weights=alpha,
                        fields=pool.fields,
                    )
                    for own, alpha in zip(members, alphas, strict=True)
                ],
                initial,
                draws=TABLE[name].draws(config),
                progress=sub_progress(progress, names.index(name), len(names)),
            )
            return [risks_of(*both) for both in zip(losses, alphas, strict=True)]

        def weigh(name: RoundName, weights: list[Tensor] | None, measured: list[RiskPass]) -> list[Tensor]:
            alphas = weights or [None] * len(members)
            pairs = zip(alphas, measured, strict=True)
            return [weights_of(name, alpha, one.risk) for alpha, one in pairs]

        measured = rounds.run(names, fit, weigh)[self.round]
        ell, right = trials.log_likelihood(theta, pool.with_bias, pool.labels, pool.fields)
        return {self.kind: Reruns(ell, right, tuple(self._event(one) for one in measured))}

    def _event(self, seen: RiskPass) -> ExactPosteriorEvent:
        return ExactPosteriorEvent(
            round=self.round,
            prior_std=self.prior_std,
            sensitivity_draws=len(seen.draw_maxima) - 1,
            sensitivity=seen.sensitivity,
        )


def risk_pass(drawn: Draws, weights: Tensor | None) -> RiskPass:
    """The records at every draw that counts, chain by chain, and at the released one, which comes last."""
    return risks_of(torch.cat([drawn.ell.flatten(0, 1), drawn.ell_last[:1]]).neg(), weights)


def risks_of(loss: Tensor, weights: Tensor | None) -> RiskPass:
    """Returns the risks of |l|, float32 [draws, n], the released draw's last, under weights float32 [n]."""
    return RiskPass(risk=loss.amax(0), draw_maxima=(loss if weights is None else loss * weights).amax(1))


def sub_progress(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """Progress of one of several samplers of the same length."""
    if progress is None:
        return None
    return lambda done, total: progress(part * total + done, parts * total)
