#!/usr/bin/env python
"""Measures the peak memory of prior descent's fit on different numbers of generated features, each
in a process of its own.

    python benchmarks/memory.py [--records 10000 100000 1000000] [--steps 5]

Claim: it does not grow with the number of records, except for their labels (8 bytes each). Peak
memory is the kernel's high-water mark, including libraries and mapped files. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import workload

from mechanisms.mechanism import Records, Run, Task
from mechanisms.model import inputs
from mechanisms.prior_descent import PriorDescent

WIDTH, BLOCK = 384, 10_000


def status(name: str) -> int:
    """Returns a figure of this process in MiB."""
    (value,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(value) // 1024


def fit(file: Path, records: int, steps: int) -> dict[str, float]:
    """Fits in this process. Returns seconds, and memory before the fit and at its peak."""
    mechanism = PriorDescent(target_epsilon=1.0, delta=1e-7, steps=steps)
    plan = mechanism.plan(Task(records=records, classes=workload.LABELS))
    features, labels = inputs.load(file), workload.labels(records)
    run = Run(
        workload.LABELS,
        0,
        lambda: workload.linear_head(WIDTH, workload.LABELS),
        file.parent / "fit",
    )
    before, started = status("VmRSS"), time.perf_counter()
    plan.fit(Records(features, labels), run)
    return {
        "records": records,
        "features_mib": records * WIDTH * 4 >> 20,
        "seconds": round(time.perf_counter() - started, 1),
        "before_mib": before,
        "peak_mib": status("VmHWM"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="to fit"
    )
    parser.add_argument("--steps", type=int, default=5, help="steps of the descent (default: 5)")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file:
        print(json.dumps(fit(options.file, options.records[0], options.steps)))
        return
    results = []
    for records in options.records:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "features.safetensors"
            blocks = (
                torch.rand(min(BLOCK, records - done), WIDTH) for done in range(0, records, BLOCK)
            )
            inputs.save_features(file, (records, WIDTH), blocks)
            command = [
                sys.executable,
                __file__,
                "--records",
                str(records),
                "--steps",
                str(options.steps),
            ]
            done = subprocess.run(
                [*command, "--file", str(file)], stdout=subprocess.PIPE, check=True
            )
            results.append(json.loads(done.stdout))
    print(json.dumps({"results": results}, indent=1))


if __name__ == "__main__":
    main()
