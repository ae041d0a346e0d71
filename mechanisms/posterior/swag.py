"""Stochastic weight averaging, Gaussian (SWAG): a posterior from the iterates of constant-rate SGD.

Maddox et al. 2019, as used by Chew et al., equations 4 to 6:

  theta = mean + s * ( (1/sqrt 2) sigma_diag * z1  +  (1/sqrt(2 (K-1))) D z2 ),
  z1 ~ N(0, I_P),  z2 ~ N(0, I_K)

- mean and sigma_diag^2 = E[theta^2] - E[theta]^2 use Welford's recurrence: the difference of two
  large numbers loses all digits of a float32 at fine-tuning scale.
- D consists of the last K deviations theta_t - mean_t from the *running* mean. K is the number of
  stored deviations, which is smaller than the rank as long as there are few snapshots.
- z2 is one vector for all parameters. Drawing it separately for each tensor would lose the
  covariance between layers.
- s (`std_scale`) is 1. Other values are for sensitivity studies and are part of the event.

Each deviation is stored in its own file, so a posterior with K = 20 deviations over 82 million
parameters needs 6.6 GB of disk space, but only enough memory for the parameters, mean and variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint
from mechanisms.model.threads import using
from mechanisms.model.training import EpochState

_AHEAD = 1 << 20
"""Number of parameters for which noise is generated at a time, in the background."""

_CACHED = 1 << 17
"""Number of parameters that are summed at a time: the block stays in a core's cache while the
deviations are streamed.
"""


@dataclass
class State(EpochState):
    """Moments of the snapshots so far. `m2` is the sum of squared deviations from the mean
    (Welford).
    """

    rank: int
    folder: Path
    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    m2: Tensor = field(default_factory=lambda: torch.empty(0))

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the moments, for the training checkpoint."""
        return {"mean": self.mean, "m2": self.m2, "count": torch.tensor(self.count)}

    def restore(self, tensors: Mapping[str, Tensor], epoch: int) -> None:
        self.mean, self.m2 = tensors["mean"].clone(), tensors["m2"].clone()
        self.count = int(tensors["count"])

    def after_epoch(self, epoch: int, theta: Tensor) -> None:
        """Adds a snapshot and deletes the deviations that the posterior no longer needs. A run that
        resumes at an earlier epoch needs them as little, because it ends with the last ones, too.
        """
        update(self, theta)
        for path in self.folder.glob("deviation_*.safetensors"):
            if int(path.stem.removeprefix("deviation_")) <= self.count - self.rank:
                path.unlink()


def init(num_parameters: int, *, rank: int, folder: Path) -> State:
    """An empty state that writes deviations to `folder`.

    Raises:
        MechanismError: the rank is below 2, because a single deviation has no covariance.
    """
    if rank < 2:
        raise MechanismError(f"swag.rank is {rank}, but it must be at least 2", kind="rank")
    folder.mkdir(parents=True, exist_ok=True)
    return State(
        rank=rank, folder=folder, mean=torch.zeros(num_parameters), m2=torch.zeros(num_parameters)
    )


def update(state: State, theta: Tensor) -> None:
    """Adds one snapshot, float32 [P]."""
    theta = theta.detach().to(device="cpu", dtype=torch.float32)
    state.count += 1
    delta = theta - state.mean
    state.mean += delta / state.count
    deviation = theta - state.mean
    state.m2 += delta.mul_(deviation)
    checkpoint.save(
        deviation_file(state.folder, state.count),
        {"deviation": deviation},
        {"snapshot": state.count},
    )


def deviation_file(folder: Path, snapshot: int) -> Path:
    """File of the deviation of snapshot number `snapshot`; 1 is the first."""
    return folder / f"deviation_{snapshot:05d}.safetensors"


def save(state: State) -> None:
    """Writes the moments next to the deviations. `load` then opens the folder as a posterior.

    Raises:
        MechanismError: fewer than two snapshots.
    """
    if state.count < 2:
        raise MechanismError(
            f"SWAG took {state.count} snapshot(s), but it needs at least 2. Raise "
            "the epochs of phase sgd",
            kind="too-few-snapshots",
        )
    checkpoint.save(
        state.folder / "moments.safetensors",
        {"mean": state.mean, "m2": state.m2},
        {"count": state.count, "rank": state.rank},
    )


@dataclass(frozen=True)
class Posterior:
    """The SWAG Gaussian over P parameters, from which draws can be made.

    Attributes:
        mean: float32 [P].
        diag_std: float32 [P], standard deviation of the diagonal *before* the factor 1/sqrt 2.
        deviations: K tensors float32 [P], memory-mapped.
    """

    mean: Tensor
    diag_std: Tensor
    deviations: tuple[Tensor, ...]
    snapshots: int
    std_scale: float = 1.0

    @property
    def rank(self) -> int:
        """K, the number of stored deviations."""
        return len(self.deviations)

    @property
    def diag_scale(self) -> float:
        return self.std_scale / math.sqrt(2)

    def coefficients(self, z2: Tensor) -> Tensor:
        """Factors of the deviations in the draw with these normals."""
        return z2 * (self.std_scale / math.sqrt(2 * (self.rank - 1)))


def posterior(
    mean: Tensor, m2: Tensor, deviations: tuple[Tensor, ...], *, count: int, std_scale: float
) -> Posterior:
    return Posterior(
        mean=mean,
        diag_std=(m2 / count).clamp_(min=0).sqrt_(),
        deviations=deviations,
        snapshots=count,
        std_scale=std_scale,
    )


def load(folder: Path, *, std_scale: float = 1.0) -> Posterior:
    """Opens a folder that `save` completed."""
    tensors, meta = checkpoint.load(folder / "moments.safetensors")
    count, rank = int(meta["count"]), int(meta["rank"])
    columns = range(max(1, count - rank + 1), count + 1)
    deviations = tuple(checkpoint.load(deviation_file(folder, t))[0]["deviation"] for t in columns)
    return posterior(tensors["mean"], tensors["m2"], deviations, count=count, std_scale=std_scale)


Normal = Callable[[Tensor], Tensor]
"""Fills a float32 tensor in place with independent standard normals and returns it."""


def sample(post: Posterior, *, normal: Normal, out: Tensor | None = None) -> Tensor:
    """One joint draw, float32 [P], written to `out` if provided.

    `normal` is called for z2 [K] first, then for z1 block by block in order, from one thread at a
    time, so that the draw depends only on the values of `normal`. The next blocks of z1 are
    generated while the current one is summed. Each stored vector is read once.
    """
    target = torch.empty(post.mean.numel()) if out is None or out.device.type != "cpu" else out
    z2 = normal(torch.empty(post.rank))
    blocks = _blocks(post)
    if len(blocks) == 1:
        normal(target)
        _add_up(post, target, blocks[0], z2)
    else:
        # One thread generates noise and one adds. Split over threads, each of the thousands of
        # short sums would wait for the slower half, on a busy machine ten times as long as it
        # computes.
        with using(1), ThreadPoolExecutor(1, thread_name_prefix="swag-noise") as background:
            drawn = [background.submit(normal, target[block]) for block in blocks]
            for block, noise in zip(blocks, drawn, strict=True):
                noise.result()
                _add_up(post, target, block, z2)
    if out is not None and out is not target:
        out.copy_(target)
        return out
    return target


def on_device(post: Posterior, device: torch.device) -> Posterior | None:
    """The posterior in the memory of a card. None if it would take more than half of what is free
    there.
    """
    needed = 4 * post.mean.numel() * (post.rank + 2)
    if device.type == "cuda" and 2 * needed > torch.cuda.mem_get_info(device)[0]:
        return None
    return replace(
        post,
        mean=post.mean.to(device),
        diag_std=post.diag_std.to(device),
        deviations=tuple(deviation.to(device) for deviation in post.deviations),
    )


def sample_on_device(post: Posterior, *, normal: Normal, out: Tensor) -> None:
    """Writes one joint draw to `out`, float32 [P], on the device of the posterior. Nothing waits
    for the device: z2 comes from the processor, and its values are arguments of the sums.
    """
    coefficients = post.coefficients(normal(torch.empty(post.rank))).tolist()
    torch.addcmul(post.mean, normal(out), post.diag_std, value=post.diag_scale, out=out)
    for deviation, coefficient in zip(post.deviations, coefficients, strict=True):
        out.add_(deviation, alpha=coefficient)


def _blocks(post: Posterior) -> list[slice]:
    size = post.mean.numel()
    return [slice(start, min(start + _AHEAD, size)) for start in range(0, size, _AHEAD)]


def _add_up(post: Posterior, target: Tensor, block: slice, z2: Tensor) -> None:
    coefficients = post.coefficients(z2).tolist()
    columns = [
        vector[block].split(_CACHED)
        for vector in (target, post.mean, post.diag_std, *post.deviations)
    ]
    for piece, mean, diag_std, *deviations in zip(*columns, strict=True):
        torch.addcmul(mean, piece, diag_std, value=post.diag_scale, out=piece)
        for deviation, coefficient in zip(deviations, coefficients, strict=True):
            piece.add_(deviation, alpha=coefficient)


_FARTHEST = 9.0
"""A normal computed from two 53-bit uniforms is at most 8.6."""


def within_reach(post: Posterior, theta: Tensor) -> bool:
    """Whether `sample` could return these parameters at all. This is true for every draw and false
    for most other vectors.
    """
    if theta.shape != post.mean.shape or not bool(theta.isfinite().all()):
        return False
    reach = post.diag_std / math.sqrt(2)
    for deviation in post.deviations:
        reach.add_(deviation.abs(), alpha=1 / math.sqrt(2 * (post.rank - 1)))
    slack = 1e-6 + 1e-5 * post.mean.abs()
    return bool(((theta - post.mean).abs() <= _FARTHEST * post.std_scale * reach + slack).all())


def seeded_normal(generator: torch.Generator) -> Normal:
    """Standard normals from a seeded generator, for every draw except the released one."""
    return lambda out: out.normal_(generator=generator)
