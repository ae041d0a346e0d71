"""A table from the codes of one version of a classification to those of another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.codelist import shape
from storage.errors import InputError
from storage.tables.reading import read_small


@dataclass(frozen=True)
class Crosswalk:
    """Codes of the new version for each code of the old one; more than one where a code was split."""

    version: str
    to: dict[str, tuple[str, ...]]

    def codes(self, code: str) -> tuple[str, ...]:
        """The new codes, none where the table is silent."""
        return self.to.get(code, ())


def read_crosswalk(path: Path, *, version: str) -> Crosswalk:
    """Read a table with the columns `from_code`, `to_code`, `from_version` and `to_version`; others are ignored.

    Args:
        version: of the codes that are to be translated.

    Raises:
        InputError: names the file, and the column or row at fault; also where the table starts from another version.
    """
    needed = ("from_code", "to_code", "from_version", "to_version")
    columns, rows = read_small(path, needed, option="--crosswalk")
    places = [columns.index(name) for name in needed]
    to: dict[str, list[str]] = {}
    versions: set[str] = set()
    for number, row in enumerate(rows, start=1):
        old, new, before, after = (row[place].strip() for place in places)
        if not (old and new and after):
            raise InputError(f"--crosswalk: {path}, row {number} has no from_code, to_code or to_version")
        if before != version:
            raise InputError(
                f"--crosswalk: {path}, row {number} starts from another version ({shape([before])}); the codes are of "
                f"version {version}"
            )
        versions.add(after)
        if new not in to.setdefault(old, []):
            to[old].append(new)
    if len(versions) > 1:
        raise InputError(f"--crosswalk: {path} leads to {len(versions)} versions ({shape(versions)}); leave one")
    return Crosswalk(versions.pop(), {code: tuple(codes) for code, codes in to.items()})
