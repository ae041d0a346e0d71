"""What tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["tiny_models", "sealed_bundle", "s3_server", "ledger_sites"]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of public data sets that are not part of the project; tests that need it skip without it."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AUTOCODER_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no public data sets in {folder}; set AUTOCODER_TEST_DATA to their folder")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of single tests; here, since only the uppermost conftest may add some."""
    parser.addoption(
        "--faults-repeat",
        type=int,
        default=0,
        help="each fault in a run of its own (with --all-faults: all in one), so many times",
    )
    parser.addoption("--all-faults", action="store_true", help="five faults and a full disk in one run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A run on a fast machine may end before the last fault comes: that test is for whoever asks for it."""
    for item in items:
        if getattr(item, "originalname", "") == "test_all_faults_in_one_run" and not config.getoption("--all-faults"):
            item.add_marker(pytest.mark.skip(reason="asked for by --all-faults"))


class _ByFile(LoadFileScheduling):
    """Files side by side, but all that share one stack in one process: they go on from each other."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "e2e" if "/e2e/" in file else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    """Where `-n` asks for several processes."""
    return _ByFile(config, log)
