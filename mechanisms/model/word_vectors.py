"""Vectors of single words, by which a lexicon knows which words are alike.

Those of a fixed public vocabulary come with the program for the packaged encoder: the whole words
of its tokenizer and those of OIICS's titles, in 8 bits, in units of 2^-6. So no run encodes them,
and a table of likeness over them has the same bits on every processor, although an encoder's own
vectors differ in their last digits between one set of instructions (AVX2, AVX-512, AMX) and
another. Words of other titles are encoded where they are needed and rounded to the same units. Of
another encoder the vectors are taken as they are computed, over the whole words of its tokenizer.

No record is read for any of it. `scripts/word_vectors.py` writes the file.
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
    """Words, sorted, and their vectors, float32 [words, width]."""

    words: tuple[str, ...]
    vectors: Tensor


def of(encoder: str, further: Iterable[str], embed: Embed) -> WordVectors:
    """Returns the vectors of an encoder's vocabulary and of further words.

    Args:
        embed: by this encoder. It is called once at most, and not where all words are known.
    """
    if encoder != packaged.MINILM:
        words = sorted({*encoder_files.whole_words(encoder), *further})
        return WordVectors(tuple(words), embed(words))
    known = shipped()
    others = sorted(set(further).difference(known.words))
    if not others:
        return known
    words = (*known.words, *others)
    vectors = torch.cat([known.vectors, in_units(embed(others)).float().mul(_UNIT)])
    order = sorted(range(len(words)), key=words.__getitem__)
    return WordVectors(tuple(words[place] for place in order), vectors[order])


def in_units(vectors: Tensor) -> Tensor:
    """Rounds vectors to whole units, int8."""
    return vectors.div(_UNIT).round().clamp(-_MOST, _MOST).to(torch.int8)


@lru_cache(maxsize=1)
def shipped() -> WordVectors:
    """Loads what comes with the program.

    Raises:
        MechanismError: the file is not the one that this version was released with.
    """
    if hashlib.sha256(FILE.read_bytes()).hexdigest() != DIGEST:
        raise MechanismError(
            f"{FILE} is damaged. Install the program again", kind="damaged-vectors"
        )
    tensors, described = checkpoint.load(FILE)
    return WordVectors(tuple(described["words"]), tensors["vectors"].float().mul(_UNIT))
