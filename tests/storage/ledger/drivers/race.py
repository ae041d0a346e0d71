"""Processes race for a budget that fits ten reservations. Prints a JSON list: for each round, how
many got one.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

from plans import CAP, KEY, plan, policy

from storage.ledger import BudgetRefused, Ledger


def work(url: str, worker: int, rounds: int, barrier: Any, results: Any) -> None:
    """Reserve once a round, all workers at the same moment."""
    for round_ in range(rounds):
        key = f"{round_}-{worker}"
        barrier.wait()
        try:
            Ledger.open(url, policy=policy(), key=KEY).reserve(
                plan(key, population=f"round-{round_}")
            )
            results.put((round_, "granted"))
        except BudgetRefused:
            results.put((round_, "refused"))
        except BaseException as error:
            results.put((round_, f"{type(error).__name__}: {error}"))


def main() -> None:
    """Arguments: ledger URL, processes, rounds."""
    url, workers, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(target=work, args=(url, worker, rounds, barrier, results))
        for worker in range(workers)
    ]
    for process in processes:
        process.start()
    found: list[list[str]] = [[] for _ in range(rounds)]
    for _ in range(workers * rounds):
        round_, outcome = results.get(timeout=300)
        found[round_].append(outcome)
    for process in processes:
        process.join()
    ledger = Ledger.open(url)
    sums = {line.account.population: float(line.account.epsilon) for line in ledger.budget()}
    report = {
        "granted": [outcomes.count("granted") for outcomes in found],
        "refused": [outcomes.count("refused") for outcomes in found],
        "errors": [o for outcomes in found for o in outcomes if o not in ("granted", "refused")],
        "spent": [sums[f"round-{round_}"] for round_ in range(rounds)],
        "cap": CAP,
        "verify": ledger.verify().problem,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
