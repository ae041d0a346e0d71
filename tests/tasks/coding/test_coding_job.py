"""Coding a table: every row once, versions unmixed, and after any death the same output as if
unbroken.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from csv_files import rows_of, write_csv
from kills import killed_at
from refusals import of_kind

from storage.errors import InputError, StorageError
from storage.tables import reader
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.coding import job as coding_job
from tasks.coding.bundles import Bundles
from tasks.coding.coder import Coder
from tasks.coding.columns import AnswerColumns
from tasks.coding.groups import groups_of
from tasks.coding.job import CodingJob, run

HEADER = ["id", "Text", "version"]


@pytest.fixture
def table(
    tmp_path: Path, narratives: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setattr(reader, "_PIECE_ROWS", 4)
    texts = narratives(25)
    texts[3], texts[17] = "", "  "
    return write_csv(
        tmp_path / "in.csv", HEADER, [[str(n), text, "2.01"] for n, text in enumerate(texts)]
    )


def job(source: Path, out: Path, **changes: Any) -> CodingJob:
    settings: dict[str, Any] = {
        "answers": (AnswerColumns(top_k=2, threshold=0.6, grouped=True),),
        "append": False,
    } | changes
    return CodingJob(survey(source, text_columns=["Text"]), out, Narratives(("Text",)), **settings)


def test_every_row_gets_its_own_answer(coder: Coder, table: Path, tmp_path: Path) -> None:
    """As the model gives it for the row's text, with its origin; the folder of pieces is gone."""
    done = run(Bundles.of(coder), job(table, tmp_path / "out.csv"))
    rows = rows_of(tmp_path / "out.csv")
    assert (done.rows, done.blank, done.resumed) == (25, 2, 0)
    assert done.review == sum(row["needs_review"] == "true" for row in rows)
    expected = coder.code([row["Text"] for row in rows], top_k=2, threshold=0.6)
    for row, coding in zip(rows, expected, strict=True):
        assert [row["code"], row["code_2"]] == (
            [answer.code for answer in coding.answers] or ["", ""]
        )
        assert row["group_code"] == (coding.group.code if coding.group else "")
        assert (row["score"] == "") == (row["code"] == "")
        assert {name: row[name] for name in coder.origin} == coder.origin
    assert [row["id"] for row in rows] == [str(n) for n in range(25)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_other_groups_take_no_pieces_of_an_earlier_job(
    coder: Coder, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that died with one list of groups does not finish with the groups of another."""
    codes = coder.model.codes
    parents = [{code: f"{side}{n % 3}" for n, code in enumerate(codes)} for side in "LR"]
    left, right = (
        replace(coder, groups=groups_of(codes, classification="own", levels=levels))
        for levels in parents
    )
    with killed_at(monkeypatch, coding_job, "_write_part", after=3):
        run(Bundles.of(left), job(table, tmp_path / "out.csv"))
    assert run(Bundles.of(right), job(table, tmp_path / "out.csv")).resumed == 0


def test_formats_agree(coder: Coder, table: Path, tmp_path: Path) -> None:
    """The same answers in CSV, Parquet and JSON Lines, with types where the format has them."""
    for suffix in ("csv", "parquet", "jsonl"):
        run(Bundles.of(coder), job(table, tmp_path / f"out.{suffix}"))
    parquet = pq.read_table(tmp_path / "out.parquet").to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert parquet == lines
    assert {type(row["needs_review"]) for row in parquet} == {bool}
    assert [row["code"] or "" for row in parquet] == [
        row["code"] for row in rows_of(tmp_path / "out.csv")
    ]


@pytest.mark.parametrize(
    ("point", "after"),
    [
        *(("_write_part", after) for after in (0, 1, 3)),
        ("file_digest", 0),
        *((point, 0) for point in ("_merge", "_finished", "shutil.rmtree")),
    ],
)
def test_it_goes_on_after_a_death_anywhere(
    coder: Coder,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    after: int,
) -> None:
    """The n-th call of a step dies without any clearing up; then the output is what an unbroken run
    writes.
    """
    run(Bundles.of(coder), job(table, tmp_path / "whole.csv"))
    out = tmp_path / "out.csv"
    owner: Any = coding_job.shutil if "." in point else coding_job
    with killed_at(monkeypatch, owner, point.rpartition(".")[2], after=after):
        run(Bundles.of(coder), job(table, out))
    assert not out.exists() or out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    if (tmp_path / ".out.csv.coding").exists():
        done = run(Bundles.of(coder), job(table, out))
        assert done.resumed >= 4 * after * (point == "_write_part")
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not (tmp_path / ".out.csv.coding").exists()


@pytest.mark.parametrize("removed", [0, 1, 4, 99])
@pytest.mark.parametrize("last_first", [False, True])
def test_rows_are_added_once_wherever_the_clearing_up_dies(
    coder: Coder,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    removed: int,
    last_first: bool,
) -> None:
    """In whichever order a folder's files go: the same command adds no row again, and tells the
    same figures.
    """
    run(Bundles.of(coder), job(table, tmp_path / "whole.csv"))
    whole = run(Bundles.of(coder), job(table, tmp_path / "whole.csv", append=True))
    out = tmp_path / "out.csv"
    run(Bundles.of(coder), job(table, out))
    real = coding_job.shutil.rmtree

    def dies(folder: Path) -> None:
        files = sorted((path for path in folder.rglob("*") if path.is_file()), reverse=last_first)
        for path in files[:removed]:
            path.unlink()
        if removed >= len(files):
            real(folder)
        raise KeyboardInterrupt  # nothing of ours catches it

    with monkeypatch.context() as patch:
        patch.setattr(coding_job.shutil, "rmtree", dies)
        with pytest.raises(KeyboardInterrupt):
            run(Bundles.of(coder), job(table, out, append=True))
    again = run(Bundles.of(coder), job(table, out, append=True))
    assert (again.rows, again.blank, again.review) == (whole.rows, whole.blank, whole.review)
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.csv", "out.csv", "whole.csv"]


def test_finished_pieces_are_not_coded_again_nor_taken_for_another_job_s(
    coder: Coder, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a death at the end nothing is left to code; with other options everything is."""
    with killed_at(monkeypatch, coding_job, "_merge"):
        run(Bundles.of(coder), job(table, tmp_path / "out.csv"))
    assert "fell" not in "".join(
        p.read_bytes().decode("latin1") for p in (tmp_path / ".out.csv.coding").glob("*/*")
    ), "no narrative lies in the folder of pieces"
    other = (AnswerColumns(top_k=1, threshold=None, grouped=True),)
    resumed = run(Bundles.of(coder), job(table, tmp_path / "out.csv"))
    assert resumed.resumed == 25
    assert (
        run(
            Bundles.of(coder), job(table, tmp_path / "out.csv", answers=other, overwrite=True)
        ).resumed
        == 0
    )


def test_an_output_is_replaced_or_added_to_only_when_told(
    coder: Coder, table: Path, tmp_path: Path
) -> None:
    """And added to only by rows of the same columns and version."""
    out = tmp_path / "out.csv"
    run(Bundles.of(coder), job(table, out))
    before = out.read_bytes()
    with pytest.raises(InputError, check=of_kind("output-exists")):
        run(Bundles.of(coder), job(table, out))
    with pytest.raises(InputError, check=of_kind("other-output-columns")):
        run(
            Bundles.of(coder), job(table, out, append=True, answers=(AnswerColumns(1, None, True),))
        )
    assert out.read_bytes() == before
    run(Bundles.of(coder), job(table, out, append=True))
    assert rows_of(out) == 2 * rows_of(out)[:25]
    run(Bundles.of(coder), job(table, out, overwrite=True))
    assert out.read_bytes() == before
    out.write_text(out.read_text().replace(",OIICS,2.01,", ",OIICS,3.01,", 1))
    with pytest.raises(InputError, check=of_kind("mixed-versions", row=1)):
        run(Bundles.of(coder), job(table, out, append=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_two_processes_do_not_write_one_file(coder: Coder, table: Path, tmp_path: Path) -> None:
    """The second says so."""
    one = job(table, tmp_path / "out.csv")
    with coding_job._locked(one), pytest.raises(StorageError, check=of_kind("output-locked")):
        run(Bundles.of(coder), one)


def test_a_changed_input_is_noticed(
    coder: Coder, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is put in place."""
    one, real = job(table, tmp_path / "out.csv"), coding_job._merge

    def changed(*arguments: Any) -> None:
        table.write_bytes(table.read_bytes().replace(b"fell", b"fall").replace(b"cut", b"cat"))
        real(*arguments)

    monkeypatch.setattr(coding_job, "_merge", changed)
    with pytest.raises(StorageError, check=of_kind("changed-during-coding")):
        run(Bundles.of(coder), one)
    assert not (tmp_path / "out.csv").exists()
