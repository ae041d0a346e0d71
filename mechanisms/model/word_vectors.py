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

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint, encoder_files, packaged

FILE = Path(__file__).with_name("minilm_words.safetensors")
DIGEST = "e84e28c585c8ff2251b3c9aa0f767a60031df324649b953a472f528f5776f98e"
"""SHA-256 of the file."""
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
    if encoder != packaged.MINILM:
        words = sorted({*encoder_files.whole_words(encoder), *further})
        return WordVectors(tuple(words), embed(words))
    packaged_vectors = shipped()
    unknown = sorted(set(further).difference(packaged_vectors.words))
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
    if hashlib.sha256(FILE.read_bytes()).hexdigest() != DIGEST:
        raise MechanismError(
            f"{FILE} is damaged. Install the program again", kind="damaged-vectors"
        )
    tensors, described = checkpoint.load(FILE)
    return WordVectors(tuple(described["words"]), tensors["vectors"].float().mul(_UNIT))
