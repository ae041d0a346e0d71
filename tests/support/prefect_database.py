"""A database of Prefect's that is migrated already: on a fresh one each server that starts takes
eight seconds more.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import shared


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    own = tmp_path_factory.getbasetemp()
    return (own if worker_id == "master" else own.parent) / "common"


@pytest.fixture(scope="session")
def migrated(common: Path) -> Callable[[Path], Path]:
    """Puts the database into a folder that is to be Prefect's home and has none, and returns the
    folder.
    """

    def migrate(folder: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        upgrade = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        subprocess.run(
            upgrade,
            env=env | {"PREFECT_HOME": str(folder)},
            check=True,
            capture_output=True,
            timeout=500,
        )

    made = shared.once(common / "database", migrate)

    def put(home: Path) -> Path:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in [] if (home / "prefect.db").exists() else made.glob("prefect.db*"):
            shutil.copy(file, home)
        return home

    return put
