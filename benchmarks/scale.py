#!/usr/bin/env python
"""What each stage and each shard costs, measured at two sizes of invented narratives, and what that makes at others.

    python benchmarks/scale.py [--sizes 1000 4000] [--train 1000000] [--code 10000000] [--workers 1 10 100]
    python benchmarks/scale.py --bundle BUNDLE [--sizes 1000 4000] [--code 10000000]    # coding alone, with this bundle

Measured are a retrain with its release, the shards of coding (every piece as a worker does it, then what the asking
run has left to do), and an audit of sixteen reruns, of which a shard has eight at least. A shard of a comparison, one
branch at one seed, is taken as dear as SWAG-PPM's own fits, collections and passes. Seconds are of one core: those of a
stage by the clock, times the processor time of the whole command over its time by the clock, so that a machine which
does other work tells nearly the same. What is said of other sizes is a straight line through the two, and, of several
workers, what shards split divided by their number, in whole shards, each with the start of its run; everything else is
one process's. No run of those sizes was made. docs/scale.md reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

SPLIT = ("risk", "sensitivit")
"""Beginnings of the stages whose draws go as runs of `risk-shard`."""
CHAIN = ("fine-tune", "SWAG", *SPLIT)
"""And of those that a comparison does for each branch and seed."""
RERUNS, LEAST, PIECE = 8, 16, 2048
"""Reruns of a shard, of an audit that says anything, and rows of a piece."""
PIECES = """
import json, sys, time
from pathlib import Path
from storage.tables.reading import survey
from tasks.coding import shards
from tasks.coding.coder import Coder
from tasks.coding.job import run

bundle, data, out = sys.argv[1:]
coder = Coder.open(Path(bundle))
said = {"start": time.process_time()}
table = survey(Path(data), text_columns=("Final Narrative",))
said["survey"] = time.process_time() - said["start"]
job = shards.job_of(coder, table, out=out, column="Final Narrative", top_k=1, threshold=None)
told = shards.told(coder, job, bundle=Path(bundle))

def spread():
    before = time.process_time()
    job.handed_in(coder).mkdir()
    number = sum(1 for _ in job.pieces())
    said["count"] = time.process_time() - before
    shards.PiecesShard(coder, job, told.model_copy(update={"end": number})).compute()
    said["code"] = time.process_time() - before - said["count"]

before = time.process_time()
run(coder, job, spread=spread)
said["merge"] = time.process_time() - before - said["count"] - said["code"]
print(json.dumps(said))
"""
"""Coding as a worker of the queue does it, and what is left to the run that asked; seconds of processor."""


def command(*arguments: str, home: Path) -> dict[str, float]:
    """One `autocoder` command: its seconds by the clock and of processor, and the most memory of any so far, in MB."""
    env = os.environ | {"AUTOCODER_HOME": str(home), "OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "flows.cli", *arguments], env=env, capture_output=True, text=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu, "peak_mb": after.ru_maxrss / 1024}


def stages(home: Path) -> dict[str, float]:
    """Seconds by the clock of each computed stage, from what the run left for Prometheus."""
    found: dict[str, float] = {}
    for file in (home / "private" / "metrics").glob("*.prom"):
        for family in text_string_to_metric_families(file.read_text()):
            if family.name == "autocoder_stage_last_seconds":
                found |= {sample.labels["stage"]: sample.value for sample in family.samples}
    return found


def megabytes(folder: Path) -> float:
    """Size of a folder's files."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6


def measure(folder: Path, records: int, draws: int) -> dict[str, Any]:
    """A whole retrain and release, and a file of as many narratives coded with it."""
    home, data = folder / f"home-{records}", folder / f"data-{records}"
    command("demo-data", "--out", str(data), "--records", str(records), home=home)
    sets = [f"data.ingest.cap_per_code={records}"]
    sets += [f"pseudo_posterior.{name}={draws}" for name in ("risk_draws", "sensitivity_draws")]
    options = [part for one in sets for part in ("--set", one)]
    names = ("--data", str(data / "injuries.csv"), "--codelist", str(data / "codelist.csv"))
    run = command("retrain", "--profile", "demo", *names, *options, home=home)
    share = min(run["cpu"] / run["wall"], 1.0)
    computed, stored = stages(home), megabytes(home / "private" / "stages")
    (bundle,) = (home / "bundles").iterdir()
    (plan,) = (home / "private" / "plans").glob("*.json")
    audit = command("audit", str(plan), "--trials", str(LEAST), home=home)
    (reruns,) = (seconds for name, seconds in stages(home).items() if name.startswith("audit trials"))
    reruns *= min(audit["cpu"] / audit["wall"], 1.0)
    return {
        "stages": {name: seconds * share for name, seconds in computed.items()},
        "outside": run["cpu"] - sum(computed.values()) * share,
        "retrain_cpu": run["cpu"],
        "coding": coding(bundle, Path(names[1]), folder / f"coded-{records}.csv"),
        "audit": {"reruns": reruns * RERUNS / LEAST, "else": audit["cpu"] - reruns},
        "stored_mb": stored,
        "peak_mb": run["peak_mb"],
    }


def coding(bundle: Path, data: Path, out: Path) -> dict[str, float]:
    """Seconds of processor of the parts of a coding job."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"}
    arguments = [sys.executable, "-c", PIECES, str(bundle), str(data), str(out)]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def coding_alone(bundle: Path, records: int) -> dict[str, float]:
    """The same on narratives of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command("demo-data", "--out", folder, "--records", str(records), home=Path(folder) / "home")
        return coding(bundle, Path(folder) / "injuries.csv", Path(folder) / "coded.csv")


def waves(shards: int, workers: int) -> int:
    """How often the busiest of the workers takes a shard."""
    return -(-shards // workers)


def line(sizes: list[int], values: list[float], at: float) -> float:
    """The straight line through two points, never below the larger of them."""
    slope = max((values[1] - values[0]) / (sizes[1] - sizes[0]), 0.0)
    return values[1] + slope * (at - sizes[1])


def coded(sizes: list[int], small: dict[str, float], large: dict[str, float], options: argparse.Namespace) -> Any:
    """A file of `--code` rows, four shards a worker: each reads the file through, and on to its pieces."""
    a_row = {name: (large[name] - small[name]) / (sizes[1] - sizes[0]) for name in ("survey", "count", "code", "merge")}
    read, start = a_row["survey"] + a_row["count"] / 2, min(small["start"], large["start"])
    alone = options.code * (a_row["survey"] + a_row["count"] + a_row["merge"])
    hours = {}
    for workers in options.workers:
        shards = 0 if workers == 1 else min(4 * workers, -(-options.code // PIECE))
        each = waves(shards, workers) * (start + options.code * read)
        hours[workers] = round((alone + each + options.code * a_row["code"] / workers) / 3600, 2)
    return {
        "rows": options.code,
        "microseconds_a_row": {name: round(seconds * 1e6, 1) for name, seconds in a_row.items()},
        "start_of_a_shard": round(start, 1),
        "reading_of_a_shard": round(options.code * read),
        "left_to_the_asking_run_hours": round(alone / 3600, 2),
        "hours_by_workers": hours,
    }


def audited(sizes: list[int], small: dict[str, Any], large: dict[str, Any], options: argparse.Namespace) -> Any:
    """An audit of `--train` records with `--trials` reruns, the asking run beside its workers."""

    def grown(name: str) -> float:
        return line(sizes, [small["audit"][name], large["audit"][name]], 2 * options.train)

    shards, start = -(-options.trials // RERUNS), min(one["coding"]["start"] for one in (small, large))
    hours = {
        workers: (grown("else") + waves(shards, workers) * grown("reruns") + (start if workers > 1 else 0)) / 3600
        for workers in options.workers
    }
    return {
        "shards_at_most": shards,
        "core_hours_a_shard": round(grown("reruns") / 3600, 2),
        "left_to_the_asking_run_hours": round(grown("else") / 3600, 2),
        "hours_by_workers": {workers: round(value, 2) for workers, value in hours.items()},
    }


def compared(grown: dict[str, float], start: float, options: argparse.Namespace) -> Any:
    """A comparison of `--branches` at `--seeds` seeds on `--train` records."""
    chain = sum(seconds for name, seconds in grown.items() if name.startswith(CHAIN))
    shared = sum(grown.values()) - chain
    shards = options.branches * options.seeds
    hours = {n: (shared + waves(shards, n) * (chain + (start if n > 1 else 0))) / 3600 for n in options.workers}
    return {
        "shards": shards,
        "core_hours_a_shard": round(chain / 3600, 2),
        "left_to_the_asking_run_hours": round(shared / 3600, 2),
        "hours_by_workers": {workers: round(value, 2) for workers, value in hours.items()},
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs=2, default=[1000, 4000], help="rows of a file; half of them train")
    parser.add_argument("--bundle", type=Path, help="released bundle: coding with it is measured, and nothing else")
    parser.add_argument("--draws", type=int, default=200, help="draws of each risk and sensitivity pass")
    parser.add_argument("--train", type=int, default=1_000_000, help="records to train on")
    parser.add_argument("--code", type=int, default=10_000_000, help="narratives to code")
    parser.add_argument("--trials", type=int, default=32, help="reruns of an audit")
    parser.add_argument("--branches", type=int, default=5, help="branches of a comparison")
    parser.add_argument("--seeds", type=int, default=5, help="and their seeds")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 100])
    options = parser.parse_args()
    if options.bundle:
        small, large = (coding_alone(options.bundle, size) for size in options.sizes)
        told = coded(options.sizes, small, large, options)
        print(json.dumps({"measured": [small, large], "code": told}, indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        small, large = (measure(Path(folder), size, options.draws) for size in options.sizes)
    sizes, rows = options.sizes, 2 * options.train

    def at_scale(name: str) -> float:
        return line(sizes, [small[name], large[name]], rows)

    names = [name for name in large["stages"] if name in small["stages"]]
    grown = {n: line(sizes, [small["stages"][n], large["stages"][n]], rows) for n in names}
    grown["outside stages"] = at_scale("outside")
    split = sum(seconds for name, seconds in grown.items() if name.startswith(SPLIT))
    serial = sum(grown.values()) - split
    told = {
        "measured": dict(zip(map(str, sizes), (small, large), strict=True)),
        "train": options.train,
        "stage_core_seconds": {name: round(seconds) for name, seconds in sorted(grown.items(), key=lambda i: -i[1])},
        "serial_core_hours": round(serial / 3600, 2),
        "split_core_hours": round(split / 3600, 2),
        "retrain_hours_by_workers": {n: round((serial + split / n) / 3600, 2) for n in options.workers},
        "stored_gb": round(at_scale("stored_mb") / 1000, 1),
        "peak_gb": round(at_scale("peak_mb") / 1000, 1),
        "code": coded(sizes, small["coding"], large["coding"], options),
        "audit": audited(sizes, small, large, options),
        "comparison": compared(grown, small["coding"]["start"], options),
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
