"""Hooks of the documentation's site: pages that lie outside `docs/`, and links that lead out of it.

README, PRIVACY.md and their like stay where a reader of the repository looks for them; here they become pages of the
site, with their links made right. Links to code and settings have no page to lead to: they become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "PRIVACY.md": "PRIVACY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Path in the repository: page of the site."""
HOME = {"README.md": "index.md"}

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead each relative link to the page that its file has become."""
    origin = {page_: source for source, page_ in PAGES.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    known = {file.src_uri for file in files}

    def led(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or "://" in match["target"] or target.startswith("mailto:"):
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        inside = (PAGES | HOME).get(place, place.removeprefix("docs/"))
        if inside not in known:
            if not (ROOT / place).exists():
                return match[0]  # leads nowhere, which the strict build tells
            return f"`{place}`" if match["text"].strip("`") in (place, posixpath.basename(place)) else match["text"]
        relative = posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{match['text']}]({relative}{'#' + anchor if anchor else ''})"

    return _LINK.sub(led, markdown)
