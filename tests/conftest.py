"""What tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["tiny_models"]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of public data sets that are not part of the project; tests that need it skip without it."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AUTOCODER_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no public data sets in {folder}; set AUTOCODER_TEST_DATA to their folder")
    return folder
