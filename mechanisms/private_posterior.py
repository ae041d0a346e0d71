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

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.dp_sgd import DpSgdConfig, DpSgdPlan, DpSgdRun
from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.training import Progress
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream


class PrivatePosteriorConfig(BaseModel):
    """Budget, prior and discretisation. The step size follows from them.

    The defaults: the best of 27 on a held-out fifth of the training half of public OSHA reports, MiniLM features,
    epsilon 5 (`scripts/choose_rival_settings.py`, docs/results/tuning.json).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", title="Private posterior")

    target_epsilon: float = Field(default=4.0, gt=0, le=1000, allow_inf_nan=False, title="Target epsilon")
    delta: float = Field(default=1e-4, gt=0, lt=1, title="Delta")
    prior_std: float = Field(default=0.4, gt=0, allow_inf_nan=False, title="Standard deviation of the prior")
    l2_clip_norm: float = Field(
        default=3.5,
        gt=0,
        allow_inf_nan=False,
        title="Gradient norm C",
        description="A record's gradient is at most sqrt(2 (|x|^2 + 1)): set C from the encoder, to seldom cut.",
    )
    steps: int = Field(
        default=100, ge=1, le=10_000, title="Steps N", description="More make the steps smaller, not the chain longer."
    )


def calibrate(config: PrivatePosteriorConfig, *, num_records: int, records_per_unit: int = 1) -> DpSgdPlan:
    """Solve the noise for the target; the step size is the one at which that noise is Langevin's at temperature 1.

    Raises:
        MechanismError: the target cannot be met.
    """

    def event(noise_multiplier: float) -> DpSgdEvent:
        segment = NoiseSegment(steps=config.steps, noise_multiplier=noise_multiplier, l2_clip_norm=config.l2_clip_norm)
        return DpSgdEvent(sampling_prob=1.0, segments=(segment,))

    noise_multiplier = gaussian_cost.calibrate(
        event, target_epsilon=config.target_epsilon, delta=config.delta, records_per_unit=records_per_unit
    )
    descent = DpSgdConfig(
        target_epsilon=config.target_epsilon,
        delta=config.delta,
        optimiser="sgd",
        # dpsgd divides the sum by n: theta -= rate (sum / n + decay theta)
        learning_rate=step_size(noise_multiplier, config.l2_clip_norm) / 2 * num_records,
        weight_decay=1 / (num_records * config.prior_std**2),
        epochs=config.steps,
        batch_size=num_records,
        l2_clip_norm=config.l2_clip_norm,
    )
    return DpSgdPlan(config=descent, event=event(noise_multiplier), num_records=num_records)


def step_size(noise_multiplier: float, l2_clip_norm: float) -> float:
    """eta = 4 / (sigma C)^2, at which the DP noise is the Langevin noise at temperature 1."""
    return 4 / (noise_multiplier * l2_clip_norm) ** 2


def run(
    classifier: Classifier,
    inputs: FeatureInputs,
    labels: Tensor,
    *,
    config: PrivatePosteriorConfig,
    plan: DpSgdPlan,
    num_labels: int,
    seed: int,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> DpSgdRun:
    """Draw the start from the prior and take the steps, in place on `classifier.flat`. Resumes as `dp_sgd.run` does.

    Raises:
        MechanismError: the head is not linear, the plan's step size is not the sampler's, or what `dp_sgd.run` refuses.
    """
    if not isinstance(classifier.part, nn.Linear):
        raise MechanismError("the private posterior is a linear layer's: set trainable `head` and pooling `mean`")
    (segment,) = plan.sgd.segments
    # dpsgd divides by the batch it was calibrated for, whatever a neighbour's number of records
    expected = step_size(segment.noise_multiplier, segment.l2_clip_norm) / 2 * plan.config.batch_size
    if abs(plan.config.learning_rate / expected - 1) > 1e-9 or plan.config.momentum or plan.sgd.sampling_prob != 1:
        raise MechanismError("the plan's step size is not the one at which its noise is Langevin's: calibrate again")

    def start(stream: SecretStream) -> None:
        with torch.no_grad():
            stream.normal_(classifier.flat, purpose="prior", step=0).mul_(config.prior_std)

    return dp_sgd.run(
        classifier,
        inputs,
        labels,
        plan=plan,
        num_labels=num_labels,
        seed=seed,
        purpose="private posterior",
        physical_batch_size=4096,
        start=start,
        folder=folder,
        progress=progress,
    )
