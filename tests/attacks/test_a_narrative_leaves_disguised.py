"""Would win: a training narrative in a bundle, in a spelling that a person can read back and a
search does not see. Nothing searches for spellings. What an operator can hand in (titles, codes,
names, an encoder's tokens) is listed whole in the plan that is signed, and other words than those
of templates and published lists pass no gate.
"""

import base64
import bz2
import gzip
import json
import lzma
import quopri
import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ingested import ingested
from pydantic import BaseModel, ValidationError
from refusals import of_kind
from releases import make_event
from sealed_bundle import Sealed, plan

from mechanisms.model.config import ModelConfig
from mechanisms.privacy.events import Claim
from storage.bundle.check import check
from storage.bundle.folder import CARD, CODELIST, SIGNATURE, UnsoundBundle
from storage.codelist import Code
from storage.egress import gate
from storage.egress.gate import Expected
from storage.ledger import ReleasePlan
from storage.ledger.content import anticipated
from storage.ledger.policy import RegistryStatement
from tasks.bundle import fill
from tasks.bundle.deployment import Deployment
from tasks.bundle.stated_fields import WRITTEN_BY_THE_PROGRAM
from tasks.bundle.texts import own_texts
from tasks.fitting.ingest import Classification
from tasks.parameters import BundleParameters
from tasks.releasing.claims import CHOSEN, COMPARED, SEARCHED, unprotected_inputs

DECLARES = """
no text leaves that nobody signed
| 74 spellings of a narrative: between other letters, backwards, accented, in ciphers, codes,
encodings and compressed; each as title, code, classification, population, cohort, unit, token of an
encoder, and in every document; every text field of plan, claim and a policy's `registry`; words,
blanks, other spellings of the same values and escapes next to the signature of a sealed bundle
| what an officer signs without reading it; numbers: codes without titles, and digits and ASCII
marks that our own code writes; the vocabulary and weights of an encoder that is signed by its
digest; what is spread over the low bits of weights
"""

SECRET = (
    "The employee was greasing the conveyor chain when his left glove was pulled into the "
    "tail pulley."
)
STATED: dict[str, object] = {
    "curators": ["Office"],
    "region": "Here",
    "domain": "Reports",
    "actors": "Everyone",
    "refreshment": "Never",
    "justification": "None",
    "authors": ["Office"],
}
SELECTED = (SEARCHED, COMPARED, CHOSEN)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CODES = (
    ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- "
    "...- .-- -..- -.-- --.."
)
MORSE = dict(zip(LETTERS, _CODES.split(" "), strict=True))


def b64(content: str | bytes) -> str:
    return base64.b64encode(content if isinstance(content, bytes) else content.encode()).decode()


def base(digits: str) -> Callable[[str], str]:

    def spell(text: str) -> str:
        number, written = int.from_bytes(text.encode(), "big"), ""
        while number:
            number, digit = divmod(number, len(digits))
            written += digits[digit]
        return written

    return spell


def shifted(start: int, *, upper: int | None = None) -> Callable[[str], str]:

    def spell(text: str) -> str:
        capital = start if upper is None else upper
        return "".join(
            chr(capital + ord(c) - 65)
            if "A" <= c <= "Z"
            else chr(start + ord(c) - 97)
            if "a" <= c <= "z"
            else c
            for c in text
        )

    return spell


def raw_deflate(text: str) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(text.encode()) + packer.flush()


ALNUM = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ" + LETTERS
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "a number before each word": lambda t: " ".join(
        f"{n}. {word}" for n, word in enumerate(t.split(), start=1)
    ),
    "a bullet before each word": lambda t: " ".join(f"\u2022 {word}" for word in t.split()),
    "a word of cover after each word": lambda t: " ".join(f"{word} data" for word in t.split()),
    "each letter twice": lambda t: "".join(c * 2 for c in t),
    "x after each letter": lambda t: "".join(f"{c}x" for c in t),
    "without spaces": lambda t: t.replace(" ", ""),
    "backwards": lambda t: t[::-1],
    "hyphens": "-".join,
    "zero-width spaces": "\u200b".join,
    "tag characters": lambda t: "".join(chr(0xE0000 + ord(c)) for c in t),
    "variation selectors": lambda t: "".join(chr(0xE0100 + ord(c)) for c in t),
    "zero-width bits": lambda t: "".join(
        "\u200b\u200c"[int(bit)] for c in t for bit in f"{ord(c):08b}"
    ),
    "Hangul fillers": "\u3164".join,
    "halfwidth fillers": "\uffa0".join,
    "other accents": lambda t: "".join(f"{c}\u0301" if c in "aeiou" else c for c in t),
    "wide letters": lambda t: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in t),
    "small capitals": lambda t: t.lower().translate(
        str.maketrans("aeinrt", "\u1d00\u1d07\u026a\u0274\u0280\u1d1b")
    ),
    "upside down": lambda t: t[::-1].translate(
        str.maketrans("aehmrtw", "\u0250\u01dd\u0265\u026f\u0279\u0287\u028d")
    ),
    "negative circled": shifted(0x1F150, upper=0x1F150),
    "negative squared": shifted(0x1F170, upper=0x1F170),
    "circled": shifted(0x24D0, upper=0x24B6),
    "regional indicators": shifted(0x1F1E6, upper=0x1F1E6),
    "mathematical bold": shifted(0x1D41A, upper=0x1D400),
    "cyrillic look-alikes": lambda t: t.translate(
        str.maketrans("aeopcx", "\u0430\u0435\u043e\u0440\u0441\u0445")
    ),
    "base64": b64,
    "base64 in lines": lambda t: base64.encodebytes(t.encode()).decode(),
    "base64 for addresses": lambda t: base64.urlsafe_b64encode(t.encode()).decode().rstrip("="),
    "base64 four times": lambda t: b64(b64(b64(b64(t)))),
    "base64 backwards": lambda t: b64(t)[::-1],
    "base64 of UTF-16": lambda t: b64(t.encode("utf-16")),
    "base64 of UTF-32": lambda t: b64(t.encode("utf-32")),
    "base64 of EBCDIC": lambda t: b64(t.encode("cp500")),
    "gzip": lambda t: b64(gzip.compress(t.encode(), mtime=0)),
    "zlib": lambda t: b64(zlib.compress(t.encode())),
    "raw deflate": lambda t: b64(raw_deflate(t)),
    "bz2": lambda t: b64(bz2.compress(t.encode())),
    "xz": lambda t: b64(lzma.compress(t.encode())),
    "base32": lambda t: base64.b32encode(t.encode()).decode(),
    "base32 in lower case": lambda t: base64.b32encode(t.encode()).decode().lower(),
    "base32 hex": lambda t: base64.b32hexencode(t.encode()).decode(),
    "base32 of Crockford": base("0123456789ABCDEFGHJKMNPQRSTVWXYZ"),
    "base36": base("0123456789" + LETTERS),
    "base45": base("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:"),
    "base58": base("".join(c for c in ALNUM if c not in "0OIl")),
    "base62": base(ALNUM),
    "base85": lambda t: base64.b85encode(t.encode()).decode(),
    "ascii85": lambda t: base64.a85encode(t.encode()).decode(),
    "uuencode": lambda t: "".join(
        chr(32 + (byte & 63)) + chr(32 + (byte >> 6)) for byte in t.encode()
    ),
    "hexadecimal": lambda t: t.encode().hex(),
    "hexadecimal with hyphens": lambda t: t.encode().hex("-"),
    "hexadecimal with dots": lambda t: t.encode().hex("."),
    "0x": lambda t: " ".join(f"0x{byte:02x}" for byte in t.encode()),
    "octal": lambda t: "".join(f"\\{byte:03o}" for byte in t.encode()),
    "seven bits": lambda t: " ".join(f"{byte:07b}" for byte in t.encode()),
    "eight bits": lambda t: " ".join(f"{byte:08b}" for byte in t.encode()),
    "decimal": lambda t: " ".join(str(byte) for byte in t.encode()),
    "a=1": lambda t: " ".join(str(LETTERS.index(c) + 1) for c in t.lower() if c in LETTERS),
    "percent": lambda t: "".join(f"%{byte:02X}" for byte in t.encode()),
    "a page's escapes": lambda t: "".join(f"&#{ord(c)};" for c in t),
    "\\u": lambda t: "".join(f"\\u{ord(c):04x}" for c in t),
    "\\U": lambda t: "".join(f"\\U{ord(c):08x}" for c in t),
    "U+": lambda t: " ".join(f"U+{ord(c):04X}" for c in t),
    "CSS": lambda t: "".join(f"\\{ord(c):06x} " for c in t),
    "a mail's escapes": lambda t: quopri.encodestring(t.encode(), quotetabs=True).decode(),
    "Morse": lambda t: " ".join(MORSE[c] for c in t.lower() if c in MORSE),
    "Braille": lambda t: "".join(
        chr(0x2800 + LETTERS.index(c) + 1) if c in LETTERS else c for c in t.lower()
    ),
    "ROT13": lambda t: t.translate(str.maketrans(LETTERS, LETTERS[13:] + LETTERS[:13])),
    "ROT47": lambda t: "".join(chr(33 + (ord(c) + 14) % 94) if "!" <= c <= "~" else c for c in t),
    "leet": lambda t: t.translate(str.maketrans("aeiost", "431057")),
    "pig Latin": lambda t: " ".join(f"{word[1:]}{word[0]}ay" for word in t.split()),
    "acrostic": lambda t: " ".join(
        {"t": "table", "h": "home"}.get(c, f"{c}ata") for c in t.lower() if c in LETTERS
    ),
    "Bacon": lambda t: " ".join(
        f"{LETTERS.index(c):05b}" for c in t.lower() if c in LETTERS
    ).translate({48: "A", 49: "B"}),
    "by case": lambda t: "".join("dA"[int(bit)] for c in t for bit in f"{ord(c):08b}"),
}


@pytest.fixture(scope="module")
def expected(sealed: Sealed, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return sealed.refill(tmp_path_factory.mktemp("again"))


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_what_is_handed_in_is_listed_whole(sealed: Sealed, spell: Callable[[str], str]) -> None:
    """As a title, as a code, cut over titles, as the name of a classification, a cohort or the
    column of the protected unit: the plan lists it. What no reader sees is written out.
    """
    text, encoder = spell(SECRET), sealed.candidate.model.encoder

    def listed(codes: list[Code], *, statement: Any = None, classification: str = "") -> str:
        facts: Classification = {"classification": classification}
        shown = "\n".join(own_texts(codes, facts, encoder, statement=statement))
        return re.sub(
            r"\\(?:(\\)|u(.{4})|U(.{8}))",
            lambda one: one[1] or chr(int(one[2] or one[3], 16)),
            shown,
        )

    assert text.rstrip() in listed([Code("1", text)])
    assert text.rstrip() in listed([Code(text, "")])
    half = len(text) // 2
    cut = listed([Code("1", text[:half]), Code("2", text[half:])])
    assert text[:half].rstrip() in cut
    assert text[half:].rstrip() in cut
    assert text in listed([], classification=text)
    assert text in listed([], statement={"cohorts": [text]})
    assert text in listed([], statement={"privacy_unit": f"unit ({text})"})
    assert text in listed([], statement={"population": text})
    assert text in listed([], statement={"a field of tomorrow": {text: 1}})


def test_what_a_sentence_quotes_is_listed(sealed: Sealed) -> None:
    """The sentence in which titles are read leaves among what is not protected."""
    encoder = sealed.candidate.model.encoder
    model = ModelConfig(prior="titles", pooling="mean", prior_sentence=f"{SECRET} {{}}")
    facts = ingested(cohorts=["all"], cohorts_source="records")
    for lines, count in ((unprotected_inputs(facts, model=model), 1), (SELECTED, 0)):
        listed = own_texts([], {}, encoder, statement={"unprotected_inputs": lines})
        assert len(listed) == count
        assert all(SECRET in text for text in listed)


def test_what_the_record_for_a_registry_says_is_listed(sealed: Sealed) -> None:
    encoder = sealed.candidate.model.encoder
    stated = RegistryStatement.model_validate(STATED | {"domain": SECRET})
    listed = own_texts([], {}, encoder, label=SECRET, registry=stated)
    assert {f"label of the release: {SECRET}", f"registry: domain: {SECRET}"} <= set(listed)
    assert own_texts([], {}, encoder, label=SECRET) == ()


def marked(model: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a word of its own into each field that takes one."""
    made: dict[str, Any] = dict(given)
    for name in model.model_fields:
        word = f"Zq {name} qZ"
        for value in (word, (word,)):
            with suppress(ValidationError):
                model.model_validate({**made, name: value})
                made[name] = value
    return made


def test_whatever_a_finished_document_repeats_is_listed(
    sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every text field of plan, claim and the policy's statement has a word of its own. Whichever
    of these words is in any file of the bundle is a text that the plan lists, but for the fields
    whose words the program writes.
    """
    found: list[Expected] = []
    monkeypatch.setattr(gate, "inspect", lambda _, expected: found.append(expected))
    values = plan("marked", sealed.candidate).model_dump() | {"event": make_event(sensitivity=1.5)}
    values["claim"] = marked(Claim, values["claim"])
    planned = ReleasePlan.model_validate(marked(ReleasePlan, values))
    artifacts = {"artifact_digests": sealed.candidate.artifact_digests}
    row = anticipated(planned.model_copy(update=artifacts), audit=None)
    stated = RegistryStatement.model_validate(marked(RegistryStatement, STATED))
    chosen: Any = {"settings": BundleParameters(), "theta": None, "texts": ()}
    chosen["deployment"] = Deployment(row, [], stated, repeated=False)
    fill.fill(tmp_path, sealed.context, row, sealed.candidate, **chosen)
    files = [file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    words = {word for text in files for word in re.findall("Zq [a-z_]+ qZ", text)}
    listed = "\n".join(found[0].unsigned_texts)
    assert {"Zq population qZ", "Zq privacy_unit qZ", "Zq cohorts qZ", "Zq domain qZ"} <= words
    unlisted = {word[3:-3] for word in words if word not in listed}
    assert unlisted <= WRITTEN_BY_THE_PROGRAM | {"assumptions", "unprotected_inputs"}


def test_the_gate_refuses_it_and_quotes_nothing(
    sealed: Sealed, expected: Expected, tmp_path: Path
) -> None:
    """Planted in a real bundle's card; unchanged, the same card passes."""
    folder = sealed.copy(tmp_path, seal=False)
    expected = replace(expected, unsigned_texts=())
    gate.inspect(folder, expected)
    card = (folder / CARD).read_text()
    for name in SPELLINGS:
        (folder / CARD).write_text(f"{card}\n{SPELLINGS[name](SECRET)}\n")
        with pytest.raises(UnsoundBundle, check=of_kind("differs-from-plan")) as refused:
            gate.inspect(folder, expected)
        assert refused.value.file == CARD
        assert "conveyor" not in str(refused.value)
    (folder / CARD).write_text(card)
    with pytest.raises(UnsoundBundle, check=of_kind("unsigned-texts"), match=r"\b2\b") as refused:
        gate.inspect(folder, replace(expected, unsigned_texts=(SECRET, "b")))
    assert refused.value.file == CODELIST
    assert SECRET not in str(refused.value)


def test_an_encoder_of_ones_own(sealed: Sealed, tmp_path: Path) -> None:
    """Its digest is what is signed; an added token or a setting that no library knows is listed as
    text besides.
    """
    from tasks.bundle.texts import describe_encoder, encoder_digest

    folder = tmp_path / "encoder"
    folder.mkdir()
    for file in Path(sealed.candidate.model.encoder).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    before = encoder_digest(str(folder))
    assert own_texts((), {}, str(folder)) == ()
    assert "on no reviewed list" in describe_encoder(str(folder), before)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token = {
        "id": 900,
        "content": b64(SECRET),
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
    }
    tokenizer["added_tokens"].append(token | {"normalized": False, "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"position_embedding_type": "The_employee_was"})
    )
    listed = "\n".join(own_texts((), {}, str(folder)))
    assert b64(SECRET) in listed
    assert "The_employee_was" in listed
    assert encoder_digest(str(folder)) != before


def _enveloped(**changed: Any) -> Callable[[Any], str]:
    def write(whole: Any) -> str:
        return json.dumps(whole | {"dsseEnvelope": whole["dsseEnvelope"] | changed})

    return write


def _signed_with(**changed: Any) -> Callable[[Any], str]:
    def write(whole: Any) -> str:
        (signature,) = whole["dsseEnvelope"]["signatures"]
        return _enveloped(signatures=[signature | changed])(whole)

    return write


def _of_material(**changed: Any) -> Callable[[Any], str]:
    def write(whole: Any) -> str:
        material = whole["verificationMaterial"] | changed
        return json.dumps(whole | {"verificationMaterial": material})

    return write


@pytest.mark.parametrize(
    "write",
    [
        lambda whole: json.dumps(whole | {"note": SECRET}),
        lambda whole: json.dumps(dict(reversed(whole.items()))),
        lambda whole: json.dumps(whole) + "".join(" \t"[ord(c) & 1] for c in SECRET),
        lambda whole: json.dumps(whole, indent=3),
        lambda whole: json.dumps(whole).replace("sigstore", "\\u0073igstore", 1),
        _enveloped(note=SECRET),
        _signed_with(keyid=SECRET),
        _signed_with(note=SECRET),
        _of_material(tlogEntries=[SECRET]),
    ],
    ids=["field", "order", "blanks", "indent", "escape", "envelope", "keyid", "signature", "log"],
)
def test_words_next_to_a_signature(
    sealed: Sealed, tmp_path: Path, write: Callable[[Any], str]
) -> None:
    """The file of the signature is the only one that no digest covers. A bundle is still sound if
    it is written as it was, and not with anything else, so nobody on its way adds to it.
    """
    folder = sealed.copy(tmp_path)
    whole = json.loads((folder / SIGNATURE).read_text())
    (folder / SIGNATURE).write_text(json.dumps(whole))
    check(folder, sealed.trust)
    (folder / SIGNATURE).write_text(write(whole))
    with pytest.raises(UnsoundBundle, check=of_kind("more-than-a-signature", file=SIGNATURE)):
        check(folder, sealed.trust)
