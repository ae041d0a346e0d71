"""Would win: a narrative as a title of the code list, which the gate took for public because it was a title."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sealed_bundle import Sealed

from storage.bundle.folder import CODELIST, UnsoundBundle
from storage.codelist import Code, read_codelist
from storage.demo_data import write_demo_data
from storage.egress.gate import inspect_model
from storage.egress.published import public_titles
from storage.egress.sequences import SequenceFilter
from tasks.bundle import fill

KEY = b"k" * 32
SECRET = "The employee was greasing the conveyor chain when his left glove was pulled into the tail pulley."


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Code, ...]:
    """A list that is known."""
    return read_codelist(write_demo_data(tmp_path_factory.mktemp("demo"), records=50, seed=1).codelist)


def test_titles_are_public_by_the_published_list(codes: tuple[Code, ...]) -> None:
    """Of the list as it was published, or of some of its entries in its order; of no list that differs by one title."""
    for part in (codes, codes[:-1], codes[3::5]):
        assert public_titles(part) == tuple(entry.title for entry in part)
    for other in (
        (replace(codes[0], title=SECRET), *codes[1:]),
        (*codes, Code("9999", SECRET)),  # one more
        (*codes[:-1], Code("9999", SECRET)),
        (codes[1], codes[0], *codes[2:]),
        (codes[0], *codes),
        (replace(codes[0], code=codes[1].code), *codes[2:]),  # a title under another code
        (replace(codes[0], code=SECRET[:120]), *codes[1:]),  # as a code
    ):
        assert public_titles(other) == ()


def test_the_name_of_the_classification_is_no_public_text(codes: tuple[Code, ...]) -> None:
    """Rows of a published list are public as the bundle has them, beside `SOC 2010`; beside a narrative they are not.

    Without the rows a plural would be told: `...s` of `SOC` behind a title.
    """
    last = codes[-1].title
    plural = f"{last[-20:]}s"
    for named, told in ((("SOC", "2010"), 0), ((SECRET, ""), 1), ((SECRET[:50], SECRET[50:]), 1)):
        rows = fill.rows_of({"": codes}, {"classification": named[0], "classification_version": named[1]})
        assert bool(rows) != bool(told)
        known = SequenceFilter.of([SECRET, plural], key=KEY, public=[*public_titles(codes), *rows])
        assert bool(known.count(f"{last} {' '.join(named)}")) == bool(told)
        assert known.count(SECRET) > 0
    assert SequenceFilter.of([plural], key=KEY, public=public_titles(codes)).count(f"{last} SOC 2010") > 0
    assert not fill.rows_of({"": [Code("1", SECRET)]}, {}), "nor beside a list that nobody published"


def test_a_title_is_refused_before_anything_is_charged(sealed: Sealed, codes: tuple[Code, ...], tmp_path: Path) -> None:
    """Whole, cut over two titles, or one word a title; whether or not somebody calls the list published."""
    expected = sealed.refill(tmp_path / "again")
    words = SECRET.split()
    planted = (
        [Code("1", SECRET), *codes],
        [Code("1", SECRET[:50]), Code("2", SECRET[50:]), *codes],
        [Code(str(n), word) for n, word in enumerate(words)],
        [Code("1", SECRET.encode().hex()), *codes],
    )
    for entries in planted:
        filtered = SequenceFilter.of([SECRET], key=KEY, public=public_titles(entries))
        with pytest.raises(UnsoundBundle, match="private narrative") as refused:
            inspect_model(sealed.folder, replace(expected, codes={"": tuple(entries)}, narratives=filtered))
        assert refused.value.file == CODELIST
