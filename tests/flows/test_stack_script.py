"""What `make stack` refuses before it starts anything."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("option", ["--data", "--codelist"])
def test_a_file_that_does_not_exist_starts_no_stack(tmp_path: Path, option: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "stack.py")]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "stack"), option, str(tmp_path / "missing.csv")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert str(tmp_path / "missing.csv") in done.stderr
    assert not (tmp_path / "stack").exists()
