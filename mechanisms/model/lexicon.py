"""Words of a public vocabulary as features, in addition to an encoder's.

An encoder represents rare words poorly, but code lists consist of them. A lexicon turns a text into
columns. With `titles`, there is one column for each stem j of the list's titles,

  m_j(x) = max over words w of x of
        1                                             if j is the stem of w
        max_v relu((cos(e_w - c, e_v - c) - t) / (1 - t)) otherwise

in which v are the words of the titles with stem j, e is an encoder's vector of a single word
(`packaged.for_words`), c is the mean of e over all words of the titles that have a column, and t =
0.4. With `hashed`, the columns are signed hashes of all stems. Cosines are taken about c because an
encoder's vectors share a common direction. Words are compared with words because a stem such as
`amput` is not a word to an encoder.

The classifier reads both blocks, [a f(x), b m(x)], with f the encoder's pooled features. The scales
a and b come from public text. On it, both blocks have the same root mean square norm, and together
they have the norm of the encoder's block alone, in the encoder's own unit (`unit_of`). Vocabulary,
similarities and scales use no record, so they cost no privacy.

The similarities are a table over a fixed public vocabulary: whole-word tokens of the encoder, words
of the titles, and inflections of the stems with the vocabulary's most common endings. They are
quantised in steps of 1/255. Words outside this vocabulary are ignored, so that reading a text needs
neither encoder nor stemmer.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, model_validator
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import packaged
from mechanisms.model.config import HASHED_COLUMNS
from mechanisms.model.scorer import MOST_CHARACTERS
from mechanisms.model.title_words import (
    NORMS,
    injury_titles,
    stem_of,
    stems_of,
    vocabulary_of,
    words_of,
)
from mechanisms.model.word_vectors import Embed, WordVectors

FILE = "lexicon.json"
"""File name of the lexicon, next to features and in a bundle."""
_UNLIKE = 0.4
"""Cosine about the mean at or below which two words count as unrelated. With MiniLM and the titles
of OIICS, 0.07 % of pairs exceed it.
"""
_ROWS = 4096
_STEPS = 255
_ENDINGS = 64
"""Number of endings. On OSHA's reports they miss 12 of the 35,561 words that have a stem of OIICS's
titles.
"""

Kind = Literal["titles", "hashed"]
Table = dict[str, tuple[tuple[int, int], ...]]
"""For each word, pairs of a column and the similarity of the word to the column's stem, in
255ths.
"""


class Lexicon(BaseModel, frozen=True, extra="forbid"):
    """A public vocabulary, the language of the stemmer, and the scales of the two blocks."""

    kind: Kind
    language: str = Field(default="english", description="Language of the Snowball stemmer.")
    vocabulary: tuple[str, ...] = Field(
        default=(), description="Stems in the order of their columns; for `titles`."
    )
    table: Table = Field(
        default={},
        description="For each word, its columns and its similarity to their stems; for `titles`.",
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
        """Unscaled word columns, float32 [n, columns]."""
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
        """The encoder's features [n, width] and the word columns, both scaled, float32 [n, width +
        columns].
        """
        return torch.cat([features * self.encoder_scale, words * self.word_scale], 1)

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(self.model_dump_json() + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Lexicon | None:
        """Loads `lexicon.json` from a folder; None if the folder has none. Refuses a damaged
        file.
        """
        path = folder / FILE
        try:
            return Lexicon.model_validate_json(path.read_bytes()) if path.is_file() else None
        except ValidationError:
            raise MechanismError(
                f"{path} is damaged. Get the bundle again", kind="damaged-lexicon"
            ) from None


def similarities(
    known: WordVectors, stems: Sequence[str], title_words: Collection[str], *, language: str
) -> Table:
    """The similarity table of a lexicon: for each related word, its columns and similarities in
    255ths.

    Args:
        known: words with their vectors, including the words of the titles.
        stems: the stems of the columns.
        title_words: words of the titles with stems in `stems`.
    """
    places = {stem: column for column, stem in enumerate(stems)}
    of_words = [stem_of(word, language) for word in known.words]
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
    """Yields blocks of rows of vectors [n, width] with their cosines to the vectors `some`, [rows,
    some]. Cosines are taken about the mean of `some`.

    For vectors quantised to 8 bits, the cosines are bit-identical on every processor: differences
    from the mean, multiplied by the number of vectors in it, and their products are integers that
    float64 represents exactly.
    """
    all_vectors = vectors.double().numpy()
    from_mean = len(some) * all_vectors - all_vectors[some].sum(0)
    lengths = np.sqrt(np.einsum("ij,ij->i", from_mean, from_mean))
    for start in range(0, len(all_vectors), _ROWS):
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
    """The lexicon of titles, with the similarity table over an encoder's vocabulary and the words
    of the titles.

    Args:
        vectors_of: returns the words of a public vocabulary and the given words, with their vectors
            (`word_vectors.of`).
        texts: public texts that determine the scales.
        features: features of these texts [texts, width].
        unit: unit of the features (`unit_of`).
        leave_out: texts with words that get no column.
    """
    stems = vocabulary_of(titles, leave_out=leave_out, language=language)
    table: Table = {}
    if stems:
        columns = frozenset(stems)
        all_words = {word for title in titles for word in words_of(title)}
        title_words = {word for word in all_words if stem_of(word, language) in columns}
        table = similarities(vectors_of(all_words), stems, title_words, language=language)
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
    """Words with one of these stems, by the stem's column, formed with the most common endings of a
    vocabulary.

    An ending follows a stem, or replaces the stem's last letter (`injuri`: `injury`).
    """
    counts = Counter(
        ending for word in words if (ending := _ending(word, stem_of(word, language))) is not None
    )
    endings = heapq.nsmallest(_ENDINGS, counts, key=lambda ending: (-counts[ending], ending))
    forms = {stem[: len(stem) - cut] + ending for stem in stems for cut, ending in endings}
    places = {stem: column for column, stem in enumerate(stems)}
    candidates = ((word, stem_of(word, language)) for word in sorted(forms | words))
    return {word: places[stem] for word, stem in candidates if stem in places}


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
    """A lexicon with its scales, from public texts and their features [texts, width].

    Args:
        unit: unit of the features (`unit_of`).
        vocabulary: stems of the titles.
        table: result of `similarities`; None relates each word only to its own stem.

    Raises:
        MechanismError: the vocabulary is empty, or no text contains a word of it.
    """
    columns = len(vocabulary) if kind == "titles" else HASHED_COLUMNS
    if not columns:
        raise MechanismError(
            "model.lexical: the titles of the code list have no words. Set it to `hashed` or "
            "`none`.",
            kind="no-title-words",
        )
    alike = dict(table or {}) if kind == "titles" else {}
    all_words = frozenset(alike).union(*map(words_of, texts))
    inflected = inflections(vocabulary, all_words, language) if kind == "titles" else {}
    plain = Lexicon(
        kind=kind,
        language=language,
        vocabulary=vocabulary if kind == "titles" else (),
        table={word: ((column, _STEPS),) for word, column in inflected.items()} | alike,
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
    """The norm of an encoder's features of public titles, relative to the encoder for which the
    settings of the mechanisms were chosen.

    Clip, weight noise and prior scale assume features of one size, but encoders differ: features of
    mpnet are half as long as those of MiniLM. Features are therefore divided by this unit.

    Args:
        embed: computes features with this encoder; not called for a packaged encoder.
    """
    known_norm = NORMS.get(encoder)
    return (known_norm or _root_mean_square(embed(injury_titles()))) / NORMS[packaged.MINILM]


def _root_mean_square(rows: Tensor) -> float:
    return float(rows.square().sum(1).mean().sqrt())
