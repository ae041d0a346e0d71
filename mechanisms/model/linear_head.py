"""The linear head on cached features that several mechanisms fit: its features, its layer and its
parameters.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs, Inputs


def feature_blocks(inputs: Inputs, size: int) -> Iterator[Tensor]:
    """Returns cached features float32 [at most `size`, width], block by block, and refuses tokens.

    A record whose squared norm is beyond float32 has zeros: it would make every sum of all records
    infinite.
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
    """With a column of ones: the bias is one more weight."""
    return torch.cat([features.cpu().float(), torch.ones(len(features), 1)], 1).contiguous()


def from_flat(flat: Tensor, *, classes: int) -> Tensor:
    """A linear layer's parameters, weight then bias, float32 [..., P], as [..., classes, width +
    1].
    """
    width = flat.shape[-1] // classes - 1
    weight, bias = flat.split([classes * width, classes], -1)
    return torch.cat([weight.unflatten(-1, (classes, width)), bias[..., None]], -1)
