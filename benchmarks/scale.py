#!/usr/bin/env python
"""What each stage costs a record, measured at two sizes of invented narratives, and what that makes at other sizes.

    python benchmarks/scale.py [--sizes 1000 4000] [--train 1000000] [--code 10000000] [--workers 1 10 100]

Seconds are of one core: those of a stage by the clock, times the processor time of the whole command over its time by
the clock, so that a machine which does other work tells nearly the same. What is said of other sizes is a straight line
through the two, and, of several workers, the passes that `--shards` splits divided by their number; everything else is
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
    (bundle,) = (home / "bundles").iterdir()
    coding = ("code", "--bundle", str(bundle), "--data", names[1], "--column", "Final Narrative")
    coded = command(*coding, "--out", str(folder / f"coded-{records}.csv"), home=home)
    return {
        "stages": {name: seconds * share for name, seconds in stages(home).items()},
        "outside": run["cpu"] - sum(stages(home).values()) * share,
        "retrain_cpu": run["cpu"],
        "code_cpu": coded["cpu"],
        "stored_mb": megabytes(home / "private" / "stages"),
        "peak_mb": run["peak_mb"],
    }


def line(sizes: list[int], values: list[float], at: float) -> float:
    """The straight line through two points, never below the larger of them."""
    slope = max((values[1] - values[0]) / (sizes[1] - sizes[0]), 0.0)
    return values[1] + slope * (at - sizes[1])


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs=2, default=[1000, 4000], help="rows of a file; half of them train")
    parser.add_argument("--draws", type=int, default=200, help="draws of each risk and sensitivity pass")
    parser.add_argument("--train", type=int, default=1_000_000, help="records to train on")
    parser.add_argument("--code", type=int, default=10_000_000, help="narratives to code")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 100])
    options = parser.parse_args()
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
    row = (large["code_cpu"] - small["code_cpu"]) / (sizes[1] - sizes[0])
    told = {
        "measured": dict(zip(map(str, sizes), (small, large), strict=True)),
        "train": options.train,
        "stage_core_seconds": {name: round(seconds) for name, seconds in sorted(grown.items(), key=lambda i: -i[1])},
        "serial_core_hours": round(serial / 3600, 2),
        "split_core_hours": round(split / 3600, 2),
        "retrain_hours_by_workers": {n: round((serial + split / n) / 3600, 2) for n in options.workers},
        "stored_gb": round(at_scale("stored_mb") / 1000, 1),
        "peak_gb": round(at_scale("peak_mb") / 1000, 1),
        "code": options.code,
        "narratives_a_core_second": round(1 / row, 1),
        "code_hours_by_workers": {n: round(options.code * row / n / 3600, 2) for n in options.workers},
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
