"""Words of a public vocabulary as features next to an encoder's.

An encoder forgets rare words; a code list is made of them. A lexicon turns a text into columns, one
for each stem j of the list's titles,

    m_j(x) = max over words w of x of
                 1                                             if j is the stem of w
                 max_v relu((cos(e_w - c, e_v - c) - t) / (1 - t)) otherwise         (`titles`)

with v the words of the titles that have the stem j, e an encoder's vector of a single word
(`packaged.for_words`), c the mean of e over all words of the titles that have a column, and t 0.4;
or into the signed hashes of all its stems (`hashed`). Words are compared about c because an
encoder's vectors share a direction, and with words rather than with stems because a stem such as
`amput` is no word to an encoder.

The classifier reads both blocks side by side, [a f(x), b m(x)], with f the encoder's pooled
features. The scales a and b come from public text: there both blocks have the same root mean square
norm, and together the one that the encoder's block had by itself, in the encoder's own unit
(`unit_of`). No record is read for vocabulary, similarities or scales, so that they cost no privacy.

The similarities are a table over a fixed public vocabulary, the whole words of the encoder's
tokenizer and those of the titles, in steps of 1/255, and over the inflections of the stems by the
endings that are commonest in that vocabulary. A word outside of it counts for nothing. So reading a
text needs neither encoder nor stemmer.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, model_validator
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import packaged
from mechanisms.model.config import HASHED_COLUMNS, stemmer
from mechanisms.model.scorer import MOST_CHARACTERS
from mechanisms.model.word_vectors import Embed, WordVectors

FILE = "lexicon.json"
"""Its name next to features, and in a bundle."""
_UNLIKE = 0.4
"""Cosine about the mean, at and below which two words are not alike. For MiniLM and the titles of
OIICS 0.07 % of pairs exceed it.
"""
_ROWS = 4096
_STEPS = 255
_NORMS = {packaged.MINILM: 5.98839}
"""Root mean square norms of features of `injury_titles`."""
_ENDINGS = 64
"""On OSHA's reports they leave out 12 of 35,561 words that have a stem of OIICS's titles."""
_WORD = re.compile(r"[^\W\d_]{3,}")
# Published stop lists hold `back`, `first`, `third` and `system`, which titles of injuries need: on
# folds inside the training half of OSHA's reports they cost 0.009 of weighted and 0.03 of macro F1
# at epsilon 5. Languages other than English rely on the length of words.
_ENGLISH = (
    "and are for from has into its nor not off onto other out per than that the their them then "
    "there these they this "
    "those under unspecified upon was were which who with without within"
)


Kind = Literal["titles", "hashed"]
Table = dict[str, tuple[tuple[int, int], ...]]
"""By word: columns of the vocabulary, and in 255ths how much the word is like their stems."""


class Lexicon(BaseModel, frozen=True, extra="forbid"):
    """Holds a public vocabulary, the stemmer's language, and the scales of the blocks."""

    kind: Kind
    language: str = Field(default="english", description="Of the Snowball stemmer.")
    vocabulary: tuple[str, ...] = Field(
        default=(), description="Stems in the order of their columns; for `titles`."
    )
    table: Table = Field(
        default={}, description="By word: columns, and likeness to their stems; for `titles`."
    )
    columns: int = Field(ge=1)
    encoder_scale: float = Field(gt=0, allow_inf_nan=False)
    word_scale: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _a_column_per_stem(self) -> Lexicon:
        if self.kind == "titles" and self.columns != len(self.vocabulary):
            raise ValueError("the lexicon has another number of columns than its vocabulary")
        return self

    def words(self, texts: Sequence[str]) -> Tensor:
        """Returns the block of words, unscaled, float32 [n, columns]."""
        if not texts:
            return torch.zeros(0, self.columns)
        read = [text[:MOST_CHARACTERS] for text in texts]
        return self._titles(read) if self.kind == "titles" else self._hashed(read)

    def _titles(self, texts: Sequence[str]) -> Tensor:
        block = np.zeros((len(texts), self.columns), dtype=np.float32)
        for row, text in zip(block, texts, strict=True):
            for word in set(words_of(text)):
                for column, likeness in self.table.get(word, ()):
                    row[column] = max(row[column], likeness)
        return torch.from_numpy(block).div_(_STEPS)

    def _hashed(self, texts: Sequence[str]) -> Tensor:
        from sklearn.feature_extraction.text import (
            HashingVectorizer,
        )  # half a second, which titles need not wait for

        stems: Any = partial(stems_of, language=self.language)
        counted: Any = HashingVectorizer(
            analyzer=stems, n_features=self.columns, norm="l2"
        ).transform(texts)
        return torch.from_numpy(counted.astype("float32").toarray())

    def join(self, features: Tensor, words: Tensor) -> Tensor:
        """Returns the encoder's features [n, width] with the words next to them, float32 [n, width
        + columns].
        """
        return torch.cat([features * self.encoder_scale, words * self.word_scale], 1)

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(self.model_dump_json() + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Lexicon | None:
        """Reads `lexicon.json` of a folder; None where there is none. Refuses a damaged file."""
        path = folder / FILE
        try:
            return Lexicon.model_validate_json(path.read_bytes()) if path.is_file() else None
        except ValidationError:
            raise MechanismError(
                f"{path} is damaged. Get the bundle again", kind="damaged-lexicon"
            ) from None


def injury_titles() -> list[str]:
    lines = Path(__file__).with_name("injury_titles.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def vocabulary_of(
    texts: Iterable[str], *, leave_out: Iterable[str] = (), language: str = "english"
) -> tuple[str, ...]:
    """Returns the stems of public texts, sorted, without the words of `leave_out` and, in English,
    stop words.
    """
    out = [*leave_out, _ENGLISH] if language == "english" else leave_out
    dropped = {stem for text in out for stem in stems_of(text, language)}
    return tuple(sorted({stem for text in texts for stem in stems_of(text, language)} - dropped))


def similarities(
    known: WordVectors, stems: Sequence[str], title_words: Collection[str], *, language: str
) -> Table:
    """Returns the table of a lexicon: words that are like a stem, each with columns and likeness in
    255ths.

    Args:
        known: words and their vectors, those of the titles among them.
        title_words: words of the titles whose stems are `stems`.
    """
    places = {stem: column for column, stem in enumerate(stems)}
    of_words = [_stem(word, language) for word in known.words]
    in_titles = [row for row, word in enumerate(known.words) if word in title_words]
    in_titles.sort(key=lambda row: places[of_words[row]])
    columns = [places[of_words[row]] for row in in_titles]
    firsts = np.searchsorted(columns, np.arange(len(stems)))
    table: Table = {}
    for rows, cosines in cosines_about_mean(known.vectors, in_titles):
        nearest = np.maximum.reduceat(cosines, firsts, axis=1)
        likeness = np.rint(np.clip((nearest - _UNLIKE) / (1 - _UNLIKE), 0, 1) * _STEPS).astype(int)
        for word, stem, alike in zip(known.words[rows], of_words[rows], likeness, strict=True):
            if stem in places:
                alike[places[stem]] = _STEPS
            if (at := np.flatnonzero(alike)).size:
                table[word] = tuple(zip(at.tolist(), alike[at].tolist(), strict=True))
    return table


def cosines_about_mean(
    vectors: Tensor, some: Sequence[int]
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yields rows of vectors [n, width], and their cosines to some of them [rows, some], all taken
    about the mean of these.

    Of vectors in 8 bits the cosines have the same bits on every processor: differences from the
    mean, times the number of vectors in it, and their products are integers that float64 holds.
    """
    every = vectors.double().numpy()
    from_mean = len(some) * every - every[some].sum(0)
    lengths = np.sqrt(np.einsum("ij,ij->i", from_mean, from_mean))
    for start in range(0, len(every), _ROWS):
        rows = slice(start, start + _ROWS)
        products = from_mean[rows] @ from_mean[some].T
        scales = lengths[rows, None] * lengths[some]
        yield rows, np.divide(products, scales, out=np.zeros_like(products), where=scales > 0)


def of_titles(
    titles: Sequence[str],
    vectors_of: Callable[[set[str]], WordVectors],
    *,
    texts: Sequence[str],
    features: Tensor,
    unit: float = 1.0,
    leave_out: Iterable[str] = (),
    language: str = "english",
) -> Lexicon:
    """Returns the lexicon of titles, with the table of similarities over an encoder's words and
    those of the titles.

    Args:
        vectors_of: words of a public vocabulary and these, with their vectors
            (`word_vectors.of`).
        texts: public ones that set the scales, with their features [texts, width].
        unit: of the features (`unit_of`).
        leave_out: texts whose words are no columns.
    """
    stems = vocabulary_of(titles, leave_out=leave_out, language=language)
    table: Table = {}
    if stems:
        columns = frozenset(stems)
        every = {word for title in titles for word in words_of(title)}
        title_words = {word for word in every if _stem(word, language) in columns}
        table = similarities(vectors_of(every), stems, title_words, language=language)
    return build(
        "titles",
        vocabulary=stems,
        table=table,
        texts=texts,
        features=features,
        unit=unit,
        language=language,
    )


@lru_cache(maxsize=2)
def inflections(stems: tuple[str, ...], words: frozenset[str], language: str) -> dict[str, int]:
    """Returns words that have one of these stems, with its place, made by the commonest endings of
    a vocabulary.

    An ending is what a word has after its stem, or in place of the stem's last letter (`injuri`:
    `injury`).
    """
    counts = Counter(
        ending for word in words if (ending := _ending(word, _stem(word, language))) is not None
    )
    endings = heapq.nsmallest(_ENDINGS, counts, key=lambda ending: (-counts[ending], ending))
    forms = {stem[: len(stem) - cut] + ending for stem in stems for cut, ending in endings}
    places = {stem: column for column, stem in enumerate(stems)}
    known = ((word, _stem(word, language)) for word in sorted(forms | words))
    return {word: places[stem] for word, stem in known if stem in places}


def _ending(word: str, stem: str) -> tuple[int, str] | None:
    return next(
        (
            (cut, word[len(stem) - cut :])
            for cut in (0, 1)
            if word.startswith(stem[: len(stem) - cut])
        ),
        None,
    )


def build(
    kind: Kind,
    *,
    texts: Sequence[str],
    features: Tensor,
    unit: float = 1.0,
    vocabulary: tuple[str, ...] = (),
    table: Table | None = None,
    language: str = "english",
) -> Lexicon:
    """Returns the lexicon with its scales, from public texts that have words of it and their
    features [texts, w].

    Args:
        unit: of the features (`unit_of`).
        vocabulary: stems of the titles. table: as `similarities` makes it; None: each word is like
            its own stem only.
    """
    columns = len(vocabulary) if kind == "titles" else HASHED_COLUMNS
    if not columns:
        raise MechanismError(
            "model.lexical: the titles of the code list have no words. Set it to `hashed` or "
            "`none`.",
            kind="no-title-words",
        )
    alike = dict(table or {}) if kind == "titles" else {}
    known = frozenset(alike).union(*map(words_of, texts))
    own = inflections(vocabulary, known, language) if kind == "titles" else {}
    plain = Lexicon(
        kind=kind,
        language=language,
        vocabulary=vocabulary if kind == "titles" else (),
        table={word: ((column, _STEPS),) for word, column in own.items()} | alike,
        columns=columns,
        encoder_scale=1,
        word_scale=1,
    )
    words = _root_mean_square(plain.words(texts))
    if not words > 0:
        raise MechanismError(
            "model.lexical: no public text has a word of the vocabulary. Set it to `hashed` or "
            "`none`.",
            kind="empty-lexicon",
        )
    share = math.sqrt(1 / 2) / unit
    return plain.model_copy(
        update={"encoder_scale": share, "word_scale": share * _root_mean_square(features) / words}
    )


def unit_of(encoder: str, embed: Embed) -> float:
    """Returns the norm of an encoder's features of public titles, in those of the encoder for which
    the settings of the mechanisms were chosen.

    The clip, the noise of a weight and the scale of the prior are set for features of one size, and
    encoders differ in it: mpnet's are half as long as MiniLM's. So features are read in this unit.

    Args:
        embed: by this encoder; it is not called for a packaged one.
    """
    known = _NORMS.get(encoder)
    return (known or _root_mean_square(embed(injury_titles()))) / _NORMS[packaged.MINILM]


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def stems_of(text: str, language: str = "english") -> list[str]:
    return [_stem(word, language) for word in words_of(text)]


@lru_cache(maxsize=1 << 17)
def _stem(word: str, language: str) -> str:
    with _STEMMING:
        return stemmer(language).stemWord(word)


_STEMMING = Lock()
"""A stemmer holds the word that it works on, so threads take turns."""


def _root_mean_square(rows: Tensor) -> float:
    return float(rows.square().sum(1).mean().sqrt())
