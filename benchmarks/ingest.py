"""Measures ingest and its dry run: processor seconds, peak memory, and the ratio to reading the
file with pandas.

Rows are generated (long tail, quotes, line breaks) and written with `storage.demo_data`, unless
`--source` specifies OSHA's file and `--codelist` its list. Every measurement runs in a process of
its own, on one core, in the same run. `--cap 0` samples all rows, which needs the most memory.
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


def measure(
    what: str, source: Path, out: Path, cap: int, codelist: Path | None
) -> dict[str, float]:
    """Runs one measurement in a new process. Returns its processor seconds and its
    peak memory, including imports.
    """
    command = [
        sys.executable,
        __file__,
        "--measure",
        what,
        str(source),
        str(out),
        "--cap",
        str(cap),
    ]
    command += [] if codelist is None else ["--codelist", str(codelist)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | ONE_CORE
    )
    return json.loads(done.stdout)


def inside(what: str, source: Path, out: Path, cap: int, codelist: Path | None) -> dict[str, float]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if what == "pandas":
        import pandas as pd

        start = time.process_time()
        pd.read_csv(source)
        seconds = time.process_time() - start
    else:
        from storage.ingest import IngestConfig, ingest, preview

        units: dict[str, Any] = (
            {} if codelist else {"unit_column": "Establishment", "max_per_unit": 5}
        )
        config = IngestConfig(**units, cap_per_code=cap or None, unknown_codes="drop")
        start = time.process_time()
        if what == "dry run":
            preview(source, config, codelist or source.with_name("codelist.csv"))
        else:
            ingest(source, out, config, codelist or source.with_name("codelist.csv"))
        seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": round(seconds, 3), "peak_mb": round(peak / 1e6)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--source", type=Path, help="file of records instead of generated ones")
    parser.add_argument("--codelist", type=Path, help="its code list")
    parser.add_argument("--cap", type=int, default=200, help="most records per code; 0: all")
    parser.add_argument(
        "--measure", nargs=3, metavar=("WHAT", "SOURCE", "OUT"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.measure is not None:
        what, source, out = options.measure
        print(json.dumps(inside(what, Path(source), Path(out), options.cap, options.codelist)))
        return

    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name), options.source
        if source is None:
            from storage.demo_data import write_demo_data

            source = write_demo_data(folder, records=options.rows, seed=1).csv
        arguments = (source, folder, options.cap, options.codelist)
        result: dict[str, Any] = {
            what: measure(what, *arguments) for what in ("pandas", "dry run", "ingest")
        }
        for what in ("dry run", "ingest"):
            result[f"{what} over pandas"] = round(
                result[what]["seconds"] / result["pandas"]["seconds"], 2
            )
        result |= {
            "source_mb": round(source.stat().st_size / 1e6),
            "peak_mb_of_imports_alone": measure_imports(),
        }
    print(json.dumps(result, indent=2))


def measure_imports() -> int:
    """Returns the peak memory of a process that imports ingest and does nothing."""
    code = (
        "import storage.ingest, resource; "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1000000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | ONE_CORE,
    )
    return int(done.stdout)


if __name__ == "__main__":
    main()
