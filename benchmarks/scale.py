#!/usr/bin/env python
"""Measures training, its formal release and coding on a number of synthetic narratives: time and
peak memory by stage, and disk usage.

    python benchmarks/scale.py --records 1000000 --folder scale-workspace --json scale.json
    # the table of docs/how-to/scale-out.md
    python benchmarks/scale.py --table scale-10000.json scale-100000.json

Half of the records are for training, and the others are scored. With `--tiny-encoder`, which has
ten thousand parameters, everything except the encoder is measured. Peak memory is the kernel's
high-water mark of the process, which is reset after each stage and includes memory-mapped files.
The commands print progress with the remaining time. An interrupted run continues in its folder;
stages that were already finished are marked and have no seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_MIB = 4096
_ENDED = re.compile(r"^\s*(?:([\d.,]+)s|(reused))\s+(\S+(?: \S+)*)\s{2,}(.*)$")
"""A command's output line on a finished stage: seconds, or `reused`, its name, and its figures."""


def command(name: str, *arguments: str, home: Path) -> dict[str, Any]:
    """Runs one command. Returns its wall and processor seconds, its stages and its peak memory."""
    print(f"{name}: {' '.join(arguments)}", file=sys.stderr)
    env = os.environ | {"AUTOCODER_HOME": str(home), "DO_NOT_TRACK": "1"}
    started = time.perf_counter()
    running = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    assert running.stdout is not None
    stages: list[dict[str, Any]] = []
    spent = 0.0
    for line in running.stderr:
        print(line, end="", file=sys.stderr)
        ended = _ENDED.match(line)
        if ended:
            before, spent = spent, processor_seconds(running.pid) or spent
            stages.append(
                {
                    "stage": ended[3],
                    "seconds": None if ended[1] is None else float(ended[1].replace(",", "")),
                    "processor_seconds": None if ended[1] is None else round(spent - before, 1),
                    "peak_mib": peak_since_last(running.pid),
                }
            )
    answer = running.stdout.read()
    _, status, usage = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        sys.exit(f"{name} failed with exit code {running.returncode}")
    return {
        "command": name,
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": max(
            [round(usage.ru_maxrss / 1024), *(stage["peak_mib"] or 0 for stage in stages)]
        ),
        "stages": stages,
        "answer": answer,
    }


def processor_seconds(pid: int) -> float | None:
    """Returns the processor seconds of a process and its ended children, or None
    once it has ended.
    """
    try:
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return None
    return sum(map(int, fields.split()[11:15])) / os.sysconf("SC_CLK_TCK")


def disk_mib(folder: Path) -> dict[str, float]:
    """Returns the size of each kind of stage, of the ledger and of the bundle, in MiB."""
    places = {f"stage {path.name}": path for path in (folder / "private" / "stages").iterdir()}
    places |= {"bundle": folder / "bundles", "ledger": folder / "ledger.db"}
    sizes = {
        name: sum(file.lstat().st_size for file in (path, *path.rglob("*")) if not file.is_dir())
        for name, path in places.items()
        if path.exists()
    }
    return {name: round(size / (1 << 20), 2) for name, size in sorted(sizes.items())}


def peak_since_last(pid: int) -> int | None:
    """Returns a process's peak memory in MiB since the last call, and resets it.
    None once the process has ended.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return None
    mark = re.search(r"VmHWM:\s+(\d+) kB", status)
    return None if mark is None else round(int(mark[1]) / 1024)


TINY = ("model.encoder={}", "model.max_length=32")
"""Settings of a run with the tiny encoder in a folder."""


def measure(
    records: int, folder: Path, settings: Sequence[str], *, processes: int = 1
) -> dict[str, Any]:
    """Runs the three commands on this number of narratives.

    Args:
        processes: number of processes of the engine. Each number has its own workspace beside the
            same data.
    """
    several = ("--engine", str(processes)) if processes > 1 else ()
    data = folder / "data"
    home = folder / (f"home-{processes}" if several else "home")
    table, codes = data / "injuries.csv", data / "codelist.csv"
    runs: list[dict[str, Any]] = []
    if not table.is_file():
        runs.append(
            command(
                "demo-data", "demo-data", "--out", str(data), "--records", str(records), home=home
            )
        )
    options = [part for setting in settings for part in ("--set", setting)]
    names = ("--data", str(table), "--codelist", str(codes), "--home", str(home))
    retrain = command(
        "retrain",
        "retrain",
        "--profile",
        "demo-formal",
        *names,
        *options,
        *several,
        "--release",
        "--json",
        home=home,
    )
    bundle = json.loads(retrain["answer"])["release"]["bundle"]
    out = home / "coded.csv"
    out.unlink(missing_ok=True)
    source = ("--data", str(table), "--text", "Final Narrative", "--out", str(out))
    runs += [retrain, command("code", "code", "--bundle", bundle, *source, *several, home=home)]
    for run in runs:
        run.pop("answer")
    sizes = {"table": round(table.stat().st_size / (1 << 20), 2)} | disk_mib(home)
    return {"records": records, "machine": machine(), "runs": runs, "disk_mib": sizes}


def machine() -> dict[str, Any]:
    """Returns the processor's name and the number of cores."""
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "processor": found[1] if found else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 1),
    }


def rows(result: dict[str, Any]) -> dict[str, tuple[float | None, int | None]]:
    """Returns processor seconds and peak of each stage and of each command."""
    out: dict[str, tuple[float | None, int | None]] = {}
    for run in result["runs"]:
        for stage in run["stages"]:
            out[f"{run['command']}: {stage['stage']}"] = (
                stage["processor_seconds"],
                stage["peak_mib"],
            )
        out[f"{run['command']}, whole"] = (run["processor_seconds"], run["peak_mib"])
    return out


def table(files: Sequence[Path]) -> str:
    """Returns a Markdown table of several results, one column each."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    columns = [rows(result) for result in results]
    head = [f"{result['records']:,} records" for result in results]
    lines = ["| | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = [_cell(*column.get(name, (None, None))) for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for name in dict.fromkeys(name for result in results for name in result["disk_mib"]):
        sizes = [result["disk_mib"].get(name) for result in results]
        cells = ["–" if size is None else f"{size:,.1f} MiB" for size in sizes]
        lines.append(f"| disk: {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(seconds: float | None, peak: int | None) -> str:
    parts = [
        "" if seconds is None else f"{seconds:,.1f} s",
        "" if peak is None else f"{peak:,} MiB",
    ]
    return ", ".join(part for part in parts if part) or "–"


def main() -> None:
    """Measures and prints one JSON object, or prints the table of several results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records",
        type=int,
        default=10_000,
        help="number of synthetic narratives (default: 10,000)",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("scale-workspace"), help="data, workspace and results"
    )
    parser.add_argument(
        "--set", action="append", default=[], dest="settings", help="setting of the training run"
    )
    parser.add_argument(
        "--tiny-encoder", action="store_true", help="encode with one of ten thousand parameters"
    )
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument(
        "--table",
        type=Path,
        nargs="+",
        help="print the table of these results without measuring",
    )
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    settings = list(options.settings)
    if options.tiny_encoder:
        from workload import tiny_encoder  # imports torch

        folder = tiny_encoder(options.folder.resolve() / "tiny-encoder")
        settings += [setting.format(folder) for setting in TINY]
    result = measure(options.records, options.folder / str(options.records), settings)
    peaks = [run["peak_mib"] for run in result["runs"]]
    result |= {
        "peak_mib": max(peaks),
        "peak_mib_target": f"<= {LIMIT_MIB}",
        "met": max(peaks) <= LIMIT_MIB,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
