"""Prefect reads its settings when it is imported: nothing may bring it before the server's password
is set. Else the server of a run asks for a password that the run does not know, and the command
ends in "unauthorized".
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage.demo_data import write_demo_data

PROGRAM = """
import json, os, sys
import torch, transformers
import flows.commands.options  # it took the function by name
from flows.cli import main

def stop(*_, **__):
    print(f"{name}: {'imported' if 'prefect' in sys.modules else 'not yet'}", flush=True)
    os._exit(0)

for module in list(sys.modules.values()):
    if hasattr(module, "configure_prefect"):
        module.configure_prefect = stop
for name, words in json.loads(sys.argv[1]).items():
    if not os.fork():
        sys.argv = ["autocoder", *words]
        main()
        os._exit(1)
    os.wait()
"""
"""Each command in a fork of one process that has loaded the largest libraries, none of which brings
Prefect.
"""

COMMANDS: dict[str, Sequence[str]] = {
    "retrain": ["retrain", "--profile", "demo"],
    "retrain, formal": ["retrain", "--profile", "demo-formal", "--epsilon", "5"],
    "compare": ["compare", "--profile", "demo", "--branches", "non-private"],
    "compare, formal": [
        "compare",
        "--profile",
        "demo-formal",
        "--branches",
        "prior-descent",
        "--epsilon",
        "5",
    ],
}


@pytest.mark.servers
def test_nothing_brings_prefect_before_its_settings(tmp_path: Path) -> None:
    """Up to where the settings are made."""
    data = write_demo_data(tmp_path, records=60, seed=1)
    given = [
        "--data",
        str(data.csv),
        "--codelist",
        str(data.codelist),
        "--home",
        str(tmp_path / "home"),
    ]
    plan = tmp_path / "home" / "private" / "plans" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text("{}")
    asked = {name: [*words, *given] for name, words in COMMANDS.items()}
    asked |= {name: [name, str(plan)] for name in ("audit", "release")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == [f"{name}: not yet" for name in asked], done.stderr
