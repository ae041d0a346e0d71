"""What tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["tiny_models", "sealed_bundle", "s3_server"]


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
    """Files stay together where tests run side by side, and those of one stack too, which go on from each other.

    A run on a fast machine may end before the last fault comes: that test is for whoever asks for it.
    """
    for item in items:
        stack = item.path.parent.name == "e2e"
        item.add_marker(pytest.mark.xdist_group("e2e" if stack else f"{item.path.parent.name}/{item.path.stem}"))
        if getattr(item, "originalname", "") == "test_all_faults_in_one_run" and not config.getoption("--all-faults"):
            item.add_marker(pytest.mark.skip(reason="asked for by --all-faults"))
