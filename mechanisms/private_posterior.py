"""A formally private posterior draw for a head: Langevin dynamics whose own noise is the privacy noise.

Langevin Monte Carlo for the posterior with log-likelihood sum_i l_i and prior N(0, s^2 I) steps by

    theta <- theta + (eta/2) ( sum_i grad l_i - theta / s^2 ) + sqrt(eta) z,     z ~ N(0, I)

Written as one noisy gradient step, with every record's gradient cut to norm C,

    theta <- theta + (eta/2) ( sum_i clip_C(grad l_i) + sigma C z - theta / s^2 ),     sigma C = 2 / sqrt(eta)

it is full-batch DP-SGD with noise multiplier sigma. There is one noise, not two: the accountant sets sigma for the
target (epsilon, delta) over the N steps that are taken, and the temperature, 1, then sets the step size

    eta = 4 / (sigma C)^2

(Wang, Fienberg and Smola 2015, "Privacy for free", arXiv 1502.07645, with full batches and without their schedule). Any
other step size would sample at another temperature. The prior's pull reads no record. Every iterate is covered by the
guarantee; the last one is released. Weight and bias of the head start from a draw of the prior, which is free too.

**What is claimed**: (epsilon, delta) of the Gaussian noise that ran, `formal`, whether or not the chain has mixed.

**What makes it a posterior sample, and how far.** Where no gradient is cut the drift is that of the exact log posterior
of softmax regression, and the chain leaves that posterior invariant up to its step size (no Metropolis correction). But
its total time eta N = 4 N / (sigma C)^2 hardly depends on N, since sigma grows like sqrt(N): privacy buys a fixed time,
0.33 at epsilon 4 and C = 3.5. A direction in which the data have precision h forgets its start at the rate h / 2: what
many records speak to has mixed, what few speak to lies between prior and posterior, and what none speak to is a draw of
the prior, as it is in the posterior. So it is a draw of an early-stopped posterior and is called no more than that.
Where gradients are cut (`clipped` in the run's figures) long or badly predicted records count for less.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from mechanisms import dp_sgd
from mechanisms.mechanism import Descending, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import Positive
from mechanisms.model.linear_head import features_of, linear_head
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment, descent_of
from mechanisms.privacy.noise import SecretStream


@registered
class PrivatePosterior(Descending, frozen=True, title="Private posterior"):
    """Budget, prior and discretisation. The step size follows from them.

    The defaults: the best of 27 on a held-out fifth of the training half of public OSHA reports, MiniLM features,
    epsilon 5 (docs/results/tuning.json).
    """

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["private-posterior"] = "private-posterior"
    prior_std: Positive = Field(default=0.4, title="Standard deviation of the prior")
    l2_clip_norm: Positive = Field(
        default=3.5,
        title="Gradient norm C",
        description="A record's gradient is at most sqrt(2 F (|x|^2 + 1)), F fields. Set C so that it seldom cuts.",
    )
    steps: int = Field(
        default=100, ge=1, le=10_000, title="Steps N", description="More make the steps smaller, not the chain longer."
    )

    def event(self, noise: float, task: Task) -> DpSgdEvent:
        """Returns N full-batch steps at this noise multiplier, which is Langevin's at the step size that follows."""
        segment = NoiseSegment(steps=self.steps, noise_multiplier=noise, l2_clip_norm=self.l2_clip_norm)
        return DpSgdEvent(sampling_prob=1.0, segments=(segment,))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Draw the start from the prior and take the steps. Resumes as DP-SGD does."""
        features_of(records.inputs)
        noise = descent_of(plan.event).segments[0].noise_multiplier
        descent = dp_sgd.DpSgd(
            optimiser="sgd",
            # the sum is divided by the planned n: theta -= rate (sum / n + decay theta)
            learning_rate=step_size(noise, self.l2_clip_norm) / 2 * plan.records,
            weight_decay=1 / (plan.records * self.prior_std**2),
            epochs=self.steps,
            batch_size=plan.records,
        )

        def start(stream: SecretStream, classifier: Classifier) -> None:
            linear_head(classifier)
            with torch.no_grad():
                stream.normal_(classifier.flat, purpose="prior", step=0).mul_(self.prior_std)

        return dp_sgd.descend(descent, plan.event, records, run, physical_batch_size=4096, start=start)


def step_size(noise_multiplier: float, l2_clip_norm: float) -> float:
    """eta = 4 / (sigma C)^2, at which the DP noise is the Langevin noise at temperature 1."""
    return 4 / (noise_multiplier * l2_clip_norm) ** 2
