#!/usr/bin/env python
"""The whole job by the command: seconds, and the share that is not the stages' own (Prefect, start-up, artifacts).

    python benchmarks/retrain.py --data osha.csv --codelist oiics201_nature.csv [--profile osha-head] [--device cuda]

Target: profile `osha-head` on 4,713 records, 102 codes, under 240 s on two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time

TARGET_SECONDS = 240.0


def main() -> None:
    """Runs the job in a new workspace and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--codelist", required=True)
    parser.add_argument("--profile", default="osha-head")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "flows.cli", "retrain", "--release", "--profile", options.profile, "--json"]
        command += ["--home", home, "--data", options.data, "--codelist", options.codelist, "--device", options.device]
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(done.stderr)
    stages = {label.strip(): float(s) for s, label in re.findall(r"^\s*([\d.]+)s  (.+?)  ", done.stderr, re.MULTILINE)}
    release = json.loads(done.stdout)["release"]
    result = {
        "claim": "osha-head in under 240 s on two cores",
        "profile": options.profile,
        "seconds": round(seconds, 1),
        "ratio_to_target": round(seconds / TARGET_SECONDS, 3),
        "stage_seconds": stages,
        "outside_stages_seconds": round(seconds - sum(stages.values()), 1),
        "epsilon": release["epsilon"],
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
