"""Ingest of a million rows: seconds on one core, peak memory, and the ratio to reading the file with pandas alone.

The claim: under 2 minutes and under 2 GB, whatever is capped. Rows are generated (long tail, quotes, line breaks) and
written with `storage.demo_data`; every measurement runs in a process of its own, on one core, in the same run.
`--cap 0` samples all rows, the worst case for memory.
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

ONE_CORE = {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}


def measure(what: str, source: Path, out: Path, cap: int) -> dict[str, float]:
    """Runs one measurement in a fresh process: seconds and the peak memory of that process, imports included."""
    command = [sys.executable, __file__, "--measure", what, str(source), str(out), "--cap", str(cap)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | ONE_CORE)
    return json.loads(done.stdout)


def inside(what: str, source: Path, out: Path, cap: int) -> dict[str, float]:
    """Measures this process."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if what == "pandas":
        import pandas as pd

        start = time.perf_counter()
        pd.read_csv(source)
        seconds = time.perf_counter() - start
    else:
        from storage.ingest import IngestConfig, ingest

        config = IngestConfig(unit_column="Establishment", max_per_unit=5, cap_per_code=cap or None)
        start = time.perf_counter()
        ingest(source, out, config, source.with_name("codelist.csv"))
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": round(seconds, 2), "peak_mb": round(peak / 1e6)}


def main() -> None:
    """Generates; measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cap", type=int, default=200, help="records a code at most; 0: all")
    parser.add_argument("--measure", nargs=3, metavar=("WHAT", "SOURCE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        what, source, out = options.measure
        print(json.dumps(inside(what, Path(source), Path(out), options.cap)))
        return

    from storage.demo_data import write_demo_data

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = write_demo_data(folder, records=options.rows, seed=1)
        source = demo.csv
        ours = measure("ingest", source, folder, options.cap)
        result: dict[str, Any] = {
            "benchmark": "ingest",
            "rows": options.rows,
            "cap_per_code": options.cap or None,
            "source_mb": round(source.stat().st_size / 1e6),
            **ours,
            "rows_per_second": round(options.rows / ours["seconds"]),
            "peak_mb_of_imports_alone": measure_imports(),
        }
        pandas = measure("pandas", source, folder, options.cap)
        result["pandas_read_csv"] = pandas
        result["seconds_over_pandas"] = round(ours["seconds"] / pandas["seconds"], 2)
        result["peak_over_pandas"] = round(ours["peak_mb"] / pandas["peak_mb"], 2)
    print(json.dumps(result, indent=2))


def measure_imports() -> int:
    """Peak memory of a process that imports ingest and does nothing."""
    code = (
        "import storage.ingest, resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1000000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ | ONE_CORE
    )
    return int(done.stdout)


if __name__ == "__main__":
    main()
