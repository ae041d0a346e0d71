"""Classifiers: parameters as one vector, the same scores as transformers, features that stand for
the encoder.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from refusals import of_kind
from small_heads import Fresh
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import classifier, encoder_files
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, TokenInputs
from mechanisms.posterior import risks as pseudo_posterior
from mechanisms.posterior import swag

PARTS = ("full", "lora", "head")
EVERY = [(part, pooling) for part in PARTS for pooling in ("first", "mean")]


@pytest.fixture(params=["tiny_roberta", "tiny_bert"])
def encoder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def config_of(encoder: Path, trainable: Any = "full", pooling: Any = "first") -> ModelConfig:
    return ModelConfig(encoder=str(encoder), trainable=trainable, pooling=pooling, max_length=64)


@pytest.mark.parametrize(("trainable", "pooling"), EVERY)
def test_flat_is_the_parameters(fresh: Fresh, encoder: Path, trainable: str, pooling: str) -> None:
    """Writing into `flat` is loading: scores change with it, come back with it, and gradients reach
    every view.
    """
    made, inputs, _ = fresh(trainable, n=6, pooling=pooling, encoder=encoder)
    assert made.num_parameters == sum(p.numel() for p in made.part.parameters() if p.requires_grad)
    before, scores = made.flat.clone(), made.predict(inputs)
    made.flat.add_(
        0.1 * torch.randn(made.num_parameters, generator=torch.Generator().manual_seed(0))
    )
    assert not torch.allclose(made.predict(inputs), scores, atol=1e-3)
    made.flat.copy_(before)
    assert torch.equal(made.predict(inputs), scores)
    together = torch.cat([p.detach().flatten() for p in made.parameters])
    assert torch.equal(together, made.flat)
    assert all(p.data_ptr() >= made.flat.data_ptr() for p in made.parameters)


def test_what_trains(fresh: Fresh, encoder: Path) -> None:
    """`full`: every parameter; `head`: dense and projection alone; `lora`: rank-2 adapters on query
    and value, head.
    """
    counts = {part: fresh(part, n=2, encoder=encoder)[0] for part in PARTS}
    assert counts["full"].num_parameters == sum(
        p.numel() for p in counts["full"].whole.parameters()
    )
    head = (16 * 16 + 16) + (16 * 5 + 5)
    assert counts["head"].num_parameters == head
    adapters = 2 * 2 * (2 * 16 * 2)  # layers, query and value, two factors of 16 by 2
    own_head = (
        head if "roberta" in str(encoder) else 16 * 5 + 5
    )  # BERT's pooler belongs to its encoder
    assert counts["lora"].num_parameters == adapters + own_head
    on_the_mean = fresh("lora", n=2, pooling="mean", encoder=encoder)[0]
    assert on_the_mean.num_parameters == adapters + (16 * 5 + 5), "adapters, and one linear layer"


@pytest.mark.parametrize(("trainable", "pooling"), EVERY)
def test_prediction_ignores_order_and_padding(
    fresh: Fresh, encoder: Path, trainable: str, pooling: str
) -> None:
    """A record alone scores as it does among longer and shorter ones."""
    made, inputs, _ = fresh(trainable, n=17, pooling=pooling, encoder=encoder)
    together = made.predict(inputs, batch_size=6)
    alone = torch.cat(
        [made.logits(inputs.batch(torch.tensor([i]), made.device)).detach() for i in range(17)]
    )
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_features_stand_for_the_encoder(
    fresh: Fresh, narratives: Callable[..., list[str]], encoder: Path, pooling: str
) -> None:
    """`head` on cached features scores as the whole model on the text does."""
    made, features, _ = fresh("head", n=9, pooling=pooling, encoder=encoder)
    tokens = classifier.tokenize(made.config, narratives(9))
    whole = torch.cat(
        [_scores(made.whole(**tokens.batch(torch.tensor([i]), made.device))) for i in range(9)]
    )
    torch.testing.assert_close(made.predict(features), whole, rtol=1e-4, atol=1e-5)


def _scores(output: Any) -> Tensor:
    return (output if isinstance(output, Tensor) else output.logits).detach()


def test_standard_head_is_transformers_own(
    fresh: Fresh, narratives: Callable[..., list[str]], encoder: Path
) -> None:
    """`full` gives the scores of transformers' model with its own tokenizer and padding."""
    from transformers import AutoTokenizer

    made, tokens, _ = fresh("full", n=9, encoder=encoder)
    tokenizer: Any = AutoTokenizer.from_pretrained(str(encoder))
    encoded = tokenizer(
        narratives(9), truncation=True, max_length=64, padding=True, return_tensors="pt"
    )
    expected = made.whole(
        **{k: encoded[k] for k in ("input_ids", "attention_mask")}
    ).logits.detach()
    torch.testing.assert_close(made.predict(tokens), expected, rtol=1e-4, atol=1e-5)


def test_log_likelihood(fresh: Fresh) -> None:
    """log p of the label in nats: never above 0, and its exponentials over all labels sum to 1."""
    made, inputs, _ = fresh("full", n=7)
    batch = inputs.batch(torch.arange(7), made.device)
    with torch.no_grad():
        all_labels = torch.stack(
            [made.log_likelihood(batch, torch.full((7,), c)) for c in range(5)], 1
        )
    assert bool((all_labels <= 0).all())
    torch.testing.assert_close(all_labels.exp().sum(1), torch.ones(7))
    torch.testing.assert_close(all_labels, made.logits(batch).detach().log_softmax(1))


def test_encoding_reports_every_record(fresh: Fresh, narratives: Callable[..., list[str]]) -> None:
    """`on_batch` gets the records of each block, without its dummies."""
    made, features, _ = fresh("head", n=20)
    sizes: list[int] = []
    again = made.encode(classifier.tokenize(made.config, narratives(20)), on_batch=sizes.append)
    assert sum(sizes) == 20
    assert isinstance(features, FeatureInputs)
    torch.testing.assert_close(again.features, features.features, rtol=0, atol=0)


def test_only_a_head_reads_features(fresh: Fresh, narratives: Callable[..., list[str]]) -> None:
    """Encoding for another part is a mistake of the caller."""
    made, _, _ = fresh("full", n=2)
    with pytest.raises(TypeError, match="head"):
        made.encode(classifier.tokenize(made.config, narratives(2)))


@pytest.mark.parametrize("trainable", PARTS)
def test_the_seed_initialises_the_head(tiny_roberta: Path, trainable: str) -> None:
    """The same seed, the same parameters; another seed, another head on the same encoder."""
    config = config_of(tiny_roberta, trainable)
    torch.manual_seed(1)
    first = classifier.build(config, num_labels=3, seed=0)
    torch.manual_seed(2)
    again = classifier.build(config, num_labels=3, seed=0)
    other = classifier.build(config, num_labels=3, seed=1)
    assert torch.equal(first.flat, again.flat)
    assert not torch.equal(first.flat, other.flat)
    assert torch.equal(_words(first), _words(other))


def _words(made: Classifier) -> Tensor:
    return cast(Any, made.whole).get_input_embeddings().weight


def test_narratives_are_cut(tiny_roberta: Path) -> None:
    """At `max_length` tokens, the closing token kept."""
    tokens = classifier.tokenize(config_of(tiny_roberta), ["fell " * 500, "fell", ""])
    assert tokens.lengths.tolist()[0] == 64
    assert tokens.ids[63] == tokens.ids[int(tokens.offsets[2]) - 1] == tokens.ids[-1]


def test_more_tokens_than_the_encoder_has_positions(encoder: Path) -> None:
    """Said before training, with the number that works, and not by an index error inside the
    encoder.
    """
    config = ModelConfig(encoder=str(encoder), max_length=65)
    with pytest.raises(MechanismError, check=of_kind("max-length"), match=r"\b65\b.*\b64\b"):
        classifier.tokenize(config, ["fell"])


def test_what_a_configuration_leaves_out_transformers_says(
    tiny_roberta: Path, tmp_path: Path
) -> None:
    """Positions, padding and family give the longest text; one that is not in the file has the
    value that transformers gives it.
    """
    assert encoder_files.longest(str(tiny_roberta)) == 64
    stated = json.loads((tiny_roberta / "config.json").read_text())
    del stated["pad_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert encoder_files.longest(str(tmp_path)) == 64  # transformers' RoBERTa pads with 1


def test_side_by_side_passes_equal_one_after_the_other(fresh: Fresh) -> None:
    """With three threads batches run side by side, each on one: scores, features, risks and Delta
    keep every bit.
    """
    made, tokens, given = fresh("full", n=40)
    head, _, _ = fresh("head", n=2)
    assert isinstance(tokens, TokenInputs)
    still = torch.zeros(made.num_parameters)
    wide = tuple(
        0.02 * torch.randn(made.num_parameters, generator=torch.Generator().manual_seed(i))
        for i in range(2)
    )
    post = swag.posterior(made.flat.clone(), still, wide, count=2, std_scale=1.0)
    results = []
    for threads in (1, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            risks = pseudo_posterior.risk_pass(
                made, tokens, given, post, draws=range(3), seed=0, purpose="a", batch_size=4
            )
            delta = pseudo_posterior.at_draw(
                made, tokens, given, weights=torch.ones(40), batch_size=4
            )
            features = head.encode(tokens).features
            results.append(
                [
                    made.predict(tokens, batch_size=4),
                    features,
                    *vars(risks).values(),
                    torch.tensor(delta),
                ]
            )
            assert torch.get_num_threads() == threads, "the number of threads comes back"
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
