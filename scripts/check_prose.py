#!/usr/bin/env python
"""Refuses pages without a named reader, too many words, long sentences and foreign phrases; `make check` runs it.

    python scripts/check_prose.py              # every fault, one a line
    python scripts/check_prose.py --counts     # words of each page, tables and commands included

Single words are refused by codespell and `scripts/prose_words.txt`, phrases here.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

WORDS_AT_MOST = 21_000
LONGEST = 60
PHRASES = {
    r"that of no\b": "write the sentence out",
    r"of one's own": "write `your own`, or whose",
    r"\bthe house\b": "write `the agency`, `the organisation` or `the pipeline`",
    r"\b(?:the|this|that|a) (?:page|ledger|bundle|card|statement|plan|file|command|test|audit)s? "
    r"(?:says?|knows?|tells?|asks?|wants?|believes?)\b": "name what it shows, records or requires",
    r"\bgoes on\b(?! from)": "write `continues`",
    r"\b(?:fitted|thresholds|folder|line|claim|release) a (?:field|fit|code|record|unit)\b": "write `per`",
    r"\bis held against\b": "write `is compared with`",
    r"\blooked at\b": "write `read`, `examined` or `used`",
    r"\bby itself\b": "write `alone`, `by default` or `automatically`",
}
DIALECT = {
    r"\bwhoever\b": "write `anyone who`",
    r"\b(?:some|any)body\b": "write `someone` or `anyone`",
    r"\bmade-up\b": "write `synthetic`",
    r"\bby hand\b": "write `manually`",
    r"\bgolden (?:answers?|texts?)\b": "write `test vectors`",
    r"\bbut for\b": "write `except for`",
    r"\bgo(?:es|ne)? on with\b": "write `continue with`",
}
"""Refused in every string of the program, its tests and scripts too."""
SOURCE_DIALECT = {
    r"\b(?:no|every)body\b": "write `no one` or `everyone`",
    r"\brests? on\b": "write `depends on` or `assumes`",
    r"\brivals?\b(?!\.)": "write `other methods`",
    r"\brefut(?:e|es|ed|ing)\b": "write `contradict`",
    r"\bspeaks? (?:for|against)\b": "write `supports` or `objections`",
    r"\bkinds? of guarantee\b": "write `type of guarantee`",
    r"\b(?:stands?|stood|lies) (?:in|at|on|beside|next|there|above|below|alone|before|within)\b": "write `is`",
    r"\b(?:by|from|for|of|to|in|on|with) (?:\w+ ){1,2}alone\b": "write `only` before the noun",
    r"\b(?:that|what|may) leaves?\b(?= (?:the agency|in the|of one)|[.,:;])": "write `is released`",
}
"""Refused in the same, except for tests."""
CODE = ("autocoder", "flows", "service", "tasks", "mechanisms", "storage", "studies", "scripts", "benchmarks")


def pages() -> list[Path]:
    """Lists the pages that people read: notes are counted in the pages that end with them."""
    top = [Path("README.md"), Path("PRIVACY.md"), Path("CONTRIBUTING.md")]
    return top + sorted(page for page in Path("docs").rglob("*.md") if not page.name.endswith(".notes.md"))


def sources() -> list[Path]:
    """Lists what is written by hand: pages that no command writes, notes, and the templates of the other pages."""
    by_hand = [page for page in pages() if not re.search(r"[Ww]ritten by `", page.read_text(encoding="utf-8"))]
    return [*by_hand, *sorted(Path("docs").rglob("*.notes.md")), *sorted(Path("tasks/pages/templates").glob("*.md.j2"))]


def prose(text: str) -> str:
    """Removes code blocks, comments, tables, directives and markup."""
    text = re.sub(r"\{%.*?%\}|\{#.*?#\}", "", re.sub(r"\{\{.*?\}\}", "value", text), flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^:::.*(?:\n +\S.*)*$|^ *\|.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> list[str]:
    """Splits prose into sentences: at full stops, at items of a list, at headings and at blank lines."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)", text)
    texts = [one.strip().lstrip("-*0123456789. ") for one in blocks if one.strip()[:1] != "#"]
    plain = [re.sub(r"`[^`]*`", "code", text) for text in texts]
    parts = [part for one in plain for part in re.split(r"(?<=[.!?])[*\"')]*\s+(?=\S)", one)]
    return [part for part in parts if len(part.split()) > 1]


def long_sentences(page: Path) -> Iterator[str]:
    for sentence in sentences(prose(page.read_text(encoding="utf-8"))):
        if (length := len(sentence.split())) > LONGEST:
            yield f"{page}: a sentence of {length} words: {sentence[:60]!r} … Split it."


def unnamed_reader(page: Path) -> Iterator[str]:
    if page.name != "README.md" and not re.search(
        r"\A#[^\n]*\s+(?:<!--.*?-->\s+)?For ", page.read_text(encoding="utf-8")
    ):
        yield f"{page}: no reader is named. Begin the first paragraph with `For …`."


def phrases(page: Path) -> Iterator[str]:
    """Yields the phrases of a page that say less than they seem to."""
    text = prose(page.read_text(encoding="utf-8"))
    for pattern, advice in PHRASES.items():
        for match in re.finditer(pattern.replace(" ", r"\s+"), text, flags=re.IGNORECASE):
            yield f"{page}: {' '.join(match[0].split())!r}. Instead, {advice}."


def dialect() -> Iterator[str]:
    """Yields the dialect's phrases in the strings of Python files, docstrings included, and in pages and templates."""
    texts = [(page, page.read_text(encoding="utf-8")) for page in sources()]
    for folder in (*CODE, "tests"):
        for file in sorted(Path(folder).rglob("*.py")):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file.name != Path(__file__).name else ()
            values = [node.value for node in nodes if isinstance(node, ast.Constant)]
            texts += [(file, value) for value in values if isinstance(value, str)]
    for path, text in texts:
        for pattern, advice in (DIALECT if path.parts[0] == "tests" else DIALECT | SOURCE_DIALECT).items():
            for match in re.finditer(pattern.replace(" ", r"\s+"), text, flags=re.IGNORECASE):
                yield f"{path}: {' '.join(match[0].split())!r}. Instead, {advice}."


def main() -> None:
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in pages()}
    if "--counts" in sys.argv[1:]:
        print("\n".join(f"{number:6}  {page}" for page, number in words.items()))
        print(f"{sum(words.values()):6}  of {WORDS_AT_MOST}")
        return
    every = [fault for page in pages() for fault in long_sentences(page)]
    every += [fault for page in pages() if page in sources() for fault in unnamed_reader(page)]
    every += [fault for page in sources() for fault in phrases(page)]
    every += dialect()
    if sum(words.values()) > WORDS_AT_MOST:
        every.append(f"docs: {sum(words.values())} words, above {WORDS_AT_MOST}. Shorten a page.")
    print("\n".join(every) or f"prose: {sum(words.values())} words, nothing to change")
    sys.exit(bool(every))


if __name__ == "__main__":
    main()
