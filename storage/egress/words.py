"""Knows the words that a bundle may contain, so that nothing has to be recognised in a text.

A text is read as its runs of letters and digits and, one by one, its characters that are not ASCII. All of them
have to be known: from templates, published lists, licences, and the texts that the signed plan lists. Whole numbers,
digests and ASCII marks are not read: nobody hands them in but within a text that the plan lists whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_WORDS = re.compile(r"[^\W_]+")
_FREE = re.compile(r"[0-9]+(?:e[0-9]*)?")
_ODD = re.compile(r"[^\x09\x0a\x0d\x20-\x7e]")
_DIGESTS = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{16}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4})(?![0-9A-Za-z])"
)


def vocabulary(texts: Iterable[str]) -> frozenset[str]:
    """Returns the words and unusual characters of texts, each word also with a capital first letter."""
    pieces = {piece for text in texts for piece in _pieces(text)}
    return frozenset(pieces | {piece[:1].upper() + piece[1:] for piece in pieces})


def unknown_words(text: str, known: frozenset[str]) -> list[str]:
    """Lists the words and unusual characters of a text that are not known, each once, in order."""
    # guard: a word is known or refused
    return [piece for piece in dict.fromkeys(_pieces(_DIGESTS.sub(" ", text))) if piece not in known]


def _pieces(text: str) -> Iterator[str]:
    yield from (word for word in _WORDS.findall(text) if not _FREE.fullmatch(word))
    yield from (odd for odd in _ODD.findall(text) if not odd.isalnum())
