"""Words of a public vocabulary: stems, hashes, and scales that come only from public text."""

import pytest
import torch

from mechanisms.errors import MechanismError
from mechanisms.model import lexicon

TITLES = ["Fractures", "Burns and scalds", "Amputations of fingers"]
SENTENCES = [f"An employee suffered {title}." for title in TITLES]


def built(kind: lexicon.Kind = "titles") -> lexicon.Lexicon:
    vocabulary = lexicon.vocabulary_of(TITLES, leave_out=["An employee suffered {}."])
    features = torch.randn(len(TITLES), 6, generator=torch.Generator().manual_seed(0))
    return lexicon.build(kind, vocabulary=vocabulary, texts=SENTENCES, features=features)


def test_the_vocabulary_is_the_titles_stems_without_stop_words() -> None:
    """`and` is a stop word, `suffered` one of the sentence; `fractured` and `Fractures` are one
    stem.
    """
    vocabulary = built().vocabulary
    assert "and" not in vocabulary
    assert "suffer" not in vocabulary
    words = built().words(["He broke it: fractures.", "no such thing", ""])
    assert words.sum(1).tolist() == [1, 0, 0]
    assert vocabulary[int(words[0].argmax())] == lexicon.stems_of("Fractures")[0]


def test_a_word_counts_once() -> None:
    """The block holds zeros and ones, however often a text repeats a word."""
    assert torch.equal(built().words(["burns burns scalds"]), built().words(["scalds burns"]))


def test_words_count_by_how_much_they_are_like_a_stem() -> None:
    """Likeness runs from 0 at a cosine of 0.4 to 1. An inflection of the stem counts 1, whatever
    its vector. Of several words the most alike counts. A word that is like no stem is not in the
    table. Endings of one word serve others.
    """
    stems = lexicon.vocabulary_of(["Fractures", "Burns"])
    burn, fracture = (stems.index(lexicon.stems_of(word)[0]) for word in ("burns", "fractures"))
    vectors = {
        "scald": [0.7, 0.714143],
        "fractured": [0.0, 1.0],
        "broken": [0.4, -0.916515],
        "flame": [1.0, 0.0],
    }
    of_stems = torch.zeros(2, 2)
    of_stems[burn], of_stems[fracture] = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])
    table = lexicon.similarities(
        list(vectors),
        torch.tensor(list(vectors.values())),
        stems,
        of_stems,
        threshold=0.4,
        language="english",
    )
    assert set(table) == {"scald", "flame", "fractured"}
    made = lexicon.build(
        "titles", vocabulary=stems, table=table, texts=["flame"], features=torch.ones(1, 2)
    )
    words = made.words(["Scald", "scald, flame", "He fractured it", "broken", "burned"])
    assert words[:, burn].tolist() == pytest.approx([0.5, 1.0, 0.0, 0.0, 1.0], abs=1 / 255)
    assert words[:, fracture].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["titles", "hashed"])
def test_both_blocks_have_the_same_norm_on_public_text(kind: lexicon.Kind) -> None:
    """Together they have the norm that the encoder's block had alone."""
    made = built(kind)
    features = torch.randn(len(TITLES), 6, generator=torch.Generator().manual_seed(0))
    joined = made.join(features, made.words(SENTENCES))
    encoder, words = (
        float(block.square().sum(1).mean()) for block in (joined[:, :6], joined[:, 6:])
    )
    assert encoder == pytest.approx(words, rel=1e-5)
    assert encoder + words == pytest.approx(float(features.square().sum(1).mean()), rel=1e-5)


def test_other_languages_have_their_own_stems() -> None:
    """German inflections meet in one stem; English's stemmer keeps them apart."""
    assert len(set(lexicon.stems_of("Verletzung Verletzungen", "german"))) == 1
    with pytest.raises(MechanismError, match="does not know `klingon`"):
        lexicon.stems_of("x y zzz", "klingon")


def test_titles_without_words_are_refused() -> None:
    with pytest.raises(MechanismError, match="have no words"):
        lexicon.build("titles", vocabulary=(), texts=["1"], features=torch.ones(1, 2))


def test_likeness_counts_from_a_cosine_that_few_pairs_exceed() -> None:
    """0.65 % of the pairs are alike, also for an encoder whose words all are in one direction."""
    g = torch.Generator().manual_seed(0)
    words, stems = torch.randn(2000, 30, generator=g), torch.randn(50, 30, generator=g)
    for shift in (0.0, 5.0):
        vectors = [torch.nn.functional.normalize(part + shift, dim=1) for part in (words, stems)]
        alike = (vectors[0] @ vectors[1].T) > lexicon.unlike(words + shift, stems + shift)
        assert float(alike.double().mean()) == pytest.approx(0.0065, rel=0.02)
