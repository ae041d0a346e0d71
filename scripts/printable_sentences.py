#!/usr/bin/env python
"""Lists every sentence that a bundle, a plan page or a front page can print, one per line.

    python scripts/printable_sentences.py
    python scripts/printable_sentences.py --of statement
    python scripts/printable_sentences.py --of card --of plan | grep -iE "every|never|always"

A line has the file and line number, what prints the sentence, and the sentence. `…` stands for what
a release fills in. A sentence of the privacy statement also has its standing (proved, tested,
measured or assumed), when it is printed, and what it rests on or what follows if it is wrong.

Read the list as someone who wants to find a false sentence: for each, name the release, the record
or the machine that would make it false. If there is one, the sentence is struck or says so.

Text inside a template or a module that is no sentence, such as the cell of a table, is listed too,
if it has four words.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment

from tasks.bundle.sentences import EVERY, SECTIONS

ROOT = Path(__file__).resolve().parents[1]
SOURCES: Mapping[str, tuple[str, ...]] = {
    "statement": (
        "tasks/bundle/sentences.py",
        "tasks/bundle/statement.py",
        "tasks/pages/templates/statement.md.j2",
        "tasks/pages/templates/macros.md.j2",
    ),
    "card": (
        "tasks/pages/templates/card.md.j2",
        "tasks/bundle/texts.py",
        "tasks/bundle/thresholds.py",
        "tasks/bundle/untold.py",
        "storage/bundle/stated.py",
    ),
    "bundle": (
        "tasks/pages/templates/deployment.json.j2",
        "tasks/pages/templates/materials.json.j2",
        "tasks/pages/templates/reliability.svg.j2",
        "tasks/bundle/deployment.py",
        "mechanisms/privacy/claims.py",
        "tasks/releasing/claims.py",
        "tasks/releasing/selection.py",
        "deployments/branches.yaml",
    ),
    "plan": (
        "tasks/pages/templates/plan_words.txt.j2",
        "tasks/pages/templates/questions.j2",
        "tasks/pages/templates/plan.html.j2",
        "tasks/pages/templates/plan.md.j2",
        "tasks/releasing/promise.py",
        "tasks/releasing/plan_page.py",
        "tasks/releasing/evidence.py",
        "tasks/releasing/code_lists.py",
        "storage/ledger/wording.py",
    ),
    "run": ("tasks/pages/templates/release.md.j2", "tasks/pages/templates/comparison.md.j2"),
    "partner": (
        "tasks/pages/templates/adoption.html.j2",
        "tasks/pages/templates/coded.html.j2",
        "tasks/pages/templates/successor.html.j2",
        "service/page.html",
        "service/static/review.html",
    ),
    "privacy": ("PRIVACY.md",),
    "readme": ("README.md",),
}
"""The files whose text each kind of page prints."""
_STATEMENT = "tasks/bundle/sentences.py"
_GAP = "…"
_FEWEST_WORDS = 4


@dataclass(frozen=True)
class Printable:
    """A sentence, where it is written, and what a statement says of it."""

    file: str
    line: int
    page: str
    text: str
    standing: str = ""
    """Proved, tested, measured or assumed; empty for a sentence that has none."""
    when: str = ""
    basis: str = ""
    """What it rests on, or what follows if it is wrong."""

    def __str__(self) -> str:
        words = f"{self.file}:{self.line}: {self.page}: {self.text}"
        if not self.standing:
            return words
        when = f", {self.when}" if self.when else ""
        label = "if it is wrong" if self.standing == "assumed" else "rests on"
        return f"{words} [{self.standing}{when}; {label}: {self.basis}]"


def printable(pages: Sequence[str] = tuple(SOURCES)) -> Iterator[Printable]:
    """Yields the sentences of these pages, in the order of their files."""
    for page in pages:
        for file in SOURCES[page]:
            text = (ROOT / file).read_text(encoding="utf-8")
            if file == _STATEMENT:
                yield from _of_statement(text)
                continue
            for line, passage in sorted(set(_written(file, text))):
                for sentence in _split(passage):
                    yield Printable(file, line, page, sentence)


def _of_statement(text: str) -> Iterator[Printable]:
    """Yields the sentences with a standing, whole, and then the other words of the module."""
    lines: dict[str, list[int]] = {}
    for line, written in sorted(_of_module(ast.parse(text))):
        lines.setdefault(written, []).append(line)
    told = [*EVERY, *(one for section in SECTIONS for one in section.sentences)]
    for one in told:
        line = lines[one.text].pop(0)
        yield Printable(
            _STATEMENT, line, "statement", one.text, one.status, one.condition, one.basis
        )
    bases = {one.basis for one in told}
    for written, left in lines.items():
        for sentence in _split(written) if written not in bases else ():
            yield from (Printable(_STATEMENT, line, "statement", sentence) for line in left)


def _written(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields the passages that a file can print, each with its line."""
    if file.endswith(".py"):
        yield from _of_module(ast.parse(text))
    elif file.endswith(".md"):
        yield from _of_markdown(text)
    elif file.endswith(".yaml"):
        yield from _of_yaml(text)
    else:
        yield from _of_template(text)


def _of_module(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the strings that are no documentation; what an f-string fills in is a gap."""
    silent: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            silent |= {id(part) for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        if id(node) in silent:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (
                str(part.value) if isinstance(part, ast.Constant) else _GAP for part in node.values
            )
            yield node.lineno, "".join(parts)


def _of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yields paragraphs, list items and cells of tables; blocks of code print no sentence."""
    passage: list[str] = []
    start, code = 1, False
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        begins = re.match(r"\s*([-*] |\||#|\d+\. )", line)
        if passage and (fence or code or begins or not line.strip()):
            yield start, " ".join(passage)
            passage = []
        if fence or code or not line.strip():
            continue
        if line.startswith("|"):
            yield from ((number, cell) for cell in line.strip("| ").split(" | "))
            continue
        if not passage:
            start = number
        passage.append(re.sub(r"^\s*([-*] |#+ |\d+\. )", "", line).strip())


def _of_yaml(text: str) -> Iterator[tuple[int, str]]:
    """Yields quoted strings, also over several lines."""
    for found in re.finditer(r'"([^"]+)"', text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def _of_template(text: str) -> Iterator[tuple[int, str]]:
    """Yields the text between the tags, with gaps for what they print, and the strings inside the
    tags, which are alternatives.
    """
    passage, start, inside, comment = "", 1, False, False
    for line, kind, value in Environment().lex(_without_code(text)):
        if kind in ("comment_begin", "comment_end"):
            comment = kind == "comment_begin"
        elif kind == "variable_begin":
            inside, passage = True, passage + _GAP
        elif kind in ("block_begin", "variable_end", "block_end"):
            inside = kind == "block_begin"
        elif inside and kind == "string":
            yield line, value[1:-1]
        elif inside and kind == "name" and value in ("else", "elif"):
            yield start, passage  # what follows is printed in its place
            passage, start = "", line
        elif kind == "data" and not comment:
            for offset, piece in enumerate(value.split("\n")):
                if offset and _ends_passage(passage, piece):
                    yield start, passage
                    passage = ""
                if not passage.strip(f"{_GAP} "):
                    start = line + offset
                passage += f" {piece}" if offset else piece
    yield start, passage


def _without_code(text: str) -> str:
    """Returns the text with empty lines in place of styles, scripts and blocks of code."""
    code = r"<style.*?</style>|<script>.*?</script>|(?:^|(?<=\n))```.*?\n```"
    return re.sub(code, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)


def _ends_passage(passage: str, following: str) -> bool:
    """Checks for the end of a paragraph of Markdown; elsewhere a line has its own passage."""
    begun = passage.strip()
    same_paragraph = following.strip() and not re.match(r"\s*([-*#|<]|\d+\. )", following)
    return not (begun and same_paragraph) or begun.startswith(("#", "|", "<"))


def _split(passage: str) -> Iterator[str]:
    """Yields the sentences of a passage, without markup; what has too few words is none."""
    plain = re.sub(r"<(script|style)\b.*", " ", passage)
    plain = re.sub(r"</?[a-z][^<>]*>", " ", plain)
    plain = " ".join(plain.replace("\\n", " ").split()).strip("-| ")
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*“…{])", plain):
        if len(re.findall(r"[^\W\d_]{2,}", sentence)) >= _FEWEST_WORDS and " " in sentence:
            yield sentence.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the list; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--of",
        action="append",
        choices=SOURCES,
        metavar="PAGE",
        help=f"only what this page prints; repeatable. Pages: {', '.join(SOURCES)}",
    )
    chosen = parser.parse_args(arguments)
    for sentence in printable(chosen.of or tuple(SOURCES)):
        print(sentence)
    return 0


if __name__ == "__main__":
    sys.exit(main())
