"""The public prior: what the untrained head says, only from titles."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from mechanisms.errors import MechanismError
from mechanisms.model import prior
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs

EMBEDDINGS = torch.tensor([[[5.0, 1.0, 0.0], [5.0, -1.0, 0.0], [9.0, 9.0, 9.0], [5.0, 0.0, 2.0]]])
KNOWN = torch.tensor([True, True, False, True])


def untrained(scale: float = 2.0) -> Classifier:
    part = nn.Linear(3, 4)
    config = ModelConfig(
        encoder="none", trainable="head", pooling="mean", prior="titles", prior_scale=scale
    )
    return Classifier(config=config, whole=part, part=part, pool=None, device=torch.device("cpu"))


def test_it_says_the_nearest_title_and_what_all_titles_share_counts_for_nothing() -> None:
    """A narrative beside a title is coded by it; moving along the titles' mean moves all scores
    alike.
    """
    head = untrained()
    prior.start(head, EMBEDDINGS, KNOWN)
    said = head.predict(FeatureInputs(EMBEDDINGS[0, KNOWN] + 0.1)).argmax(1)
    assert said.tolist() == [0, 1, 3]
    centre = EMBEDDINGS[0, KNOWN].mean(0, keepdim=True)
    torch.testing.assert_close(
        head.predict(FeatureInputs(centre)), torch.zeros(1, 4), atol=1e-5, rtol=0
    )


def test_a_code_without_a_text_scores_as_the_average_code() -> None:
    """Its row is zero, and its embedding, whatever it is, does not move the others."""
    head, other = untrained(), untrained()
    prior.start(head, EMBEDDINGS, KNOWN)
    assert head.predict(FeatureInputs(torch.randn(5, 3)))[:, 2].abs().max() == 0
    moved = EMBEDDINGS.clone()
    moved[0, 2] = -70.0
    prior.start(other, moved, KNOWN)
    assert torch.equal(head.flat, other.flat)


def test_rows_have_the_length_of_the_scale() -> None:
    """Beta, for every code with a text; another beta scales all scores."""
    head, twice = untrained(), untrained(4.0)
    for one in (head, twice):
        prior.start(one, EMBEDDINGS, KNOWN)
    part = head.part
    assert isinstance(part, nn.Linear)
    torch.testing.assert_close(part.weight.norm(dim=1), torch.tensor([2.0, 2.0, 0.0, 2.0]))
    torch.testing.assert_close(twice.flat, 2 * head.flat)


def test_another_head_is_refused() -> None:
    """Two layers have no place for it, neither in a configuration nor in a classifier."""
    with pytest.raises(ValidationError, match="pooling `mean`"):
        ModelConfig(prior="titles", pooling="first")
    head = untrained()
    head.part = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(MechanismError, match="pooling `mean`"):
        prior.start(head, EMBEDDINGS, KNOWN)


def test_a_sentence_holds_one_place() -> None:
    """For a title; a configuration with a prior is read back from its stored form."""
    titled = ModelConfig(
        prior="titles", pooling="mean", prior_scale=7.0, prior_sentence="Someone had {}."
    )
    assert ModelConfig.model_validate(titled.model_dump(mode="json")) == titled
    for wrong in ("Someone had it.", "{} and {}.", "{name}"):
        with pytest.raises(ValidationError, match="prior_sentence"):
            ModelConfig(prior="titles", pooling="mean", prior_sentence=wrong)
