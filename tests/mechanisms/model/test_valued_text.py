"""One-hots of columns with public values: their places and their norm, and that no text has another record's values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mechanisms.errors import MechanismError
from mechanisms.model import classifier, lexicon
from mechanisms.model.config import ModelConfig
from mechanisms.model.lexicon import Lexical, Lexicon
from mechanisms.model.valued_text import ValueColumn, ValuedText, one_hot, values_of

INDUSTRY = ValueColumn(name="Industry", values=("Construction", "Mining"))
AGE = ValueColumn(name="Age", values=("young", "old"))
TITLES = ["Fractures", "Burns and scalds", "Amputations of fingers"]


def built(kind: Lexical, *columns: ValueColumn) -> Lexicon:
    features = torch.randn(len(TITLES), 6, generator=torch.Generator().manual_seed(0))
    vocabulary = lexicon.vocabulary_of(TITLES) if kind == "titles" else ()
    return lexicon.build(kind, vocabulary=vocabulary, texts=TITLES, features=features, value_columns=columns)


def test_each_value_has_its_place() -> None:
    """A value that no list has counts as one other; a blank, and a text without values, as none."""
    texts = [
        ValuedText("fell", {"Industry": "Mining", "Age": "young"}),
        ValuedText("fell", {"Industry": "Fishing"}),
        ValuedText("fell", {"Industry": ""}),
        "fell",
        ValuedText("fell", {"Weather": "Mining"}),
    ]
    assert one_hot(texts, (INDUSTRY, AGE)).tolist() == [
        [0, 1, 0, 1, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_whatever_is_made_of_a_text_has_no_values() -> None:
    """A slice, a copy in lower case and a joined text are plain; only `like` takes values over."""
    text = ValuedText("He fell.", {"Industry": "Mining"})
    for made in (text[:4], text.lower(), f"{text}", " ".join([text]) + " ", text + "x", str(text)):
        assert values_of(made) == {}
    assert values_of(ValuedText.like(text[:4], text)) == {"Industry": "Mining"}
    assert type(ValuedText.like("He", "fell")) is str


@pytest.mark.parametrize("kind", ["none", "titles", "hashed"])
@settings(deadline=None)
@given(
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    seed=st.integers(0, 2**16),
    text=st.sampled_from([*TITLES, "", "He fell."]),
)
def test_all_columns_together_have_the_norm_of_one_block(
    kind: Lexical, widths: list[int], seed: int, text: str
) -> None:
    """Whatever a record's values are: at most the public norm, met where no column is blank; the three blocks have the
    encoder's norm together."""
    columns = tuple(ValueColumn(name=f"c{n}", values=tuple(map(str, range(w)))) for n, w in enumerate(widths))
    made = built(kind, *columns)
    features = torch.randn(len(TITLES), 6, generator=torch.Generator().manual_seed(0))
    norm = float(features.square().sum(1).mean().sqrt())
    pick = torch.Generator().manual_seed(seed)
    cells = {one.name: str(int(torch.randint(0, 7, (1,), generator=pick))) for one in columns}
    whole, part = ValuedText(text, cells), ValuedText(text, dict(list(cells.items())[1:]))
    block = made.words([whole, part, text])[:, made.word_columns :] * made.word_scale
    blocks = 2 if kind == "none" else 3
    full, less, nothing = block.norm(dim=1).tolist()
    assert full == pytest.approx(norm / math.sqrt(blocks), rel=1e-4)
    assert less < full
    assert nothing == 0
    joined = made.join(features, made.words([ValuedText(title, cells) for title in TITLES]))
    assert float(joined.square().sum(1).mean().sqrt()) == pytest.approx(norm, rel=1e-4)


def test_columns_change_nothing_of_a_lexicon_without_them() -> None:
    """Its words and scales are those of before: two blocks of equal norm."""
    plain, valued = built("titles"), built("titles", INDUSTRY)
    assert plain.encoder_scale == pytest.approx(math.sqrt(0.5))
    assert plain.value_columns == ()
    assert torch.equal(valued.words(TITLES)[:, : plain.columns], plain.words(TITLES))
    assert valued.columns == plain.columns + 3


def test_it_is_written_and_read_again(tmp_path: Path) -> None:
    """With lists in their order; a damaged list is refused."""
    made = built("hashed", INDUSTRY, AGE)
    made.save(tmp_path)
    assert Lexicon.load(tmp_path) == made
    content = json.loads((tmp_path / "lexicon.json").read_text())
    for change in ({"columns": 3}, {"value_columns": content["value_columns"][:1] * 2, "columns": 774}):
        (tmp_path / "lexicon.json").write_text(json.dumps(content | change))
        with pytest.raises(MechanismError, match="damaged"):
            Lexicon.load(tmp_path)


@pytest.mark.parametrize("values", [(), ("a", "a"), ("a", "")])
def test_a_list_without_distinct_values_is_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        ValueColumn(name="x", values=values)


def test_a_head_that_cannot_read_them_is_refused(tiny_bert: Path) -> None:
    """Values go next to a mean of tokens, under a head that the encoder does not change."""
    for changed in ({"trainable": "full", "pooling": "mean"}, {"trainable": "head", "pooling": "first"}):
        config = ModelConfig.model_validate({"encoder": str(tiny_bert), "max_length": 32} | changed)
        with pytest.raises(MechanismError, match="values of columns"):
            classifier.build(config, num_labels=2, seed=1, lexicon=built("none", INDUSTRY))
