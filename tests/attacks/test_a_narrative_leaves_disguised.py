"""Would win: a training narrative in a bundle, in a shape that a person can read back and the gate did not see."""

from __future__ import annotations

import base64
import gzip
import json
import quopri
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from sealed_bundle import Sealed

from storage.bundle.folder import CARD, UnsoundBundle
from storage.demo_data import narratives
from storage.egress import gate
from storage.egress.decoding import readings
from storage.egress.sequences import SequenceFilter

KEY = b"k" * 32
SECRET = "The employee was greasing the conveyor chain when his left glove was pulled into the tail pulley."
CHINESE = "工人在清洗搅拌机时左手被卷入叶片造成两根手指骨折"


@pytest.fixture(scope="module")
def private() -> SequenceFilter:
    """The fingerprints of some narratives, two of them known."""
    return SequenceFilter.of([*narratives(60, seed=4), SECRET, CHINESE], key=KEY)


def seen(private: SequenceFilter, text: str) -> bool:
    """Whether any reading of a text is a narrative's."""
    return any(private.count(reading) for reading in readings(f"A model card.\n{text}\nIts end."))


def b64(text: str) -> str:
    """Base64."""
    return base64.b64encode(text.encode()).decode()


DISGUISES: dict[str, Callable[[str], str]] = {
    # named by the issue
    "without spaces": lambda text: text.replace(" ", ""),
    "base64": b64,
    "backwards": lambda text: text[::-1],
    # its neighbours
    "a hyphen between all letters": "-".join,
    "zero-width spaces": "\u200b".join,
    "other accents": lambda text: "".join(letter + "\u0301" if letter in "aeiou" else letter for letter in text),
    "wide letters": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "base64 in lines": lambda text: base64.encodebytes(text.encode()).decode(),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "base64 twice": lambda text: b64(b64(text)),
    "base64 backwards": lambda text: b64(text)[::-1],
    "base64 of it backwards": lambda text: b64(text[::-1]),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16")).decode(),
    "compressed": lambda text: base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode(),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "base85": lambda text: base64.b85encode(text.encode()).decode(),
    "ascii85": lambda text: base64.a85encode(text.encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal in pairs": lambda text: text.encode().hex(":"),
    "an address's escapes": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "a page's escapes": lambda text: "".join(f"&#{ord(letter)};" for letter in text),
    "a string's escapes": lambda text: "".join(f"\\u{ord(letter):04x}" for letter in text),
    "a mail's escapes": lambda text: quopri.encodestring(text.encode(), quotetabs=True).decode(),
}


@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
@pytest.mark.parametrize("text", [SECRET, CHINESE], ids=["spaces", "no spaces"])
def test_a_narrative_in_disguise(private: SequenceFilter, disguise: Callable[[str], str], text: str) -> None:
    """Each is read as what it says."""
    assert seen(private, disguise(text))


@pytest.mark.parametrize(
    "disguise",
    [
        lambda text: text.translate(
            str.maketrans(
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
                "nopqrstuvwxyzabcdefghijklmNOPQRSTUVWXYZABCDEFGHIJKLM",
            )
        ),
        lambda text: " ".join(str(ord(letter)) for letter in text),
        lambda text: " ".join(f"{ord(letter):08b}" for letter in text),
    ],
    ids=["thirteen letters on", "numbers", "binary digits"],
)
def test_a_disguise_for_latin_letters(private: SequenceFilter, disguise: Callable[[str], str]) -> None:
    """Those that have no other letters."""
    assert seen(private, disguise(SECRET))


def test_a_narrative_of_six_records() -> None:
    """Common only if five units have it: neither six copies nor six that differ by a word make it so."""
    others = narratives(60, seed=4)
    copies = [SECRET] * 6
    nearly = [f"Case {number}: {SECRET} He was treated on day {number}." for number in range(6)]
    for repeated in (copies, nearly):
        assert SequenceFilter.of([*others, *repeated], key=KEY).count(SECRET) > 0


def test_unlike_texts_are_not_seen(private: SequenceFilter) -> None:
    """What decoders make of random runs and of other narratives is nobody's narrative: the gate can be passed."""
    draw = random.Random(7)
    noise = " ".join("".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=40)) for _ in range(50))
    other = "Three pallets fell off a rack onto the sorting line; nobody stood near it, and a light was broken."
    assert not seen(private, noise)
    assert not seen(private, other)
    assert not seen(private, "x" * 3000)


def test_text_spread_over_entries_and_weights(sealed: Sealed, tmp_path: Path) -> None:
    """One word an entry of a column, one letter a weight, UTF-16 among the weights."""
    words = SECRET.split()
    table = tmp_path / "codelist.csv"
    table.write_text(
        "code,title,classification,version\n" + "".join(f"1{n},{w},OIICS,2.01\n" for n, w in enumerate(words))
    )
    private = SequenceFilter.of([SECRET], key=KEY)
    assert any(private.count(column) for column in gate._columns(table))
    lines = tmp_path / "golden.jsonl"
    lines.write_text("".join(json.dumps({"id": n, "text": w, "codes": ["111"]}) + "\n" for n, w in enumerate(words)))
    assert any(private.count(column) for column in gate._columns(lines))
    weights = tmp_path / "model.safetensors"
    for hidden in (SECRET.encode("utf-16-le"), b"".join(b"\0\x9c" + bytes([c]) + b"\x3d" for c in SECRET.encode())):
        weights.write_bytes(bytes(1001 * 4) + hidden + bytes(4000))
        assert any(private.count(run) for run in gate._printable(weights))


def test_the_gate_reads_every_disguise(sealed: Sealed, tmp_path: Path) -> None:
    """Planted in a real bundle's card; unchanged, the same card passes."""
    expected = sealed.refill(tmp_path / "again")
    folder = sealed.copy(tmp_path, seal=False)
    gate.inspect(folder, expected)
    secret = max(sealed.narratives, key=expected.narratives.count)
    card = (folder / CARD).read_text()
    for name in ("without spaces", "base64", "backwards", "compressed"):
        (folder / CARD).write_text(card + "\n" + DISGUISES[name](unicodedata.normalize("NFC", secret)) + "\n")
        with pytest.raises(UnsoundBundle, match="private narrative") as refused:
            gate.inspect(folder, expected)
        assert refused.value.file == CARD
