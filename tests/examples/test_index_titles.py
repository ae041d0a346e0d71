"""A code list out of an index: the shortest entry a code, and no record is a title."""

from __future__ import annotations

import sys
from pathlib import Path

import index_titles
import pytest


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> tuple[str, str]:
    (folder / "index.csv").write_text(text)
    made = [str(folder / name) for name in ("titles.csv", "records.csv")]
    argv = ["index_titles", str(folder / "index.csv"), "--codelist", made[0], "--records", made[1]]
    monkeypatch.setattr(sys, "argv", argv)
    index_titles.main()
    return Path(made[0]).read_text(), Path(made[1]).read_text()


def test_titles_leave_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ties go by the alphabet; a title that stands there twice is no record either; other columns are left out."""
    index = "title,code,x\nhead cook,2,a\ncook,2,a\nbaker,2,a\ncook,2,b\nsmith,1,c\n"
    codelist, records = run(monkeypatch, tmp_path, index)
    assert codelist == "code,title\n1,smith\n2,cook\n"
    assert records == "title,code\nhead cook,2\nbaker,2\n"


def test_another_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no entries with columns title and code"):
        run(monkeypatch, tmp_path, "name,code\na,1\n")
    assert not (tmp_path / "titles.csv").exists()
