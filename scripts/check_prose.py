#!/usr/bin/env python
"""Finds misstatements of privacy and broken links in pages and messages; `make check` runs it.

    python scripts/check_prose.py

codespell checks the spelling. Reviewers judge the wording.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MISSTATEMENTS = {
    r"(?:δ|delta) is (?:the|a) (?:probability|chance) (?:that|of) "
    r"(?:the (?:limit|factor|bound)|a record|disclosure|failure)": (
        "delta is added to e^epsilon times a probability; it is not the probability that the "
        "factor is exceeded"
    ),
    r"\b(?:fully|completely|perfectly|absolutely) (?:private|anonymous|anonymi[sz]ed|secure)\b": (
        "say which guarantee holds, and for whom"
    ),
    r"\b(?:cannot|can't|can not|never) be (?:hacked|broken|re-?identified|reconstructed)\b": (
        "say how strongly the guarantee limits it"
    ),
    r"\bno information (?:about|on) (?:a|any|the) records?\b": (
        "a guarantee limits what is learned; it does not exclude it"
    ),
    r"\bproves? (?:that )?the (?:model|bundle|release) is private\b": (
        "a test or an audit can contradict a claim; it cannot prove it"
    ),
}
"""Patterns of wrong statements on what is guaranteed, and why they are wrong."""
CODE = (
    "autocoder",
    "flows",
    "service",
    "tasks",
    "mechanisms",
    "storage",
    "studies",
    "scripts",
    "benchmarks",
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Lists the pages for readers."""
    top = [
        path for path in map(Path, ("README.md", "PRIVACY.md", "CONTRIBUTING.md")) if path.is_file()
    ]
    return top + sorted(Path("docs").rglob("*.md"))


def texts() -> Iterator[tuple[Path, str]]:
    """Yields pages, page templates, and the program's strings with their files."""
    for page in [*pages(), *sorted(Path("tasks/pages/templates").glob("*.j2"))]:
        yield page, page.read_text(encoding="utf-8")
    for folder in CODE:
        for file in sorted(Path(folder).rglob("*.py")):
            if file.resolve() == Path(__file__).resolve():
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield file, node.value


def misstatements(path: Path, text: str) -> Iterator[str]:
    """Yields the sentences of a text that are wrong about what is guaranteed."""
    for pattern, reason in MISSTATEMENTS.items():
        for match in re.finditer(pattern.replace(" ", r"\s+"), text, flags=re.IGNORECASE):
            yield f"{path}: {' '.join(match[0].split())!r}: {reason}."


def broken_links(page: Path) -> Iterator[str]:
    """Yields the relative links of a page that do not lead to a file."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    for target in LINK.findall(text):
        path = target.split("#")[0]
        outside = "://" in target or target.startswith("mailto:")
        if path and not outside and not (page.parent / path).exists():
            yield f"{page}: the link to {target} is broken."


def main() -> None:
    faults = [fault for path, text in texts() for fault in misstatements(path, text)]
    faults += [fault for page in pages() for fault in broken_links(page)]
    print("\n".join(faults) or "prose: no misstatement and no broken link")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
