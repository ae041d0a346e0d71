"""The settings that a plan was made with, from the file beside it, where that can be read here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.releasing.plan import PlannedRelease


def made_with(planned: PlannedRelease) -> dict[str, Any]:
    """What `tasks.branches.origin` keeps: `parameters`, `branch` and `compare`; empty where it is not at hand.

    Nobody signs that file, and it may be of another version: what is taken from it is for people alone.
    """
    try:
        kept = private_of(planned) / "plans" / f"{planned.plan.idempotency_key[:16]}.settings"
        made = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return made if isinstance(made, dict) and section(section(made, "parameters"), "data") else {}


def private_of(planned: PlannedRelease) -> Path:
    """The private folder that a plan was made in."""
    return Path(planned.candidate.dataset.path).parent.parent.parent


def section(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A mapping of a mapping; empty where it is none."""
    value = content.get(name)
    return value if isinstance(value, dict) else {}
