#!/usr/bin/env python
"""The pictures of Prefect's page in the docs, taken of a real stack by the steps that the browser's test takes.

    python scripts/screenshots.py [--out docs] [--stack FOLDER]

Starts a stack on invented narratives (or uses the one that `make stack` is running in FOLDER), has a retrain run and
its release wait, and writes form.png, run-page.png, release-plan.png and waiting-release.png. Needs Chromium (Debian:
chromium).
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e")]

from browser import browsing, chromium  # noqa: E402  (not a package)
from runs import ended, in_state, release_run, small, start  # noqa: E402
from stacks import Stack, missing, started, with_officer  # noqa: E402


def take(stack: Stack, out: Path) -> None:
    """Run a small retrain and take the pictures."""
    with_officer(stack)
    run_id = start(stack, "retrain/demo", small(stack)).json()["id"]
    with browsing(stack, width=1200, height=800) as operator:
        operator.open_form("retrain/demo")
        operator.settle()
        operator.picture(out / "form.png")

        done = stack.wait("the retrain's end", lambda: ended(stack, run_id))
        if done["state_type"] != "COMPLETED":
            sys.exit(f"the retrain ended {done['state_type']}: {done['state']['message']}")
        operator.open_run(run_id)
        operator.page.get_by_text("Completed").first.wait_for()
        operator.settle()
        operator.picture(out / "run-page.png")

        (plan,) = [a for a in stack.artifacts(run_id) if a["key"] == "release-plan"]
        operator.open_artifact(plan["id"])
        operator.page.get_by_text("asymptotic-local").first.wait_for()
        operator.settle()
        operator.picture(out / "release-plan.png")

        asked = stack.wait("the release run", lambda: release_run(stack, run_id))
        stack.wait("its suspension", lambda: in_state(stack, asked["id"], "PAUSED"))
        operator.open_run(asked["id"])
        operator.menu("Resume")
        operator.page.get_by_role("dialog").get_by_text("asymptotic-local").first.wait_for()
        operator.settle()
        operator.picture(out / "waiting-release.png")


def main() -> None:
    """Check what is needed, take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the pictures")
    parser.add_argument("--stack", type=Path, help="folder of a stack that is running")
    options = parser.parse_args()
    lacking = missing() if options.stack is None else None
    if chromium() is None:
        lacking = "Chromium is missing (Debian: chromium)"
    if lacking:
        sys.exit(f"screenshots: {lacking}")
    with nullcontext(Stack(options.stack)) if options.stack else started() as stack:
        take(stack, options.out)


if __name__ == "__main__":
    main()
