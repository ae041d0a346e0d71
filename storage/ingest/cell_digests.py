"""Digests each text cell of a record separately, before a template or another column is applied.

The ledger's registry uses these to recognise records, so a template, a constant or an additional
column does not create new records. Cells are compared in a normal form: compatibility forms (NFKD),
case-folded, without accents, whitespace, punctuation or invisible letters, with small capitals and
the dotless i replaced by their letters. Unicode guarantees that all of this is stable. Its tables
of confusable letters are not stable, and a change would turn the same records into new ones, so
they are not used.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from itertools import chain

SHORTEST = 24
"""In bytes of the normal form. Cells of at least this length identify a record; shorter ones are
titles and categories.
"""
SIZE = 16

_NO_LETTER = re.compile(r"[\W_\u115f\u1160\u3164\uffa0]+")
"""Unicode counts the last four as letters, although they are invisible."""
_NAMED = re.compile(r"LATIN (?:LETTER SMALL CAPITAL|SMALL LETTER DOTLESS) ([A-Z])")
_BLOCKS = (range(0x100, 0x2B0), range(0x1D00, 0x1DC0), range(0xA720, 0xA800))
"""Where such letters are."""


def _plain_letters() -> dict[int, str]:
    plain: dict[int, str] = {}
    for code in chain.from_iterable(_BLOCKS):
        name = unicodedata.name(chr(code), "")
        match = _NAMED.fullmatch(name)
        if match:
            plain[code] = match[1].lower()
    return plain


_PLAIN = _plain_letters()
_ASCII_SIGNS = bytes(code for code in range(128) if not chr(code).isalnum())


def normal_form(text: str) -> bytes:
    """The letters and digits of a text, or its bytes if it has none."""
    if text.isascii():  # shortcut with the same result
        form = text.lower().encode().translate(None, _ASCII_SIGNS)
    else:
        folded = unicodedata.normalize("NFKD", text).casefold()
        decomposed = unicodedata.normalize("NFKD", folded)
        form = _NO_LETTER.sub("", decomposed.translate(_PLAIN)).encode()
    return form or text.strip().encode()


def cell_digests(cells: Sequence[str]) -> bytes:
    """The digests of a record's cells, `SIZE` bytes each: those of the cells that identify it, or
    of all cells if none does.
    """
    if len(cells) == 1:  # shortcut with the same result
        (cell,) = cells
        return _digest(normal_form(cell)) if cell.strip() else b""
    # guard: test_another_composition
    forms = {normal_form(cell) for cell in cells if cell.strip()}
    naming = {form for form in forms if len(form) >= SHORTEST} or forms
    return b"".join(map(_digest, sorted(naming)))


def _digest(form: bytes) -> bytes:
    return hashlib.blake2b(form, digest_size=SIZE).digest()
