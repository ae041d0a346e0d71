"""The prose linter counts what people read, and refuses what it says it refuses."""

import re
from pathlib import Path

import check_prose

PAGE = """# A title of any length

For readers. One fact stands here, by `autocoder code --top-k 3`; [a link](elsewhere.md) is its words.

| a table | is not counted |
|---|---|

```
nor a block of commands
```

- An item without a full stop
- Another one!
"""


def test_tables_commands_and_addresses_are_not_counted() -> None:
    """Four sentences of 2, 11, 6 and 2 words: the title and the table are none."""
    assert "counted" not in check_prose.prose(PAGE)
    assert "commands" not in check_prose.prose(PAGE)
    assert "elsewhere" not in check_prose.prose(PAGE)
    assert [len(one.split()) for one in check_prose.sentences(check_prose.prose(PAGE))] == [2, 11, 6, 2]


def test_a_long_page_and_a_phrase_are_refused(tmp_path: Path) -> None:
    """A sentence that no one ends, a phrase over a line's end, a postposed `alone`; a plain page passes."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert [*check_prose.long_sentences(page), *check_prose.phrases(page), *check_prose.unnamed_reader(page)] == []
    page.write_text(PAGE.replace("For readers. ", ""))
    assert "no reader is named" in "".join(check_prose.unnamed_reader(page))
    page.write_text("Short.\n\n" * 40 + "word " * 70 + "\n")
    assert "a sentence of 70 words" in "".join(check_prose.long_sentences(page))
    page.write_text("The claim is refuted, that of\nno formal branch. The ledger knows it.\n")
    assert len(list(check_prose.phrases(page))) == 2
    refused = [pattern for pattern in check_prose.SOURCE_DIALECT if re.search(pattern, "It rests on titles, by nobody")]
    assert len(refused) == 2
    assert re.search(next(p for p in check_prose.SOURCE_DIALECT if "alone" in p and "by" in p), "from records alone")
