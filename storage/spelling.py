"""Matches codes with different spellings to a code list. No sentence in this module quotes a
value.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Final

from storage.codelist import describe_shape, normalise_code
from storage.errors import Unknown
from storage.tables.options import MARKS

_FORMS: Final[Mapping[str, Callable[[str], str]]] = {
    "without the text behind a dash": lambda code: re.split(r"\s+[-\u2013\u2014:]\s+|:\s|\t", code)[
        0
    ].strip(),
    "in another case": str.casefold,
    "with or without points, commas, hyphens, blanks and daggers": lambda code: re.sub(
        r"[.,\-\u2013/\s\u2020\u2021*+!]", "", code
    ),
    "with other leading zeros": lambda code: code.lstrip("0") or code[-1:],
}
"""Normal forms that different spellings of a code share, in the order in which they are
combined.
"""
_BEHIND: Final = "without zeros behind"


def _without_zeros(code: str) -> str:
    return code.rstrip("0.") or code[:1]


_MONTHS = (
    "jan|feb|fev|fév|mar|mär|mrz|abr|apr|avr|mai|may|maj|jun|jui|jul|aug|aou|ago|sep|set|okt|oct|"
    "out|nov|dez|dec|déc|dic|aoû|gen|mag|giu|lug|ott|ene"
)
_MONTH = rf"(?:{_MONTHS})[^\W\d_]{{0,7}}\.?"
_SHEET_NUMBER = re.compile(r"\d([.,]\d+)?[eE]\+?\d+")
_SHEET_DATE = re.compile(
    r"\d{1,2}[./-]\d{1,2}[./-](?:19|20)\d\d(?: 0?0:00(:00)?)?"
    r"|(?:19|20)\d\d-\d\d-\d\d(?:[ T]0?0:00(:00)?.*)?"
    rf"|\d{{1,2}}[-. /]{{1,2}}{_MONTH}(?:[-. /]{{1,2}}\d{{2,4}})?|{_MONTH}[-. /]{{1,2}}\d{{2,4}}",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(r"[-\u2212]\d+([.,]\d+)?")
_FILLER = re.compile(r"9{2,}|0{2,}|9+\.9+|([xz])\1{1,}|[*#?.\-_]{2,}", re.IGNORECASE)
_NO_CODES = (
    "unknown|missing|not stated|not coded|not available|not applicable|uncoded|uncodable|"
    "uncodeable|unclassified|unclassifiable|unspecified|undefined|blank|empty|refused|refusal|"
    "don't know|dont know|dk|tbd|tba|pending|no code|nocode|no data|void|test|na|n.a.|n/k|nk|"
    "inconnu|inconnue|non codé|non renseigné|sans objet|unbekannt|k.a.|keine angabe|"
    "ohne angabe|fehlend|desconocido|sin dato|sin datos|no consta|desconhecido|ignorado|"
    "sem informação|sconosciuto|non noto|onbekend|okänd|ukendt|ukjent|tuntematon|nieznany|"
    "brak danych|brak|neznámé|neuvedeno"
)
_NO_CODE = frozenset(_NO_CODES.split("|"))
"""Words for a missing code, in the languages of agencies."""
_BETWEEN: Final = {
    r"\s*[;|]\s*": True,
    r"\s*,\s*": False,
    r"\s*[/&+]\s*": False,
    r"\s+": False,
}
"""Possible separators of codes, and whether they never occur inside a code. The first one that
splits a cell is used.
"""


def _together(code: str) -> str:
    for form in _FORMS.values():
        code = form(code)
    return code


_TOO_MANY = 10
"""Number of human codes from which, if none is among the model's codes, the column must contain
something else.
"""


class Spellings:
    """Finds the listed code that a value stands for, if its normal forms identify a single one."""

    def __init__(self, listed: Collection[str]) -> None:
        self._listed = set(listed)
        self._index = {name: _by_form(form, listed) for name, form in _FORMS.items()}
        self._all = _by_form(_together, listed)
        self._padded = _by_form(_without_zeros, listed)
        self._lengths = sorted({len(code) for code in listed}, reverse=True)

    def match(self, value: str) -> str | None:
        """The only listed code with the same normal forms."""
        matches = self._all.get(_together(value), ())
        return matches[0] if len(matches) == 1 else None

    def match_padded(self, value: str) -> str | None:
        """The result of `match` or, if no code has the same forms, the only listed code that
        differs in trailing zeros.
        """
        if self._all.get(_together(value)):
            return self.match(value)
        matches = self._padded.get(_without_zeros(value), ())
        return matches[0] if len(matches) == 1 else None

    def is_ambiguous(self, value: str) -> bool:
        """Whether several listed codes have the same normal forms."""
        return len(self._all.get(_together(value), ())) > 1

    def coarser(self, value: str) -> str | None:
        """The longest listed code that is a prefix of the value, of which the value is a finer
        code.
        """
        for length in self._lengths:
            if length < len(value) and value[:length] in self._listed:
                return value[:length]
        return None

    def described(self, values: Mapping[str, int]) -> str:
        """How many records would have a listed code under each form, as text; empty if none
        would.
        """
        total = sum(values.values())
        notes = []
        for name, form in _FORMS.items():
            if count := sum(
                n for value, n in values.items() if len(self._index[name].get(form(value), ())) == 1
            ):
                notes.append(f"{_of(count, total)} would be on the list {name}")
        together = sum(
            n for value, n in values.items() if len(self._all.get(_together(value), ())) == 1
        )
        if together and not notes:
            notes.append(
                f"{_of(together, total)} would be on the list with several of its forms changed"
            )
        rest = {value: n for value, n in values.items() if not self._all.get(_together(value))}
        if padded := sum(
            n for value, n in rest.items() if len(self._padded.get(_without_zeros(value), ())) == 1
        ):
            notes.append(f"{_of(padded, total)} would be on the list {_BEHIND}")
        if unsure := sum(n for value, n in values.items() if self.is_ambiguous(value)):
            notes.append(f"{_of(unsure, total)} fit several listed codes")
        if several := sum(n for value, n in values.items() if self.is_several(value)):
            notes.append(f"{_of(several, total)} would be several listed codes")
        elif finer := sum(n for value, n in rest.items() if self.coarser(value)):
            notes.append(
                f"{_of(finer, total)} begin with a listed code: they may be finer than the list"
            )
        return "; ".join([*notes, *odd(values)])

    def is_several(self, value: str) -> bool:
        """Whether a cell contains several codes, all of them listed."""
        parts = parts_of(value, self._listed)
        return len(parts) > 1 and all(part in self._listed or self.match(part) for part in parts)


def parts_of(value: str, known: Container[str] = ()) -> list[str]:
    """The parts of a cell that may contain several codes; the cell itself if it contains one.

    Only ; and | always separate. The other separators occur inside names, as in `Slip/trip`. They
    separate only parts that contain a digit, are a single character, or are known codes.
    """
    for sign, certain in _BETWEEN.items():
        parts = [part for part in re.split(sign, value) if any(map(str.isalnum, part))]
        if len(parts) < 2:
            if certain and parts and re.search(sign, value):
                return parts
            continue
        codes = (part in known or len(part) == 1 or any(map(str.isdigit, part)) for part in parts)
        if certain or all(codes):
            return parts
    return [value]


def _of(count: int, total: int) -> str:
    return "every one of them" if count == total else f"{count:,} of {total:,}"


def _by_form(form: Callable[[str], str], codes: Iterable[str]) -> dict[str, list[str]]:
    index: dict[str, list[str]] = defaultdict(list)
    for code in codes:
        index[form(code)].append(code)
    return index


_ODD: Final[Mapping[str, Callable[[str], bool]]] = {
    "are a spreadsheet's numbers with an exponent, whose digits are lost": lambda value: bool(
        _SHEET_NUMBER.fullmatch(value)
    ),
    "are dates, as a spreadsheet makes them of codes such as 1.11": lambda value: bool(
        _SHEET_DATE.fullmatch(value)
    ),
    "are negative numbers": lambda value: bool(_NEGATIVE.fullmatch(value)),
    "are nines, zeros or other signs repeated": lambda value: bool(_FILLER.fullmatch(value)),
    "are words such as `unknown`": lambda value: (
        not _NO_CODE.isdisjoint({value.casefold(), value.casefold().strip(" .()[]<>")})
    ),
}
_MARKS_ADVICE = (
    "where these mark a missing code, name them all: --read 'missing=[NA,-9,999,unknown]'"
)
_CERTAIN = 2
"""Number of first kinds in `_ODD` that need no advice on marks."""


def odd(values: Mapping[str, int]) -> list[str]:
    """How many records have a value that no classification uses: damaged by a spreadsheet, or a
    mark of a missing code.
    """
    counts = {
        kind: count
        for kind, matches in _ODD.items()
        if (count := sum(n for value, n in values.items() if matches(value)))
    }
    notes = [f"{count:,} {kind}" for kind, count in counts.items()]
    if any(kind in counts for kind in list(_ODD)[_CERTAIN:]):
        notes[-1] += f" ({_MARKS_ADVICE})"
    return notes


def twins(codes: Mapping[str, int]) -> list[str]:
    """Without a code list: codes that may be spellings of one code, several codes in one cell, or
    levels of each other, as sentences.

    Args:
        codes: number of records by code.
    """
    notes = []
    for name, form in _FORMS.items():
        groups = [group for group in _by_form(form, codes).values() if len(group) > 1]
        if groups:
            records = sum(codes[code] for group in groups for code in group)
            notes.append(
                f"{sum(map(len, groups)):,} codes of {records:,} records would be "
                f"{len(groups):,} codes {name}"
            )
    if several := _made_of_others(codes):
        notes.append(
            f"{len(several):,} codes of {sum(codes[code] for code in several):,} records are "
            "made of other codes (--set data.ingest.several_codes=first reads the first, and =each "
            "makes a record of each)"
        )
    if upper := {above for code in codes for above in _levels(code) if above in codes}:
        notes.append(
            f"{len(upper):,} codes of {sum(codes[code] for code in upper):,} records begin other "
            "codes: they may be of a level above, or have lost zeros behind"
        )
    return [*notes, *(f"of the codes, {fault}" for fault in odd(codes))]


_SHORTEST_LEVEL = 3
"""Minimum length of a code without a point that others may refine. Shorter codes are usually
sequence numbers, such as 1 and 10.
"""


def _levels(code: str) -> list[str]:
    """The prefixes of a code that could be the level above it."""
    if len(parts_of(code)) > 1 or not any(sign.isdigit() for sign in code):
        return []
    pointed = "." in code
    return [
        code[:end]
        for end in range(1, len(code))
        if (pointed or end >= _SHORTEST_LEVEL) and code[end - 1].isalnum()
    ]


def _made_of_others(codes: Collection[str]) -> list[str]:
    parts_by_code = {code: parts_of(code, codes) for code in codes}
    shapes = {_shape(code) for code, parts in parts_by_code.items() if len(parts) == 1}
    occur = Counter(part for parts in parts_by_code.values() for part in set(parts))
    return [
        code
        for code, parts in parts_by_code.items()
        if len(parts) > 1
        and (
            all(part in codes for part in parts)
            or any(occur[part] > 1 for part in parts if re.search("[;|]", code))
            or all(re.search(r"\d", part) and _shape(part) in shapes for part in parts)
        )
    ]


def _shape(code: str) -> str:
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", code))


def above_finer(codes: Mapping[str, int], listed: Collection[str]) -> tuple[int, int]:
    """The number of records whose code has finer codes in the list, and among them the number for
    which the list contains the code with a trailing zero, such as 86.1 and 86.10.

    Args:
        codes: number of records by code; all codes are in the list.
    """
    above = {code[:end] for code in listed for end in range(1, len(code))}
    upper = {code: count for code, count in codes.items() if code in above}
    zero = sum(count for code, count in upper.items() if with_zero(code, listed))
    return sum(upper.values()), zero


def with_zero(code: str, listed: Collection[str]) -> str | None:
    """The listed code that a spreadsheet may have turned into this number: the same with trailing
    zeros after the point.
    """
    for more in ("0", "00") if "." in code else (".0", ".00"):
        if code + more in listed:
            return code + more
    return None


def human_codes(
    cells: Iterable[str],
    listed: Collection[str],
    *,
    place: str,
    allowed: bool = False,
    complete: bool = True,
    marks: Collection[str] = MARKS,
) -> tuple[list[str], str]:
    """Reads codes assigned by people and compares them with a list. Every cell is counted as
    listed, unlisted or missing.

    Other spellings are accepted only if every unlisted cell matches a listed code.

    Args:
        place: option, file and column, for messages.
        allowed: whether to accept unlisted codes unchanged.
        complete: whether the list contains every code; otherwise an unlisted code may be right.

    Returns:
        A code for each cell, in the list's spelling ("" if it has none), and a sentence that
        accounts for all cells.

    Raises:
        InputError: a code is missing in a complete list, or none of many codes is in the list.
    """
    codes = [_code_of(cell, listed, marks) for cell in cells]
    odd_ones = Counter(code for code in codes if code and code not in listed)
    spellings = Spellings(listed)
    matches = {code: spellings.match(code) for code in odd_ones}
    respelt, unlisted = 0, odd_ones.total()
    if all(matches.values()):
        respelt, unlisted = unlisted, 0
        codes = [matches.get(code) or code for code in codes]
    missing = codes.count("")
    coded = len(codes) - missing
    where = "on the list" if complete else "among the model's codes of the file"
    if unlisted and not allowed and (complete or unlisted == coded >= _TOO_MANY):
        hint = spellings.described(odd_ones)
        raise Unknown(
            f"{place}: {unlisted:,} of {coded:,} codes are not {where} "
            f"({describe_shape(odd_ones)}{'; ' + hint if hint else ''}). Correct "
            "them, use the list that contains them, or leave their cells blank, "
            "which are counted. --allow-unlisted accepts them unchanged",
            kind="unlisted-codes",
        )
    other_spelling = f" ({respelt:,} in another spelling)" if respelt else ""
    return codes, (
        f"{len(codes):,} rows coded by people: {coded - unlisted:,} {where}{other_spelling}, "
        f"{unlisted:,} not, {missing:,} without a code"
    )


def _code_of(cell: str, listed: Collection[str], marks: Collection[str]) -> str:
    """The code in a cell, in the list's spelling; "" if the cell marks a missing code."""
    code = normalise_code(cell, listed)
    return "" if code in marks and code not in listed else code
