"""What the tests of the mechanisms share: heads made of a given part, a test of scale, a spy on
noisy sums, a claim for a record, a posterior of given snapshots.
"""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from mechanisms.model.classifier import Classifier
from mechanisms.model.clipping import Coefficients, RecordClipping
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import Batch, FeatureInputs, TokenInputs
from mechanisms.posterior import swag
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import Claim, Event
from mechanisms.privacy.noise import SecretStream

MakeLinear: TypeAlias = Callable[..., tuple[Classifier, FeatureInputs, Tensor]]
Fresh: TypeAlias = Callable[..., tuple[Classifier, FeatureInputs | TokenInputs, Tensor]]

KEY = bytes(range(32))
"""Of the noise of tests, so that none can fail by chance."""


def head_of(part: nn.Module) -> Classifier:
    """A classifier that is this part alone, on features."""
    config = ModelConfig(encoder="none", trainable="head", pooling="mean")
    return Classifier(config=config, whole=part, part=part, pool=None, device=torch.device("cpu"))


def scale_p_value(values: Tensor, *, std: float) -> float:
    """Two-sided p-value of the chi-square test that independent normal values are N(0, std^2)."""
    below = float(stats.chi2.cdf(float((values.double() / std).square().sum()), values.numel()))
    return 2 * min(below, 1 - below)


def noisy_sums(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[Tensor, Tensor, float]]]:
    """What is released from now on, by purpose: (the sum before its noise, the noise, its standard
    deviation).
    """
    seen: dict[str, list[tuple[Tensor, Tensor, float]]] = defaultdict(list)

    add = SecretStream.add_rounded_normal_

    def added(
        self: SecretStream, tensor: Tensor, *, std: Fraction, purpose: str, step: int
    ) -> Tensor:
        before = tensor.clone()
        result = add(self, tensor, std=std, purpose=purpose, step=step)
        seen[purpose].append((before, result - before, float(std)))
        return result

    monkeypatch.setattr(SecretStream, "add_rounded_normal_", added)
    return seen


def clipped_sum(
    classifier: Classifier,
    batch: Batch,
    labels: Tensor,
    coefficients: Coefficients,
    *,
    bits: int = 40,
) -> tuple[Tensor, Tensor]:
    """Norms and clipped sum of one micro-batch, float64, the sum in units of 1."""
    out = torch.zeros(classifier.num_parameters, dtype=torch.float64)
    with RecordClipping(classifier) as clipper:
        norms, _ = clipper.add_clipped_sum(
            batch, labels, coefficients=coefficients, bits=bits, out=out
        )
    assert torch.equal(out, out.trunc())
    return norms, out * 2.0**-bits


def claim(event: Event | None, *, delta: float | None = None, m: int = 1) -> Claim:
    """The claim of this event for a unit of m records."""
    assert event is not None
    return claim_of(
        event, delta=delta, privacy_unit="record", max_records_per_unit=m, unprotected_inputs=("n",)
    )


def collected(folder: Path, thetas: Tensor, *, rank: int, std_scale: float = 1.0) -> swag.Posterior:
    """The posterior of these snapshots [T, P], written and opened again."""
    state = swag.init(thetas.shape[1], rank=rank, folder=folder)
    for epoch, theta in enumerate(thetas, start=1):
        state.after_epoch(epoch, theta)
    swag.save(state)
    return swag.load(folder, std_scale=std_scale)
