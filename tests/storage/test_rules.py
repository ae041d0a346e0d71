"""Rules of an agency on two fields: what a case breaks, and which file is refused, by row and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import InputError
from storage.rules import Rule, read_rules

SPACES = {"nature": ("111", "1311", "160"), "event": ("42", "431"), "part": ("1",)}
HEAD = "field,code,other_field,other_code,why\n"


def written(folder: Path, lines: str, head: str = HEAD) -> Path:
    file = folder / "rules.csv"
    file.write_text(head + lines, encoding="utf-8")
    return file


def test_a_case_breaks_a_rule_whichever_field_comes_first(tmp_path: Path) -> None:
    """A star is all codes that begin so; a field without a code breaks nothing."""
    rules = read_rules(written(tmp_path, "nature,1311,event,4*,no fall amputates\nevent,431,part,1,\n"), SPACES)
    assert rules.every[0] == Rule("nature", "1311", "event", "4*", "no fall amputates")
    assert rules.broken_by({"event": "42", "nature": "1311"}) == (rules.every[0],)
    assert rules.broken_by({"event": "431", "nature": "1311", "part": "1"}) == (rules.every[1], rules.every[0])
    assert rules.broken_by({"nature": "1311"}) == ()
    assert rules.broken_by({"nature": "111", "event": "42"}) == ()
    assert str(rules.every[0]) == "nature 1311 with event 4*: no fall amputates"


def test_a_code_is_read_as_table_programs_write_it(tmp_path: Path) -> None:
    """111.0 is 111, as in every other file."""
    assert read_rules(written(tmp_path, "nature,111.0,event,42,\n"), SPACES).every[0].code == "111"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("nature,111,source,42,\n", "row 1, column other_field: no such field is coded. Use nature, event, part"),
        ("nature,111,event,42,\nnature,9,event,42,\n", "row 2, column code: the code list of nature lacks this code"),
        ("nature,111,event,9*,\n", "row 1, column other_code: the code list of event lacks this code"),
        ("nature,111,nature,160,\n", "row 1, column other_field: a rule names the same field twice"),
        ("nature,111,event,42,\nevent,42,nature,111,\n", "row 2, column code: an earlier row has the same rule"),
        ("nature,111,event,42," + "x" * 201 + "\n", "row 1, column why: the text is too long. Use up to 200"),
        (",,,,\n", "contains no rule"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: str, said: str) -> None:
    """With file, row and column."""
    with pytest.raises(InputError) as refused:
        read_rules(written(tmp_path, lines), SPACES)
    assert said in str(refused.value)
    assert "rules.csv" in str(refused.value)


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    """And one that is not there."""
    with pytest.raises(InputError, match="other_code"):
        read_rules(written(tmp_path, "nature,111,event\n", head="field,code,other_field\n"), SPACES)
    with pytest.raises(InputError, match="--rules"):
        read_rules(tmp_path / "none.csv", SPACES)
