"""Writes docs/parameters.md from the models that parameters are checked by (tasks/parameters.py)."""

from __future__ import annotations

from pathlib import Path

from flows.commands.parameters_page import parameters_page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "parameters.md"

if __name__ == "__main__":
    PAGE.write_text(parameters_page(), encoding="utf-8")
    print(PAGE)
