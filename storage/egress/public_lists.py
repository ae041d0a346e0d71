"""Recognises public code lists and encoders, which contain no words from any record.

A title is public because its list was published, not because someone claims so: a narrative could
be put into a column of titles. A list is recognised by the digests of its entries in `lists/`, to
which `scripts/published_list.py` adds lists; changes to them are reviewed. An encoder is recognised
by the digest of its files in `encoders.txt`. The entries of any other list must be listed in the
plan and signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from storage.artifacts import digest
from storage.codelist import Code

LISTS = Path(__file__).with_name("lists")
"""One file per list, with the list's name: the digest of each code and title, one per line, in the
order of the list.
"""


DEMONSTRATION = "demo-data"
"""The list that is part of this program and classifies its demonstration records."""


def entry_digest(entry: Code) -> str:
    """The first 128 bits of the SHA-256 of a code and its title, in hexadecimal."""
    return digest([entry.code, entry.title])[:32]


def published_name(codes: Sequence[Code]) -> str | None:
    """The name of the published list that contains all these entries in this order; None if there
    is no such list.

    The entries may be a subset of the list, because `label_space: observed` uses only the codes of
    the records. The statement then lists this choice as unprotected. Lists with descriptions are
    never recognised, because the words of descriptions are also released in a lexicon.
    """
    if any(code.description for code in codes):
        return None
    digests = [entry_digest(entry) for entry in codes]
    for name, places in _places().items():
        lines = [places.get(digest, -1) for digest in digests]
        # guard: test_titles_are_public_by_the_published_list (order)
        # guard: test_titles_are_public_by_the_published_list (titles)
        if -1 not in lines and all(before < after for before, after in pairwise(lines)):
            return name
    return None


def is_published(entry: Code) -> bool:
    """Whether any published list contains this code with this title."""
    digest = entry_digest(entry)
    return any(digest in places for places in _places().values())


def reviewed_encoder(sha256: str) -> str | None:
    """The name of the reviewed encoder with this digest of its files; None if there is none."""
    lines = Path(__file__).with_name("encoders.txt").read_text(encoding="ascii").splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#")).get(
        sha256
    )


def advice(codes: Sequence[Code]) -> str:
    """Advice for a list that is not published. Entries are identified by number, because a title
    may contain anything.
    """
    if any(code.description for code in codes):
        return "Leave out its column of descriptions, whose words would be released as well"
    nearly = _nearly(codes)
    if nearly is None:
        return f"If it is published, register it ({_SCRIPT})"
    name, strange = nearly
    if not strange:
        return f"It has the entries of {name} in another order. Restore the published order"
    shown = f"entr{'y' if len(strange) == 1 else 'ies'} {', '.join(map(str, strange[:_SHOWN]))}"
    shown += f" and {len(strange) - _SHOWN} more" if strange[_SHOWN:] else ""
    return (
        f"It has the entries of {name} except {shown}. Restore the published code and title there"
    )


_SCRIPT = '`python scripts/published_list.py LIST.csv "NAME, VERSION"`, for review'
_SHOWN = 8


def _nearly(codes: Sequence[Code]) -> tuple[str, list[int]] | None:
    digests = [entry_digest(entry) for entry in codes]
    unpublished = {
        name: [n for n, digest in enumerate(digests, 1) if digest not in places]
        for name, places in _places().items()
    }
    name = min(unpublished, key=lambda name: len(unpublished[name]), default=None)
    return (
        None
        if name is None or 2 * len(unpublished[name]) >= len(codes)
        else (name, unpublished[name])
    )


@cache
def _places() -> Mapping[str, Mapping[str, int]]:
    files = sorted(LISTS.glob("*.txt"))
    return {
        file.stem: {line: n for n, line in enumerate(file.read_text(encoding="ascii").split())}
        for file in files
    }
