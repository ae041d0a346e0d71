"""Reservations go on while their PostgreSQL server is stopped dead and started again. Prints a JSON
object.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from cluster import Cluster
from plans import KEY, plan, policy

from storage.ledger import Ledger
from storage.ledger.database import ConnectionLost, Database, migrate


def main() -> None:
    """Arguments: an empty folder, restarts."""
    cluster = Cluster(Path(sys.argv[1]))
    cluster.start()
    try:
        migrate(Database(cluster.url, lock_timeout=20))
        ledger = Ledger.open(cluster.url, policy=policy(1_000_000), key=KEY)
        answered: list[str] = []
        failures: list[str] = []
        stop = threading.Event()

        def reserve() -> None:
            try:
                while not stop.is_set():
                    # The ledger itself continues after a short absence; after a longer one it says
                    # that repeating is safe, and this takes it at its word.
                    with suppress(ConnectionLost):
                        answered.append(
                            ledger.reserve(plan(f"key-{len(answered)}")).release_id or ""
                        )
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")

        def wait_for(count: int) -> None:
            while len(answered) < count and worker.is_alive():
                time.sleep(0.01)

        worker = threading.Thread(target=reserve)
        worker.start()
        at_restarts = []
        for _ in range(int(sys.argv[2])):
            wait_for(len(answered) + 20)
            at_restarts.append(len(answered))
            cluster.stop("immediate")
            cluster.start()
        wait_for(len(answered) + 20)
        stop.set()
        worker.join()
        rows = [row.release_id for row in ledger.releases()]
        report = {
            "answered": len(answered),
            "answered_at_restarts": at_restarts,
            "recorded": len(rows),
            "lost": sorted(set(answered) - set(rows)),
            "spent": [float(line.account.epsilon) for line in ledger.budget() if line.used],
            "failures": failures,
            "verify": ledger.verify().problem,
        }
        sys.stdout.write(json.dumps(report))
    finally:
        if cluster.is_running():
            cluster.stop()


if __name__ == "__main__":
    main()
