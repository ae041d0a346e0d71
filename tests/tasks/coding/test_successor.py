"""A bundle and its successor: differences are paired, adjusted for their number,
and on one page.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from csv_files import write_csv
from refusals import of_kind

from storage.errors import InputError
from storage.tables.narratives import Narratives
from tasks.coding.coder import Coder
from tasks.coding.successor import (
    answers,
    compare,
    difference,
    differences,
    require_same_classification,
)


def test_a_difference_is_that_of_pairs() -> None:
    """40 of 400 records won, 20 lost: McNemar's exact p is 0.0135, from a binomial table; the
    interval is above 0. Two samples that are not paired would not show it: with shares of 0.80 and
    0.85 their p is 0.06.
    """
    old, new = np.ones(400, dtype=bool), np.ones(400, dtype=bool)
    old[:80], new[:40], new[80:100] = False, False, False
    found = difference("all", old, new)
    assert (found.old, found.new) == (0.8, 0.85)
    assert found.chance == pytest.approx(0.0135, abs=1e-4)
    assert 0 < found.low < 0.05 < found.high < 0.1
    assert found.verdict == "better"
    assert difference("all", new, old).verdict == "worse"
    assert difference("all", old, old).chance == 1.0


def test_many_codes_without_a_difference_show_none() -> None:
    """Of 40 tables of 20 codes at most 8 name one: Holm allows 5 %, that is 2. Without it more than
    12 would.
    """
    rng, named, naive = np.random.default_rng(0), 0, 0
    codes = np.repeat([f"c{at:02}" for at in range(20)], 40)
    for _ in range(40):
        old, new = rng.random(800) < 0.7, rng.random(800) < 0.7
        named += any(one.verdict != "not shown" for one in differences(codes, old, new))
        naive += any(
            difference("", *pair).chance <= 0.05
            for pair in zip(old.reshape(20, 40), new.reshape(20, 40), strict=True)
        )
    assert named <= 8
    assert naive > 12, "the test has no power"


def test_the_page_says_which_is_better(
    coder: Coder, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A successor that answers every other record otherwise is worse; all that moved is in the
    table of moves.
    """
    texts = narratives(40)
    given = [coding.answers[0].code for coding in coder.code(texts)]
    other = next(code for code in coder.model.codes if code not in given)
    rows = [
        [text, code, "A" if n < 20 else "B"]
        for n, (text, code) in enumerate(zip(texts, given, strict=True))
    ]
    coded = write_csv(tmp_path / "coded.csv", ["Text", "Code", "State"], rows)
    read = Narratives(("Text",), None)
    old, new = coder, replace(coder, release="next")
    require_same_classification(old, new)
    labelled = answers(old, new, coded, read, option="--labelled", label="Code", by="State")
    assert labelled.old.tolist() == labelled.new.tolist() == given
    labelled = replace(labelled, new=np.where(np.arange(40) % 2, other, labelled.old))
    unlabelled = answers(old, new, coded, read, option="--unlabelled")
    found = compare("this", "next", labelled, replace(unlabelled, new=labelled.new))
    assert (found.overall.old, found.overall.new, found.overall.verdict) == (1.0, 0.5, "worse")
    assert found.agreement == 0.5
    assert {code for _, code, _ in found.flows} == {other}
    assert sum(count for _, _, count in found.flows) == 20
    assert {one.name for one in found.groups} == {"A", "B"}
    assert found.codes[0].new == pytest.approx(0.5, abs=0.1)
    page = found.page()
    assert "The new model is worse" in page
    assert "Internal" in page
    assert not any(text in page for text in texts), "the page has no narrative"
    with pytest.raises(InputError, check=of_kind("another-classification")):
        require_same_classification(coder, replace(new, classification="SOC"))
