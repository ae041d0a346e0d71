"""The network on images: its convolutions are torch's, its clipped sums are those of per-record gradients, and DP-SGD
and the plain fit both train it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model import classifier as classifiers
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.convolutional import Convolutional, PatchConvolution
from mechanisms.model.ghost import GhostClipping
from mechanisms.model.inputs import FeatureInputs
from mechanisms.non_private import NonPrivate

SHAPE, CLASSES = (9, 7, 2), 3
CONFIG = ModelConfig(pooling="none", layers="convolutional")


def network(seed: int = 0) -> Classifier:
    width = SHAPE[0] * SHAPE[1] * SHAPE[2]
    return classifiers.build(CONFIG, num_labels=CLASSES, seed=seed, width=width, shape=SHAPE)


def pictures(n: int) -> tuple[FeatureInputs, Tensor]:
    """A bright quadrant for each class."""
    labels = torch.arange(n) % CLASSES
    pixels = 0.1 * torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(0))
    for at, label in enumerate(labels.tolist()):
        pixels[at, 4 * (label % 2) : 4 * (label % 2) + 4, 3 * (label // 2) : 3 * (label // 2) + 3] += 0.8
    return FeatureInputs(pixels.flatten(1).clamp(0, 1)), labels


@pytest.mark.parametrize("kernel", [3, 5])
def test_a_patch_layer_is_a_convolution(kernel: int) -> None:
    """The same numbers as torch's own convolution with the same weights; sides that are odd are rounded up."""
    layer = PatchConvolution(2, 4, kernel)
    images = torch.rand(3, 2, 9, 7, generator=torch.Generator().manual_seed(1))
    weight = layer.linear.weight.view(4, 2, kernel, kernel)
    expected = nn.functional.conv2d(images, weight, layer.linear.bias, stride=2, padding=kernel // 2)
    torch.testing.assert_close(layer(images), expected)
    assert expected.shape[2:] == (5, 4)


def test_its_clipped_sum_is_that_of_gradients_taken_one_by_one() -> None:
    """Norms and sums agree with autograd's record by record; without the clip they would not."""
    made, (inputs, labels) = network(), pictures(7)
    one_by_one = []
    for i in range(len(labels)):
        loss = -made.log_likelihood(inputs.batch(torch.tensor([i]), made.device), labels[i : i + 1])
        one_by_one.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), made.parameters)]))
    gradients = torch.stack(one_by_one)
    clip = float(gradients.norm(dim=1).median())
    factors = clip / gradients.norm(dim=1).clamp(min=clip)
    out = torch.zeros_like(made.flat)
    with GhostClipping(made) as clipper:
        batch = inputs.batch(torch.arange(len(labels)), made.device)
        norms, _ = clipper.add_clipped_sum(batch, labels, coefficients=lambda n: clip / n.clamp(min=clip), out=out)
    exact = gradients.norm(dim=1)
    assert bool((norms >= exact * (1 - 1e-5)).all())  # a bound of what rounding may have hidden, and close to it
    torch.testing.assert_close(norms, exact, rtol=1e-3, atol=0)
    torch.testing.assert_close(out, factors @ gradients, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(out, gradients.sum(0), rtol=1e-2)


@pytest.mark.parametrize(
    "mechanism",
    [
        NonPrivate(phase={"optimiser": "adamw", "learning_rate": 0.02, "epochs": 8, "batch_size": 16}),
        DpSgd(optimiser="sgd", learning_rate=1.0, momentum=0.9, epochs=20, sampling_prob=1.0),
    ],
)
def test_it_learns(mechanism: NonPrivate | DpSgd) -> None:
    """From a start at chance, with and without noise (epsilon 50): nine of ten quadrants and more."""
    inputs, labels = pictures(120)
    plan = mechanism.plan(Task(records=120, classes=CLASSES, target_epsilon=50.0))
    run = Run(classes=CLASSES, seed=2, classifier=lambda: network(2), key=bytes(range(32)))
    fitted = plan.fit(Records(inputs, labels), run)
    right = fitted.model.log_probabilities(inputs).argmax(1) == labels
    assert right.double().mean() > 0.9
    assert fitted.event == plan.event


def test_what_has_no_pixels_is_refused() -> None:
    """A table under these layers, and an encoder's features."""
    with pytest.raises(MechanismError, match=r"data\.ingest\.kind=images"):
        classifiers.build(CONFIG, num_labels=CLASSES, seed=0, width=12, shape=None)
    with pytest.raises(ValueError, match="goes with pooling `none`"):
        ModelConfig(pooling="mean", trainable="head", layers="convolutional")
    assert Convolutional((8, 8), 2)(torch.zeros(1, 64)).shape == (1, 2)
