"""Types for plain data without fixed fields, as JSON can represent it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
Config: TypeAlias = Mapping[str, Json]
"""Settings of a stage, by name. Each kind of stage has its own. They are part of its key."""
Figures: TypeAlias = Mapping[str, Json]
"""Aggregate figures of a stage, by name. Each kind of stage has its own. They are shown, logged and
written to its manifest.
"""
