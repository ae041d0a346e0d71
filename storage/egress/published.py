"""Code lists that are public: what stands in them owes nothing to any record.

A title is public because the list that it stands in was published, not because somebody calls it so: a narrative can be
put into a column of titles. A list is known by the digests of its entries, in `lists/`, and lists are added there
(`scripts/published_list.py`), where a change is reviewed. Titles of any other list are read by the gate like every
other text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def known_as(codes: Sequence[Code]) -> str | None:
    """The published list that these are, or some of its entries in its order; None where any entry is not of that list.

    Some of them: `label_space: observed` keeps the codes that records have. That records chose them stands in the
    statement, among what is not protected.
    """
    sought = [entry_digest(entry) for entry in codes]
    for name, places in _known().items():
        at = [places.get(one, -1) for one in sought]
        if -1 not in at and all(before < after for before, after in pairwise(at)):
            return name
    return None


def public_titles(codes: Sequence[Code]) -> tuple[str, ...]:
    """The titles of a published list, whole or in part as `known_as` has it; none of any other."""
    return tuple(entry.title for entry in codes) if known_as(codes) is not None else ()


def advice(codes: Sequence[Code]) -> str:
    """What to do about a code list whose words the gate reads as a record's: said by its refusal, and before training.

    Entries are told by their number, since a narrative can be put into a title.
    """
    if (known := known_as(codes)) is not None:
        return (
            f"the list is known as {known}, so that it is what stands beside its titles: give data.classification and "
            "data.classification_version fewer than 12 letters and digits together and, if they have, report it"
        )
    if not any(entry.title for entry in codes):
        return "it has no titles, so that it is a code, or the classification's name beside it: give other ones"
    nearly = _nearly(codes)
    if nearly is None:
        return f"if the list is published, have it made known as such ({_SCRIPT}); {_ELSE}"
    name, strange = nearly
    if not strange:
        return f"its entries are those of {name} in another order: put them into the published one; {_ELSE}"
    shown = f"entr{'y' if len(strange) == 1 else 'ies'} {', '.join(map(str, strange[:_SHOWN]))}"
    shown += f" and {len(strange) - _SHOWN} more" if strange[_SHOWN:] else ""
    return (
        f"its entries are those of {name} but for {shown}: put code and title as they were published there or, if "
        f"another list is published so, have it made known as such ({_SCRIPT}); {_ELSE}"
    )


_SCRIPT = '`python scripts/published_list.py LIST.csv "NAME, VERSION"`, for review'
_ELSE = "else change the titles that records say"
_SHOWN = 8


def _nearly(codes: Sequence[Code]) -> tuple[str, list[int]] | None:
    """The published list that most of these are of, and the numbers, from 1 on, of those that are not."""
    sought = [entry_digest(entry) for entry in codes]
    found = {name: [n for n, one in enumerate(sought, 1) if one not in places] for name, places in _known().items()}
    name = min(found, key=lambda one: len(found[one]), default=None)
    return None if name is None or 2 * len(found[name]) >= len(codes) else (name, found[name])


@cache
def _known() -> Mapping[str, Mapping[str, int]]:
    """Of each list, by its name, where each entry stands in it."""
    files = sorted(LISTS.glob("*.txt"))
    return {file.stem: {line: at for at, line in enumerate(file.read_text(encoding="ascii").split())} for file in files}
