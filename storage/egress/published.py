"""Code lists that are public: what stands in them owes nothing to any record.

A title is public because the list that it stands in was published, not because somebody calls it so: a narrative can be
put into a column of titles. A list is known by its digest, and lists are added here, where a change is reviewed. Titles
of any other list are read by the gate like every other text.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.artifacts import digest
from storage.codelist import Code

LISTS = {
    "OIICS 2.01, nature": "85f188c837f7fb218e3ef86d930ce095d5235be296b2af9ef969903992e5a125",
    "invented, of `storage.demo_data`": "ffa4f86c215330239f88cd16537fd8f63fdb1c11bedecbf3ec36ad71d526c596",
}
"""Whose list it is, and the digest of its codes and titles in their order."""


def list_digest(codes: Sequence[Code]) -> str:
    """SHA-256 of a list's codes and titles, in its order."""
    return digest([[entry.code, entry.title] for entry in codes])


def public_titles(codes: Sequence[Code]) -> tuple[str, ...]:
    """The titles of a published list; none of another one."""
    return tuple(entry.title for entry in codes) if list_digest(codes) in LISTS.values() else ()
