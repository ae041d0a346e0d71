"""Reads a table of correspondence: which codes of a classification's new version follow each code of the old one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from storage import rdf
from storage.codelist import MAX_CODE
from storage.errors import InputError
from storage.tables.reader import read_small

OPTION = "--table"
_ROUNDING = 0.01


@dataclass(frozen=True)
class Correspondence:
    """Maps each old code to the new codes, the largest share first; to none where it ended."""

    to: dict[str, tuple[str, ...]]
    shares: dict[tuple[str, str], float]
    """By old and new code, where the table has shares."""
    before: str = ""
    """The old version's name; empty where the table has none."""
    after: str = ""


def read_correspondence(path: Path) -> Correspondence:
    """Reads the columns `old`, `new` and perhaps `share`; those of a crosswalk (`from_code`, …); or XKOS."""
    if rdf.is_rdf(path):
        pairs, after = rdf.read_associations(path, option=OPTION)
        return _correspondence(path, [(old, new, "") for old, new in pairs], after=after)
    columns, rows = read_small(path, (), option=OPTION)
    crosswalk = "from_code" in columns
    needed = ("from_code", "to_code", "from_version", "to_version") if crosswalk else ("old", "new")
    for name in (*needed, *(["share"] if "share" in columns else [])):
        if columns.count(name) != 1:
            raise InputError(
                f"{OPTION}: {path}: column {name} is missing or repeated. Give old and new, and share if known"
            )
    at = columns.index
    triples = [(row[at(needed[0])], row[at(needed[1])], row[at("share")] if "share" in columns else "") for row in rows]
    if not crosswalk:
        return _correspondence(path, triples)
    versions = {(row[at("from_version")].strip(), row[at("to_version")].strip()) for row in rows}
    if len(versions) != 1:
        raise InputError(f"{OPTION}: {path} joins {len(versions)} pairs of versions. Keep the rows of one")
    return _correspondence(path, triples, *versions.pop())


def _correspondence(
    path: Path, triples: list[tuple[str, str, str]], before: str = "", after: str = ""
) -> Correspondence:
    to: dict[str, list[str]] = {}
    shares: dict[tuple[str, str], float] = {}
    for number, (old, new, share) in enumerate(((a.strip(), b.strip(), c.strip()) for a, b, c in triples), start=1):
        place = f"{OPTION}: {path}, row {number}"
        if not old or max(len(old), len(new)) > MAX_CODE:
            raise InputError(f"{place} has no old code, or one of over {MAX_CODE} characters. Correct it")
        follows = to.setdefault(old, [])
        if new and new not in follows:
            follows.append(new)
        elif new and share:
            raise InputError(f"{place} repeats a pair that has a share. Keep one")
        if share:
            shares[old, new] = _share(share, place)
    for old, follows in to.items():
        given = [shares[old, new] for new in follows if (old, new) in shares]
        if given and (len(given) < len(follows) or sum(given) > 1 + _ROUNDING):
            raise InputError(
                f"{OPTION}: {path}: the shares of an old code add up to more than 1, or one is missing. Correct them"
            )
    ordered = {old: tuple(sorted(follows, key=lambda new: -shares.get((old, new), 0.0))) for old, follows in to.items()}
    return Correspondence(ordered, shares, before, after)


def _share(text: str, place: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise InputError(f"{place}: the share must be above 0 and at most 1. Correct it")
    return share
