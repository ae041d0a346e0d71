"""Nothing of a record in any trace: logs, Prefect's database, exceptions, artifacts or the bundle."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from jobs import Job

MARKER = "zebrafinch quicksilver marzipan"
"""Words that no code, template or vocabulary holds."""


def plant(source: Path, target: Path, *, column: str = "Final Narrative", every: int = 10) -> None:
    """Write a copy of the data in which every tenth narrative holds the marker."""
    with source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows[::every]:
        row[column] = f"{row[column]} {MARKER}."
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def files_with(folder: Path, needle: bytes) -> list[str]:
    """Files under a folder that hold the bytes, by name."""
    return [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and needle in p.read_bytes()]


def test_a_planted_narrative_stays_in_the_private_folder(small_data: tuple[Path, Path], tmp_path: Path) -> None:
    """A successful run: the terminal, Prefect's folder and database, the ledger and the bundle are searched."""
    data = tmp_path / "injuries.csv"
    plant(small_data[0], data)
    job = Job(tmp_path / "home", data, small_data[1])
    done = job.run("--json")
    assert done.returncode == 0, done.stderr
    assert MARKER not in done.stdout + done.stderr
    word = MARKER.split()[0].encode()
    outside = [name for name in files_with(job.home, word) if not name.startswith("private/")]
    assert outside == []
    assert files_with(job.home / "prefect", b"") != [], "Prefect's folder was searched"
    # the same search does find it where it belongs: the test can fail
    assert any(name.startswith("private/stages/ingest") for name in files_with(job.home, word))


@pytest.mark.parametrize(
    ("settings", "column"),
    [
        (("data.ingest.label_column=Final Narrative", "data.ingest.text_columns=[City]"), "Final Narrative"),
        (("data.ingest.date_column=City",), "City"),
    ],
    ids=["narratives as codes", "marker as a date"],
)
def test_a_failing_run_quotes_no_cell(
    small_data: tuple[Path, Path], tmp_path: Path, settings: tuple[str, ...], column: str
) -> None:
    """Columns mapped wrongly make the ingest stumble over cells; what it says holds none of them."""
    data = tmp_path / "injuries.csv"
    plant(small_data[0], data, column=column, every=1)
    job = Job(tmp_path / "home", data, small_data[1])
    done = job.run(*(part for setting in settings for part in ("--set", setting)))
    assert done.returncode in (1, 2), done.stderr
    assert "zebrafinch" not in done.stdout + done.stderr
    assert [name for name in files_with(job.home, b"zebrafinch") if not name.startswith("private/")] == []
