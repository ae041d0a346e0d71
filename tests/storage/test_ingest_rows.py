"""No row is lost, doubled or swallowed unseen: what is read is counted a second time, and the
report accounts for all. Each of the first tests is an attack that once gave a wrong number of
records and no error.
"""

from pathlib import Path

import pytest

from storage.errors import InputError
from storage.ingest import IngestConfig, ingest
from storage.tables.reader import survey

CONFIG = IngestConfig(cap_per_code=None)
HEADER = b"EventDate,Final Narrative,Nature\n"


def lines(rows: int = 30) -> list[bytes]:
    return [b"1/%d/2015,PLANTED %d,%d\n" % (n % 28 + 1, n, 111 + n % 2) for n in range(1, rows + 1)]


def said_by_both(content: bytes, folder: Path) -> list[str]:
    """What training and coding say of a file that both must refuse."""
    path = folder / "records.csv"
    path.write_bytes(content)
    said = []
    for act in (
        lambda: ingest(path, folder, CONFIG, None),
        lambda: survey(path, text_columns=["Final Narrative"]),
    ):
        with pytest.raises(InputError) as caught:
            act()
        assert "PLANTED" not in str(caught.value)
        said.append(str(caught.value))
    assert not list(folder.glob("*.arrow"))
    return said


def test_quotes_that_meet_by_chance_swallow_no_rows(tmp_path: Path) -> None:
    """The second quote ends a cell, so that the swallowed rows make one cell of sound CSV: its
    lines are records.
    """
    rows = lines()
    rows[4] = rows[4].replace(b",PLANTED", b',"PLANTED')
    rows[9] = rows[9].replace(b",111", b'",111').replace(b",112", b'",112')
    training, coding = said_by_both(HEADER + b"".join(rows), tmp_path)
    assert "row 5: a cell has line breaks, and 6 of its lines read as records" in training
    assert training == coding


@pytest.mark.parametrize("megabytes", [1, pytest.param(5, marks=pytest.mark.long)])
def test_blank_lines_double_no_record(tmp_path: Path, megabytes: int) -> None:
    """Megabytes of blank lines, in the middle and at the end, are no records and repeat none."""
    rows, blank = lines(), b"\n" * (megabytes << 20)
    path = tmp_path / "records.csv"
    path.write_bytes(HEADER + b"".join(rows[:20]) + blank + b"".join(rows[20:]) + blank)
    result = ingest(path, tmp_path, CONFIG, None)
    assert (result.rows_read, result.train + result.test) == (30, 30)
    assert survey(path, text_columns=["Final Narrative"]).rows == 30
