"""Determines the encoding of a text from all of its bytes, and suggests others if its words
contradict it.
"""

import codecs
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from storage.errors import Fault, Unreadable
from storage.tables.options import ReadOptions
from storage.tables.source import AS_CSV, MOST_EXPANSION, SMALL, Source, read_safely

_CHUNK = 1 << 22
_LONGEST_LINE = 1 << 24
_UNDEFINED_IN_CP1252 = bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D])
_LETTER_ELSEWHERE = re.compile(rb"[A-Za-z][\x81-\x84\x86-\x90\x98\x9a\x9d-\x9f]([a-z ,.;]|$)")
"""Characters that are rare after a letter in cp1252, but are letters in cp850 or Mac Roman."""
_SIGN_INSIDE = re.compile(
    rb"[A-Za-z\xc0-\xff][\xa3\xa5\xaa\xaf\xb3\xb5\xb6\xb9-\xbf][a-z\xe0-\xff]"
)
"""A cp1252 symbol inside a word, which is a letter in cp1250 or ISO 8859-2."""
_FOREIGN_WORD = re.compile(rb"(?<![A-Za-z\x80-\xff])[\x80-\xff]{3,}(?![A-Za-z\x80-\xff])")
_ACCENTED_WORD = re.compile(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*")
_OTHER_SCRIPTS: Final = (
    "cp1251",
    "koi8-r",
    "cp866",
    "cp1253",
    "cp1255",
    "cp1256",
    "shift_jis",
    "gb18030",
    "euc_kr",
    "big5",
)
_FITS = 0.9
_TWICE = (
    b"\xc3\x83\xc2",
    b"\xc3\x83\xe2",
    b"\xc3\x82\xc2",
    b"\xc3\xa2\xe2\x82\xac",
    b"\xc3\x90\xc2",
)
"""The result of reading the first bytes of a UTF-8 letter as cp1252 and saving them as UTF-8
again.
"""


def require_one_encoding(source: Source, read: ReadOptions) -> Source:
    """Reads all bytes of a text once to determine its encoding. Refuses NUL bytes and excessive
    expansion.

    Without an option, the encoding is UTF-8, or cp1252 if no line is non-ASCII UTF-8. Each would
    misread the other's characters.
    """
    if source.container in AS_CSV:
        return source
    encoding = read.encoding or "utf-8"
    decoder, line, size, is_valid = codecs.getincrementaldecoder(encoding)(), 1, 0, True
    twice = 0
    limit = max(SMALL, MOST_EXPANSION * source.path.stat().st_size)
    with source.open() as file:
        while chunk := read_safely(source, lambda: file.read(_CHUNK)):
            twice += sum(map(chunk.count, _TWICE))
            size += len(chunk)
            if read.encoding is None and (place := chunk.find(b"\0")) >= 0:
                line += chunk.count(b"\n", 0, place)
                raise Unreadable(
                    f"{source.label}, line {line}: a NUL byte, so the file is damaged or not "
                    "text. Save it as UTF-8",
                    kind="nul-byte",
                )
            if size > limit:
                raise Unreadable(
                    f"{source.label} decompresses to over {MOST_EXPANSION} times "
                    "its size. Unpack it",
                    kind="expands-too-far",
                )
            line += chunk.count(b"\n")
            is_valid = is_valid and decodes(decoder, chunk)
    if is_valid and decodes(decoder, b"", final=True):
        return replace(source, encoding=encoding, encoded_twice=twice)
    if read.encoding is not None:
        raise Unreadable(
            f"{source.label} does not decode as {encoding}. Set another "
            f"{source.read_option} encoding=…",
            kind="wrong-encoding",
        )
    _require_cp1252(source)
    return replace(source, encoding="cp1252")


@dataclass
class _Accents:
    """Counts evidence against cp1252 in lines that are not ASCII."""

    lines: int = 0
    """Lines with a symbol inside a word."""
    letters: Counter[int] = field(default_factory=Counter)
    foreign: bytearray = field(default_factory=bytearray)
    """Words without ASCII letters, at most `_SEEN` bytes."""
    words: int = 0
    foreign_words: int = 0

    def look(self, line: bytes) -> None:
        self.lines += _SIGN_INSIDE.search(line) is not None
        self.letters.update(sign for sign in line if sign > 0x7F)
        self.words += len(_ACCENTED_WORD.findall(line))
        for word in _FOREIGN_WORD.findall(line):
            self.foreign_words += 1
            if len(self.foreign) < _SEEN:
                self.foreign += word + b" "

    @property
    def other_script(self) -> list[str]:
        """Encodings of other scripts in which most accented words are plausible words."""
        if 2 * self.foreign_words <= self.words:
            return []
        fits = {name: _share_of_words(bytes(self.foreign), name) for name in _OTHER_SCRIPTS}
        return [
            name for name in sorted(fits, key=fits.__getitem__, reverse=True) if fits[name] > _FITS
        ]

    def central_european(self, lines: int) -> bool:
        """Whether the letters are those of cp1250: symbols inside words, or combinations of letters
        that no Western European language has.
        """
        has = self.letters.__getitem__
        czech = bool(has(0x9A) or has(0x9E)) and bool(has(0xF8) or has(0xEC) or has(0xE8))
        czech = czech or bool(has(0xF8) and has(0xEC))
        hungarian = bool(has(0xF5) and has(0xF6) and not has(0xE3) and not has(0xE4))
        romanian = bool(has(0xE3) and (has(0xFE) or has(0xBA)))
        polish = bool(has(0xB3) and (has(0xB9) or has(0xBF) or has(0x9C)))
        return 2 * self.lines > lines or czech or hungarian or romanian or polish

    @property
    def turkish(self) -> bool:
        has = self.letters.__getitem__
        return bool(has(0xFD) and (has(0xFE) or has(0xF0)) and not has(0xE1) and not has(0xE6))


_SEEN = 1 << 14


def _share_of_words(sample: bytes, encoding: str) -> float:
    """The share of words that are plausible in an encoding: lower case, or in a script without
    case.
    """
    try:
        words = sample.decode(encoding).split()
    except UnicodeDecodeError:
        return 0.0
    good = sum(
        word.isalpha() and (word[1:] == word[1:].lower() or word.isupper()) for word in words
    )
    return good / max(len(words), 1)


def _require_cp1252(source: Source) -> None:
    valid = invalid = number = 0
    accents = _Accents()
    valid_lines, damaged, undefined, elsewhere = [], [], [], []
    with source.open() as file:
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if line.isascii():
                continue
            accents.look(line)
            text = line.decode(errors="replace")
            bad = text.count("\ufffd")
            invalid, valid = (
                invalid + bad,
                valid + len(text) - bad - len(text.encode("ascii", "ignore")),
            )
            (damaged if bad else valid_lines).append(number)
            if bad and len(line.translate(None, _UNDEFINED_IN_CP1252)) < len(line):
                undefined.append(number)
            if _LETTER_ELSEWHERE.search(line):
                elsewhere.append(number)
    if valid > invalid:
        fault = Fault(
            f" is UTF-8 with {invalid} damaged bytes in {_lines_named(damaged)}, which "
            "cp1252 would misread",
            kind="damaged-utf-8",
        )
    elif valid_lines:
        fault = Fault(
            f" has lines in two encodings, UTF-8 in {_lines_named(valid_lines)} and another in "
            f"{_lines_named(damaged)}",
            kind="two-encodings",
        )
    elif scripts := accents.other_script:
        fault = Fault(
            f" has words made only of accented letters in {_lines_named(damaged)}, if read as "
            f"cp1252. Its encoding may be {' or '.join(scripts[:3])}",
            kind="another-script",
        )
    elif undefined:
        fault = Fault(
            f", {_lines_named(undefined)}: neither UTF-8 nor cp1252", kind="not-in-cp1252"
        )
    elif 2 * len(elsewhere) > len(damaged):
        fault = Fault(
            f" has signs inside words in {_lines_named(elsewhere)}, if read as cp1252. Its "
            "encoding may be cp850 or mac_roman",
            kind="signs-inside-words",
        )
    elif accents.turkish:
        fault = Fault(
            f" has letters of Icelandic in {_lines_named(damaged)}, if read as cp1252. Its "
            "encoding may be cp1254",
            kind="turkish-letters",
        )
    elif accents.central_european(len(damaged)):
        fault = Fault(
            " has letters next to each other that no Western European language combines, in "
            f"{_lines_named(damaged)}, if read as cp1252. Its encoding may be cp1250 or iso8859-2",
            kind="central-european-letters",
        )
    else:
        return
    raise Unreadable(
        f"{source.label}{fault.text}. Save it entirely as UTF-8, or set its "
        f"{source.read_option} encoding=…",
        kind=fault.kind,
    )


def _lines_named(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:5]))
    return (
        f"line{'s' * (len(lines) > 1)} "
        f"{shown}{f' and {len(lines) - 5:,} more' if len(lines) > 5 else ''}"
    )


def decodes(decoder: codecs.IncrementalDecoder, chunk: bytes, *, final: bool = False) -> bool:
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError:
        return False
    return True
