"""Hamiltonian Monte Carlo with Metropolis correction, for the posterior of a head: chains side by side.

Why our own: the samplers that are kept well (Stan, NumPyro, BlackJAX, PyMC) bring another framework, and Pyro's knows
one chain a process and no mass but a dense or a diagonal one. Blocks, a class each, are what makes 40,000 parameters
mix; what they cannot see, the mean over classes, is drawn anew after every trajectory (`SoftmaxPosterior.shifted`).

With the mean m and the positive definite M of a Gaussian, the potential is split into that Gaussian and the rest,

    U(theta) = 1/2 (theta - m)' M (theta - m) + R(theta),     H = U(theta) + 1/2 v' M v,     v ~ N(0, M^-1)

and one step of size h is: half a kick v -= h/2 M^-1 grad R, the Gaussian's own flow, which turns (theta - m, v) by the
angle h, and half a kick (Shahbaba, Lan, Johnson and Neal 2014, "Split Hamiltonian Monte Carlo"). Each part keeps volume
and is undone by turning v round, so that accepting with probability min(1, exp(-change of H)) leaves exp(-U) invariant
*whatever* m, M and h are (Neal 2011, section 5.3): they decide the speed alone. In the many directions that few
records speak to, U is the Gaussian and the step makes no error at any size: on 102 classes x 385 a step of 0.3 is
accepted where the leapfrog needs 0.035.

m is a mode, M the blocks of the Hessian there. The step is set in warm-up so that `ACCEPTANCE` of the proposals are
accepted (dual averaging, Hoffman and Gelman 2014, section 3.2) and frozen before the first draw that counts. A
trajectory is about a quarter turn, after which a Gaussian has forgotten where it started.

All noise is a function of (key, purpose, number of the trajectory), so that a run that goes on from its file equals an
unbroken one bit for bit. The key is of the operating system's entropy; it lies in the file while the run lasts, and
nowhere after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from mechanisms.model import checkpoint
from mechanisms.model.seeding import generator
from mechanisms.model.threads import using
from mechanisms.model.training import Progress
from mechanisms.posterior.gibbs import Evaluation, SoftmaxPosterior, Target, mode
from mechanisms.privacy import noise

ACCEPTANCE = 0.85
QUARTER = math.pi / 2
_JITTER, _GOLDEN = 0.2, 2.399963229728653
"""Trajectories vary in length by so much, so that no frequency is hit again and again; by steps of the golden angle."""
_MOST_STEPS = 256
_WIDE = 1.5
"""How much wider than the Laplace approximation every other chain starts; the rest start at draws of the prior."""
_PROJECTIONS = 16
AT_MOST = 4
"""Times the draws asked for, while they do not satisfy."""
_SAVE_EVERY = 16


class SamplerConfig(BaseModel, frozen=True, extra="forbid", title="Sampler"):
    """Sets the number of chains, and how long they run before a draw counts."""

    chains: int = Field(default=4, ge=4, le=64, title="Chains", description="Each from a start of its own.")
    warm_up: int = Field(
        default=60, ge=20, le=100_000, title="Warm-up", description="Trajectories a chain before draws count."
    )


@dataclass(frozen=True)
class Metric:
    """m float32 [classes, width], or [K, classes, width] of K chains, and M: its Cholesky factor and inverse, float32
    [classes, width, width] each."""

    mean: Tensor
    factor: Tensor
    inverse: Tensor

    @staticmethod
    def of(mean: Tensor, blocks: Tensor) -> Metric:
        """M of these blocks."""
        factor = torch.linalg.cholesky(blocks)
        # in rows: products with the columns that LAPACK leaves take five times as long
        return Metric(mean, factor, torch.cholesky_inverse(factor).contiguous())

    def velocity(self, normal: Tensor) -> Tensor:
        """N(0, M^-1) from standard normals [K, classes, width]."""
        solved = torch.linalg.solve_triangular(self.factor.mT, normal.permute(1, 2, 0), upper=True)
        return solved.permute(2, 0, 1).contiguous()

    def kinetic(self, velocity: Tensor) -> Tensor:
        """v' M v / 2, float64 [K]."""
        turned = torch.bmm(self.factor.mT, velocity.permute(1, 2, 0))
        return turned.double().square_().sum((0, 1)) / 2

    def solve(self, gradient: Tensor) -> Tensor:
        """M^-1 g for g [K, classes, width]."""
        return torch.bmm(self.inverse, gradient.permute(1, 2, 0)).permute(2, 0, 1)


@dataclass(frozen=True)
class Step:
    """A trajectory's outcome, one value a chain: probability of acceptance and change of H, float64 [K]."""

    probability: Tensor
    energy_error: Tensor


def trajectory(
    target: Target,
    metric: Metric,
    theta: Tensor,
    at: Evaluation,
    *,
    step_size: float,
    angle: float,
    normal: Tensor,
    log_uniform: Tensor,
    corrected: bool = True,
) -> tuple[Tensor, Evaluation, Step]:
    """One proposal for each chain, accepted or not.

    Args:
        theta, at: where the chains are, float32 [K, classes, width], and the target there.
        angle: length of the trajectory; the step is made a little smaller to divide it.
        normal: standard normals like theta. log_uniform: logarithms of uniforms, float64 [K].
        corrected: accept by Metropolis; without it, everything (for tests of the tests).
    """
    steps = min(_MOST_STEPS, max(1, math.ceil(angle / step_size)))
    h = min(step_size, angle / steps)
    cos, sin = math.cos(h), math.sin(h)
    velocity = metric.velocity(normal)
    before = at.potential + metric.kinetic(velocity)
    off, now = theta - metric.mean, at
    kick = (metric.solve(now.gradient) - off).mul_(h / 2)
    for _ in range(steps):
        velocity = velocity - kick
        off, velocity = cos * off + sin * velocity, cos * velocity - sin * off
        now = target.evaluate(off + metric.mean)
        kick = (metric.solve(now.gradient) - off).mul_(h / 2)
        velocity -= kick
    error = now.potential + metric.kinetic(velocity) - before
    error = torch.where(error.isfinite(), error, torch.inf)
    accepted = log_uniform < -error if corrected else error.isfinite()
    result = Step((-error).clamp(max=0).exp(), error)
    chosen = accepted[:, None, None]
    return (
        torch.where(chosen, off + metric.mean, theta),
        Evaluation(
            torch.where(accepted, now.potential, at.potential),
            torch.where(chosen, now.gradient, at.gradient),
            torch.where(accepted[:, None], now.ell, at.ell),
        ),
        result,
    )


def angle(number: int) -> float:
    """Length of the trajectory of this number: about a quarter turn."""
    return QUARTER * (1 + _JITTER * math.sin(_GOLDEN * number))


@dataclass
class StepSize:
    """Dual averaging towards `ACCEPTANCE` in warm-up; shrinkage, delay and decay are those of Hoffman and Gelman."""

    value: float = 0.2
    log_mean: float = math.log(0.2)
    shortfall: float = 0.0
    count: int = 0

    def update(self, acceptance: float) -> None:
        """One trajectory's probability of acceptance, mean over chains."""
        self.count += 1
        self.shortfall += (ACCEPTANCE - acceptance - self.shortfall) / (self.count + 10)
        log = min(0.0, math.log(0.5) - math.sqrt(self.count) / 0.25 * self.shortfall)
        self.log_mean += self.count**-0.75 * (log - self.log_mean)
        self.value = math.exp(log)

    def settle(self) -> None:
        """Freeze it at its average."""
        self.value = math.exp(self.log_mean)


@dataclass(frozen=True)
class Draws:
    """Holds what chains leave: summaries of the draws that count, and where they went on to.

    theta float32 [K, classes, width] and ell_last float32 [K, n]: one trajectory after the last that counts. Of the T
    draws a chain: ell float32 [T, K, n]; projections on random directions float64 [T, K, q]; potential, acceptance (its
    probability) and energy_error float64 [T, K].
    """

    theta: Tensor
    ell_last: Tensor
    ell: Tensor
    projections: Tensor
    potential: Tensor
    acceptance: Tensor
    energy_error: Tensor
    step_size: float

    @property
    def count(self) -> int:
        """S, over all chains."""
        return self.ell.shape[0] * self.ell.shape[1]


_HISTORY = ("ell", "projections", "potential", "acceptance", "energy_error")


@dataclass
class _State:
    """Holds what a run resumes from. theta and at: where the chains are, once they have started."""

    key: bytes
    theta: Tensor | None = None
    at: Evaluation | None = None
    step: int = 0
    total: int = 0
    """The trajectory after which it ends, if its draws satisfy by then."""
    size: StepSize = field(default_factory=StepSize)
    history: dict[str, list[Tensor]] = field(default_factory=lambda: {name: [] for name in _HISTORY})

    def draws(self) -> Draws:
        """Returns what the chains have left so far."""
        assert self.theta is not None
        assert self.at is not None
        stacked = {name: torch.stack(parts) for name, parts in self.history.items()}
        return Draws(theta=self.theta, ell_last=self.at.ell, step_size=self.size.value, **stacked)

    def save(self, file: Path | None, *, last: bool = False) -> None:
        """Replace the file; the last one holds no key any more."""
        if file is None:
            return
        tensors = {name: torch.stack(parts) for name, parts in self.history.items() if parts}
        if self.theta is not None and self.at is not None:
            tensors |= {"theta": self.theta} | {f"at.{name}": tensor for name, tensor in vars(self.at).items()}
        if not last:
            tensors["key"] = torch.frombuffer(bytearray(self.key), dtype=torch.uint8)
        checkpoint.save(file, tensors, {"step": self.step, "total": self.total, "size": asdict(self.size)})

    @staticmethod
    def load(file: Path) -> _State:
        """Read back what `save` wrote."""
        tensors, meta = checkpoint.load(file)
        key = bytes(tensors["key"].tolist()) if "key" in tensors else b""
        history = {name: list(tensors.get(name, ())) for name in _HISTORY}
        at = {name.removeprefix("at."): tensor for name, tensor in tensors.items() if name.startswith("at.")}
        started = Evaluation(**at) if at else None
        size = StepSize(**meta["size"])
        return _State(key, tensors.get("theta"), started, meta["step"], meta["total"], size, history)


def sample(
    target: SoftmaxPosterior,
    start: Tensor,
    config: SamplerConfig,
    *,
    draws: int,
    purpose: str,
    chains: int | None = None,
    satisfied: Callable[[Draws], bool] | None = None,
    file: Path | None = None,
    on_draw: Callable[[Tensor], None] | None = None,
    progress: Progress | None = None,
    key: bytes | None = None,
) -> Draws:
    """Warm up, take at least `draws` draws over all chains, and one trajectory more.

    On one thread, so that the order of summation, hence every bit, is the same wherever a run goes on.

    Args:
        start: parameters [classes, width] near which a mode is sought.
        chains: in place of the config's.
        satisfied: looks at the draws; while it is not, as many again are taken, up to `AT_MOST` times as many.
        file: where the state lies, every few trajectories; the same call goes on from it.
        on_draw: sees theta [K, classes, width] of every draw that counts; of a run that went on, of the rest of them.
        progress: told of trajectories over all chains.
        key: of the draws, for tests alone; None: a fresh one of the operating system's entropy.
    """
    with using(1), torch.no_grad():
        chains = chains or config.chains
        length = math.ceil(draws / chains)
        if file is not None and file.exists():
            state = _State.load(file)
        else:
            state = _State(key or noise.new_key(), total=config.warm_up + length + 1)
            state.save(file)  # the key must be on the disk before anything is drawn with it
        if state.key:
            for _ in _trajectories(state, target, start, config.warm_up, chains, purpose, file, on_draw):
                if progress is not None:
                    progress(state.step * chains, state.total * chains)
                if state.step == state.total:
                    enough = state.total >= config.warm_up + AT_MOST * length + 1
                    if enough or satisfied is None or satisfied(state.draws()):
                        state.save(file, last=True)
                        break
                    state.total += length
        return state.draws()


def _trajectories(
    state: _State,
    target: SoftmaxPosterior,
    start: Tensor,
    warm: int,
    chains: int,
    purpose: str,
    file: Path | None,
    on_draw: Callable[[Tensor], None] | None,
) -> Iterator[None]:
    """Move the state on by one trajectory a time, for as long as it is asked."""
    stream = noise.SecretStream(state.key)
    directions = torch.randn(start.numel(), _PROJECTIONS, generator=generator(0, "projections"), dtype=torch.float64)
    directions = directions / directions.norm(dim=0)  # always the same
    centre = mode(target, start)
    metric = Metric.of(centre, target.curvature(centre[None]))
    theta, at = state.theta, state.at
    if theta is None or at is None:
        theta = _scattered(target, metric, stream, torch.empty(chains, *start.shape), purpose)
        at = target.evaluate(theta)
    elif state.step == state.total:  # killed between its last trajectory and what is made of it
        yield
    while True:
        step = state.step
        normal = stream.normal_(torch.empty_like(theta), purpose=f"{purpose}: velocity", step=step)
        uniform = stream.normal_(torch.empty(chains, dtype=torch.float64), purpose=f"{purpose}: accept", step=step)
        theta, at, moved = trajectory(
            target,
            metric,
            theta,
            at,
            step_size=state.size.value,
            angle=angle(step),
            normal=normal,
            log_uniform=torch.special.log_ndtr(uniform),
        )
        level = stream.normal_(
            torch.empty(chains, target.levels * start.shape[1]), purpose=f"{purpose}: level", step=step
        )
        state.theta, state.at = theta, at = target.shifted(theta, at, level)
        state.step += 1
        if state.step <= warm:
            state.size.update(float(moved.probability.mean()))
            if state.step == warm // 2:  # what was learnt on the way in is not what holds there
                state.size = StepSize(value=state.size.value, log_mean=math.log(state.size.value))
            if state.step == warm:
                state.size.settle()
        elif state.step < state.total:
            off = (theta - target.prior_mean).flatten(1).double()
            values = (at.ell, off @ directions, at.potential, moved.probability, moved.energy_error)
            for name, value in zip(_HISTORY, values, strict=True):
                state.history[name].append(value)
            if on_draw is not None:
                on_draw(theta)
        if state.step % _SAVE_EVERY == 0:
            state.save(file)
        yield


def _scattered(
    target: SoftmaxPosterior, metric: Metric, stream: noise.SecretStream, like: Tensor, purpose: str
) -> Tensor:
    """Starts wider than the posterior: around the mode, and at draws of the prior, in turn."""
    normal = stream.normal_(torch.empty_like(like), purpose=f"{purpose}: start", step=0)
    around = metric.mean + _WIDE * metric.velocity(normal)
    prior = target.prior_mean + target.prior_std * normal
    odd = torch.arange(len(like)) % 2 == 1
    return torch.where(odd[:, None, None], prior, around)
