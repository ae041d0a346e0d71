"""Finds the files that ship with the program, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

CATALOGUE = Path(
    str(files("deployments"))
)  # the wheel is unpacked when installed, so that these are files
PROFILES = CATALOGUE / "profiles"
BRANCHES = CATALOGUE / "branches.yaml"


@cache
def branch_bodies() -> Mapping[str, Any]:
    """Reads the methods that ship, by name, as they are written."""
    # it merges sections, which the strict reader refuses; libyaml's loader is ten times faster than
    # `safe_load`
    content = yaml.load(BRANCHES.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return {body["name"]: body for body in content["methods"]}
