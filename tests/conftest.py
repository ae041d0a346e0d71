"""What tests share."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # files side by side, and each with all cores, would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

gc.disable()  # until all tests are collected: what is imported stays
gc.set_threshold(10_000, 10, 10)  # as in a command

settings.register_profile("untimed", deadline=None)  # a busy machine is no fault of the program
settings.load_profile("untimed")

pytest_plugins = [
    "tiny_models",
    "ledger_sites",
    "sealed_bundle",
    "planned_chain",
    "prefect_database",
    "s3_server",
]


@pytest.fixture(scope="session", autouse=True)
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One registry key for all workspaces, as machines that share stages need: their keys and bytes
    are compared.
    """
    file = tmp_path_factory.mktemp("registry") / "registry.key"
    file.write_bytes(b"k" * 32)
    os.environ["AUTOCODER_REGISTRY_KEY"] = str(file)
    return file


@pytest.fixture(scope="session", autouse=True)
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder of the user's configuration: an agency's key that is pinned on this machine
    would decide which ledgers a desk believes.
    """
    folder = tmp_path_factory.mktemp("configuration")
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of public data sets that are not part of the project; tests that need it skip without
    it.
    """
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AUTOCODER_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no public data sets in {folder}; set AUTOCODER_TEST_DATA to their folder")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of single tests; here, since only the uppermost conftest may add some."""
    parser.addoption(
        "--faults-repeat", type=int, default=0, help="each fault in a run of its own, so many times"
    )


def pytest_collection_finish() -> None:
    """Collects garbage from here on, except among what was imported: a search there
    takes a second.
    """
    gc.freeze()
    gc.enable()


class _ByFile(LoadFileScheduling):
    """Files side by side, but all that share one stack in one process: they go on
    from each other.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "e2e" if "/e2e/" in file else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    """Where `-n` asks for several processes."""
    return _ByFile(config, log)
