"""Words and stems of public texts, and the words that an encoder must embed for a lexicon.

This module does not import torch, so that a plan can determine its stages without it if all of them
are finished.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from threading import Lock

from mechanisms.errors import MechanismError
from mechanisms.model import encoder_files, packaged
from mechanisms.model.config import stemmer

VECTORS = Path(__file__).with_name("minilm_words.safetensors")
"""File of a fixed public vocabulary with the packaged encoder's vectors."""
DIGEST = "e84e28c585c8ff2251b3c9aa0f767a60031df324649b953a472f528f5776f98e"
"""SHA-256 of the file."""
NORMS = {packaged.MINILM: 5.98839}
"""Root mean square norms of the encoders' features of `injury_titles`. The norms of other encoders
are computed.
"""
_WORD = re.compile(r"[^\W\d_]{3,}")
# Published stop lists contain `back`, `first`, `third` and `system`, which injury titles need. In
# cross-validation on the training records of OSHA's reports they cost 0.009 of weighted and 0.03 of
# macro F1 at epsilon 5. Other languages have no stop list and use only the minimum word length.
_ENGLISH = (
    "and are for from has into its nor not off onto other out per than that the their them then "
    "there these they this "
    "those under unspecified upon was were which who with without within"
)


def injury_titles() -> list[str]:
    lines = Path(__file__).with_name("injury_titles.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def vocabulary_of(
    texts: Iterable[str], *, leave_out: Iterable[str] = (), language: str = "english"
) -> tuple[str, ...]:
    """Sorted stems of public texts, without words of `leave_out` and, in English, stop words."""
    out = [*leave_out, _ENGLISH] if language == "english" else leave_out
    dropped = {stem for text in out for stem in stems_of(text, language)}
    return tuple(sorted({stem for text in texts for stem in stems_of(text, language)} - dropped))


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def stems_of(text: str, language: str = "english") -> list[str]:
    return [stem_of(word, language) for word in words_of(text)]


@lru_cache(maxsize=1 << 17)
def stem_of(word: str, language: str) -> str:
    with _STEMMING:
        return stemmer(language).stemWord(word)


_STEMMING = Lock()
"""A stemmer stores the word that it works on, so threads take turns."""


def to_embed(encoder: str, further: Iterable[str]) -> list[str]:
    """Sorted words that this encoder must embed for a lexicon; empty if the program already has
    all vectors.

    Args:
        further: words that the lexicon needs in addition to the encoder's vocabulary.
    """
    if encoder != packaged.MINILM:
        return sorted({*encoder_files.whole_words(encoder), *further})
    return sorted(set(further).difference(shipped_words()))


@lru_cache(maxsize=1)
def shipped_words() -> tuple[str, ...]:
    """Loads the sorted words whose vectors are part of the program.

    Raises:
        MechanismError: the file is not the one that this version was released with.
    """
    content = VECTORS.read_bytes()
    if hashlib.sha256(content).hexdigest() != DIGEST:
        raise MechanismError(
            f"{VECTORS} is damaged. Install the program again", kind="damaged-vectors"
        )
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return tuple(json.loads(header["__metadata__"]["meta"])["words"])
