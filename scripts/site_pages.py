"""Hooks of the documentation's site for pages outside `docs/` and for links that lead out of it.

Pages such as PRIVACY.md remain where readers of the repository look for them. Here they become
pages of the site with corrected links. Links to code and settings have no page and become plain
text. A notebook becomes a page with its saved outputs; nothing is run here.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "PRIVACY.md": "PRIVACY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Page of the site by path in the repository."""
NOTEBOOKS = {"examples/own_model.ipynb": "tutorials/own-model.md"}
"""Page of the site, with its pictures next to it, by path in the repository."""

WIDE = 9
"""Number of bars in a table's row above which the table needs the width of the menus."""

_LINK = re.compile(r"(?P<mark>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(
            File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    for source, page in NOTEBOOKS.items():
        content, pictures = page_of(ROOT / source, page)
        files.append(File.generated(config, page, content=content))
        for name, picture in pictures.items():
            files.append(File.generated(config, name, content=picture))
    return files


def page_of(notebook: Path, page: str) -> tuple[str, dict[str, bytes]]:
    """Returns a notebook as Markdown, and its pictures by name.

    Raises:
        ValueError: a code cell was not run, or ended in an error.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        if cell["cell_type"] == "code" and cell["execution_count"] is None:
            raise ValueError(
                f"{notebook.name} has cells that were not run: scripts/run_notebook.py {notebook}"
            )
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                raise ValueError(
                    f"{notebook.name} contains an error: run it again with scripts/run_notebook.py"
                )
            text = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
            if "image/png" in output.get("data", {}):
                name = f"{page.removesuffix('.md')}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f"![Output of the cell above]({posixpath.basename(name)})")
            elif text.strip():
                parts.append(f'```text title="Output"\n{text.rstrip()}\n```')
    return "\n\n".join(parts) + "\n", pictures


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Points each relative link to the page that its file has become. A page with
    wide tables gets the whole width.
    """
    if page.file.src_uri == "reference/parameters.md":
        sys.path += [str(ROOT), str(ROOT / "scripts")]
        from parameter_tables import parameter_tables

        markdown += parameter_tables()
    if any(line.count("|") > WIDE for line in markdown.splitlines() if line.startswith("|")):
        page.meta["hide"] = ["navigation", "toc"]
    origin = {page_: source for source, page_ in (PAGES | NOTEBOOKS).items()}.get(
        page.file.src_uri, f"docs/{page.file.src_uri}"
    )
    site_files = {file.src_uri for file in files}

    def led(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or "://" in match["target"] or target.startswith("mailto:"):
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        inside = (PAGES | NOTEBOOKS).get(place, place.removeprefix("docs/"))
        if inside not in site_files:
            if not (ROOT / place).exists():
                return match[0]  # broken, which the strict build reports
            return (
                f"`{place}`"
                if match["text"].strip("`") in (place, posixpath.basename(place))
                else match["text"]
            )
        relative = posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".")
        return f"{match['mark']}[{match['text']}]({relative}{'#' + anchor if anchor else ''})"

    return _LINK.sub(led, markdown)
