"""Code lists that are public: what stands in them owes nothing to any record.

A title is public because the list that it stands in was published, not because somebody calls it so: a narrative can be
put into a column of titles. A list is known by the digests of its entries, in `lists/`, and lists are added there
(`scripts/published_list.py`), where a change is reviewed. Titles of any other list are read by the gate like every
other text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from storage.artifacts import digest
from storage.codelist import Code

LISTS = Path(__file__).with_name("lists")
"""One file a list, named after it: the digest of each code and title, one a line, in the list's order."""


def entry_digest(entry: Code) -> str:
    """The first 128 bits of SHA-256 of a code and its title, in hexadecimal."""
    return digest([entry.code, entry.title])[:32]


def public_titles(codes: Sequence[Code]) -> tuple[str, ...]:
    """The titles of a published list, or of some of its entries in its order; none where any entry is not of that list.

    Some of them: `label_space: observed` keeps the codes that records have. That records chose them stands in the
    statement, among what is not protected.
    """
    sought = [entry_digest(entry) for entry in codes]
    for places in _known():
        at = [places.get(one, -1) for one in sought]
        if -1 not in at and all(before < after for before, after in pairwise(at)):
            return tuple(entry.title for entry in codes)
    return ()


@cache
def _known() -> tuple[dict[str, int], ...]:
    """Of each list, where each entry stands in it."""
    files = sorted(LISTS.glob("*.txt"))
    return tuple({line: at for at, line in enumerate(file.read_text(encoding="ascii").split())} for file in files)
