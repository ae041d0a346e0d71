"""Single-word vectors, with which a lexicon determines related words.

For the packaged encoder, the vectors of a fixed public vocabulary are part of the program: the
whole-word tokens of its tokenizer and the words of OIICS's titles, quantised to 8 bits in units of
2^-6. Runs do not encode them, and their similarity table is bit-identical on every processor,
although the last digits of an encoder's own vectors depend on the instruction set (AVX2, AVX-512,
AMX). Words of other titles are encoded when needed and rounded to the same units. For another
encoder, the vectors of its tokenizer's whole words are computed and not rounded.

No record is read. `scripts/word_vectors.py` writes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mechanisms.model import checkpoint, packaged
from mechanisms.model.title_words import VECTORS, shipped_words, to_embed

_UNIT = 2.0**-6
_MOST = 127

Embed = Callable[[list[str]], Tensor]
"""An encoder's features of texts, float32 [texts, width]."""


class WordVectors(NamedTuple):
    """Sorted words and their vectors, float32 [words, width]."""

    words: tuple[str, ...]
    vectors: Tensor


def of(encoder: str, further: Iterable[str], embed: Embed) -> WordVectors:
    """The vectors of an encoder's vocabulary and of further words.

    Args:
        embed: computes features with this encoder. It is called at most once, and not at all if
            every word is known.
    """
    unknown = to_embed(encoder, further)
    if encoder != packaged.MINILM:
        return WordVectors(tuple(unknown), embed(unknown))
    packaged_vectors = shipped()
    if not unknown:
        return packaged_vectors
    words = (*packaged_vectors.words, *unknown)
    vectors = torch.cat([packaged_vectors.vectors, in_units(embed(unknown)).float().mul(_UNIT)])
    order = sorted(range(len(words)), key=words.__getitem__)
    return WordVectors(tuple(words[place] for place in order), vectors[order])


def in_units(vectors: Tensor) -> Tensor:
    """Rounds vectors to whole units, int8."""
    return vectors.div(_UNIT).round().clamp(-_MOST, _MOST).to(torch.int8)


@lru_cache(maxsize=1)
def shipped() -> WordVectors:
    """Loads the vectors that are part of the program.

    Raises:
        MechanismError: the file is not the one that this version was released with.
    """
    words = shipped_words()
    return WordVectors(words, checkpoint.load(VECTORS)[0]["vectors"].float().mul(_UNIT))
