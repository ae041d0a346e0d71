"""A partner's installation: the base dependencies of pyproject.toml, without the extra `train`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from jobs import answers, environment, write_csv
from packaging.requirements import Requirement
from sealed_bundle import Sealed
from stack import free_port

from tasks.running.installation import TRAINING

ROOT = Path(__file__).parents[2]
LAST = "This needs the extra `train`: pip install '.[train]'\n"
PROGRAM = """
import sys
from importlib.machinery import PathFinder

class Light(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Light
sys.argv = ["autocoder", *sys.argv[1:]]
from flows.cli import main
main()
"""


def _names(requirements: list[str], extra: str = "") -> dict[str, set[str]]:
    """Distributions that are asked for on this machine, with the extras of each."""
    parsed = [Requirement(line) for line in requirements]
    held = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {re.sub(r"[-_.]+", "-", one.name).lower(): one.extras for one in held}


@pytest.fixture(scope="session")
def hidden() -> set[str]:
    """Top-level modules that the base dependencies do not bring, of all that are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    light: set[tuple[str, str]] = set()
    waiting = [(name, "") for name in _names(project["dependencies"])]
    while waiting:
        name, extra = one = waiting.pop()
        if one in light:
            continue
        light.add(one)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # a build of torch for CUDA has others
            continue
        for other, extras in _names(required, extra).items():
            waiting += [(other, wanted) for wanted in ("", *extras)]
    names = {name for name, _ in light} | {"swag-ppm-autocoder"}
    found = metadata.packages_distributions().items()
    return {module for module, owners in found if not names & set(_names(list(owners)))}


def _command(hidden: set[str], *arguments: Any) -> list[str]:
    return [sys.executable, "-c", f"HIDDEN = {hidden}\n{PROGRAM}", *map(str, arguments)]


def _run(hidden: set[str], folder: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    env = environment(PYTHONPATH=str(ROOT))
    return subprocess.run(
        _command(hidden, *arguments), capture_output=True, text=True, timeout=240, cwd=folder, env=env
    )


def test_the_extra_is_what_is_hidden(hidden: set[str]) -> None:
    """Each package of the extra by its module, so that none is forgotten in the message; the base has none of them."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {name.replace("-", "_") for name in _names(extra["train"])} == TRAINING - {"absl", "docket"}
    assert hidden >= TRAINING
    assert not {"torch", "transformers", "model_signing", "cryptography", "fastapi"} & hidden


def test_a_partner_needs_no_extra(
    hidden: set[str], sealed: Sealed, tmp_path: Path, narratives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verify, adopt, calibrate, code, qa, drift: each ends well on a bundle, where nothing else can be imported."""

    def run(*arguments: Any) -> str:
        done = _run(hidden, tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    monkeypatch.delenv("AUTOCODER_HOME", raising=False)
    bundle, texts = ("--bundle", sealed.folder), narratives(200)
    assert "golden answers" in run("verify", sealed.folder, "--key", sealed.trust.pinned)
    codes = [line.split(",")[0] for line in (sealed.folder / "codelist.csv").read_text().splitlines()[1:]]
    rows = [{"Text": text, "Code": codes[number % 3]} for number, text in enumerate(texts)]
    hand = write_csv(tmp_path / "hand.csv", rows)
    given = ("--data", hand, "--column", "Text")
    run("calibrate", *bundle, *given, "--label-column", "Code", "--out", "t.json", "--sets")
    adopted = ("adopt", sealed.folder, "--key", sealed.trust.pinned, "--out", "coder", *given)
    assert "next: open" in run(*adopted, "--label-column", "Code")
    run("code", *bundle, *given, "--out", "coded.csv", "--thresholds", "t.json", "--coverage", "0.9", "--quiet")
    assert json.loads(run("qa", "draw", "coded.csv", "--out", "s.csv", "--column", "Text", "--json"))["rows"] == 200
    drift = ("drift", "coded.csv", "--reference", "coded.csv")
    run(*drift)
    assert _run(hidden, tmp_path, *drift, "--plot", "x.png").stderr == f"error: not installed: matplotlib. {LAST}"
    assert "Release a plan" in run("release", "--help")
    found = {one["check"]: one for one in json.loads(run("doctor", "--json"))}
    assert found["installation"]["result"].startswith("light")


def test_a_partner_serves_without_the_extra(hidden: set[str], sealed: Sealed, tmp_path: Path) -> None:
    """The service codes a narrative and has its review page."""
    port = free_port()
    given = ("--bundle", sealed.folder, "--verify-key", sealed.trust.pinned, "--port", port, "--no-key")
    process = subprocess.Popen(_command(hidden, "serve", *given), cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)))
    try:
        url = f"http://127.0.0.1:{port}"
        while not answers(f"{url}/health"):
            assert process.poll() is None
            time.sleep(0.2)
        assert httpx.get(f"{url}/review").status_code == 200
        assert httpx.post(f"{url}/code", json={"narratives": ["Employee fell."]}).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_what_trains_says_what_is_missing(hidden: set[str], tmp_path: Path) -> None:
    """One line with the extra, before anything is looked at: the file does not exist."""
    done = _run(hidden, tmp_path, "retrain", "--profile", "formal", "--data", "absent.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: not installed: {', '.join(sorted(TRAINING))}. {LAST}"
