"""Jobs that tests of the flow share."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import Job

from storage.demo_data import write_demo_data


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Invented narratives and their code list."""
    written = write_demo_data(tmp_path_factory.mktemp("data"), records=400, seed=1)
    return written.csv, written.codelist


@pytest.fixture(scope="session")
def finished(small_data: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that ran to its end unbroken. Tests must not change its workspace."""
    job = Job(tmp_path_factory.mktemp("finished"), *small_data)
    done = job.run()
    assert done.returncode == 0, done.stderr
    return job
