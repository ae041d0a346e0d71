"""Reads an agency's rules on its fields: two codes that never occur together, such as an event and a nature.

A CSV with the columns `field`, `code`, `other_field`, `other_code`, and perhaps `why`. A code that ends in `*` means
all codes of the list that begin so. Coding flags a case whose best codes break a rule for review; no code is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.codelist import normalise_code
from storage.errors import InputError
from storage.tables.reader import read_small

COLUMNS = ("field", "code", "other_field", "other_code")
_EVERY = "*"
_MOST_WHY = 200


@dataclass(frozen=True)
class Rule:
    """Names two codes that never occur together; a code that ends in `*` means all that begin so."""

    field: str
    code: str
    other_field: str
    other_code: str
    why: str = ""

    def broken_by(self, codes: Mapping[str, str]) -> bool:
        """Checks whether a case of these codes, by field, breaks the rule. A field without a code breaks nothing."""
        return _matches(self.code, codes.get(self.field)) and _matches(self.other_code, codes.get(self.other_field))

    def as_json(self) -> dict[str, Any]:
        """Returns its columns by name, without an empty reason."""
        named = {name: getattr(self, name) for name in COLUMNS}
        return named | ({"why": self.why} if self.why else {})

    def __str__(self) -> str:
        """Describes the rule in words."""
        pair = f"{self.field} {self.code} with {self.other_field} {self.other_code}"
        return f"{pair}: {self.why}" if self.why else pair


@dataclass(frozen=True)
class Rules:
    """Holds all rules, indexed by code: a case costs no more for a long file."""

    every: tuple[Rule, ...]
    of_code: Mapping[tuple[str, str], tuple[Rule, ...]]
    """Rules by their first field and each code of it that they name."""

    def broken_by(self, codes: Mapping[str, str]) -> tuple[Rule, ...]:
        """Returns the rules that a case of these codes, by field, breaks."""
        return tuple(rule for pair in codes.items() for rule in self.of_code.get(pair, ()) if rule.broken_by(codes))


def _matches(pattern: str, code: str | None) -> bool:
    if code is None:
        return False
    return code.startswith(pattern[:-1]) if pattern.endswith(_EVERY) else code == pattern


def read_rules(path: Path, spaces: Mapping[str, Sequence[str]], *, option: str = "--rules") -> Rules:
    """Reads rules on these fields, each with the codes of its list."""
    path = path.expanduser()
    columns, rows = read_small(path, COLUMNS, option=option)
    rules_by_pair: dict[tuple[tuple[str, str], ...], Rule] = {}
    for number, row in enumerate(rows, start=1):
        cells = {name: row[columns.index(name)].strip() for name in COLUMNS}
        if not any(cells.values()):
            continue

        def refuse(column: str, what: str, number: int = number) -> InputError:
            return InputError(f"{option}: {path}: row {number}, column {column}: {what}")

        for field, code in (("field", "code"), ("other_field", "other_code")):
            if cells[field] not in spaces:
                raise refuse(field, f"no such field is coded. Use {', '.join(spaces)}")
            cells[code] = normalise_code(cells[code], spaces[cells[field]])
            if not any(_matches(cells[code], listed) for listed in spaces[cells[field]]):
                raise refuse(code, f"the code list of {cells[field]} lacks this code. Correct it")
        if cells["field"] == cells["other_field"]:
            raise refuse("other_field", "a rule names the same field twice. Name two fields")
        why = row[columns.index("why")].strip() if "why" in columns else ""
        if len(why) > _MOST_WHY:
            raise refuse("why", f"the text is too long. Use up to {_MOST_WHY} characters")
        pair = tuple(sorted([(cells["field"], cells["code"]), (cells["other_field"], cells["other_code"])]))
        if pair in rules_by_pair:
            raise refuse("code", "an earlier row has the same rule. Remove one")
        rules_by_pair[pair] = Rule(**cells, why=why)
    if not rules_by_pair:
        raise InputError(f"{option}: {path} contains no rule. Add one, or leave out {option}")
    of_code: dict[tuple[str, str], list[Rule]] = {}
    for rule in rules_by_pair.values():
        for code in spaces[rule.field]:
            if _matches(rule.code, code):
                of_code.setdefault((rule.field, code), []).append(rule)
    return Rules(tuple(rules_by_pair.values()), {pair: tuple(rules) for pair, rules in of_code.items()})
