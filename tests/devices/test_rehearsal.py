"""`make gpu` runs without a card, small, on a pretended one: its tests pass there and every part
has its figures.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


SPEEDS = ("--parts", "peak", "risk_pass", "coding", "training")


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(SPEEDS, id="speeds", marks=pytest.mark.servers),
        pytest.param((), id="all", marks=pytest.mark.long),
    ],
)
def test_every_part_runs_on_a_pretended_card(parts: tuple[str, ...], tmp_path: Path) -> None:
    """Exit code 0, nothing failed, so that no tensor was left on the other side, and the speeds
    from which the paper's protocol is estimated are there. The parts draw and train on the card;
    its tests and the whole chain run nightly.
    """
    command = [
        sys.executable,
        "benchmarks/gpu.py",
        "--device",
        "card",
        "--small",
        "--json",
        str(tmp_path / "gpu.json"),
    ]
    done = subprocess.run(
        [*command, *parts],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["failed"] == {}
    if not parts:
        assert " passed" in report["tests"]["pytest"]
        assert "skipped" not in report["tests"]["pytest"]
    assert report["risk_pass"]["records_a_second"] > 0
    assert report["paper_protocol"]["minutes"] > 0
    assert report["coding"]["records_per_second"] > 0


def test_without_a_card_it_says_what_to_do() -> None:
    code = (
        "import torch, sys, runpy; torch.cuda.is_available = lambda: False; sys.argv = ['gpu.py']; "
    )
    code += (
        "sys.path.insert(0, 'benchmarks'); runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "rehearse with --device card --small" in done.stderr
