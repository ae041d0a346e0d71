#!/usr/bin/env python
"""Measures the engine: what a part costs beside its work, and encoding by one process and by several.

    python benchmarks/engine.py [--records 20000] [--processes 2]

Claims: a part costs at most 50 ms beside its work; two processes of one thread each encode at least 1.7 times as fast
as one process of one thread, with the same bytes. Needs as many quiet cores as processes. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"


def nothing(part: str) -> str:
    """Computes nothing."""
    return part


def main() -> None:
    """Runs both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="narratives to encode (default: 20000)")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()

    from flows.commands import profiles
    from storage.demo_data import write_demo_data
    from tasks.fitting import data
    from tasks.fitting.ingest import ingest_records
    from tasks.running import engine
    from tasks.running.stage import Context, run_step

    several = str(options.processes)
    started = time.perf_counter()
    engine.map_parts(nothing, ["x"] * options.processes, engine=several)
    up = time.perf_counter() - started
    costs = []
    for _ in range(3):
        started = time.perf_counter()
        engine.map_parts(nothing, ["x"] * 1000, engine=several)
        costs.append((time.perf_counter() - started) / 1000)
    with tempfile.TemporaryDirectory() as folder:
        written = write_demo_data(Path(folder) / "data", records=options.records, seed=1)
        chosen = profiles.parameters(
            "demo-formal", ["formal.target_epsilon=5"], data=written.csv, codelist=written.codelist
        )
        seconds, digests = {}, set()
        for name in ("", several):
            context = Context(home=str(Path(folder) / f"home{name}"), engine=name)
            context.workspace.create()
            step = data.prepare(chosen.model, run_step(context, ingest_records(chosen.data)))
            started = time.perf_counter()
            digests.add(run_step(context, step).sha256)
            seconds[name or "1"] = round(time.perf_counter() - started, 1)
    print(
        json.dumps(
            {
                "cores": os.cpu_count(),
                "records": options.records,
                "engine_up_s": round(up, 1),
                "part_ms": round(1000 * statistics.median(costs), 2),
                "encode_s_by_processes": seconds,
                "speed_up": round(seconds["1"] / seconds[several], 2),
                "same_bytes": len(digests) == 1,
                "targets": {"part_ms": 50, "speed_up of two": 1.7},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
