#!/usr/bin/env python
"""Draws the diagrams of the docs (scripts/diagrams.py) and takes their screenshots: an approver's
page, Prefect's page during the steps of the browser test, and the service's pages.

    python scripts/screenshots.py [--out docs] [--stack FOLDER]

plan-page.png shows the plan of the tutorial on own data. Then the script starts a stack on
synthetic narratives (or uses the stack that `make stack` is running in FOLDER), starts a training
run, lets its release wait, and writes form.png, release-plan.png and waiting-release.png. Then the
officer signs, and the service codes with the released bundle: service-page.png, review-page.png.
shown.json records the content of each picture, and tests compare it with the program. Needs
Chromium (Debian: chromium).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e")]

import diagrams  # noqa: E402  (in this folder)
from browser import PATIENCE, browsing, chromium  # noqa: E402  (not a package)
from playwright.sync_api import Page, sync_playwright  # noqa: E402
from runs import ended, in_state, release_run, releases, small, start  # noqa: E402
from stacks import Stack, missing, started, with_officer  # noqa: E402

NARRATIVES = (
    "Employee fell from a ladder and broke his left wrist.",
    "Worker hurt.",
    "<img src=x onerror=alert(1)> burned by hot oil",
)
"""The last one shows that input is displayed as text."""
REVIEWED = (
    "Employee slipped on a wet floor and sprained his ankle.",
    "Cook spilled hot oil from a fryer and burned both forearms.",
    (
        "Employee was changing a light bulb when the ladder slid; he fell about six feet and "
        "fractured his left wrist."
    ),
    "A worker cleared a jam; the conveyor caught his hand and two fingers were amputated.",
)


def take_plan(picture: Path) -> None:
    """Trains as in the tutorial on own data, and captures the top of the plan's page."""
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: str) -> str:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            line = [sys.executable, "-m", "flows.cli", *command]
            return subprocess.run(
                line, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
            ).stdout

        run("demo-data", "--out", "demo", "--records", "1800")
        columns = ("--text", "Final Narrative", "--label", "Nature", "--population", "my-records")
        codes = (
            "--codelist",
            "demo/codelist.csv",
            "--classification",
            "OIICS",
            "--classification-version",
            "2.01",
        )
        rest = ("--epsilon", "2", "--home", "work", "--json")
        trained = json.loads(
            run(
                "retrain",
                "--profile",
                "formal",
                "--data",
                "demo/injuries.csv",
                *codes,
                *columns,
                *rest,
            )
        )
        plan = Path(trained["plan"]).resolve().relative_to(Path(folder).resolve())
        run("plan", str(plan), "--html", "plan.html")
        with page_at((Path(folder) / "plan.html").as_uri(), width=1000, height=900) as page:
            charts = page.locator(".charts").bounding_box()
            assert charts is not None
            down = round(charts["y"] + charts["height"])
            page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": 1000, "height": down})
            drawn = page.locator("figure.chart figcaption").all_inner_texts()
            record(picture, charts=drawn)


def record(picture: Path, **facts: Any) -> None:
    """Records the content of a picture, for the test that compares it with the program."""
    facts["size"] = struct.unpack(">2I", picture.read_bytes()[16:24])
    file = picture.with_name("shown.json")
    recorded = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    text = json.dumps(
        recorded | {picture.name: facts}, indent=1, ensure_ascii=False, sort_keys=True
    )
    file.write_text(text + "\n", encoding="utf-8")


@contextmanager
def page_at(address: str, *, width: int, height: int) -> Iterator[Page]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        yield page
        browser.close()


def take(stack: Stack, out: Path) -> None:
    officer = with_officer(stack)
    run_id = start(stack, "retrain/demo", small(stack)).json()["id"]
    with browsing(stack, width=1200, height=1500) as operator:
        operator.open_form("retrain/formal")
        operator.settle()
        operator.picture(out / "form.png")
        labels = operator.page.locator("label").all_inner_texts()
        record(out / "form.png", labels=[label.strip() for label in labels if label.strip()])
    with browsing(stack, width=1200, height=800) as operator:
        done = stack.wait("the retrain's end", lambda: ended(stack, run_id))
        if done["state_type"] != "COMPLETED":
            sys.exit(f"the retrain ended {done['state_type']}: {done['state']['message']}")
        (plan,) = [a for a in stack.artifacts(run_id) if a["key"] == "release-plan"]
        operator.open_artifact(plan["id"])
        operator.page.get_by_text("asymptotic-local").first.wait_for()
        operator.settle()
        operator.picture(out / "release-plan.png")
        record(out / "release-plan.png")

        release = stack.wait("the release run", lambda: release_run(stack, run_id))
        stack.wait("its suspension", lambda: in_state(stack, release["id"], "PAUSED"))
        operator.open_run(release["id"])
        operator.menu("Resume")
        operator.page.get_by_role("dialog").get_by_label("Signed decision").wait_for()
        operator.settle()
        operator.picture(out / "waiting-release.png")
        record(out / "waiting-release.png")

    signed = stack.command(
        "approve", release["parameters"]["plan"], "--key", str(officer), "--yes", "--post"
    )
    if signed.returncode:
        sys.exit(f"the officer could not sign: {signed.stderr}")
    stack.wait("the release", lambda: in_state(stack, release["id"], "COMPLETED"))
    (row,) = releases(stack, of_run=run_id)
    with serving(stack, stack.home / "bundles" / str(row.release_id)) as address:
        take_service(address, out / "service-page.png")
        take_review(address, out / "review-page.png")


@contextmanager
def serving(stack: Stack, bundle: Path) -> Iterator[str]:
    """Yields the address of the service, which codes with this bundle inside the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "serve",
        "--bundle",
        str(bundle),
        "--no-key",
        "--allow-unsigned",
    ]
    address = f"http://127.0.0.1:{port}/"
    process = subprocess.Popen(
        [*command, "--port", str(port)], env=stack.environment(), stdout=subprocess.DEVNULL
    )

    def answers() -> bool:
        if process.poll() is not None:
            sys.exit("the service ended before it answered")
        with suppress(OSError):
            return urllib.request.urlopen(address, timeout=5).status == 200
        return False

    try:
        stack.wait("the service's answer", answers)
        yield address
    finally:
        process.terminate()
        process.wait()


def take_service(address: str, picture: Path) -> None:
    """Codes three narratives, and captures the answers below the field for a file."""
    with page_at(address, width=1000, height=1000) as page:
        page.fill("#text", "\n".join(NARRATIVES))
        page.click("#go")
        page.locator("#results").get_by_text(NARRATIVES[0]).wait_for()
        page.screenshot(path=picture, full_page=True)
        record(picture)


def take_review(address: str, picture: Path) -> None:
    """Codes and reviews a file of synthetic narratives, and decides two cases."""
    rows = "".join(f'{number},"{text}"\n' for number, text in enumerate(REVIEWED * 40, start=1))
    with page_at(f"{address}review", width=1280, height=800) as page:
        page.fill("#coder", "ab")
        file = {
            "name": "reports.csv",
            "mimeType": "text/csv",
            "buffer": f"case,narrative\n{rows}".encode(),
        }
        page.set_input_files("#file", cast(Any, file))
        page.fill("#threshold", "0.5")
        page.locator("#column:enabled").wait_for()
        page.click("#start")
        page.locator("#work:not([hidden])").wait_for()
        page.select_option("#order", "file")
        page.locator("#case").focus()
        page.keyboard.type("11")
        page.locator("#narrative mark").first.wait_for()
        page.screenshot(path=picture)
        record(picture)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "pictures", help="folder of the pictures"
    )
    parser.add_argument("--stack", type=Path, help="folder of a running stack")
    options = parser.parse_args()
    lacking = missing() if options.stack is None else None
    if chromium() is None:
        lacking = "Chromium is missing (Debian: chromium)"
    if lacking:
        sys.exit(f"screenshots: {lacking}")
    diagrams.main()
    take_plan(options.out / "plan-page.png")
    with nullcontext(Stack(options.stack)) if options.stack else started() as stack:
        take(stack, options.out)


if __name__ == "__main__":
    main()
