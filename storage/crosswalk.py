"""A table from the codes of one version of a classification to those of another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.codelist import shape
from storage.errors import InputError
from storage.tables.reading import read_small

_LIKE_A_FIELD = re.compile(r"\w[\w-]*")
"""What may stand before `=` as a field's name, meant or mistyped; a path with a folder or a suffix does not."""


@dataclass(frozen=True)
class Crosswalk:
    """Codes of the new version for each code of the old one; more than one where a code was split."""

    version: str
    to: dict[str, tuple[str, ...]]

    def codes(self, code: str) -> tuple[str, ...]:
        """The new codes, none where the table is silent."""
        return self.to.get(code, ())


def crosswalk_files(given: Sequence[str], fields: Sequence[str]) -> dict[str, Path]:
    """Files as they are given to a command, by the field that each is of; that of the only field by the name "".

    Of several fields it is FIELD=FILE. The first `=` ends the field, whatever lies on the disk, and the file's own name
    may hold more. Of the only field it is FILE, and a file that is there is taken whatever its name holds.

    Args:
        fields: that the codes are of; "" for the only one.

    Raises:
        InputError: a file without a field or of an unknown one, a field twice, or a field named where there is but one.
    """
    if tuple(fields) == ("",):
        return _of_the_only_field(given)
    found: dict[str, Path] = {}
    for one in given:
        name, named, file = one.partition("=")
        if not named or name not in fields:
            if named and _LIKE_A_FIELD.fullmatch(name) and not Path(one).expanduser().is_file():
                raise InputError(f"--crosswalk: {one}: this bundle codes no field {name}; it codes {', '.join(fields)}")
            raise InputError(
                f"--crosswalk: {one}: this bundle codes {', '.join(fields)}; say which the file is of, such as "
                f"--crosswalk {fields[0]}={one}"
            )
        if not file:
            raise InputError(f"--crosswalk: {one}: no file is named; give {name}=FILE")
        if name in found:
            raise InputError(f"--crosswalk: {one}: another file is of {name} too; give one a field")
        found[name] = Path(file).expanduser()
    return found


def _of_the_only_field(given: Sequence[str]) -> dict[str, Path]:
    if not given:
        return {}
    if len(given) > 1:
        raise InputError("--crosswalk: this bundle codes one field; give one file")
    path = Path(given[0]).expanduser()
    name, named, file = given[0].partition("=")
    if named and _LIKE_A_FIELD.fullmatch(name) and not path.is_file():
        raise InputError(
            f"--crosswalk: no file {path}; if {name} is meant as a field: this bundle codes only one, give the file "
            f"alone (--crosswalk {file or 'FILE'})"
        )
    return {"": path}


def read_crosswalk(path: Path, *, version: str, field: str = "") -> Crosswalk:
    """Read a table with the columns `from_code`, `to_code`, `from_version` and `to_version`; others are ignored.

    Args:
        version: of the codes that are to be translated.
        field: whose codes they are, of several; for messages.

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
                f"--crosswalk: {path}, row {number} starts from another version ({shape([before])}); the codes "
                f"{f'of {field} ' if field else ''}are of version {version}"
            )
        versions.add(after)
        if new not in to.setdefault(old, []):
            to[old].append(new)
    if len(versions) > 1:
        raise InputError(f"--crosswalk: {path} leads to {len(versions)} versions ({shape(versions)}); leave one")
    return Crosswalk(versions.pop(), {code: tuple(codes) for code, codes in to.items()})
