"""Codes of four fields out of titles: each report has its own, a title that nobody knows leaves a gap and is told."""

from __future__ import annotations

import sys
from pathlib import Path

import osha_fields
import pytest
from csv_files import rows_of

REPORTS = """EventDate,Final Narrative,Nature,NatureTitle,Part of Body Title,EventTitle,SourceTitle
1/1/2015,"Fell, and broke a leg.",111,Fractures,Leg(s),Fall,Floor
1/2/2015,Cut.,130,Cuts,Finger(s),Struck,Nobody knows this
"""
TITLES = """field,title,code,n_rows
part,Leg(s),51,1
part,Finger(s),441,1
event,Fall,42,1
event,Struck,62,1
event,Hit,62,1
source,Floor,6629,1
nature,Fractures,111,1
"""


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, reports: str = REPORTS) -> None:
    (folder / "reports.csv").write_text(reports)
    (folder / "titles.csv").write_text(TITLES)
    given = [str(folder / "reports.csv"), "--titles", str(folder / "titles.csv"), "--out", str(folder / "out")]
    monkeypatch.setattr(sys, "argv", ["osha_fields", *given])
    osha_fields.main()


def test_codes_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns as the profile names them; narratives with commas stay whole; a code has one title."""
    run(tmp_path, monkeypatch)
    first, second = rows_of(tmp_path / "out" / "records.csv")
    assert [first[column] for column in ("Final Narrative", "Nature", "Part of Body", "Event", "Source")] == [
        "Fell, and broke a leg.", "111", "51", "42", "6629"
    ]  # fmt: skip
    assert second["Source"] == ""
    assert rows_of(tmp_path / "out" / "event.csv") == [{"code": "42", "title": "Fall"}, {"code": "62", "title": "Hit"}]
    assert "source: 1" in capsys.readouterr().out


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the column that it lacks, and nothing is written."""
    with pytest.raises(SystemExit, match="no column `Event Title` or `EventTitle`"):
        run(tmp_path, monkeypatch, REPORTS.replace("EventTitle", "What"))
    assert not (tmp_path / "out").exists()
