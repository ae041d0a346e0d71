"""The linear head on cached features that several mechanisms fit: its features, layer and
parameters.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs, Inputs


def feature_blocks(inputs: Inputs, size: int) -> Iterator[Tensor]:
    """Blocks of cached features, float32 [at most `size`, width]; refuses tokens.

    A record with a squared norm beyond float32 is replaced by zeros, because it would make every
    sum infinite.
    """
    if not isinstance(inputs, FeatureInputs):
        raise MechanismError(
            "this mechanism reads cached features: set trainable `head` and pooling `mean`",
            kind="not-cached-features",
        )
    return map(_finite, inputs.blocks(size))


def _finite(features: Tensor) -> Tensor:
    finite = features.norm(dim=1).square().isfinite()
    return features if bool(finite.all()) else features.where(finite[:, None], 0.0)


def linear_head(classifier: Classifier) -> nn.Linear:
    if not isinstance(classifier.part, nn.Linear):
        raise MechanismError(
            "this mechanism is a linear layer's: set trainable `head` and pooling `mean`",
            kind="not-a-linear-layer",
        )
    return classifier.part


def with_bias(features: Tensor) -> Tensor:
    """Features with a column of ones, so that the bias is one more weight."""
    return torch.cat([features.cpu().float(), torch.ones(len(features), 1)], 1).contiguous()


def from_flat(flat: Tensor, *, classes: int) -> Tensor:
    """Reshapes the parameters of a linear layer, weight then bias, from float32 [..., P] to [...,
    classes, width + 1].
    """
    width = flat.shape[-1] // classes - 1
    weight, bias = flat.split([classes * width, classes], -1)
    return torch.cat([weight.unflatten(-1, (classes, width)), bias[..., None]], -1)
