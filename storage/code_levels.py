"""Texts of a code list's entries: descriptions, titles of the levels above, and groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from storage.codelist import Code, titles_above


def describe(codes: Sequence[Code]) -> list[str]:
    """Each code's title and description as one text; empty if the list has neither."""
    texts: list[str] = []
    for code in codes:
        parts = filter(None, (code.title, code.description))
        texts.append(_sentences(parts))
    return texts


def _sentences(parts: Iterable[str]) -> str:
    """The different parts as one text."""
    return ". ".join(dict.fromkeys(parts))


def describe_in_sentence(codes: Sequence[Code], sentence: str) -> list[str]:
    """Inserts each code's title into a sentence at {}; empty if the code has no title.

    The title starts in lower case, as in a narrative, unless its first word is all capitals.
    """
    sentences: list[str] = []
    for code in codes:
        title = code.title
        first, *_ = title.split() or [""]
        is_acronym = len(first) > 1 and first.isupper()
        if not is_acronym:
            title = title[:1].lower() + title[1:]
        sentences.append(sentence.replace("{}", title) if title else "")
    return sentences


def describe_with_levels(codes: Sequence[Code]) -> list[str]:
    """The texts of `describe` followed by the titles of the levels above, nearest first.

    The level above is the longest other code of the list that is a prefix of the code (111 is under
    11, under 1). A title that two levels share appears once. The text is empty if the list has no
    words for the code itself.
    """
    texts: list[str] = []
    for words, levels in zip(describe(codes), _levels(codes), strict=True):
        texts.append(_sentences([words, *levels]) if words else "")
    return texts


def restrict(codes: Sequence[Code], names: Collection[str]) -> tuple[Code, ...]:
    """Restricts a list to these codes, in its order. Each code includes the titles of the levels
    above it.
    """
    restricted: list[Code] = []
    for code, above in zip(codes, _levels(codes), strict=True):
        if code.code in names:
            restricted.append(replace(code, above=tuple(above)))
    return tuple(restricted)


def _levels(codes: Sequence[Code]) -> list[list[str]]:
    titles = {code.code: code.title for code in codes}
    levels: list[list[str]] = []
    for code in codes:
        above = code.above or titles_above(code.code, titles)
        levels.append([title for title in above if title and title != code.title])
    return levels


MOST_GROUPS = 64


def groups(codes: Sequence[Code]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names of a list's groups, and the index of each code's group.

    The groups are the coarsest level of the list with at least as many groups as the square root of
    the number of codes. If no level has that many, or if it has more than `MOST_GROUPS`, there is
    one group of all codes. A name consists of code and title.
    """
    titles = {code.code: code.title for code in codes}
    most = min(MOST_GROUPS, len(codes) - 1)
    chains: list[list[str]] = []
    for code in codes:
        name = f"{code.code} {code.title}".strip()
        chains.append([*_levels_above(code, titles), name])
    for depth in range(max(map(len, chains))):
        names = [chain[min(depth, len(chain) - 1)] for chain in chains]
        distinct = tuple(dict.fromkeys(names))
        is_enough = len(distinct) ** 2 >= len(codes)
        if is_enough and len(distinct) <= most:
            places = {name: number for number, name in enumerate(distinct)}
            return distinct, tuple(places[name] for name in names)
    return ("all codes",), (0,) * len(codes)


def _levels_above(code: Code, titles: Mapping[str, str]) -> list[str]:
    """The levels above a code, coarsest first, each as code and title if the list contains it."""
    if code.above:
        return list(reversed(code.above))
    begins = (code.code[:end] for end in range(1, len(code.code)))
    return [f"{begin} {titles[begin]}".strip() for begin in begins if begin in titles]
