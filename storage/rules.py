"""An agency's rules on its fields: two codes that never occur together, such as an event and a nature.

A CSV with the columns `field`, `code`, `other_field`, `other_code`, and perhaps `why`. A code that ends in `*` stands
for all codes of the list that begin so. Whoever codes flags a case whose best codes break a rule for a person to look
at; no code is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.codelist import normalise_code
from storage.errors import InputError
from storage.tables.reading import read_small

COLUMNS = ("field", "code", "other_field", "other_code")
_EVERY = "*"
_MOST_WHY = 200


@dataclass(frozen=True)
class Rule:
    """Two codes that never occur together; a code that ends in `*` is all that begin so."""

    field: str
    code: str
    other_field: str
    other_code: str
    why: str = ""

    def broken_by(self, codes: Mapping[str, str]) -> bool:
        """Whether a case of these codes, by field, breaks it. A field without a code breaks nothing."""
        return _says(self.code, codes.get(self.field)) and _says(self.other_code, codes.get(self.other_field))

    @property
    def told(self) -> dict[str, Any]:
        """For JSON."""
        named = {name: getattr(self, name) for name in COLUMNS}
        return named | ({"why": self.why} if self.why else {})

    def __str__(self) -> str:
        """In words."""
        pair = f"{self.field} {self.code} with {self.other_field} {self.other_code}"
        return f"{pair}: {self.why}" if self.why else pair


@dataclass(frozen=True)
class Rules:
    """All rules, found by the codes that they are of: a case costs no more for a long file."""

    every: tuple[Rule, ...]
    of_code: Mapping[tuple[str, str], tuple[Rule, ...]]
    """By a rule's first field and each code of it that the rule is of."""

    def broken_by(self, codes: Mapping[str, str]) -> tuple[Rule, ...]:
        """Those that a case of these codes, by field, breaks."""
        return tuple(rule for pair in codes.items() for rule in self.of_code.get(pair, ()) if rule.broken_by(codes))


def _says(pattern: str, code: str | None) -> bool:
    if code is None:
        return False
    return code.startswith(pattern[:-1]) if pattern.endswith(_EVERY) else code == pattern


def read_rules(path: Path, spaces: Mapping[str, Sequence[str]], *, option: str = "--rules") -> Rules:
    """Read rules on these fields, each with the codes of its list.

    Raises:
        InputError: names the file, and the row and column at fault: a field that is not coded, a code (or a beginning
            of codes) that its list lacks, a field with itself, a rule twice; or the file has none.
    """
    path = path.expanduser()
    columns, rows = read_small(path, COLUMNS, option=option)
    at = {name: columns.index(name) for name in COLUMNS}
    told = columns.index("why") if "why" in columns else None
    found: dict[tuple[tuple[str, str], ...], Rule] = {}
    for number, row in enumerate(rows, start=1):
        cells = {name: row[place].strip() for name, place in at.items()}
        if not any(cells.values()):
            continue

        def refuse(column: str, what: str, number: int = number) -> InputError:
            return InputError(f"{option}: {path}: row {number}, column {column}: {what}")

        for field, code in (("field", "code"), ("other_field", "other_code")):
            if cells[field] not in spaces:
                raise refuse(field, f"no such field is coded; there are {', '.join(spaces)}")
            cells[code] = normalise_code(cells[code], spaces[cells[field]])
            if not any(_says(cells[code], known) for known in spaces[cells[field]]):
                raise refuse(code, f"the list of {cells[field]} has no such code")
        if cells["field"] == cells["other_field"]:
            raise refuse("other_field", "a rule is of two fields, and this is the same one")
        why = "" if told is None else row[told].strip()
        if len(why) > _MOST_WHY:
            raise refuse("why", f"is longer than {_MOST_WHY} characters")
        pair = tuple(sorted([(cells["field"], cells["code"]), (cells["other_field"], cells["other_code"])]))
        if pair in found:
            raise refuse("code", "an earlier row says the same; remove one")
        found[pair] = Rule(**cells, why=why)
    if not found:
        raise InputError(f"{option}: {path}: it holds no rule")
    of_code: dict[tuple[str, str], list[Rule]] = {}
    for rule in found.values():
        for code in spaces[rule.field]:
            if _says(rule.code, code):
                of_code.setdefault((rule.field, code), []).append(rule)
    return Rules(tuple(found.values()), {pair: tuple(rules) for pair, rules in of_code.items()})
