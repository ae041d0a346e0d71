"""Nothing of a record in any trace: logs, Prefect's database, exceptions, artifacts
or the bundle.
"""

from pathlib import Path

import pytest
from jobs import MARKER, Job, read_csv, write_csv

WORD = MARKER.split()[0]


def files_with(folder: Path, needle: bytes) -> list[str]:
    """Files under a folder that hold the bytes, by name."""
    return [
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if p.is_file() and needle in p.read_bytes()
    ]


def check_traces(home: Path, *told: str) -> None:
    """What was reported, the ledger, the bundle and whatever else is outside `private` hold no
    planted word.
    """
    assert not any(WORD in text for text in told)
    found = files_with(home, WORD.encode())
    assert [name for name in found if not name.startswith("private/")] == []
    # the same search does find it where it belongs: the test can fail
    assert any(name.startswith("private/stages/ingest") for name in found)


def test_a_planted_narrative_stays_in_the_private_folder(finished: Job) -> None:
    """A successful run."""
    check_traces(
        finished.home, *((finished.home.parent / name).read_text() for name in ("stdout", "stderr"))
    )


@pytest.mark.servers
def test_nor_does_it_reach_prefects_folder_or_database(
    served: Job, common: Path, tmp_path: Path
) -> None:
    """Every stage of the run is computed within a flow run of a server."""
    job = served.at(tmp_path / "home")
    done = job.run("--json")
    assert done.returncode == 0, done.stderr
    check_traces(job.home, done.stdout, done.stderr)
    assert files_with(common / "server", b"retrain"), "Prefect's database was searched"
    assert files_with(common / "server", WORD.encode()) == []


@pytest.mark.parametrize(
    ("settings", "column"),
    [
        (
            ("data.ingest.label_column=Final Narrative", "data.ingest.text_columns=[City]"),
            "Final Narrative",
        ),
        (("data.ingest.date_column=City",), "City"),
    ],
    ids=["narratives as codes", "marker as a date"],
)
@pytest.mark.servers
def test_a_failing_run_quotes_no_cell(
    served: Job, common: Path, tmp_path: Path, settings: tuple[str, ...], column: str
) -> None:
    """Columns mapped wrongly make the ingest stumble over cells; what it says holds
    none of them.
    """
    rows = [row | {column: f"{row[column]} {MARKER}."} for row in read_csv(served.data)]
    data = write_csv(tmp_path / "injuries.csv", rows)
    job = served.at(tmp_path / "home", data=data, settings=(*served.settings, *settings))
    job = job.at(job.home, env=job.env | {"PREFECT_HOME": str(tmp_path / "home" / "prefect")})
    done = job.run()
    assert done.returncode in (1, 2), done.stderr
    assert WORD not in done.stdout + done.stderr
    assert [
        name for name in files_with(job.home, WORD.encode()) if not name.startswith("private/")
    ] == []
    assert files_with(common / "server", b""), "the server's database is searched"
    assert files_with(common / "server", WORD.encode()) == []
