"""The same command without a server: the same stages and release, and nothing of Prefect's runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Job

_WITHOUT_PREFECT = """
import sys
from flows.cli import main
try:
    main()
finally:
    was = "was" if "prefect" in sys.modules else "was not"
    print(f"prefect {was} imported", file=sys.stderr)
"""


@pytest.mark.servers
def test_a_retrain_brings_nothing_of_prefects(finished: Job, tmp_path: Path) -> None:
    """It ends in a release. Nothing of Prefect is imported, which takes a second of each command,
    and it has no database.
    """
    job = finished.copy(tmp_path / "home")
    command = [sys.executable, "-c", _WITHOUT_PREFECT, *job.arguments("--json")[3:]]
    done = subprocess.run(
        command, env=job.env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    (row,) = job.releases()
    assert row["state"] == "committed"
    assert json.loads(done.stdout)["release"]["release_id"] == row["release_id"]
    assert "release" in done.stderr, "progress is shown"
    assert done.stderr.rstrip().endswith("prefect was not imported")
    assert not list(job.home.rglob("prefect.db*")), "a server was started"
