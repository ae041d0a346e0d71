"""The review page in a real browser: 5,000 rows by keyboard, double coding, adjudication, files
saved, WCAG by axe.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from review_browser import (
    CHROMIUM,
    CODES,
    PATIENCE,
    browsing,
    check_accessible,
    coded,
    opened,
    saved,
    serving,
)

from storage.tables.formulas import escape_formula
from storage.tables.writer import csv_lines
from tasks.coding.coder import Coder
from tasks.coding.groups import groups_of

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def address(coder: Coder) -> Iterator[str]:
    with serving(coder, sensitive=("1972",)) as made:
        yield made


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def title(page: Any) -> str:
    return page.locator("#case h2").inner_text()


def test_five_thousand_rows_by_keyboard(address: str, tmp_path: Path) -> None:
    """Orders, digits, search, undo and next case need no mouse; the list draws few rows; the file
    has every row.
    """
    file = tmp_path / "coded.csv"
    file.write_text(coded(5000), newline="")
    with browsing() as page:
        opened(page, address, file, coder="ab")
        assert "0 of 5,000 decided" in page.inner_text("#progress")
        assert page.locator("#list .item").count() < 40
        assert title(page) == "Case 4"  # low score, set of three, one of them sensitive
        page.select_option("#order", "sensitive")
        assert title(page) == "Case 4"
        page.select_option("#order", "score")
        assert title(page) == "Case 1"
        page.select_option("#order", "size")
        assert title(page) == "Case 1"
        page.select_option("#order", "file")
        page.locator("#case").focus()
        page.locator("#narrative mark").first.wait_for()
        assert (
            "for: "
            in page.locator(".why").first.inner_text() + page.locator(".why").nth(1).inner_text()
        )
        page.keyboard.press("2")  # decides, and the next case comes
        assert title(page) == "Case 2"
        page.keyboard.press("1")
        page.keyboard.press("j")
        assert title(page) == "Case 4"
        page.keyboard.press("k")
        page.keyboard.press("/")
        page.keyboard.type("burns")
        page.keyboard.press("Enter")
        assert title(page) == "Case 4"
        page.keyboard.press("1")
        page.keyboard.press("u")
        assert title(page) == "Case 4"
        assert "3 of 5,000 decided" in page.inner_text("#progress")
        assert "With the model: 66.7%" in page.inner_text("#agreement")
        page.keyboard.press("?")
        assert page.locator("#keys").is_visible()
        page.uncheck("#single")
        page.keyboard.press("Escape")
        page.locator("#case").focus()
        page.keyboard.press("1")  # single keys are off
        assert "3 of 5,000 decided" in page.inner_text("#progress")
        page.locator("#list").focus()
        page.keyboard.press("End")
        assert title(page) == "Case 5000"
        assert page.locator("#list .item").count() < 40
        without = saved(page, "#save", tmp_path / "saved.csv")
        page.check("#with-time")
        page.uncheck("#with-coder")
        with_time = saved(page, "#save", tmp_path / "time.csv")
        tasks = json.loads(saved(page, "#studio", tmp_path / "tasks.json"))
        assert not [one for one in page.seen if one.startswith("error")]
        hosts = {one.split("/")[2] for one in page.seen if one.startswith("http")}
        assert hosts == {address.split("/")[2]}
        assert (
            page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length")
            == 0
        )
    rows = rows_of(without)
    assert [row["code_by_hand"] for row in rows[:5]] == ["132", "132", "1520", "", ""]
    assert [row["coder"] for row in rows[:4]] == ["ab", "ab", "ab", ""]
    assert len(rows) == 5000
    assert "decided_at" not in rows[0]
    assert set(rows_of(with_time)[0]) >= {"code_by_hand", "decided_at"}
    assert "coder" not in rows_of(with_time)[0]
    stripped = [
        {k: v for k, v in row.items() if k not in {"code_by_hand", "coder"}} for row in rows
    ]
    assert stripped == rows_of(coded(5000))
    assert tasks[0]["predictions"][0]["result"][0]["value"] == {"choices": ["111"]}
    assert tasks[0]["annotations"][0]["result"][0]["value"] == {"choices": ["132"]}
    assert "annotations" not in tasks[4]


def test_a_second_coder_and_an_adjudicator(address: str, tmp_path: Path) -> None:
    """The second sees nothing of the first; agreement comes at the end; two files give the
    disagreements to decide.
    """
    (tmp_path / "coded.csv").write_text(coded(4), newline="")
    with browsing() as page:
        opened(page, address, tmp_path / "coded.csv", coder="first")
        page.select_option("#order", "file")
        page.locator("#case").focus()
        page.keyboard.type("1213")
        first = saved(page, "#save", tmp_path / "first.csv")
        opened(page, address, tmp_path / "first.csv", task="second", coder="second")
        page.select_option("#order", "file")
        page.locator("#case").focus()
        assert "first" not in page.inner_text("body").replace("Look first at", "").replace(
            "first coder's", ""
        )
        assert page.locator("ol.candidates [aria-pressed=true]").count() == 0
        page.keyboard.type("111")
        assert "at the end" in page.inner_text("#agreement")
        page.keyboard.press("1")
        assert "With the first coder: 50.0%" in page.inner_text("#agreement")
        both = saved(page, "#save", tmp_path / "both.csv")
        opened(page, address, tmp_path / "coded.csv", coder="other")
        page.select_option("#order", "file")
        page.locator("#case").focus()
        page.keyboard.type("1111")
        saved(page, "#save", tmp_path / "alone.csv")
        opened(
            page,
            address,
            tmp_path / "first.csv",
            task="adjudicate",
            coder="judge",
            other=tmp_path / "alone.csv",
        )
        page.select_option("#order", "file")
        assert "0 of 2 decided" in page.inner_text("#progress")
        assert title(page) == "Case 2"
        assert "first coder" in page.locator("ol.candidates").inner_text()
        page.locator("#case").focus()
        page.keyboard.type("12")
        assert "2 of 2 decided" in page.inner_text("#progress")
        final = rows_of(saved(page, "#save", tmp_path / "final.csv"))
    one, two = (
        [row["code_by_hand"] for row in rows_of(first)],
        [row["code_by_hand_2"] for row in rows_of(both)],
    )
    assert one == ["111", "1520", "1520", "1972"]
    assert two == ["111", "132", "1520", "1521"]
    assert [row["code_by_hand"] for row in rows_of(both)] == one
    assert {row["coder_2"] for row in rows_of(both)} == {"second"}
    assert [row["code_by_hand_2"] for row in final] == two
    assert [row["coder_2"] for row in final] == ["other"] * 4
    assert [row["code_adjudicated"] for row in final] == [one[0], one[1], one[2], two[3]]


def test_notes_tree_and_search(coder: Coder, tmp_path: Path) -> None:
    """A note per case is saved as text, with formulas escaped, and comes back; groups open beside
    the search and a code of them decides; the search reads descriptions and other forms of a word.
    """
    (tmp_path / "coded.csv").write_text(coded(4), newline="")
    listed = [{"code": code, "title": coder.titles[code]} for code in coder.model.codes]
    known = listed[2]["code"]
    above = groups_of(
        coder.model.codes, classification="x", levels=dict(zip(CODES, "TTUUVV", strict=True))
    )
    grouped = replace(coder, groups=above)
    with serving(grouped, descriptions={known: "Zebrafinches burned"}) as place, browsing() as page:
        opened(page, place, tmp_path / "coded.csv", coder="ab")
        page.select_option("#order", "file")
        page.locator("#case").focus()
        page.keyboard.press("m")
        page.keyboard.type("=1+1 <b>ask</b>")
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        assert page.input_value("#note") == ""
        page.fill("#search", "zebrafinch burns")
        assert page.locator("#results li").all_inner_texts() == [f"{known} {listed[2]['title']}"]
        page.fill("#search", "")
        page.locator(".tree > summary").click()
        page.locator(".tree details summary").first.click()
        page.locator(".tree details button").first.wait_for()
        inside = page.locator(".tree details button").all_inner_texts()
        assert [text.split()[0] for text in inside] == list(CODES[:2])
        check_accessible(page)
        page.locator(".tree details button").nth(1).click()
        assert title(page) == "Case 3"
        assert page.locator(".tree details button").count() == 2, "the tree stays open"
        text = saved(page, "#save", tmp_path / "saved.csv")
        opened(page, place, tmp_path / "saved.csv")
        page.select_option("#order", "file")
        assert page.input_value("#note").lstrip("'") == "=1+1 <b>ask</b>"
        assert not [one for one in page.seen if one.startswith("error")]
    rows = rows_of(text)
    assert [row["note_by_hand"] for row in rows] == ["'=1+1 <b>ask</b>", "", "", ""]
    assert [row["code_by_hand"] for row in rows] == ["", CODES[1], "", ""]


def test_a_narratives_file_is_coded_first(
    address: str, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """By this service, with five candidates; other columns are shown on demand."""
    lines = [("id", "narrative text"), *((str(i), text) for i, text in enumerate(narratives(30)))]
    (tmp_path / "new.csv").write_text(csv_lines(lines), newline="")
    with browsing() as page:
        opened(page, address, tmp_path / "new.csv")
        page.locator("ol.candidates li").nth(4).wait_for()
        assert page.locator("details dt").text_content() == "id"
        assert page.locator("#warnings p").count() == 0
        page.locator("#case").focus()
        page.keyboard.press("1")
        rows = rows_of(saved(page, "#save", tmp_path / "saved.csv"))
    assert sum(bool(row["code_by_hand"]) for row in rows) == 1
    assert all(row["code"] for row in rows)


def test_the_service_warns_of_narratives_that_it_does_not_read(
    address: str, tmp_path: Path
) -> None:
    """Of those that it codes; a file that was coded elsewhere has none."""
    long = "Employee fell from a ladder and fractured his wrist. " * 200
    (tmp_path / "long.csv").write_text(csv_lines([("narrative",), (long,)]), newline="")
    (tmp_path / "coded.csv").write_text(coded(3), newline="")
    with browsing() as page:
        opened(page, address, tmp_path / "long.csv")
        assert page.locator("#warnings p").count() == 1
        assert "1 of 1 narratives" in page.inner_text("#warnings")
        check_accessible(page)
        opened(page, address, tmp_path / "coded.csv")
        assert page.locator("#warnings p").count() == 0


def test_its_arithmetic(address: str) -> None:
    """Kappa by Cohen's own example (1960, table 1), formulas as the writer escapes them, quotes and
    separators.
    """
    table = [
        ("a", "a", 88),
        ("a", "b", 10),
        ("a", "c", 2),
        ("b", "a", 14),
        ("b", "b", 40),
        ("b", "c", 6),
    ]
    table += [("c", "a", 18), ("c", "b", 10), ("c", "c", 12)]
    pairs = [[one, two] for one, two, n in table for _ in range(n)]
    cells = ["=1", "+1", "-5", "-x", "@a", " =1", "\t1", "＝1", "1e5", "x=1", "'=1", "", "-1.5%"]
    with browsing() as page:
        page.goto(address)
        got = page.evaluate("pairs => agreement(pairs)", pairs)
        assert got["share"] == pytest.approx(0.70)
        assert got["kappa"] == pytest.approx(0.492, abs=5e-4)
        assert page.evaluate("cells => cells.map(escapeFormula)", cells) == [
            escape_formula(cell) for cell in cells
        ]
        read = page.evaluate("t => readTable(t)", '\ufeffa;b\r\n"x;""y""\n";2\r\n;\r\n')
        assert read == {"columns": ["a", "b"], "rows": [['x;"y"\n', "2"], ["", ""]]}
        for wrong, words in (
            ("a,b\n1\n", "Row 1"),
            ('a\n"x', "no end"),
            ("a,a\n1,2\n", "same name"),
            ("", "empty"),
        ):
            assert words in page.evaluate(
                "t => { try { readTable(t); } catch (e) { return e.message; } }", wrong
            )


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(1280, "light"), (390, "dark"), pytest.param(390, "light", marks=pytest.mark.long)],
)
def test_it_is_accessible_and_fits(address: str, tmp_path: Path, width: int, scheme: str) -> None:
    """Axe knows no violation of WCAG 2.2 A or AA: form, case, results, help; nothing scrolls
    sideways.
    """
    (tmp_path / "coded.csv").write_text(coded(50), newline="")

    with browsing(width=width, color_scheme=scheme) as page:
        page.goto(address)
        check_accessible(page)
        opened(page, address, tmp_path / "coded.csv")
        page.locator("#narrative mark").first.wait_for(timeout=PATIENCE)
        page.locator("#case").focus()
        page.keyboard.press("1")
        check_accessible(page)
        page.fill("#search", "1")
        page.locator("#results li").first.wait_for()
        check_accessible(page)
        page.click("#help")
        check_accessible(page)
        page.goto(address)
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x>')")
        with pytest.raises(AssertionError, match="image-alt"):
            check_accessible(page)
