"""Risks, weights, sensitivity and reweighting of the pseudo posterior mechanism (PPM).

Chew et al., section 2.1 and 2.3, after Savitsky et al. 2020 and 2022:

    r_i     = max_s |l_i(theta_s)|                                      risk, over draws of the unweighted posterior
    alpha_i = clip( c (1 - (r_i - min r)/(max r - min r)) + g, 0, 1 )   risk weight
    Delta_i = alpha_i max_s |l_i(theta_s)|,   Delta = max_i Delta_i     from draws of the posterior fitted with alpha
    alpha_i <- clip( k alpha_i Delta / Delta_i, 0, 1 )                  equation 7; Delta must be measured again

Everything streams over draws: memory is O(n + P) however many there are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import Batch, Inputs, length_sorted_batches
from mechanisms.model.linear import fast_linear
from mechanisms.model.seeding import generator
from mechanisms.model.threads import Map, forward_batch_size, forward_passes
from mechanisms.model.training import Progress
from mechanisms.posterior import swag
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.passes import Bfloat16, Float32
from mechanisms.posterior.rounds import TABLE, RoundName


@dataclass(frozen=True)
class RiskPass:
    """Holds the results of a pass over draws: per record, and per draw.

    risk float32 [n]: max over draws of |l_i|. draw_maxima float32 [S]: for each draw, the max over records of
    alpha_i |l_i| (alpha = 1 without weights); its cumulative maximum is the running Delta.
    """

    risk: Tensor
    draw_maxima: Tensor

    @property
    def sensitivity(self) -> float:
        """Delta: the largest weighted |l_i| over records and draws."""
        return float(self.draw_maxima.max())


def merge(passes: Sequence[RiskPass]) -> RiskPass:
    """One pass from several over disjoint draws, in the order of their draws."""
    return RiskPass(
        risk=torch.stack([p.risk for p in passes]).amax(0), draw_maxima=torch.cat([p.draw_maxima for p in passes])
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
    precision: Literal["float32", "bfloat16"] = "float32",
    so_far: RiskPass | None = None,
    on_draw: Callable[[int, RiskPass], None] | None = None,
    progress: Progress | None = None,
) -> RiskPass:
    """Evaluate |l_i| at every draw in `draws`; draw number s depends on (seed, purpose, s) alone.

    Args:
        labels: int64 [n].
        weights: alpha float32 [n]; with them `draw_maxima` is what the sensitivity is the maximum of.
        so_far: a pass over the first draws of `draws`, to go on from.
        on_draw: sees (draws done, pass so far) after each draw, for checkpoints.
    """
    n, device = len(inputs), classifier.device
    alpha = torch.ones(n, device=device) if weights is None else weights.to(device)
    labels = labels.to(device)
    so_far = so_far or RiskPass(risk=torch.zeros(n), draw_maxima=torch.zeros(0))
    risk, maxima, done = so_far.risk.to(device, copy=True), torch.zeros(len(draws)), len(so_far.draw_maxima)
    maxima[:done] = so_far.draw_maxima
    original = classifier.flat.clone()
    half = Bfloat16(classifier, inputs) if precision == "bfloat16" else None
    passes = half or Float32(classifier, inputs)
    batches = [(index.to(device), passes.batch(index)) for index in passes.batches(batch_size)]
    loaded = _Draws(classifier, posterior, seed, purpose, draws)

    def losses(index_and_batch: tuple[Tensor, Any]) -> tuple[Tensor, Tensor]:
        index, batch = index_and_batch
        with torch.inference_mode():
            return index, passes.log_likelihood(batch, labels[index]).neg_()

    try:
        with forward_passes(inputs, device) as over:
            for position in loaded.load(range(done, len(draws))):
                passes.reload()
                worst = torch.zeros((), device=device)
                for index, loss in over(losses, batches):
                    risk[index] = torch.maximum(risk[index], loss)
                    worst = torch.maximum(worst, (loss * alpha[index]).amax())
                maxima[position] = worst.cpu()
                if not math.isfinite(maxima[position]):
                    raise MechanismError(
                        f"a log-likelihood at draw {draws[position]} is not finite: "
                        "the posterior is too wide (lower the SGD learning_rate or swag.std_scale)"
                    )
                if on_draw is not None:
                    state = RiskPass(risk=risk.to("cpu", copy=True), draw_maxima=maxima[: position + 1].clone())
                    on_draw(position + 1, state)
                if progress is not None:
                    progress(position + 1, len(draws))
            if half is not None:
                size = batch_size or forward_batch_size(inputs, device)
                _again_in_float32(half, over, size, labels, alpha, loaded, risk, maxima)
    finally:
        classifier.flat.copy_(original)
    return RiskPass(risk=risk.cpu(), draw_maxima=maxima)


def load_draw(classifier: Classifier, posterior: swag.Posterior, *, seed: int, purpose: str, draw: int) -> None:
    """Put repeatable draw number `draw` into the classifier."""
    normal = swag.seeded_normal(generator(seed, purpose, "draw", draw))
    with torch.no_grad():
        swag.sample(posterior, normal=normal, out=classifier.flat)


_AHEAD = 4 << 30
"""Bytes of normals that may wait in memory for their draw."""


@dataclass(frozen=True)
class _Draws:
    """Puts the repeatable draws of a pass into the classifier, one after the other.

    A card computes a pass in less time than a core needs for the normals of one draw. So the posterior is on the
    card where they fit. The normals of the next draws are made and copied meanwhile, each draw's by a core of its
    own.
    """

    classifier: Classifier
    posterior: swag.Posterior
    seed: int
    purpose: str
    draws: range

    def load(self, positions: Sequence[int]) -> Iterator[int]:
        """Loads the draws at these positions of the range; yields each position once its draw is in place."""
        near = self._near
        if near is None:
            for position in positions:
                draw = self.draws[position]
                load_draw(self.classifier, self.posterior, seed=self.seed, purpose=self.purpose, draw=draw)
                yield position
            return
        ahead = max(1, min(torch.get_num_threads(), _AHEAD // (4 * near.mean.numel())))
        with ThreadPoolExecutor(ahead, thread_name_prefix="draws") as pool:
            waiting = deque(pool.submit(self._noise, position) for position in positions[:ahead])
            for number, position in enumerate(positions):
                drawn = waiting.popleft().result()
                waiting.extend(pool.submit(self._noise, p) for p in positions[number + ahead : number + ahead + 1])
                with torch.no_grad():
                    near.draw(*drawn, out=self.classifier.flat)
                yield position

    def _noise(self, position: int) -> tuple[Tensor, Tensor]:
        normal = swag.seeded_normal(generator(self.seed, self.purpose, "draw", self.draws[position]))
        copying = self._copying
        z2, z1 = swag.noise(self.posterior, normal=normal, pinned=copying is not None)
        if copying is None:
            return z2, z1
        with torch.cuda.stream(copying):
            there = z1.to(self.classifier.device, non_blocking=True)
        copying.synchronize()
        there.record_stream(torch.cuda.default_stream(self.classifier.device))
        return z2, there

    @cached_property
    def _copying(self) -> torch.cuda.Stream | None:
        """Returns a stream for copies to a CUDA card, which go on while it computes."""
        device = self.classifier.device
        return torch.cuda.Stream(device) if device.type == "cuda" else None

    @cached_property
    def _near(self) -> swag.PosteriorOnCard | None:
        """Returns the posterior on the card; None without a card, or if half of its free memory does not hold it."""
        device, post = self.classifier.device, self.posterior
        if device.type == "cpu":
            return None
        if device.type == "cuda" and 8 * post.mean.numel() * (post.rank + 2) > torch.cuda.mem_get_info(device)[0]:
            return None
        return swag.PosteriorOnCard(post, device)


_NEAR = 0.05
"""First guess of how far below the maximum (relative) a bfloat16 value may be the maximum in float32."""
_BLOCK = 16
"""Records of like length that are looked at again for one of them, on a card: its batches hold too many."""


def _again_in_float32(
    rough: Bfloat16,
    over: Map,
    size: int,
    labels: Tensor,
    alpha: Tensor,
    loaded: _Draws,
    risk: Tensor,
    maxima: Tensor,
) -> None:
    """Replace what bfloat16 said near the maximum by float32, at the draws and in the batches that could hold it.

    With e the largest |bfloat16 - float32| of a weighted log-likelihood and B the rough maximum, what is below B - 2e
    cannot be the maximum in float32. e is measured on all that is looked at again; while the band proves narrower than
    2e it is widened and the look repeated. Afterwards Delta and the risk it comes from are float32; other records keep
    a risk that is off by at most e / alpha.
    """

    exactly, inputs = Float32(rough.classifier, rough.inputs), rough.inputs

    def losses(index_and_batches: tuple[Tensor, Batch, Any]) -> tuple[Tensor, Tensor, Tensor]:
        index, batch, rough_batch = index_and_batches
        with torch.inference_mode():
            loss = exactly.log_likelihood(batch, labels[index]).neg_()
            return index, loss, rough.log_likelihood(rough_batch, labels[index]).neg_()

    rough_risk, rough_maxima = risk.clone(), maxima.clone()
    top, block = float(rough_maxima.max()), size if risk.device.type == "cpu" else _BLOCK
    band = _NEAR * top
    while True:
        threshold = top - band
        hit = rough_risk * alpha >= threshold
        near = hit.cpu()
        chosen = [some for some in length_sorted_batches(inputs, batch_size=block) if bool(near[some].any())]
        parts = torch.cat(chosen).split(size) if chosen else ()
        batches = [(index.to(risk.device), exactly.batch(index), rough.batch(index)) for index in parts]
        exact, error = torch.zeros_like(risk), torch.zeros((), device=risk.device)
        for position in loaded.load(torch.nonzero(rough_maxima >= threshold)[:, 0].tolist()):
            rough.reload()
            worst = torch.zeros((), device=risk.device)
            for index, loss, half in over(losses, batches):
                exact[index] = torch.maximum(exact[index], loss)
                worst = torch.maximum(worst, (loss * alpha[index]).amax())
                error = torch.maximum(error, ((loss - half) * alpha[index]).abs().amax())
            maxima[position] = worst.cpu()
        if band >= 2 * float(error) or threshold <= 0:
            break
        band = 4 * float(error)
    elsewhere = torch.minimum(rough_risk, threshold / alpha.clamp(min=torch.finfo(alpha.dtype).tiny))
    risk.copy_(torch.where(hit, torch.maximum(exact, elsewhere), rough_risk))


def at_draw(
    classifier: Classifier, inputs: Inputs, labels: Tensor, *, weights: Tensor, batch_size: int | None = None
) -> float:
    """Measures Delta at the present parameters: max over records of alpha_i |l_i|, float32, which has to be finite."""
    device = classifier.device

    def largest(index: Tensor) -> Tensor:
        with torch.inference_mode(), fast_linear(device):
            ell = classifier.log_likelihood(inputs.batch(index, device), labels[index].to(device))
            return (ell.abs() * weights[index].to(device)).amax()

    worst = torch.zeros((), device=device)
    with forward_passes(inputs, device) as over:
        size = batch_size or forward_batch_size(inputs, device)
        for loss in over(largest, length_sorted_batches(inputs, batch_size=size)):
            worst = torch.maximum(worst, loss)  # hands a NaN on, where Python's max would drop it
    if not math.isfinite(worst):
        raise MechanismError("a log-likelihood at the released draw is not finite")
    return float(worst)


def risk_weights(risk: Tensor, *, c: float, g: float) -> Tensor:
    """alpha = clip(c (1 - r~) + g, 0, 1), float32 [n], r~ the risks scaled to [0, 1].

    | risks        | alpha            |
    |--------------|------------------|
    | all equal    | clip(c + g, 0, 1): r~ is 0, none stands out |
    | the largest  | clip(g, 0, 1)    |
    | the smallest | clip(c + g, 0, 1) |
    """
    low, high = risk.min(), risk.max()
    spread = high - low
    scaled = torch.zeros_like(risk) if spread == 0 else (risk - low) / spread
    return (c * (1 - scaled) + g).clamp_(0, 1)


def reweight(alpha: Tensor, risk: Tensor, *, k: float) -> Tensor:
    """Equation 7, float32 [n]: alpha' = clip(k alpha Delta / Delta_i, 0, 1) with Delta_i = alpha_i r_i.

    A record with alpha_i = 0 has Delta_i = 0 and keeps 0 (the equation divides by zero there); one with alpha_i > 0
    whose likelihood was 1 at every draw has nothing to hide and gets 1. The result is not bound by Delta: it belongs
    to a new posterior, at which Delta has to be measured again.
    """
    delta_i = alpha * risk
    delta = delta_i.max()
    grown = torch.where(delta_i > 0, k * alpha * delta / delta_i.clamp(min=torch.finfo(alpha.dtype).tiny), 1.0)
    return torch.where(alpha > 0, grown, 0.0).clamp_(0, 1)


def weights_of(config: PseudoPosteriorConfig, name: RoundName, alpha: Tensor | None, risk: Tensor) -> Tensor:
    """Returns the weights of a round: the map of the base round's risks, or equation 7 on the weights before."""
    if TABLE[name].reweighted:
        assert alpha is not None
        return reweight(alpha, risk, k=config.k)
    return risk_weights(risk, c=config.c, g=config.g)
