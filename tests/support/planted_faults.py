"""Faults of a noisy descent, planted in the running code: what a white-box audit is
said to find.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from scipy import stats
from small_heads import head_of
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.audit import curves
from mechanisms.audit.gradient_canaries import Check, GradientCanaries
from mechanisms.descent import exact_sums
from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Mechanism, Records, Run, Task
from mechanisms.model.inputs import FeatureInputs
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy.events import descent_of
from mechanisms.privacy.noise import SecretStream

CLASSES, WIDTH, RECORDS, CANARIES = 6, 64, 200, 24
TASK = Task(records=RECORDS, classes=CLASSES, target_epsilon=5.0, delta=1e-5)
MECHANISMS: dict[str, Mechanism] = {
    "DP-SGD, full batch": DpSgd(optimiser="sgd", learning_rate=1.0, epochs=8, sampling_prob=1.0),
    "DP-SGD, sampled": DpSgd(learning_rate=0.01, epochs=5, batch_size=50),
    "prior descent": PriorDescent(steps=10),
}


def _noise(
    change: Callable[[Callable[..., Tensor], Tensor, dict[str, Any]], Tensor],
) -> dict[str, Any]:

    real = SecretStream.add_rounded_normal_

    def add(stream: SecretStream, out: Tensor, **how: Any) -> Tensor:
        if how["purpose"] != "gradient noise":
            return real(stream, out, **how)
        return change(lambda out, **more: real(stream, out, **(how | more)), out, how)

    return {"add_rounded_normal_": add}


def _one_number(real: Callable[..., Tensor], out: Tensor, how: dict[str, Any]) -> Tensor:
    return out.add_(real(torch.zeros(1, dtype=out.dtype)))


def _sample(
    change: Callable[[float, int], tuple[float, int]], twice: bool = False
) -> dict[str, Any]:
    real = SecretStream.poisson_sample

    def sample(
        stream: SecretStream, records: int, *, prob: float, purpose: str, step: int
    ) -> Tensor:
        prob, step = change(prob, step)
        found = real(stream, records, prob=prob, purpose=purpose, step=step)
        return torch.cat([found, found]) if twice else found

    return {"poisson_sample": sample}


_REAL_SUM = exact_sums.clipped_sum


def _summed_twice(
    records: exact_sums.GridRecords, rows: Tensor, *, norm: float, out: Tensor
) -> Tensor:
    _REAL_SUM(records, rows, norm=norm, out=out)
    return _REAL_SUM(records, rows, norm=norm, out=out)


FAULTS: Mapping[str, tuple[Check, tuple[tuple[object, Mapping[str, Any]], ...]]] = {
    "half of the noise": (Check.NOISE, ()),
    "no noise in one step": (
        Check.NOISE,
        ((SecretStream, _noise(lambda real, out, how: out if how["step"] == 3 else real(out))),),
    ),
    "one number for all coordinates": (Check.NOISE, ((SecretStream, _noise(_one_number)),)),
    "the same noise in every step": (
        Check.REPEATED_NOISE,
        ((SecretStream, _noise(lambda real, out, how: real(out, step=0))),),
    ),
    "the same noise in two steps": (
        Check.REPEATED_NOISE,
        (
            (
                SecretStream,
                _noise(
                    lambda real, out, how: real(out, step=2 if how["step"] == 5 else how["step"])
                ),
            ),
        ),
    ),
    "no clip": (
        Check.SENSITIVITY,
        (
            (dp_sgd, {"_coefficients": lambda *_: torch.ones_like}),
            (exact_sums, {"clip_factors": lambda lengths, _: torch.ones_like(lengths)}),
        ),
    ),
    "records counted twice": (
        Check.SENSITIVITY,
        (
            (SecretStream, _sample(lambda prob, step: (prob, step), twice=True)),
            (exact_sums, {"clipped_sum": _summed_twice}),
        ),
    ),
    "sampled twice as often": (
        Check.SAMPLING,
        ((SecretStream, _sample(lambda prob, step: (min(1.0, 2 * prob), step))),),
    ),
    "the same sample in every step": (
        Check.SAMPLING,
        ((SecretStream, _sample(lambda prob, step: (prob, 0))),),
    ),
}
"""Each with the check that finds it, and what is replaced where."""
OF_SAMPLING = ("sampled twice as often", "the same sample in every step")
"""Only where records are sampled."""


def faults_of(mechanism: str) -> list[str]:
    """Returns the faults that this mechanism can have."""
    return [fault for fault in FAULTS if mechanism == "DP-SGD, sampled" or fault not in OF_SAMPLING]


@contextmanager
def planted(fault: str | None) -> Iterator[None]:
    patches = [
        patch.object(target, name, change)
        for target, changes in (() if fault is None else FAULTS[fault][1])
        for name, change in changes.items()
    ]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def records() -> Records:
    """Records around a centre a class, of norm 3."""
    pick = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (RECORDS,), generator=pick)
    centres = torch.randn(CLASSES, WIDTH, generator=pick)
    noisy = centres[labels] + 2 * torch.randn(RECORDS, WIDTH, generator=pick)
    return Records(FeatureInputs(3 * nn.functional.normalize(noisy, dim=1)), labels)


def watched(
    name: str,
    fault: str | None,
    *,
    seed: int,
    key: bytes | None = None,
    noise_factor: float | None = None,
) -> GradientCanaries:
    """Fits a mechanism with a fault, or with noise that is not the stated one by this factor, and
    returns what its witness saw.
    """
    plan, real = MECHANISMS[name].plan(TASK), records()
    witness = GradientCanaries.toss(
        (real.inputs, real.labels),
        descent_of(plan.event),
        classes=CLASSES,
        canaries=CANARIES,
        generator=torch.Generator().manual_seed(seed),
    )
    part = nn.Linear(WIDTH, CLASSES)
    nn.init.zeros_(part.weight)
    nn.init.zeros_(part.bias)
    head = head_of(part)
    run = Run(CLASSES, seed, lambda: head, witness=witness, resampled=True, key=key)
    if fault == "half of the noise":
        noise_factor = 0.5
    if noise_factor is not None:
        plan = plan.model_copy(update={"noise_factor": noise_factor})
    with planted(fault):
        plan.fit(Records(*witness.fitted), run)
    return witness


def least_power(coordinates: int, steps: int, *, noise_factor: float, level: float) -> float:
    """How often the noise check finds noise of `noise_factor` times the stated standard deviation
    in every step, by the chi-square of each step's squared noise alone.

    Args:
        level: of the check; each of its three tests a step has its part.
    """
    each = level / (3 * steps) / 2
    low, high = stats.chi2.ppf(each, coordinates), stats.chi2.isf(each, coordinates)
    scale = noise_factor**2
    passed = stats.chi2.cdf(high / scale, coordinates) - stats.chi2.cdf(low / scale, coordinates)
    return float(1 - passed**steps)


def power_at(
    name: str, noise_factor: float, *, repeats: int, alpha: float = 0.025
) -> dict[str, Any]:
    """Counts how often a first audit finds noise that is less by this factor, beside what follows
    from its chi-square.
    """
    each, found = alpha / (len(Check) + 1), 0
    event = descent_of(MECHANISMS[name].plan(TASK).event)
    for seed in range(repeats):
        witness = watched(name, None, seed=seed, noise_factor=noise_factor)
        found += witness.checks()[Check.NOISE] <= each
    coordinates = CLASSES * (WIDTH + 1)
    expected = least_power(coordinates, event.steps, noise_factor=noise_factor, level=each)
    return {
        "mechanism": name,
        "noise": noise_factor,
        "coordinates": coordinates,
        "steps": event.steps,
        "runs": repeats,
        "found by the noise check": found,
        "expected share": round(expected, 3),
    }


def power(name: str, fault: str | None, *, repeats: int, alpha: float = 0.025) -> dict[str, Any]:
    """Returns how often checks and guesses of a first audit find a fault; the least power at 95 %
    confidence.

    Args:
        alpha: of all checks and the guesses together.
    """
    each, found, guessed = alpha / (len(Check) + 1), 0, 0
    event = descent_of(MECHANISMS[name].plan(TASK).event)
    for seed in range(repeats):
        witness = watched(name, fault, seed=seed)
        found += any(p_value <= each for p_value in witness.checks().values())
        guessed += (
            curves.noise_at_most(
                right=witness.right(), coins=len(witness.included), event=event, alpha=each
            )
            < 1
        )
    least = float(stats.beta.ppf(0.05, found, repeats - found + 1)) if found else 0.0
    row: dict[str, Any] = {
        "mechanism": name,
        "fault": fault or "none",
        "runs": repeats,
        "found by checks": found,
    }
    return row | {"power at least": round(least, 3), "found by guesses": guessed}
