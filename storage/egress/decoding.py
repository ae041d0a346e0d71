"""What a text may say besides what it shows: backwards, turned by thirteen letters, or in a usual encoding."""

from __future__ import annotations

import base64
import binascii
import bz2
import codecs
import html
import lzma
import quopri
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

_DEPTH = 3
"""Encodings inside each other that are followed."""
_MOST = 1 << 20
"""Bytes that a compressed piece may unfold to; what is longer is read so far."""
_RUNS = 16
"""Compressed pieces tried in one text."""


def readings(text: str) -> Iterator[str]:
    """A text and what it may stand for, each once."""
    seen: set[str] = set()
    for way in (text, text[::-1]):
        yield way
        yield codecs.encode(way, "rot13")
        yield from _decoded(way, _DEPTH, seen)


def _decoded(text: str, depth: int, seen: set[str]) -> Iterator[str]:
    for decode in _DECODERS:
        inner = "\n".join(decode(text))
        if not inner or inner == text or inner in seen:
            continue
        seen.add(inner)
        yield inner
        yield inner[::-1]
        if depth > 1:
            yield from _decoded(inner, depth - 1, seen)


def _escaped(text: str) -> Iterator[str]:
    read = html.unescape(unquote(text))
    if re.search(r"=[0-9A-F]{2}", read):
        read = quopri.decodestring(read.encode()).decode("utf-8", "replace")
    if "\\" in read:
        read = re.sub(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))", lambda m: chr(int(m[1] or m[2], 16)), read)
    if read != text:
        yield read


def _numbers(text: str) -> Iterator[str]:
    """Letters by their numbers, in decimal or in eight binary digits."""
    for run in re.findall(r"(?:\b\d{2,3}\b[\s,;.:|-]*){12,}", text):
        yield "".join(chr(int(number)) for number in re.findall(r"\d+", run))
    for run in re.findall(r"(?:[01]{8}\s*){12,}", text):
        yield "".join(chr(int(bits, 2)) for bits in re.findall(r"[01]{8}", run))


def _blocks(alphabet: str, least: int, block: int, decode: Callable[[str], bytes]) -> Callable[[str], Iterator[str]]:
    """A decoder of blocks of so many letters. Where a run begins is not known: each place in a block is tried."""
    run = re.compile(f"[{alphabet}]{{{least},}}")

    def decoder(text: str) -> Iterator[str]:
        together = re.sub(r"[\s\"',:=|]+", "", text)
        for found in {*run.findall(text), *run.findall(together)}:
            for start in range(block):
                whole = found[start:]
                with_rest = whole[: len(whole) - len(whole) % block] if start else whole
                try:
                    content = decode(with_rest)
                except (ValueError, binascii.Error):
                    continue
                yield from _text(content)

    return decoder


def _base64(run: str) -> bytes:
    run = run.replace("-", "+").replace("_", "/")
    return base64.b64decode(run[: len(run) - (len(run) % 4 == 1)] + "=" * (-len(run) % 4))


def _base32(run: str) -> bytes:
    run = run.upper()
    return base64.b32decode(run[: len(run) - len(run) % 8])


def _hex(run: str) -> bytes:
    return bytes.fromhex(run[: len(run) - len(run) % 2])


_TEXT = re.compile(r"[^\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]{6,}")
_ONE_SCRIPT = re.compile(
    r"[\t\n\r\x20-\x7e\xa0-\u024f]{12,}|[\s.,;\u0370-\u052f]{12,}|[\s\u3000-\u9fff\uac00-\ud7a3]{6,}"
)
"""Any bytes read as UTF-16 are letters, of one script only where that is what they are."""


def _text(content: bytes) -> Iterator[str]:
    """The pieces of bytes that are text, in UTF-8 or UTF-16, as they stand and unfolded."""
    for plain in (content, *_unfolded(content)):
        for encoding, pieces in (("utf-8", _TEXT), ("utf-16-le", _ONE_SCRIPT), ("utf-16-be", _ONE_SCRIPT)):
            found = pieces.findall(plain.decode(encoding, "replace"))
            if found:
                yield " ".join(found)


def _unfolded(content: bytes) -> Iterator[bytes]:
    starts = re.finditer(rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]|BZh[1-9]|\xfd7zXZ|\x5d\x00\x00", content)
    for _, start in zip(range(_RUNS), starts, strict=False):
        piece: dict[bytes, Any] = {b"\x1f": zlib.decompressobj(31), b"\x78": zlib.decompressobj()}
        unfold = piece.get(start[0][:1]) or (
            bz2.BZ2Decompressor() if start[0].startswith(b"BZh") else lzma.LZMADecompressor()
        )
        try:
            yield unfold.decompress(content[start.start() :], _MOST)
        except (zlib.error, OSError, EOFError, lzma.LZMAError):
            continue


_DECODERS: tuple[Callable[[str], Iterator[str]], ...] = (
    _escaped,
    _numbers,
    _blocks(r"A-Za-z0-9+/_-", 16, 4, _base64),
    _blocks(r"A-Z2-7", 24, 8, _base32),
    _blocks(r"0-9a-fA-F", 24, 2, _hex),
    _blocks(r"!-u", 20, 5, base64.a85decode),
    _blocks(r"0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-", 20, 5, base64.b85decode),
)
