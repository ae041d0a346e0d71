"""Risks, weights, sensitivity and reweighting of the pseudo posterior mechanism (PPM).

Chew et al., sections 2.1 and 2.3, after Savitsky et al. 2020 and 2022:

  r_i     = max_s |l_i(theta_s)|
  alpha_i = clip( c (1 - (r_i - min r)/(max r - min r)) + g, 0, 1 )
  Delta_i = alpha_i max_s |l_i(theta_s)|,   Delta = max_i Delta_i
  alpha_i <- clip( k alpha_i Delta / Delta_i, 0, 1 )

The risks r_i are maxima over draws from the unweighted posterior. Delta is a maximum over draws
from the posterior that was fitted with the risk weights alpha. The last line is equation 7, after
which Delta must be measured again.

All computations stream over draws, so that memory is O(n + P) for any number of draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import Batch, Inputs, length_sorted_batches
from mechanisms.model.linear import fast_linear
from mechanisms.model.seeding import generator, seeded
from mechanisms.model.threads import forward_batch_size, forward_passes
from mechanisms.model.training import Progress
from mechanisms.posterior import swag
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.rounds import TABLE, RoundName


@dataclass(frozen=True)
class RiskPass:
    """Results of a pass over draws, per record and per draw.

    Attributes:
        risk: float32 [n], maximum of |l_i| over draws.
        draw_maxima: float32 [S], for each draw the maximum of alpha_i |l_i| over records (alpha = 1
            without weights). Its cumulative maximum is the running Delta.
    """

    risk: Tensor
    draw_maxima: Tensor

    @property
    def sensitivity(self) -> float:
        """Delta: the largest weighted |l_i| over records and draws."""
        return float(self.draw_maxima.max())


def merge(passes: Sequence[RiskPass]) -> RiskPass:
    """Combines passes over disjoint draws, in the order of their draws."""
    return RiskPass(
        risk=torch.stack([p.risk for p in passes]).amax(0),
        draw_maxima=torch.cat([p.draw_maxima for p in passes]),
    )


def risk_pass(
    classifier: Classifier,
    inputs: Inputs,
    labels: Tensor,
    posterior: swag.Posterior,
    *,
    draws: range,
    seed: int,
    purpose: str,
    weights: Tensor | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> RiskPass:
    """Evaluates |l_i| at every draw in `draws`. Draw number s depends only on (seed, purpose, s)
    and on the kind of the device: a card draws with its own generator, so its draws differ from
    those of a processor.

    Args:
        labels: int64 [n].
        weights: alpha float32 [n]. With weights, Delta is the maximum of `draw_maxima`.

    Raises:
        MechanismError: a log-likelihood is not finite.
    """
    device, maxima = classifier.device, torch.zeros(len(draws))
    original = classifier.flat.clone()
    size = batch_size or forward_batch_size(inputs, device)
    indices = [*length_sorted_batches(inputs, batch_size=size)]
    batches = [_RiskBatch.of(index, inputs, labels, weights, device) for index in indices]

    def losses(batch: _RiskBatch) -> tuple[_RiskBatch, Tensor]:
        with torch.inference_mode(), fast_linear(device):
            return batch, classifier.log_likelihood(batch.read, batch.labels).neg_()

    loaded = _loading(classifier, posterior, seed=seed, purpose=purpose)
    try:
        with forward_passes(inputs, device) as over:
            for position, draw in enumerate(draws):
                loaded.load(draw)
                worst = torch.zeros((), device=device)
                for batch, loss in over(losses, batches):
                    torch.maximum(batch.risk, loss, out=batch.risk)
                    weighted = loss if batch.alpha is None else loss * batch.alpha
                    worst = torch.maximum(worst, weighted.amax())
                if position + 1 < len(draws):
                    loaded.prepare(draws[position + 1])
                maxima[position] = worst.cpu()
                if not math.isfinite(maxima[position]):
                    raise MechanismError(
                        f"a log-likelihood at sample {draw} is not finite: "
                        "the posterior is too wide (lower the SGD learning_rate or swag.std_scale)",
                        kind="posterior-too-wide",
                    )
                if progress is not None:
                    progress(position + 1, len(draws))
    finally:
        classifier.flat.copy_(original)
    risk = torch.zeros(len(inputs))
    for index, batch in zip(indices, batches, strict=True):
        risk[index] = batch.risk.cpu()
    return RiskPass(risk=risk, draw_maxima=maxima)


@dataclass(frozen=True)
class _RiskBatch:
    """What the passes over one batch of records read at each draw, on the device, and their largest
    losses so far.
    """

    read: Batch
    labels: Tensor
    alpha: Tensor | None
    risk: Tensor

    @staticmethod
    def of(
        index: Tensor,
        inputs: Inputs,
        labels: Tensor,
        weights: Tensor | None,
        device: torch.device,
    ) -> _RiskBatch:
        return _RiskBatch(
            inputs.batch(index, device),
            labels[index.to(labels.device)].to(device),
            None if weights is None else weights[index.to(weights.device)].to(device),
            torch.zeros(len(index), device=device),
        )


def _loading(
    classifier: Classifier, posterior: swag.Posterior, *, seed: int, purpose: str
) -> _Draws:
    near = None
    if classifier.device.type != "cpu":
        near = swag.on_device(posterior, classifier.device)
    if near is None:
        return _Draws(classifier, posterior, seed, purpose)
    return _DrawsOnCard(classifier, near, seed, purpose)


@dataclass
class _Draws:
    """Loads the repeatable draws of a pass into the classifier. They are made on the processor."""

    classifier: Classifier
    posterior: swag.Posterior
    seed: int
    purpose: str

    def prepare(self, draw: int) -> None:
        """Announces the next draw while the device is still computing."""

    def load(self, draw: int) -> None:
        load_draw(self.classifier, self.posterior, seed=self.seed, purpose=self.purpose, draw=draw)


@dataclass
class _DrawsOnCard(_Draws):
    """Makes draws on the card of the classifier, where the posterior is. The next draw is queued
    behind the passes at the current one, so that the card has work while the processor reads their
    result.
    """

    def __post_init__(self) -> None:
        self._next = torch.empty_like(self.classifier.flat)
        self._prepared: int | None = None

    def prepare(self, draw: int) -> None:
        with torch.no_grad():
            drawn = _seeded_on_card(self._next.device, self.seed, self.purpose, draw)
            with drawn as normal:
                swag.sample_on_device(self.posterior, normal=normal, out=self._next)
        self._prepared = draw

    def load(self, draw: int) -> None:
        if self._prepared != draw:
            self.prepare(draw)
        self.classifier.flat.copy_(self._next)


@contextmanager
def _seeded_on_card(
    device: torch.device, seed: int, purpose: str, draw: int
) -> Iterator[swag.Normal]:
    """Standard normals of one draw, from the generator of the device of each tensor."""
    with seeded(seed, purpose, "draw", draw, device=device):
        yield lambda out: out.normal_()


def load_draw(
    classifier: Classifier, posterior: swag.Posterior, *, seed: int, purpose: str, draw: int
) -> None:
    """Loads repeatable draw number `draw`, made on the processor, into the classifier."""
    normal = swag.seeded_normal(generator(seed, purpose, "draw", draw))
    with torch.no_grad():
        swag.sample(posterior, normal=normal, out=classifier.flat)


def at_draw(
    classifier: Classifier,
    inputs: Inputs,
    labels: Tensor,
    *,
    weights: Tensor,
    batch_size: int | None = None,
) -> float:
    """Delta at the classifier's current parameters: the maximum of alpha_i |l_i| over records,
    computed in float32.

    Raises:
        MechanismError: the result is not finite.
    """
    device = classifier.device

    def largest(index: Tensor) -> Tensor:
        with torch.inference_mode(), fast_linear(device):
            ell = classifier.log_likelihood(inputs.batch(index, device), labels[index].to(device))
            return (ell.abs() * weights[index].to(device)).amax()

    worst = torch.zeros((), device=device)
    with forward_passes(inputs, device) as over:
        size = batch_size or forward_batch_size(inputs, device)
        for loss in over(largest, length_sorted_batches(inputs, batch_size=size)):
            worst = torch.maximum(worst, loss)  # propagates a NaN, which Python's max would drop
    if not math.isfinite(worst):
        raise MechanismError(
            "a log-likelihood at the released sample is not finite", kind="not-finite"
        )
    return float(worst)


def risk_weights(risk: Tensor, *, c: float, g: float) -> Tensor:
    """alpha = clip(c (1 - r~) + g, 0, 1), float32 [n], in which r~ are the risks scaled to [0, 1].

    | risks        | alpha             |
    |--------------|-------------------|
    | all equal    | clip(c + g, 0, 1), because r~ is 0 |
    | the largest  | clip(g, 0, 1)     |
    | the smallest | clip(c + g, 0, 1) |
    """
    low, high = risk.min(), risk.max()
    width = high - low
    scaled = torch.zeros_like(risk) if width == 0 else (risk - low) / width
    return (c * (1 - scaled) + g).clamp_(0, 1)


def reweight(alpha: Tensor, risk: Tensor, *, k: float) -> Tensor:
    """Equation 7, float32 [n]: alpha' = clip(k alpha Delta / Delta_i, 0, 1) with Delta_i = alpha_i
    r_i.

    A record with alpha_i = 0 has Delta_i = 0 and keeps 0 (the equation would divide by zero). A
    record with alpha_i > 0 and likelihood 1 at every draw needs no protection and gets 1. The
    result is not bounded by Delta, because it defines a new posterior, for which Delta must be
    measured again.
    """
    delta_i = alpha * risk
    delta = delta_i.max()
    grown = torch.where(
        delta_i > 0, k * alpha * delta / delta_i.clamp(min=torch.finfo(alpha.dtype).tiny), 1.0
    )
    return torch.where(alpha > 0, grown, 0.0).clamp_(0, 1)


def weights_of(
    config: PseudoPosteriorConfig, name: RoundName, alpha: Tensor | None, risk: Tensor
) -> Tensor:
    """The weights of a round: the weight map of the base round's risks, or equation 7 applied to
    the previous weights.
    """
    if TABLE[name].reweighted:
        assert alpha is not None
        return reweight(alpha, risk, k=config.k)
    return risk_weights(risk, c=config.c, g=config.g)
