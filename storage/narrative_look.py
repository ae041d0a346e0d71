"""Looks at narratives before they are trained on or coded: their language, and how many are longer
than what an encoder reads. No narrative is kept.
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
"""Words from which a smaller share tells the language, and by how much it must lead."""
_FEWEST, _LEAST, _SHARE_OF_FEW, _AHEAD_OF_FEW = 6, 3, 0.25, 1.5
"""The same of a single narrative. No English narrative or job title of 46,759 was taken for
another language.
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
"""Languages by scripts that English has no letter of, each the commonest of its script. Japanese
comes first: it has Chinese signs too.
"""
_MOST_SIGNS, _LEAST_OF_SCRIPT = 0.3, 0.1
_LOOKED_AT = 1000
"""Narratives by which the language is told."""
_SHORT = 300
"""Bytes up to which no narrative has more words than any encoder reads."""
_PIECES = r"\p{Han}|\p{Hiragana}|\p{Katakana}|[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_]"
"""Words and signs; a tokenizer makes one token or more of each."""
_MARKS: Final = 2
"""Tokens that an encoder adds to a text."""


@dataclass(frozen=True)
class NarrativeLook:
    """Counts narratives that an encoder cuts, and names their language."""

    narratives: int
    """That are not blank."""
    lengths: NDArray[np.int64]
    """Narratives by words and signs, up to `LONGEST`; at the end all that have more."""
    language: str | None
    """As Snowball names it, where it can be told."""

    def longer_than(self, tokens: int) -> int:
        """Returns how many have certainly more tokens than this: a word has one or more."""
        return int(self.lengths[min(tokens - _MARKS, LONGEST) + 1 :].sum())


LONGEST: Final = 1 << 13


class LookBuilder:
    """Builds a `NarrativeLook` of a table, batch by batch."""

    def __init__(self) -> None:
        self._lengths = np.zeros(LONGEST + 2, dtype=np.int64)
        self._narratives = 0
        self._first: list[str] = []

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Adds a batch of text columns without outer blanks."""
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
    """Looks at all narratives of a table."""
    builder = LookBuilder()
    for batch in table.texts(columns, table.marks()):
        builder.add(
            [pc.call_function("utf8_trim_whitespace", [column]) for column in batch.columns]
        )
    return builder.result()


def look_at_texts(texts: Sequence[str]) -> NarrativeLook:
    """Looks at narratives that are in no table."""
    builder = LookBuilder()
    if texts:
        builder.add([_column_of([text.strip() for text in texts])])
    return builder.result()


def _column_of(texts: Sequence[str]) -> pa.Array:
    """Returns a column of texts without `pa.array`, which imports pandas, for a second."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def long_note(look: NarrativeLook, tokens: int | None, *, characters: int | None) -> str:
    """Says how many narratives an encoder cuts; empty where it is none or not known.

    Args:
        characters: how many of a narrative are read for single words; None: no words are read.
    """
    if tokens is None or not (longer := look.longer_than(tokens)):
        return ""
    return (
        f"{longer:,} of {look.narratives:,} narratives are longer than the {tokens} tokens that "
        "the encoder reads. It ignores the rest"
        f"{f'; single words are read up to {characters:,} characters' if characters else ''}"
    )


def language_note(look: NarrativeLook, encoder: str | None, stems: str | None) -> str:
    """Says that the narratives are in a language that a model does not read; empty where they are
    not, or where it cannot be told.

    Args:
        encoder: language that the encoder reads, as Snowball names it; None: not known.
        stems: language of the words that the model reads next to it; None: it reads none.
    """
    read = look.language
    if read is None or not ((encoder and encoder != read) or (stems and stems != read)):
        return ""
    what = f"the encoder reads {encoder.capitalize()}" if encoder else "the encoder is your own"
    words = f", and its stems are {stems}" if stems else ""
    return f"the texts look {read}; {what}{words}"


def language_of(texts: Iterable[str]) -> str | None:
    """Returns the language as Snowball names it, or by its script; None where the words are few, or
    of no language known here.
    """
    every = [text.lower() for text in texts]
    if script := _by_script(every):
        return script
    words = Counter(word for text in every for word in re.findall(r"\w+", text))
    scores = sorted(
        ((sum(words[word] for word in own.split()), name) for name, own in _WORDS.items()),
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
