"""The linear head that several mechanisms fit: what it reads, and its parameters as one matrix."""

import pytest
import torch
from refusals import of_kind

from mechanisms.errors import MechanismError
from mechanisms.model import classifier as classifiers
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, TokenInputs
from mechanisms.model.linear_head import feature_blocks, from_flat, linear_head, with_bias

CLASSES, WIDTH = 3, 5


def head() -> classifiers.Classifier:
    """An untrained linear head."""
    return classifiers.build(ModelConfig(pooling="none"), num_labels=CLASSES, seed=1, width=WIDTH)


def test_a_record_beyond_float32_counts_as_zeros() -> None:
    """Its square would make every sum of all records infinite; the others stay as they are, bit for
    bit.
    """
    features = torch.randn(4, WIDTH)
    assert torch.equal(torch.cat([*feature_blocks(FeatureInputs(features), 3)]), features)
    huge = features.clone()
    huge[2, 0] = 1e30
    read = torch.cat([*feature_blocks(FeatureInputs(huge), 3)])
    assert not read[2].any()
    assert torch.equal(read[[0, 1, 3]], features[[0, 1, 3]])


def test_tokens_and_other_heads_are_refused() -> None:
    """With the settings to change."""
    with pytest.raises(MechanismError, check=of_kind("not-cached-features")):
        feature_blocks(TokenInputs.from_lists([[1, 2]], pad_id=0), 3)
    made = head()
    assert isinstance(linear_head(made), torch.nn.Linear)
    made.part = torch.nn.Sequential(torch.nn.Linear(WIDTH, CLASSES))
    with pytest.raises(MechanismError, check=of_kind("not-a-linear-layer")):
        linear_head(made)


def test_parameters_are_one_matrix_with_the_bias_last() -> None:
    """The scores are those of the layer."""
    made, x = head(), torch.randn(7, WIDTH)
    theta = from_flat(made.flat.detach(), classes=CLASSES)
    assert theta.shape == (CLASSES, WIDTH + 1)
    assert torch.allclose(with_bias(x) @ theta.T, linear_head(made)(x), atol=1e-6)
