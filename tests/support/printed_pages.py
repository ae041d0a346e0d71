"""Reads the blocks of code that a page prints, in tabs and lists too."""

import re
import textwrap

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Lists the language and the code of each block, without the indentation of its place."""
    return [(language, textwrap.dedent(body)) for _, language, body in _BLOCK.findall(text)]


def section(text: str, title: str) -> str:
    """Returns the part of a page under a heading of the second level."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands(text: str, title: str, number: int) -> list[str]:
    """Lists the lines of one block without a language in a section."""
    blocks = [body for language, body in code_blocks(section(text, title)) if not language]
    return blocks[number].strip().splitlines()
