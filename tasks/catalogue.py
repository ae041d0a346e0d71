"""Locates the files that ship with the program, in a checkout or in an installed wheel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

CATALOGUE = Path(
    str(files("deployments"))
)  # wheels are unpacked when installed, so these are files
PROFILES = CATALOGUE / "profiles"
BRANCHES = CATALOGUE / "branches.yaml"


@cache
def branch_bodies() -> Mapping[str, Any]:
    """Reads the shipped methods by name, unvalidated."""
    # the file has merge keys, which the strict reader refuses; libyaml's loader is ten times faster
    # than
    # `safe_load`
    content = yaml.load(BRANCHES.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return {body["name"]: body for body in content["methods"]}
