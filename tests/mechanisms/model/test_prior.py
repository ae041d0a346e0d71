"""The public prior: what the untrained head says, only from titles."""

import pytest
import torch
from pydantic import ValidationError
from refusals import of_kind
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
    with pytest.raises(MechanismError, check=of_kind("prior-needs-linear-layer")):
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


def examples(noise: float, *, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Public texts beside what their codes mean, which is not where the titles are."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(200) % 4
    means = torch.tensor([[5.0, 0.0, 2.0], [5.0, 1.0, 0.0], [4.0, 0.0, -2.0], [5.0, -1.0, 0.0]])
    return means[labels] + noise * torch.randn(200, 3, generator=random), labels


def test_examples_move_the_head_from_the_titles() -> None:
    """To what new texts of the same codes have, a code without a title among them."""
    head = untrained()
    prior.start(head, EMBEDDINGS, KNOWN)
    texts, labels = examples(0.1, seed=4)
    before = (head.predict(FeatureInputs(texts)).argmax(1) == labels).float().mean()
    found = prior.at_examples(head, *examples(0.1))
    prior.put(head, found.weight)
    after = (head.predict(FeatureInputs(texts)).argmax(1) == labels).float().mean()
    assert found.pull in prior.PULLS
    assert before < 0.5 < 0.95 < after
    again = prior.at_examples(start_again(), *examples(0.1))
    assert torch.equal(found.weight, again.weight)


def start_again() -> Classifier:
    head = untrained()
    prior.start(head, EMBEDDINGS, KNOWN)
    return head


def test_examples_that_say_nothing_do_not_lose_the_titles() -> None:
    """Labels at random: the pull is strong, and no entry's accident is kept."""
    head = start_again()
    texts, labels = examples(0.1)
    titles = prior.head_of(head).weight.detach().clone()
    mixed = labels[torch.randperm(200, generator=torch.Generator().manual_seed(5))]
    found = prior.at_examples(head, texts, mixed)
    assert head.centre is not None
    about = texts - head.centre
    scores = about @ found.weight.T
    loss = float(nn.functional.cross_entropy(scores, mixed))
    assert loss < float(nn.functional.cross_entropy(about @ titles.T, mixed))
    assert float(scores.softmax(1).max()) < 0.6, "it is sure of nothing"
