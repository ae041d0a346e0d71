"""Groups of codes are named by codes and published titles alone."""

import pytest

from storage.code_levels import restrict
from storage.codelist import Code
from storage.egress import public_lists
from tasks.bundle.accuracy import group_names

SECRET = "fell from the ladder at Smith and Sons"


def test_groups_are_named_by_the_lists_levels() -> None:
    """Of a whole list by code and title, of its most detailed codes by what they begin with."""
    whole = [Code(f"{n}", f"group {n}") for n in range(1, 5)]
    whole += [Code(f"{n}{m}", f"code {n}{m}") for n in range(1, 5) for m in range(3)]
    assert group_names(whole) == ("1 group 1", "2 group 2", "3 group 3", "4 group 4")
    detailed = restrict(whole, {code.code for code in whole if len(code.code) > 1})
    assert group_names(detailed) == ("1", "2", "3", "4")


def test_a_level_above_that_nobody_published_names_no_group() -> None:
    """Titles of levels above are no part of the texts that someone signs."""
    codes = [
        Code(f"{n}{m}", f"code {n}{m}", above=(f"{SECRET} {n}",))
        for n in range(1, 5)
        for m in range(3)
    ]
    assert group_names(codes) == ("1", "2", "3", "4")


def test_a_published_level_names_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its own code, also where it has zeros in place of what its codes go on with."""
    codes = [
        Code(f"{major}-{n:04d}", f"code {major} {n}", above=(f"Major group {major}",))
        for major in ("11", "13", "15")
        for n in range(1011, 1014)
    ]
    entries = {
        public_lists.entry_digest(Code(f"{m}-0000", f"Major group {m}")): m for m in (11, 13)
    }
    monkeypatch.setattr(public_lists, "_places", lambda: {"test": entries})
    assert group_names(codes) == ("11-0000 Major group 11", "13-0000 Major group 13", "15-101")
