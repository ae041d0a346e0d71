"""Writes docs/reference/statement-sentences.md from the sentences of statements
(tasks/bundle/sentences.py).
"""

from __future__ import annotations

from pathlib import Path

from tasks.bundle.statement import claims_page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "statement-sentences.md"

if __name__ == "__main__":
    PAGE.write_text(claims_page(), encoding="utf-8")
    print(PAGE)
