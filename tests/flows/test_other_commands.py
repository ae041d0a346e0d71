"""`doctor`, `demo-data` and `code` as their users call them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from jobs import Job


def write(path: Path, rows: list[list[str]]) -> Path:
    """Write a CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def test_doctor_tells_what_is_here(finished: Job) -> None:
    """Every check by name, as JSON; nothing is missing where a job has just run."""
    done = finished.command("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {entry["check"]: entry for entry in json.loads(done.stdout)}
    assert {"python", "torch", "encoder packaged-minilm", "ledger", "prefect", "disk"} <= set(found)
    assert all(entry["ok"] for entry in found.values())


def test_doctor_names_a_server_that_does_not_answer(finished: Job) -> None:
    """With what to do, and exit code 1."""
    job = Job(
        finished.home,
        finished.data,
        finished.codelist,
        env=finished.env | {"PREFECT_API_URL": "http://127.0.0.1:1/api"},
    )
    done = job.command("doctor")
    assert done.returncode == 1
    assert "does not answer" in done.stdout
    assert "prefect server start" in done.stdout


def test_a_file_is_coded_with_its_columns_kept(finished: Job, tmp_path: Path) -> None:
    """Line breaks inside quotes, empty narratives and other columns go through; each row names the bundle."""
    rows = [["id", "Text"], ["1", "Employee fell\nfrom a ladder."], ["2", ""], ["3", "Burned by hot oil."]]
    source, out = write(tmp_path / "new.csv", rows), tmp_path / "coded.csv"
    done = finished.command("code", "--data", str(source), "--column", "Text", "--out", str(out), "--top-k", "2")
    assert done.returncode == 0, done.stderr
    with out.open(newline="", encoding="utf-8") as file:
        coded = list(csv.DictReader(file))
    assert [row["Text"] for row in coded] == [row[1] for row in rows[1:]]
    for row in coded:
        assert bool(row["code"]) == bool(row["code_2"]) == bool(row["Text"]), "a blank narrative gets no code"
        assert not row["code"] or 0 <= float(row["score"]) <= 1
    assert {row["bundle"] for row in coded} == {finished.releases()[0]["release_id"]}
    assert "ladder" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("content", "column", "said"),
    [
        (b"id,Text\n1,x\n", "Narrative", "has no column 'Narrative'"),
        (b"", "Text", "no CSV"),
        (b"Text\n\xff\xfe\x00x\n", "Text", "no CSV in UTF-8"),
        (None, "Text", "no file"),
        (b"Text,code\nx,111\n", "Text", "would overwrite"),
        (b"Jane Roe cut her hand,x\nfell,y\n", "Text", "names 2 others"),
    ],
    ids=["column", "empty", "encoding", "missing", "code taken", "no header"],
)
def test_what_cannot_be_coded_leaves_no_output(
    finished: Job, tmp_path: Path, content: bytes | None, column: str, said: str
) -> None:
    """One line, exit code 2, neither the output nor a part of it."""
    source, out = tmp_path / "new.csv", tmp_path / "coded.csv"
    if content is not None:
        source.write_bytes(content)
    done = finished.command("code", "--data", str(source), "--column", column, "--out", str(out))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Jane" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == (["new.csv"] if content is not None else [])


def test_code_without_a_bundle_says_how_to_get_one(tmp_path: Path, finished: Job) -> None:
    """And with neither narratives nor a file, what to give."""
    job = Job(tmp_path, finished.data, finished.codelist)
    assert "autocoder retrain" in job.command("code", "Employee fell.").stderr
    assert "--data" in job.command("code").stderr
