"""What tests of our own pages share: a browser, WCAG 2.2 by axe, a service on loopback, files of
coded rows.
"""

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import uvicorn

from service.app import Settings, create_app
from storage.tables.writer import csv_lines

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
PATIENCE = 120_000
AXE = Path(__file__).parent / "axe.min.js"
CODES = ("111", "132", "1520", "1521", "1522", "1972")
HEADER = (
    "case",
    "narrative",
    "code",
    "title",
    "score",
    "code_2",
    "score_2",
    "code_3",
    "score_3",
    "needs_review",
)
TAIL = ("set", "set_size", "conflicts", "model")


def coded(n: int, *, texts: Sequence[str] = ()) -> str:
    """A file of n coded rows: scores rise with the row, every third has a set of three, row 3 a
    contradiction.
    """
    rows: list[tuple[str, ...]] = [HEADER + TAIL]
    for i in range(n):
        text = (
            texts[i]
            if i < len(texts)
            else f"Employee {i} fell from a ladder and fractured his wrist."
        )
        one, two, three = (CODES[(i + k) % 6] for k in range(3))
        score = round(0.2 + 0.7 * i / n, 4)
        members = f"{one}; {two}; {three}" if i % 3 == 0 else one
        conflict = "nature 111 with event 4: never" if i == 2 else ""
        answer = (one, "title", score, two, 0.1, three, 0.05, str(score < 0.5).lower())
        rows.append(
            (
                str(i),
                text,
                *map(str, answer),
                members,
                str(members.count(";") + 1),
                conflict,
                "tiny",
            )
        )
    return csv_lines(rows)


@contextmanager
def serving(coder: Any, **settings: Any) -> Iterator[str]:
    """The service on a free port of loopback, without a key."""
    config = uvicorn.Config(create_app(coder, Settings(**settings)), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the service ended before it answered"
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/review"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def browsing(*, width: int = 1280, height: int = 900, **more: Any) -> Iterator[Any]:
    """A page of a fresh browser, and what it asked for and complained of in `page.seen`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page: Any = browser.new_page(viewport={"width": width, "height": height}, **more)
        page.set_default_timeout(PATIENCE)
        page.seen = []
        page.on("request", lambda request: page.seen.append(request.url))
        page.on("pageerror", lambda error: page.seen.append(f"error {error}"))
        page.on(
            "dialog", lambda dialog: (page.seen.append(f"dialog {dialog.type}"), dialog.accept())
        )
        yield page
        browser.close()


def check_accessible(page: Any) -> None:
    """Axe knows no violation of WCAG 2.2 A or AA in what is shown, and nothing scrolls sideways."""
    levels = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']"
    run = f"axe.run({{runOnly: {levels}, resultTypes: ['violations']}})"
    page.evaluate(AXE.read_text(encoding="utf-8"))
    faults = page.evaluate(
        f"{run}.then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html + "
        "n.failureSummary)]))"
    )
    assert faults == [], faults
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def check_accessible_file(*files: Path) -> None:
    """The same of finished pages: on a light screen and a dark phone; each asks for nothing but
    itself.
    """
    with browsing() as page:
        for file, (width, scheme) in product(files, ((1280, "light"), (390, "dark"))):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.goto(file.as_uri())
            check_accessible(page)
        assert set(page.seen) == {file.as_uri() for file in files}


def opened(
    page: Any,
    address: str,
    file: Path,
    *,
    task: str = "review",
    coder: str = "",
    other: Path | None = None,
) -> None:
    """Open a file and wait for its first case."""
    page.goto(address)
    page.select_option("#task", task)
    page.fill("#coder", coder)
    page.set_input_files("#file", file)
    if other is not None:
        page.set_input_files("#other", other)
    page.wait_for_function(
        "!document.getElementById('column').disabled || "
        "document.getElementById('problem').textContent"
    )
    page.click("#start")
    page.locator("#work:not([hidden]) #case, #problem:not(:empty)").first.wait_for()


def saved(page: Any, button: str, path: Path) -> str:
    with page.expect_download() as download:
        page.click(button)
    download.value.save_as(path)
    return path.read_text(encoding="utf-8")
