"""Would win: a narrative as a title of the code list, which the gate took for public because it was
a title.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import of_kind
from sealed_bundle import Sealed

from mechanisms.model.lexicon import vocabulary_of
from storage.bundle.folder import CODELIST, UnsoundBundle
from storage.code_levels import describe
from storage.codelist import Code, read_codelist
from storage.demo_data import write_demo_data
from storage.egress.gate import inspect
from storage.egress.public_lists import advice, published_name
from tasks.bundle.texts import own_texts

DECLARES = """
a title is public only in a published list
| a narrative as title, over two titles, one word a title, in hexadecimal, as a code, as the
description of a published title; inside a title in 10 spellings that no reader sees, or in digits
of other scripts; a list that differs in one place, an entry twice or in another order
| titles of lists that `storage/egress/lists/` does not know are public once someone has signed
them; look-alike letters in them
"""

SECRET = (
    "The employee was greasing the conveyor chain when his left glove was pulled into the "
    "tail pulley."
)


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Code, ...]:
    """A list that is known."""
    return read_codelist(
        write_demo_data(tmp_path_factory.mktemp("demo"), records=50, seed=1).codelist
    )


def test_titles_are_public_by_the_published_list(codes: tuple[Code, ...]) -> None:
    """Of the list as it was published, or of some of its entries in its order; of no list that
    differs by one title.
    """
    for part in (codes, codes[:-1], codes[3::5]):
        assert published_name(part) is not None
    for other in (
        (replace(codes[0], title=SECRET), *codes[1:]),
        (*codes, Code("9999", SECRET)),  # one more
        (*codes[:-1], Code("9999", SECRET)),
        (codes[1], codes[0], *codes[2:]),
        (codes[0], *codes),
        (replace(codes[0], code=codes[1].code), *codes[2:]),  # a title under another code
        (replace(codes[0], code=SECRET[:120]), *codes[1:]),  # as a code
    ):
        assert published_name(other) is None


def test_a_title_is_signed_before_anything_is_charged(
    sealed: Sealed, codes: tuple[Code, ...], tmp_path: Path
) -> None:
    """Whole, cut over two titles, one word a title, as a code: each entry of a list that is not
    published is listed.
    """
    encoder, words = sealed.candidate.model.encoder, SECRET.split()
    assert (
        own_texts(codes, {"classification": "SOC", "classification_version": "2010"}, encoder) == ()
    )
    for entries in (
        [Code("1", SECRET), *codes],
        [Code("1", SECRET[:50]), Code("2", SECRET[50:]), *codes],
        [Code(str(n), word) for n, word in enumerate(words)],
        [Code(SECRET[:120], ""), *codes],
    ):
        assert len(own_texts(entries, {}, encoder)) == len(entries)
    assert own_texts([Code("1", ""), Code("2.15", "")], {}, encoder) == (), "numbers say nothing"
    with pytest.raises(UnsoundBundle, check=of_kind("differs-from-plan")) as refused:
        folder = sealed.copy(tmp_path, seal=False)
        lines = (folder / CODELIST).read_text().splitlines()
        lines[1] = ",".join(
            [lines[1].split(",")[0], SECRET.replace(",", ""), *lines[1].split(",")[-2:]]
        )
        (folder / CODELIST).write_text("\n".join(lines) + "\n")
        inspect(folder, sealed.refill(tmp_path / "again"))
    assert refused.value.file == CODELIST


def test_a_description_next_to_a_published_title(sealed: Sealed, codes: tuple[Code, ...]) -> None:
    """Its words, or one long word that encodes it, leave in `lexicon.json`: no list with
    descriptions is a published one, and each of them is listed to be signed. They were neither seen
    nor signed.
    """
    encoder, encoded = sealed.candidate.model.encoder, "".join(filter(str.isalpha, SECRET.lower()))
    for hidden in (SECRET, encoded):
        described = (codes[0], replace(codes[1], description=hidden), *codes[2:])
        assert set(vocabulary_of(describe(described))) - set(vocabulary_of(describe(codes))), (
            "what would leave"
        )
        assert published_name(described) is None
        assert "descriptions" in advice(described)
        listed = own_texts(described, {}, encoder)
        assert len(listed) == len(codes)
        assert hidden in listed[1]
    numbers = [Code("1", description=SECRET), Code("2")]
    assert own_texts(numbers, {}, encoder) == (f"code list: 1 {SECRET}",)


UNSEEN: dict[str, Callable[[str], str]] = {
    "tag characters": lambda t: "".join(chr(0xE0000 + ord(c)) for c in t),
    "variation selectors": lambda t: "".join(chr(0xE0100 + ord(c)) for c in t),
    "short variation selectors": lambda t: "".join(chr(0xFE00 + ord(c) % 16) for c in t),
    "zero-width bits": lambda t: "".join(
        "\u200b\u200c"[int(bit)] for c in t for bit in f"{ord(c):08b}"
    ),
    "fillers": lambda t: "".join("\u3164\uffa0\u115f\u1160\u2800"[ord(c) % 5] for c in t),
    "joiners and signs": lambda t: "".join("\u034f\u17b4\u180b\u2063"[ord(c) % 4] for c in t),
    "runs of blanks": lambda t: " ".join(" " * (ord(c) % 7) for c in t),
    "other blanks": lambda t: "".join(" \u00a0\u2009\u3000"[ord(c) % 4] for c in t),
    "private characters": lambda t: "".join(chr(0xF0000 + ord(c)) for c in t),
    "soft hyphens": "\u00ad".join,
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_a_reader_would_not_see_is_written_out(sealed: Sealed, name: str) -> None:
    """Inside a title that reads as any other: who signs the text has to have seen all of it, on a
    screen or a page.
    """
    hidden = f"Frac{UNSEEN[name](SECRET)}tures"
    (listed,) = own_texts([Code("1", hidden)], {}, sealed.candidate.model.encoder)
    assert listed != f"code list: 1 {hidden}"
    assert "  " not in listed
    assert set(listed) <= set(map(chr, range(0x20, 0x7F)))
    literal = listed.removeprefix("code list: 1 ")
    (other,) = own_texts([Code("1", literal)], {}, sealed.candidate.model.encoder)
    assert other != listed, "a title that is spelt like the escapes of another is another text"


def test_letters_that_are_seen_stay(sealed: Sealed) -> None:
    """The control: accents, other scripts and emoji of one character."""
    for title in (
        "Br\u00fcche, Prellungen",
        "\u0e01\u0e23\u0e30\u0e14\u0e39\u0e01\u0e2b\u0e31\u0e01",
        "\u9aa8\u6298",
    ):
        assert own_texts([Code("1", title)], {}, sealed.candidate.model.encoder) == (
            f"code list: 1 {title}",
        )


@pytest.mark.parametrize(
    "digits", ["\u0663\u0664\u0665", "\uff11\uff12", "\u0e51.\u0e52", "1\u0967"]
)
def test_digits_of_other_scripts_are_no_numbers(sealed: Sealed, digits: str) -> None:
    """Each digit has some seventy spellings, which say more than a number: they are listed."""
    encoder = sealed.candidate.model.encoder
    assert own_texts([Code(digits), Code("2")], {}, encoder) == (f"code list: {digits}",)
