"""The operator's pages in a real browser: the tests and the pictures of the docs take the same
steps. The browser is the system's Chromium; Playwright downloads none. All it asks is on loopback.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Locator, Page, expect, sync_playwright
from stacks import Stack

PATIENCE = 600_000
"""Milliseconds; Playwright's own few seconds are short where runs and servers work beside the
browser.
"""
expect.set_options(timeout=PATIENCE)

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def browsing(stack: Stack, *, width: int = 1280, height: int = 900) -> Iterator[Operator]:
    """A browser that is logged in to the stack's page as the operator."""
    with sync_playwright() as driver:
        # Chromium's own sandbox wants namespaces, which containers and root lack; it opens nothing
        # but our page.
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(PATIENCE)
        hosts: set[str | None] = set()
        page.on("response", lambda response: hosts.add(urlsplit(response.url).hostname))
        operator = Operator(page, stack)
        operator.log_in()
        yield operator
        browser.close()
        assert hosts <= {"127.0.0.1", None, ""}, "the page asked another host than its own"


class Operator:
    """What an operator does on Prefect's page.

    Args:
        page: an empty page.
        stack: whose page it is to open.
    """

    def __init__(self, page: Page, stack: Stack) -> None:
        self.page, self._stack = page, stack
        self._ui = f"{stack.state['ui']}/v2"

    def log_in(self) -> None:
        """Through the form that anyone who has no login is led to."""
        self.page.goto(f"{self._ui}/")
        self.page.wait_for_url("**/login**")
        field = self.page.locator("input")
        field.fill(":".join(self._stack.auth))
        self.page.get_by_role("button", name="Login").click()
        self.page.wait_for_url("**/dashboard**")

    def open_form(self, deployment: str, *, section: str = "Advanced (YAML)") -> None:
        """The custom-run form of a deployment, once its fields are there, the heading of a section
        among them.
        """
        self.page.goto(
            f"{self._ui}/deployments/deployment/{self._stack.deployment(deployment)['id']}/run"
        )
        self.page.get_by_text(section).first.wait_for()

    def fill(self, label: str, value: str) -> Locator:
        """Write into the field of a label, and leave it."""
        found = self.page.locator(f'xpath=//label[starts-with(normalize-space(.),"{label}")]').first
        field = self.page.locator(f"id={found.evaluate('label => label.htmlFor')}")
        field.fill(value)
        field.blur()
        return field

    def submit(self) -> None:
        self.page.get_by_role("button", name="Submit").click()

    def submitted(self) -> str:
        """Id of the run that the form, sent, has made."""
        with self.page.expect_response(lambda r: r.url.endswith("/create_flow_run")) as made:
            self.submit()
        return made.value.json()["id"]

    def open_run(self, run_id: str, *, tab: str | None = None) -> None:
        """A run's page, or a tab of it."""
        self.page.goto(f"{self._ui}/runs/flow-run/{run_id}" + (f"?tab={tab}" if tab else ""))

    def open_artifact(self, artifact_id: str) -> None:
        self.page.goto(f"{self._ui}/artifacts/artifact/{artifact_id}")

    def leave(self) -> None:
        """Leave Prefect's page, whose animations take processor time."""
        self.page.goto("about:blank")

    def settle(self) -> None:
        self.page.wait_for_timeout(2500)

    def picture(self, file: Path, *, full: bool = False) -> None:
        self.page.screenshot(path=file, full_page=full, animations="disabled")

    def menu(self, item: str) -> None:
        """An item of the menu of a run's page."""
        self.page.get_by_role("button", name="Open menu").first.click()
        self.page.get_by_role("menuitem", name=item, exact=True).click()

    def answer(self, decision: str) -> None:
        """Fill the form of a waiting release, which `menu("Resume")` opens, and send it."""
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Signed decision").fill(decision)
        dialog.get_by_role("button", name="Resume", exact=True).click()
