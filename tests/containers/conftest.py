"""One checkout, built and brought up once; the engine ends with the tests, its images stay."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from houses import ROOT, House, move_in, start_engine


@pytest.fixture(scope="session")
def house() -> Iterator[House]:
    """The stack of docker-compose.yml; $AUTOCODER_TEST_HOUSE names the folder of one that runs, and
    keeps it.
    """
    engine = start_engine()
    kept = os.environ.get("AUTOCODER_TEST_HOUSE")
    folder = Path(kept or tempfile.mkdtemp(prefix="autocoder-house-"))
    if kept and (folder / "docker-compose.yml").exists():
        yield House(folder, {"DOCKER_HOST": engine["DOCKER_HOST"]})
        return
    folder.mkdir(exist_ok=True)
    new = move_in(folder, engine)
    try:
        new.compose("down", "--volumes", check=False)  # of a run that was killed
        new.compose("build")
        new.up()
        yield new
    finally:
        if not kept:
            new.compose("down", "--volumes", "--timeout", "5", check=False)
            subprocess.run(["rm", "-rf", str(folder)], check=True)
            subprocess.run(["bash", str(ROOT / "scripts" / "containers.sh"), "stop"], check=True)
