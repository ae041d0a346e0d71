"""Releases killed with SIGKILL at every step and at random moments, then recovered and run again.

Prints a JSON object: rounds, where the kills fell, and every broken promise found.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from plans import KEY, plan, policy

from storage.artifacts import file_digest
from storage.bundle import folder as bundle
from storage.errors import StorageError
from storage.ledger import Ledger, ReleaseRow
from storage.ledger.recovery import Step, announce_bundle, draw_path, recover
from storage.paths import Workspace

POINTS = (
    "start",
    "reserved",
    "drawing",
    "linked",
    "marked",
    "building",
    "announced",
    "placed",
    "committed",
)


def measured(draw: bytes) -> float:
    """A sensitivity that depends on the draw: between 0.4 and 0.6 where 0.5 was planned."""
    return 0.4 + 0.2 * draw[0] / 255


def run_release(url: str, home: Path, key: str, reach: Callable[[str], None]) -> ReleaseRow:
    """The protocol of a release, from the start or from wherever an earlier attempt came to."""
    reach("start")
    workspace = Workspace(home)
    ledger = Ledger.open(url, policy=policy(1_000_000), key=KEY)
    row = ledger.reserve(plan(key))
    release_id = row.release_id or ""
    reach("reserved")
    if row.state in ("committed", "burned"):
        return row
    path = draw_path(workspace, release_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{os.getpid()}.new")
    with fresh.open("wb") as file:
        file.write(os.urandom(64))
        reach("drawing")
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    reach("linked")
    draw = path.read_bytes()
    sensitivity = measured(draw)
    row = ledger.mark_drawn(
        release_id, draw_digest=file_digest(path), sensitivity=sensitivity, epsilon=2 * sensitivity
    )
    reach("marked")

    def build(folder: Path) -> None:
        (folder / "model.bin").write_bytes(draw)
        reach("building")
        (folder / "README.md").write_text(f"epsilon {row.epsilon}")
        announce_bundle(workspace, release_id, bundle.bundle_digest(folder))
        reach("announced")

    _, digest = bundle.publish(
        workspace.bundles, release_id, allowed=frozenset({"model.bin", "README.md"}), build=build
    )
    reach("placed")
    row = ledger.commit(release_id, bundle_digest=digest)
    reach("committed")
    return row


def killed(url: str, home: Path, key: str, *, at: str | None, after: float | None) -> None:
    """Run a release in a process of its own that is killed at a named step, or after so many
    seconds.
    """

    def reach(point: str) -> None:
        if point == at:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            run_release(url, home, key, reach)
        finally:
            os._exit(0)
    if after is not None:
        time.sleep(after)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


class Judge:
    """Looks at ledger and files after each kill and each recovery, and remembers what it saw."""

    def __init__(self, url: str, home: Path) -> None:
        self.ledger, self.workspace = Ledger.open(url, key=KEY), Workspace(home)
        self.draws: dict[str, str] = {}
        self.rows: dict[str, ReleaseRow] = {}
        self.problems: list[str] = []

    def look(self, when: str) -> None:
        """Check every promise that holds at any moment."""
        rows = self.rows = {r.release_id: r for r in self.ledger.releases()}
        folder = self.workspace.private / "releases"
        for path in folder.glob("*/draw.safetensors") if folder.is_dir() else ():
            digest, release_id = file_digest(path), path.parent.name
            if self.draws.setdefault(release_id, digest) != digest:
                self.problems.append(f"{when}: a second draw of {release_id}")
            if release_id not in rows:
                self.problems.append(f"{when}: a draw of {release_id} without a row")
        for release_id, row in rows.items():
            if row.draw_digest not in (None, self.draws.get(release_id)):
                self.problems.append(f"{when}: {release_id} recorded another draw")
            path = self.workspace.bundles / release_id
            if row.state == "committed":
                if not path.is_dir() or bundle.bundle_digest(path) != row.bundle_digest:
                    self.problems.append(f"{when}: {release_id} committed without its bundle")
                elif (
                    hashlib.sha256((path / "model.bin").read_bytes()).hexdigest() != row.draw_digest
                ):
                    self.problems.append(f"{when}: the bundle of {release_id} holds another draw")
        for path in self.workspace.bundles.iterdir():
            if not path.name.startswith(".") and (
                path.name not in rows or rows[path.name].state not in ("drawn", "committed")
            ):
                self.problems.append(f"{when}: bundle {path.name} without its row")
        # What was drawn may cost more than what its row says only until it is marked drawn.
        owed = sum((row.epsilon or Decimal(0) for row in rows.values()), Decimal(0))
        for line in self.ledger.budget():
            if line.used and line.account.epsilon < owed:
                self.problems.append(f"{when}: spent {line.account.epsilon} of {owed} owed")


def main() -> None:
    """Arguments: ledger URL, workspace, random kills, seed."""
    url, home, rounds, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    Workspace(home).create()
    random_ = random.Random(seed)
    for warm in range(2):
        killed(url, home, f"warm-{warm}", at=None, after=None)
    start = time.monotonic()
    killed(url, home, "warm-2", at=None, after=None)
    usual = time.monotonic() - start
    judge = Judge(url, home)
    judge.look("warm")
    states: Counter[str] = Counter()
    kills = [(point, None) for point in POINTS] + [
        (None, random_.uniform(0, 1.3 * usual)) for _ in range(rounds)
    ]
    for number, (at, after) in enumerate(kills):
        before = set(judge.rows)
        key = f"release-{number}"
        killed(url, home, key, at=at, after=after)
        judge.look(f"{key} killed {at or after}")
        new = [row for release_id, row in judge.rows.items() if release_id not in before]
        states[new[0].state if new else "nothing"] += 1
        # Half of the releases are recovered manually before they run again; the others run again
        # straight away.
        if number % 2:
            findings = recover(judge.ledger, judge.workspace)
            judge.problems += [
                f"{key}: recover found {f.step}: {f.why}" for f in findings if f.step in UNEXPECTED
            ]
        row = run_release(url, home, key, lambda point: None)
        judge.look(f"{key} run again")
        if row.state != "committed":
            judge.problems.append(f"{key}: {row.state} after it ran again")
    report = judge.ledger.verify()
    if not report.ok:
        judge.problems.append(report.problem)
    releases = judge.rows.values()
    owed = sum((row.epsilon or Decimal(0) for row in releases), Decimal(0))
    spent = {line.account.epsilon for line in judge.ledger.budget() if line.used}
    if spent != {owed}:
        judge.problems.append(f"at the end spent {spent}, owed {owed}")
    sys.stdout.write(
        json.dumps(
            {
                "kills": len(kills),
                "found": states,
                "releases": len(releases),
                "problems": judge.problems,
            }
        )
    )


UNEXPECTED = (Step.BURN, Step.STRAY_BUNDLE, Step.LOST_BUNDLE)

if __name__ == "__main__":
    try:
        main()
    except StorageError as error:
        sys.exit(f"{type(error).__name__}: {error}")
