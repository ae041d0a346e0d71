"""Words of a public vocabulary: stems, hashes, and scales that come only from public text."""

import csv
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from refusals import of_kind
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import lexicon, packaged, prior, title_words, word_vectors
from mechanisms.model.config import ModelConfig
from mechanisms.model.word_vectors import WordVectors

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


def table_of(titles: list[str], vectors: dict[str, Sequence[float]]) -> lexicon.Table:
    words = tuple(sorted(vectors))
    known = WordVectors(words, torch.tensor([vectors[word] for word in words]))
    stems = lexicon.vocabulary_of(titles)
    every = {word for title in titles for word in lexicon.words_of(title)}
    title_words = {word for word in every if lexicon.stems_of(word)[0] in stems}
    return lexicon.similarities(known, stems, title_words, language="english")


def test_words_count_by_how_much_they_are_like_a_stem() -> None:
    """Likeness runs from 0 at a cosine of 0.4 to 1. An inflection of the stem counts 1, whatever
    its vector. Of several words the most alike counts. A word that is like no stem is not in the
    table. Endings of one word serve others.
    """
    titles = ["Fractures", "Burns"]
    stems = lexicon.vocabulary_of(titles)
    burn, fracture = (stems.index(lexicon.stems_of(word)[0]) for word in ("burns", "fractures"))
    table = table_of(
        titles,
        {
            "burns": [1.0, 0.0],
            "fractures": [-1.0, 0.0],
            "scald": [0.7, 0.714143],
            "fractured": [0.0, 1.0],
            "broken": [0.4, -0.916515],
            "flame": [1.0, 0.0],
        },
    )
    assert set(table) == {"burns", "fractures", "scald", "flame", "fractured"}
    made = lexicon.build(
        "titles", vocabulary=stems, table=table, texts=["flame"], features=torch.ones(1, 2)
    )
    words = made.words(["Scald", "scald, flame", "He fractured it", "broken", "burned"])
    assert words[:, burn].tolist() == pytest.approx([0.5, 1.0, 0.0, 0.0, 1.0], abs=1 / 255)
    assert words[:, fracture].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_likeness_is_to_the_nearest_word_of_the_titles_about_their_mean() -> None:
    """Against the formula in plain torch, where one stem has two words in the titles; the direction
    that all words share makes none alike, and a word of the titles without a column is in no mean.
    """
    titles = ["Burned and burning", "Crushing", "the wound"]
    stems, g = lexicon.vocabulary_of(titles), torch.Generator().manual_seed(0)
    words = ["burned", "burning", "crushing", "wound", "the", *(f"word{c}" for c in "abcdefgh")]
    vectors = torch.randn(len(words), 5, generator=g) + 4
    table = table_of(titles, dict(zip(words, vectors.tolist(), strict=True)))
    centred = torch.nn.functional.normalize(vectors - vectors[:4].mean(0), dim=1)
    cosines = centred @ centred[:4].T
    nearest = torch.stack([cosines[:, :2].amax(1), cosines[:, 2], cosines[:, 3]], 1)
    wanted = ((nearest - 0.4) / 0.6).clamp(min=0)
    assert stems == ("burn", "crush", "wound")
    found = torch.zeros(len(words), 3)
    for word, entries in table.items():
        for column, likeness in entries:
            found[words.index(word), column] = likeness / 255
    assert float((wanted[5:] > 0).sum()) > 3
    torch.testing.assert_close(found[5:], wanted[5:], atol=0.6 / 255, rtol=0)


def test_the_table_has_the_same_bits_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of OIICS's titles by the vectors that come with the program, on any processor and over
    any division of the words.
    """
    titles = lexicon.injury_titles()
    stems = lexicon.vocabulary_of(titles)
    every = {word for title in titles for word in lexicon.words_of(title)}
    title_words = {word for word in every if lexicon.stems_of(word)[0] in stems}
    monkeypatch.setattr(lexicon, "_ROWS", 1000)
    table = lexicon.similarities(word_vectors.shipped(), stems, title_words, language="english")
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    assert digest == "a3ef2e69c6a957666b558e7882d2b669f1603ebb21740fadee6dccc14bd0edb9"


def test_reports_of_injuries_light_few_columns(shared_data: Path) -> None:
    """15 to 17 of OIICS's stems a report of OSHA, where a likeness that is not centred lights a
    hundred. `crushed` is half like `crushing`, by their vectors alone.
    """
    titles = lexicon.injury_titles()
    made = lexicon.of_titles(
        titles,
        lambda words: word_vectors.of(packaged.MINILM, words, no_encoder),
        texts=titles,
        features=torch.ones(len(titles), 1),
        leave_out=["An employee suffered {}."],
    )
    with (shared_data / "osha_sir_2015-01_to_2016-08.csv").open(encoding="utf-8") as file:
        reports = [row["Final Narrative"] for row in csv.DictReader(file)]
    lit = (made.words(reports[::10]) > 0).sum(1).double().mean()
    assert 15 < float(lit) < 17


def test_an_inflection_is_like_its_stem_by_its_vector_too() -> None:
    """`crushed` is to 0.51 like `crushing`, the word of OIICS's titles that has its stem."""
    known, titles = word_vectors.shipped(), lexicon.injury_titles()
    stems = set(lexicon.vocabulary_of(titles, leave_out=["An employee suffered {}."]))
    every = {word for title in titles for word in lexicon.words_of(title)}
    rows = [known.words.index(w) for w in sorted(every) if lexicon.stems_of(w)[0] in stems]
    crushed, crushing = (known.words.index(word) for word in ("crushed", "crushing"))
    block, cosines = next(
        (rows_of, found)
        for rows_of, found in lexicon.cosines_about_mean(known.vectors, rows)
        if crushed < rows_of.stop
    )
    cosine = cosines[crushed - block.start, rows.index(crushing)]
    assert (cosine - 0.4) / 0.6 == pytest.approx(0.51, abs=0.005)


def test_the_vectors_that_come_with_the_program_are_the_encoders() -> None:
    """Every 300th word, within half a unit and the little by which processors differ."""
    known = word_vectors.shipped()
    model = ModelConfig(encoder=packaged.MINILM, trainable="head", pooling="mean")
    computed = prior.embed(model, list(known.words[::300]), device="cpu")
    most = 127 / 64
    torch.testing.assert_close(
        known.vectors[::300], computed.clamp(-most, most), atol=0.501 / 64, rtol=0
    )


def test_only_unknown_words_are_encoded() -> None:
    """They take their places among the others, rounded to the same units."""
    asked: list[list[str]] = []

    def embed(words: list[str]) -> Tensor:
        asked.append(words)
        return torch.full((len(words), 384), 0.3)

    known = word_vectors.of(packaged.MINILM, {"zygomatically", "crushed", "aaaword"}, embed)
    assert asked == [["aaaword", "zygomatically"]]
    assert list(known.words) == sorted(known.words)
    row = known.vectors[known.words.index("zygomatically")]
    assert set(row.tolist()) == {19 / 64}
    shipped = word_vectors.shipped()
    crushed = [of.vectors[of.words.index("crushed")] for of in (known, shipped)]
    assert torch.equal(*crushed)


def test_a_damaged_file_of_words_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit is enough."""
    damaged = bytearray(title_words.VECTORS.read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "words.safetensors").write_bytes(damaged)
    monkeypatch.setattr(title_words, "VECTORS", tmp_path / "words.safetensors")
    _forget_shipped()
    with pytest.raises(MechanismError, check=of_kind("damaged-vectors")):
        word_vectors.shipped()
    _forget_shipped()


def _forget_shipped() -> None:
    word_vectors.shipped.cache_clear()
    title_words.shipped_words.cache_clear()


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
    with pytest.raises(MechanismError, check=of_kind("unknown-stemmer", saying="`klingon`")):
        lexicon.stems_of("x y zzz", "klingon")


def test_titles_without_words_are_refused() -> None:
    with pytest.raises(MechanismError, check=of_kind("no-title-words")):
        lexicon.build("titles", vocabulary=(), texts=["1"], features=torch.ones(1, 2))


def no_encoder(_: list[str]) -> Tensor:
    raise AssertionError("all words are known")


def test_features_of_any_size_are_read_in_the_encoders_own_unit() -> None:
    """An encoder whose features are three times as long gives the same joint features. The packaged
    one has the unit 1, and is not asked.
    """
    features = torch.randn(len(TITLES), 6, generator=torch.Generator().manual_seed(0))

    def embed(texts: list[str]) -> Tensor:
        return torch.full((len(texts), 4), 3 * 5.98839 / 2)

    assert lexicon.unit_of(packaged.MINILM, no_encoder) == 1
    unit = lexicon.unit_of("an encoder", embed)
    assert unit == pytest.approx(3, rel=1e-5)
    vocabulary = lexicon.vocabulary_of(TITLES)
    joined = [
        lexicon.build(
            "titles", vocabulary=vocabulary, texts=TITLES, features=size * features, unit=size
        ).join(size * features, torch.ones(len(TITLES), len(vocabulary)))
        for size in (1.0, 3.0)
    ]
    torch.testing.assert_close(*joined)
