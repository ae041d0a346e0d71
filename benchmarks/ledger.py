"""Measures the speed of the release ledger: rows replayed per second, and the overhead of a
release.

Every command replays the whole ledger once; within a process only new rows are replayed. Of every
four rows, three are the signed states of a release over four cohorts, and one is a blocked plan. In
addition, it measures a rolling window of eight quarters that is retrained each quarter, with the
marks of its records. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from mechanisms.privacy.events import Claim, GaussianReleaseEvent, SwagPpmEvent
from storage.ledger import BudgetRefused, Ledger, Policy, ReleasePlan
from storage.ledger.database import Database, migrate
from storage.ledger.entries import Blocked
from storage.ledger.records import RecordSet

COHORTS = ("2023", "2024", "2025", "2026")
ROLLING_NOISE = 4.2246860589417805
"""Noise multiplier of one Gaussian release of (1, 1e-6)."""
KEY = ec.generate_private_key(ec.SECP256R1())
"""Key of the releasing worker."""
POLICY = Policy.parse(
    {"name": "benchmark", "default": {"asymptotic-local": {"epsilon": 100_000_000}}}
)


def plan(key: str) -> ReleasePlan:
    return ReleasePlan(
        idempotency_key=key,
        release_label="quarterly autocoder",
        population="injuries",
        cohorts=COHORTS,
        data_fingerprint="f" * 64,
        records_rounded=86_210,
        event=SwagPpmEvent(
            reweighted=True, snapshots=20, rank=20, sensitivity_draws=500, sensitivity=2.175390625
        ),
        claim=Claim(
            guarantee_kind="asymptotic-local",
            epsilon=4.35078125,
            delta_text="O(n^-1/2), not quantified",
            sensitivity=2.175390625,
            epsilon_add_remove=2.175390625,
            draws=500,
            mc_failure_prob=1 / 501,
            neighbouring_relation="replace-one",
            accountant="autocoder 0.3.0",
            assumptions=(
                "the SWAG Gaussian stands for the posterior",
                "the model is well specified",
            ),
            unprotected_inputs=("weights", "sensitivity", "k", "label set", "n"),
        ),
        trust_model="central: the agency trains, partners get one draw",
        randomness_source="operating system",
        floating_point_caveat="float32 weights; not hardened against floating-point attacks",
        code_commit="0" * 40,
        code_dirty=False,
        lock_digest="1" * 64,
        parameters_digest="2" * 64,
        artifact_digests={"posterior": "3" * 64, "weights": "4" * 64},
        requester="operator",
    )


def blocked(number: int) -> Blocked:
    """Returns the row of a plan that an audit blocked."""
    return Blocked(
        plan_digest="f" * 64,
        audit_row=number,
        line="claimed ε 4, measured at least ε 5: contradicted",
        requester="operator",
    )


def fill(ledger: Ledger, rows: int, *, every: int) -> None:
    """Fills a ledger up to `rows` rows. Of every `every` rows, three are the states
    of one release.
    """
    reserved = ledger.reserve(plan("first"))
    ledger.burn(reserved.release_id or "", reason="benchmark")
    written = ledger.head()[0]
    while written < rows:
        if written % every == 0 and rows - written >= 3:
            release_id = ledger.reserve(plan(f"fill-{written}")).release_id or ""
            ledger.mark_drawn(release_id, draw_digest="5" * 64)
            ledger.commit(release_id, bundle_digest="6" * 64)
            written += 3
        else:
            ledger.note(blocked(written))
            written += 1


def measure_fold(url: str, repeats: int) -> dict[str, float]:
    """Returns rows per second of a replay and of a full verification, and seconds
    of a reservation, cold and warm.
    """
    ledger = Ledger.open(url, key=KEY)
    start = time.process_time()
    rows = ledger.state().sequence
    folded = time.process_time() - start
    start = time.process_time()
    report = ledger.verify()
    verified = time.process_time() - start
    if not report.ok:
        raise SystemExit(f"the benchmark's own ledger is invalid: {report.problem}")
    seconds = []
    for number in range(repeats):
        start = time.perf_counter()
        ledger.reserve(plan(f"timed-{number}"))
        seconds.append(time.perf_counter() - start)
    fresh = Ledger.open(url, key=KEY)
    start = time.perf_counter()
    fresh.reserve(plan("cold"))
    return {
        "rows": rows,
        "folded_rows_per_cpu_second": rows / folded,
        "verified_rows_per_cpu_second": rows / verified,
        "reservation_seconds": statistics.median(seconds),
        "reservation_seconds_of_a_new_process": time.perf_counter() - start,
    }


def measure_rolling(folder: Path, *, quarters: int, window: int, records: int) -> dict[str, object]:
    """Returns time and size of releases over a rolling window, each trained on the records of
    `window` quarters.

    Each record has two marks, of its id and of its narrative. A release for a new quarter shares
    records with the preceding releases, and is therefore charged to their accounts as well.
    """
    cap = {"formal": {"epsilon": 10, "delta": "0.001"}}
    file = folder / "rolling.db"
    ledger = Ledger.open(
        f"sqlite:///{file}", policy=Policy.parse({"name": "rolling", "default": cap}), key=KEY
    )
    event = GaussianReleaseEvent(
        what="a vector", noise_multiplier=ROLLING_NOISE, l2_sensitivity=1.0
    )
    claim = Claim(
        guarantee_kind="formal",
        epsilon=1.0,
        delta=1e-6,
        neighbouring_relation="add-remove",
        accountant="benchmark",
    )
    seconds: list[float] = []
    refusal = ""
    for quarter in range(quarters):
        names = [f"q{number}" for number in range(max(0, quarter - window + 1), quarter + 1)]
        marks = RecordSet.of(
            (
                f"{kind} {name} {number}".encode()
                for name in names
                for number in range(records)
                for kind in ("id", "narrative")
            ),
            key=b"k" * 32,
        )
        values = {
            "event": event,
            "claim": claim,
            "cohorts": tuple(names),
            "data_fingerprint": f"{quarter:064d}",
        }
        start = time.perf_counter()
        try:
            ledger.reserve(plan(f"q{quarter}").model_copy(update=values), records=marks)
        except BudgetRefused as refused:
            refusal = f"quarter {quarter + 1}: {refused}"
            break
        seconds.append(time.perf_counter() - start)
    return {
        "quarters": len(seconds),
        "records_a_quarter": records,
        "median_seconds": statistics.median(seconds),
        "slowest_seconds": max(seconds),
        "megabytes_a_year": file.stat().st_size / 1e6 / (len(seconds) / 4),
        "most_spent": max(float(line.account.epsilon) for line in ledger.budget()),
        "refusal": refusal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--postgres", help="also an empty database: postgresql+psycopg://…")
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--quarters", type=int, default=40, help="quarters of the rolling window")
    parser.add_argument(
        "--records", type=int, default=100_000, help="records per quarter of the rolling window"
    )
    options = parser.parse_args()
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        urls = {"sqlite": f"sqlite:///{folder}/ledger.db"} | (
            {"postgres": options.postgres} if options.postgres else {}
        )
        for name, url in urls.items():
            migrate(Database(url, lock_timeout=60))
            fill(Ledger.open(url, policy=POLICY, key=KEY), options.rows, every=4)
            result[name] = measure_fold(url, 50)
        if options.quarters:
            result["rolling"] = measure_rolling(
                Path(folder), quarters=options.quarters, window=8, records=options.records
            )
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
