"""The threat model's table is what the attack tests declare, and the words before it are few."""

from __future__ import annotations

import re

import threat_model


def test_the_page_is_what_the_tests_declare() -> None:
    """A promise added, changed or taken out in a test is so on the page; `python scripts/threat_model.py` writes it."""
    assert threat_model.PAGE.read_text(encoding="utf-8") == threat_model.page()


def test_the_words_in_front_are_few() -> None:
    """Outside of tables an officer reads at most 700."""
    front = threat_model.page().partition(threat_model.HEAD)[0]
    words = re.sub(r"^\|.*$", "", front, flags=re.MULTILINE).split()
    assert len(words) <= 700
