"""Reads a table from the codes of one version of a classification to those of another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.codelist import describe_shape
from storage.errors import InputError
from storage.tables.reader import read_small

_LIKE_A_FIELD = re.compile(r"\w[\w-]*")
"""Matches what may precede `=` as a field's name, mistyped or not; a path with a folder or a suffix does not match."""


@dataclass(frozen=True)
class Crosswalk:
    """Maps each code of the old version to codes of the new one; to more than one where a code was split."""

    version: str
    to: dict[str, tuple[str, ...]]

    def codes(self, code: str) -> tuple[str, ...]:
        """Returns the new codes; none where the table lacks the code."""
        return self.to.get(code, ())


def successors(to: Mapping[str, Sequence[str]], members: Sequence[str]) -> tuple[str, ...]:
    """Returns what follows the members of a set, each once; nothing where one of them has no new code.

    If the set contains the right old code, its successors contain the right new one.
    """
    follows = [to.get(member, ()) for member in members]
    return tuple(dict.fromkeys(new for each in follows for new in each)) if all(follows) else ()


def crosswalk_files(given: Sequence[str], fields: Sequence[str]) -> dict[str, Path]:
    """Returns the files given to a command by their field; that of a single field by the name "".

    Of several fields it is FIELD=FILE. The first `=` ends the field, whatever lies on the disk, and the file's own name
    may hold more. Of the only field it is FILE, and a file that is there is taken whatever its name holds.
    """
    if tuple(fields) == ("",):
        return _single_file(given)
    files: dict[str, Path] = {}
    for one in given:
        name, named, file = one.partition("=")
        if not named or name not in fields:
            if named and _LIKE_A_FIELD.fullmatch(name) and not Path(one).expanduser().is_file():
                raise InputError(
                    f"--crosswalk: {one}: this bundle has no field {name}. Give one of {', '.join(fields)}"
                )
            raise InputError(
                f"--crosswalk: {one}: this bundle codes {', '.join(fields)}. Name the file's field, such as "
                f"--crosswalk {fields[0]}={one}"
            )
        if not file:
            raise InputError(f"--crosswalk: {one}: no file is named. Give {name}=FILE")
        if name in files:
            raise InputError(f"--crosswalk: {one}: {name} has two files. Give one per field")
        files[name] = Path(file).expanduser()
    return files


def _single_file(given: Sequence[str]) -> dict[str, Path]:
    if not given:
        return {}
    if len(given) > 1:
        raise InputError("--crosswalk: this bundle codes one field. Give one file")
    path = Path(given[0]).expanduser()
    name, named, file = given[0].partition("=")
    if named and _LIKE_A_FIELD.fullmatch(name) and not path.is_file():
        raise InputError(
            f"--crosswalk: no file {path}. If {name} is a field: this bundle codes only one, so give the file "
            f"alone (--crosswalk {file or 'FILE'})"
        )
    return {"": path}


def read_crosswalk(path: Path, *, version: str, field: str = "") -> Crosswalk:
    """Reads a table with the columns `from_code`, `to_code`, `from_version` and `to_version`; ignores others.

    Args:
        version: of the codes that are to be translated; a table that starts from another one is refused.
        field: whose codes they are, of several; for messages.
    """
    needed = ("from_code", "to_code", "from_version", "to_version")
    columns, rows = read_small(path, needed, option="--crosswalk")
    places = [columns.index(name) for name in needed]
    to: dict[str, list[str]] = {}
    versions: set[str] = set()
    for number, row in enumerate(rows, start=1):
        old, new, before, after = (row[place].strip() for place in places)
        if not (old and new and after):
            raise InputError(f"--crosswalk: {path}, row {number} lacks from_code, to_code or to_version. Fill it in")
        if before != version:
            raise InputError(
                f"--crosswalk: {path}, row {number} starts from another version ({describe_shape([before])}). "
                f"Give the table for version {version}{f' of {field}' if field else ''}"
            )
        versions.add(after)
        if new not in to.setdefault(old, []):
            to[old].append(new)
    if len(versions) > 1:
        raise InputError(
            f"--crosswalk: {path} leads to {len(versions)} versions ({describe_shape(versions)}). Keep the rows of one"
        )
    return Crosswalk(versions.pop(), {code: tuple(codes) for code, codes in to.items()})
