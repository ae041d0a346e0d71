"""Finds the stemmer of a language, before torch is imported."""

from __future__ import annotations

from functools import cache
from typing import Any

from mechanisms.errors import MechanismError


@cache
def stemmer(language: str) -> Any:
    """Returns Snowball's stemmer; an unknown language is refused with the names of those that it knows."""
    import snowballstemmer

    try:
        return snowballstemmer.stemmer(language)
    except KeyError:
        names = ", ".join(snowballstemmer.algorithms())
        message = f"model.lexical_language: the stemmer does not know `{language}`. It knows {names}."
        raise MechanismError(message) from None
