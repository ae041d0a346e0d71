"""Types of plain data that has no fixed fields, as JSON can hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
Config: TypeAlias = Mapping[str, Json]
"""Settings of a stage, by name. Each kind of stage has its own; they are part of its key."""
Figures: TypeAlias = Mapping[str, Json]
"""Aggregate figures of a stage, by name. Each kind of stage has its own; they are shown, logged and
written to its manifest.
"""
