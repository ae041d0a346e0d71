"""Reservations until the disk is full, then room is made and they go on. Prints a JSON object.

Run it where it may mount: `unshare --mount python small_disk.py sqlite FOLDER`. The small disk is a
tmpfs that vanishes with the process's mount namespace.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from cluster import Cluster
from plans import KEY, plan, policy

from storage.errors import StorageError
from storage.ledger import Ledger
from storage.ledger.database import Database, migrate

SIZE = {"sqlite": 2, "postgres": 64}  # MiB


def main() -> None:
    """Arguments: `sqlite` or `postgres`, an empty folder."""
    backend, folder = sys.argv[1], Path(sys.argv[2])
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE[backend]}m", "tmpfs", str(folder)], check=True
    )
    cluster = None
    if backend == "postgres":
        cluster = Cluster(folder)
        cluster.start()
        migrate(Database(cluster.url, lock_timeout=20))
        url = cluster.url
    else:
        url = f"sqlite:///{folder / 'ledger.db'}"
    try:
        _fill(url, folder, cluster)
    finally:
        if cluster is not None and cluster.is_running():
            cluster.stop()


def _fill(url: str, folder: Path, cluster: Cluster | None) -> None:
    ledger = Ledger.open(url, policy=policy(1_000_000), key=KEY)
    answered: list[str] = []

    def reserve() -> None:
        answered.append(ledger.reserve(plan(f"key-{len(answered)}")).release_id or "")

    reserve()
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        file.write(b"\0" * max(0, shutil.disk_usage(folder).free - 600_000))
    errors = []
    for _ in range(2_000):
        try:
            reserve()
        except StorageError as error:
            errors.append(str(error))
            break
    filled = len(answered)
    ballast.unlink()
    if cluster is not None and not cluster.is_running():
        cluster.start()
    for _ in range(5):
        reserve()
    rows = [row.release_id for row in ledger.releases()]
    report = {
        "filled_after": filled,
        "errors": errors,
        "lost": sorted(set(answered) - set(rows)),
        "unanswered": len(set(rows) - set(answered)),
        "answered": len(answered),
        "spent": [float(line.account.epsilon) for line in ledger.budget() if line.used],
        "verify": ledger.verify().problem,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
