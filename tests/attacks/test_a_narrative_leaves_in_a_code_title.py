"""Would win: a narrative as a title of the code list, which the gate took for public because it was a title."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sealed_bundle import Sealed

from storage.bundle.folder import CODELIST, UnsoundBundle
from storage.codelist import Code, read_codelist
from storage.demo_data import write_demo_data
from storage.egress.gate import inspect
from storage.egress.public_lists import published_name
from tasks.bundle.texts import own_texts

DECLARES = (
    (
        "a title is public only in a published list",
        "a narrative as title, over two titles, one word a title, in hexadecimal, as a code; a list that "
        "differs in one place, an entry twice or in another order",
        "titles of lists that `storage/egress/lists/` does not know are public once somebody has signed them",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

SECRET = "The employee was greasing the conveyor chain when his left glove was pulled into the tail pulley."


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Code, ...]:
    """A list that is known."""
    return read_codelist(write_demo_data(tmp_path_factory.mktemp("demo"), records=50, seed=1).codelist)


def test_titles_are_public_by_the_published_list(codes: tuple[Code, ...]) -> None:
    """Of the list as it was published, or of some of its entries in its order; of no list that differs by one title."""
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


def test_a_title_is_signed_before_anything_is_charged(sealed: Sealed, codes: tuple[Code, ...], tmp_path: Path) -> None:
    """Whole, cut over two titles, one word a title, as a code: each entry of a list that is not published is listed."""
    encoder, words = sealed.candidate.model.encoder, SECRET.split()
    assert own_texts({"": codes}, {"classification": "SOC", "classification_version": "2010"}, encoder) == ()
    for entries in (
        [Code("1", SECRET), *codes],
        [Code("1", SECRET[:50]), Code("2", SECRET[50:]), *codes],
        [Code(str(n), word) for n, word in enumerate(words)],
        [Code(SECRET[:120], ""), *codes],
    ):
        assert len(own_texts({"": entries}, {}, encoder)) == len(entries)
    assert own_texts({"": [Code("1", ""), Code("2.15", "")]}, {}, encoder) == (), "numbers say nothing"
    with pytest.raises(UnsoundBundle, match="another title") as refused:
        folder = sealed.copy(tmp_path, seal=False)
        lines = (folder / CODELIST).read_text().splitlines()
        lines[1] = ",".join([lines[1].split(",")[0], SECRET.replace(",", ""), *lines[1].split(",")[-2:]])
        (folder / CODELIST).write_text("\n".join(lines) + "\n")
        inspect(folder, sealed.refill(tmp_path / "again"))
    assert refused.value.file == CODELIST
