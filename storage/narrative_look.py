"""Summarises narratives before training or coding: their language, and how many exceed the length
that an encoder reads. No narrative is stored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.tables.reader import Table

_WORDS: Final = {
    "english": "the of and to was were with from his her he she while when a an on in at by for",
    "french": "le la les des une dans et est sur avec du en au il par sa son a été un de qui à",
    "german": "der die das und mit ein eine wurde auf beim sich dem den im von ist er",
    "spanish": "el la los las una del con por se su al en y un mientras cuando que",
    "italian": "il lo di che della nel una con per si al da un è gli la mentre",
    "portuguese": "o a os um uma do da com na no foi ao e de em quando que seu",
    "dutch": "de het een van met zijn werd op aan toen en in is bij door hij",
    "swedish": "och en ett att på med av till från den som när han hon sig var",
    "danish": "og en et at på med af til fra den som da han hun sig var blev",
    "finnish": "ja oli on kun hän että sekä kanssa mutta joka myös ei",
}
_MANY, _SHARE, _AHEAD = 100, 0.08, 1.4
"""From this number of words on, the smaller share and lead below identify a language."""
_FEWEST, _LEAST, _SHARE_OF_FEW, _AHEAD_OF_FEW = 6, 3, 0.25, 1.5
"""Minimum words, hits, share and lead for a single narrative. None of 46,759 English narratives and
job titles was assigned another language.
"""
_SCRIPTS: Final = {
    "japanese": r"[\u3040-\u30ff]",
    "chinese": r"[\u4e00-\u9fff]",
    "korean": r"[\uac00-\ud7af\u1100-\u11ff]",
    "russian": r"[\u0400-\u04ff]",
    "greek": r"[\u0370-\u03ff]",
    "arabic": r"[\u0600-\u06ff]",
    "hebrew": r"[\u0590-\u05ff]",
    "armenian": r"[\u0530-\u058f]",
    "hindi": r"[\u0900-\u097f]",
    "tamil": r"[\u0b80-\u0bff]",
}
"""Languages by scripts that share no letter with English, each the most common language of its
script. Japanese comes first because it also uses Chinese characters.
"""
_MOST_SIGNS, _LEAST_OF_SCRIPT = 0.3, 0.1
_LOOKED_AT = 1000
"""Number of narratives with which the language is determined."""
_SHORT = 300
"""Size in bytes up to which no narrative has more words than any encoder reads."""
_PIECES = r"\p{Han}|\p{Hiragana}|\p{Katakana}|[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_]"
"""Words and signs. A tokenizer makes at least one token of each."""
_MARKS: Final = 2
"""Number of tokens that an encoder adds to a text."""


@dataclass(frozen=True)
class NarrativeLook:
    """The number and lengths of narratives, and their language."""

    narratives: int
    """Number of narratives that are not blank."""
    lengths: NDArray[np.int64]
    """Number of narratives by words and signs, up to `LONGEST`. The last entry counts longer
    ones.
    """
    language: str | None
    """Snowball's name of the language; None if it cannot be determined."""

    def longer_than(self, tokens: int) -> int:
        """How many narratives have more tokens than this for certain, because each word has at
        least one.
        """
        return int(self.lengths[min(tokens - _MARKS, LONGEST) + 1 :].sum())


LONGEST: Final = 1 << 13


class LookBuilder:
    """Builds a `NarrativeLook` of a table, batch by batch."""

    def __init__(self) -> None:
        self._lengths = np.zeros(LONGEST + 2, dtype=np.int64)
        self._narratives = 0
        self._first: list[str] = []

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Adds a batch of text columns without outer whitespace."""
        sizes = [np.from_dlpack(pc.call_function("binary_length", [column])) for column in columns]
        size = np.sum(sizes, axis=0)
        self._narratives += int((size > 0).sum())
        long = np.flatnonzero(size > _SHORT)
        if len(long):
            places = pa.array(long.tolist(), pa.int64())
            pieces = sum(_pieces(column.take(places)) for column in columns)
            self._lengths += np.bincount(np.minimum(pieces, LONGEST + 1), minlength=LONGEST + 2)
        if len(self._first) < _LOOKED_AT:
            for column in columns:
                self._first += column[: _LOOKED_AT - len(self._first)].to_pylist()

    def result(self) -> NarrativeLook:
        return NarrativeLook(self._narratives, self._lengths, language_of(self._first))


def _pieces(column: pa.Array) -> NDArray[np.int64]:
    counts = pc.call_function("count_substring_regex", [column], pc.MatchSubstringOptions(_PIECES))
    return np.from_dlpack(counts).astype(np.int64)


def look_at(table: Table, columns: Sequence[str]) -> NarrativeLook:
    """Summarises all narratives of a table."""
    builder = LookBuilder()
    for batch in table.texts(columns, table.marks()):
        builder.add(
            [pc.call_function("utf8_trim_whitespace", [column]) for column in batch.columns]
        )
    return builder.result()


def look_at_texts(texts: Sequence[str]) -> NarrativeLook:
    """Summarises narratives that are not in a table."""
    builder = LookBuilder()
    if texts:
        builder.add([_column_of([text.strip() for text in texts])])
    return builder.result()


def _column_of(texts: Sequence[str]) -> pa.Array:
    """A column of texts, created without `pa.array`, which would spend a second on importing
    pandas.
    """
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def long_note(look: NarrativeLook, tokens: int | None, *, characters: int | None) -> str:
    """How many narratives an encoder truncates, as a sentence; empty if there are none or the limit
    is unknown.

    Args:
        characters: number of characters of a narrative that are read for single words; None if no
            words are read.
    """
    if tokens is None or not (longer := look.longer_than(tokens)):
        return ""
    return (
        f"{longer:,} of {look.narratives:,} narratives are longer than the {tokens} tokens that "
        "the encoder reads. It ignores the rest"
        f"{f'; single words are read up to {characters:,} characters' if characters else ''}"
    )


def language_note(look: NarrativeLook, encoder: str | None, stems: str | None) -> str:
    """That the narratives are in a language that a model does not read, as a sentence; empty if the
    model reads it or if it cannot be determined.

    Args:
        encoder: language that the encoder reads, by Snowball's name; None if unknown.
        stems: language of the words that the model also reads; None if it reads none.
    """
    read = look.language
    if read is None or not ((encoder and encoder != read) or (stems and stems != read)):
        return ""
    what = f"the encoder reads {encoder.capitalize()}" if encoder else "the encoder is your own"
    words = f", and its stems are {stems}" if stems else ""
    return f"the texts look {read}; {what}{words}"


def language_of(texts: Iterable[str]) -> str | None:
    """The language by Snowball's name, or by its script; None if there are too few words, or if the
    language is unknown.
    """
    lowered = [text.lower() for text in texts]
    if script := _by_script(lowered):
        return script
    words = Counter(word for text in lowered for word in re.findall(r"\w+", text))
    scores = sorted(
        (
            (sum(words[word] for word in frequent.split()), name)
            for name, frequent in _WORDS.items()
        ),
        reverse=True,
    )
    (most, name), (second, _) = scores[:2]
    total = words.total()
    if total >= _MANY:
        sure = most >= _SHARE * total and most >= _AHEAD * second
    else:
        enough = total >= _FEWEST and most >= _LEAST
        sure = enough and most >= _SHARE_OF_FEW * total and most >= _AHEAD_OF_FEW * second
    return name if sure else None


def _by_script(texts: Iterable[str]) -> str | None:
    letters = "".join(sign for text in texts for sign in text if sign.isalpha())
    foreign = {name: len(re.findall(signs, letters)) for name, signs in _SCRIPTS.items()}
    if sum(foreign.values()) < max(_LEAST, _MOST_SIGNS * len(letters)):
        return None
    least = _LEAST_OF_SCRIPT * sum(foreign.values())
    return next((name for name, signs in foreign.items() if signs >= least), None)
