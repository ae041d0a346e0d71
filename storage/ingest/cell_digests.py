"""Digests each text cell of a record by itself, before a template or another column composes it.

The ledger's registry recognises records by these: a template, a constant or another column more
makes no new record. A cell counts in a normal form: compatibility forms (NFKD), case folded, no
accents, blanks, punctuation or invisible letters, small capitals and the dotless i as their
letters. Unicode promises that none of this changes; its tables of look-alike letters do change, and
with them the same records would become new ones, so that none is used.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence

SHORTEST = 24
"""Bytes of a cell's normal form from which on the cell names a record; shorter ones are titles and
categories.
"""
SIZE = 16

_NO_LETTER = re.compile(r"[\W_\u115f\u1160\u3164\uffa0]+")
"""The last four are letters to Unicode, and invisible."""
_NAMED = re.compile(r"LATIN (?:LETTER SMALL CAPITAL|SMALL LETTER DOTLESS) ([A-Z])")
_PLAIN = {
    code: match[1].lower()
    for code in (*range(0x100, 0x2B0), *range(0x1D00, 0x1DC0), *range(0xA720, 0xA800))
    if (match := _NAMED.fullmatch(unicodedata.name(chr(code), "")))
}


_ASCII_SIGNS = bytes(code for code in range(128) if not chr(code).isalnum())


def normal_form(text: str) -> bytes:
    """Returns a text's letters and digits; of a text that has none, its bytes."""
    if text.isascii():  # the same, sooner
        return text.lower().encode().translate(None, _ASCII_SIGNS) or text.strip().encode()
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return _NO_LETTER.sub("", folded.translate(_PLAIN)).encode() or text.strip().encode()


def cell_digests(cells: Sequence[str]) -> bytes:
    """Returns the digests of a record's cells, `SIZE` bytes each: those that name it, or all where
    none does.
    """
    if len(cells) == 1:  # the same, sooner
        return _digest(normal_form(cells[0])) if cells[0].strip() else b""
    # guard: test_another_composition
    forms = {normal_form(cell) for cell in cells if cell.strip()}
    naming = {form for form in forms if len(form) >= SHORTEST} or forms
    return b"".join(map(_digest, sorted(naming)))


def _digest(form: bytes) -> bytes:
    return hashlib.blake2b(form, digest_size=SIZE).digest()
