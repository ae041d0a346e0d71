"""The service's page in a real browser: a file goes in, a coded one comes out, and a refusal is
read.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from review_browser import CHROMIUM, PATIENCE, browsing, serving

from storage.tables.writer import csv_lines
from tasks.coding.coder import Coder

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def address(coder: Coder) -> Iterator[str]:
    """The service, without a key."""
    with serving(coder) as made:
        yield made.removesuffix("review")


def test_a_file_is_coded_on_the_page(
    address: str, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Column chosen from the header, progress to the last row, the file saved; a ragged one is
    refused by its row.
    """
    texts = [*narratives(50), 'fell, "hard",\nfrom a ladder']
    rows = [("case", "Narrative text"), *((f"=1+{n}", text) for n, text in enumerate(texts))]
    (tmp_path / "new.csv").write_text(csv_lines(rows), newline="")
    (tmp_path / "ragged.csv").write_text("Narrative text\nfell,twice\n")
    with browsing(width=900) as page:
        page.goto(address)
        page.set_input_files("#file", tmp_path / "new.csv")
        playwright.expect(page.locator("#column")).to_have_value("Narrative text", timeout=PATIENCE)
        page.select_option("#threshold", "0.5")
        page.click("#send")
        link = page.get_by_text("Save the coded file")
        link.wait_for()
        assert "51 of 51 rows coded" in page.locator("#results").inner_text()
        with page.expect_download() as saved:
            link.click()
        assert saved.value.suggested_filename == "new.coded.csv"
        saved.value.save_as(tmp_path / "coded.csv")
        reviewed = page.get_by_text("need review").inner_text()
        page.set_input_files("#file", tmp_path / "ragged.csv")
        page.click("#send")
        page.get_by_text("row 1: 2 fields, but the header has 1").wait_for()
        assert not page.get_by_text("Save the coded file").count()
    with (tmp_path / "coded.csv").open(newline="", encoding="utf-8") as file:
        coded = list(csv.DictReader(file))
    assert [row["Narrative text"] for row in coded] == texts
    assert coded[0]["case"] == "'=1+0"
    assert all(row["code"] and row["needs_review"] in ("true", "false") for row in coded)
    assert reviewed.startswith(f"{sum(row['needs_review'] == 'true' for row in coded)} of 51 rows")


def test_the_page_says_that_it_codes_until_the_answer_is_there(address: str) -> None:
    """In the place of the earlier answers, so that none stands under another text; each code has
    its title.
    """
    with browsing(width=390) as page:
        page.goto(address)
        page.fill("#text", "Employee fell from a ladder and broke his left wrist.")
        asked = []
        page.route("**/code", lambda route: asked.append(route))
        page.click("#go")
        playwright.expect(page.locator("#results")).to_have_text("Coding …", timeout=PATIENCE)
        (held,) = asked
        with page.expect_response("**/code") as answered:
            held.continue_()
        page.locator("#results tr").first.wait_for()
        best = answered.value.json()["results"][0]["codes"][0]
        cells = page.locator("#results tr").first.locator("td").all_inner_texts()
        assert (cells[0], cells[2]) == (best["code"], best["title"])
