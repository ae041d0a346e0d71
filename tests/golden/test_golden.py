"""Eight plans, from records to the ledger and the bundle, are what golden.json says they are.

Who changes a number on purpose runs `python tests/golden/measure.py --write`, and names the number
in the commit.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
GOLDEN: dict[str, Any] = json.loads((HERE / "golden.json").read_text())


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """What a process of its own measures now, with nothing of the tests' environment."""
    root = HERE.parents[1]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AUTOCODER_", "PREFECT_"))
    }
    command = [sys.executable, str(HERE / "measure.py")]
    path = os.pathsep.join([str(root), *filter(None, [kept.get("PYTHONPATH")])])
    done = subprocess.run(
        command, env=kept | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_golden_set_has_eight_plans(measured: dict[str, Any]) -> None:
    assert len(GOLDEN["plans"]) == 8
    assert set(measured["plans"]) == set(GOLDEN["plans"])


@pytest.mark.parametrize("name", GOLDEN["plans"])
def test_a_plan_is_what_it_was(measured: dict[str, Any], name: str) -> None:
    """To the last bit on the processor that wrote it. Elsewhere a fit's last bits differ, and what
    is measured from it may: SWAG-PPM's sensitivity and epsilon by 2%, an F1 by 0.03 (80 records are
    scored). Weights are then not compared.
    """
    now, was = measured["plans"][name], GOLDEN["plans"][name]
    if measured["processor"] == GOLDEN["processor"]:
        assert now == was
        return
    for fixed in ("splits", "bundle"):
        assert now[fixed] == was[fixed]
    measures_epsilon = name.startswith("swag")
    for figures in ("event", "claim", "charges"):
        assert differences(now[figures], was[figures], 0.02 if measures_epsilon else 1e-6) == []
    assert now["weighted_f1"] == pytest.approx(was["weighted_f1"], abs=0.03)


def differences(now: Any, was: Any, tolerance: float, path: str = "") -> list[str]:
    """Names each figure that differs by more than so much of itself, and all else that differs."""
    if isinstance(now, dict) and isinstance(was, dict) and now.keys() == was.keys():
        return [
            line
            for key in was
            for line in differences(now[key], was[key], tolerance, f"{path}.{key}")
        ]
    if isinstance(now, list) and isinstance(was, list) and len(now) == len(was):
        pairs = enumerate(zip(now, was, strict=True))
        return [
            line for i, (a, b) in pairs for line in differences(a, b, tolerance, f"{path}[{i}]")
        ]
    try:
        same = type(now) is type(was) and float(now) == pytest.approx(float(was), rel=tolerance)
    except (TypeError, ValueError):
        same = now == was
    return [] if same else [f"{path}: {now!r} was {was!r}"]


def test_a_difference_is_found() -> None:
    """The comparison itself rejects another figure, another word, and a missing field."""
    was = {"event": {"steps": 4, "noise": "1.25"}, "kind": "formal"}
    assert differences(was | {"kind": "formal"}, was, 1e-6) == []
    assert differences({**was, "event": {"steps": 4, "noise": "1.26"}}, was, 1e-6)
    assert differences({**was, "event": {"steps": 5, "noise": "1.25"}}, was, 1e-6)
    assert differences({**was, "kind": "asymptotic-local"}, was, 1e-6)
    assert differences({"kind": "formal"}, was, 1e-6)
