"""A table that several workers code is the one that a single process writes; no piece is lost, none
coded twice.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kills import killed_at
from refusals import of_kind

from storage.errors import InputError, StorageError
from storage.tables import reader
from storage.tables.narratives import Narratives
from tasks.bundle.thresholds import SCHEMA
from tasks.coding import distribute as workers
from tasks.coding import job as coding_job
from tasks.coding.bundles import Bundles
from tasks.coding.coder import Coder, open_bundle
from tasks.coding.columns import AnswerColumns
from tasks.coding.distribute import distribute
from tasks.coding.job import CodingJob, CodingReport, run
from tasks.running import engine

ROWS, PIECES = 25, 7


@pytest.fixture(autouse=True, scope="module")
def _close() -> Iterator[None]:
    yield
    engine.disconnect("2")


@pytest.fixture
def table(
    tmp_path: Path, narratives: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setattr(reader, "_PIECE_ROWS", 4)
    workers._opened.cache_clear()
    texts = narratives(ROWS)
    texts[3] = ""
    path = tmp_path / "in.jsonl"
    path.write_text(
        "".join(json.dumps({"id": n, "Text": text}) + "\n" for n, text in enumerate(texts))
    )
    return path


def job(coder: Coder, source: Path, out: Path) -> CodingJob:
    table = reader.survey(source, text_columns=("Text",))
    return CodingJob(
        table, out, Narratives(("Text",)), (AnswerColumns(2, 0.6, coder.groups is not None),)
    )


def by_workers(
    coder: Coder, one: CodingJob, bundle: Path, chosen: str = "", **files: Any
) -> CodingReport:
    told: list[tuple[int, int]] = []

    def ask() -> None:
        distribute(
            Bundles.of(coder),
            one,
            engine=chosen,
            report=lambda done, total: told.append((done, total)),
            bundle=bundle,
            **files,
        )

    done = run(Bundles.of(coder), one, distribute=ask)
    assert told == sorted(told)
    return done


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    requests: list[str] = []
    real = engine.map_parts

    def noted(body: Any, parts: list[str], **options: Any) -> None:
        requests.extend(parts)
        real(body, parts, **options)

    monkeypatch.setattr(workers, "map_parts", noted)
    return requests


def test_processes_write_what_one_process_writes(
    tiny_bundle: Path, tmp_path: Path, narratives: Callable[..., list[str]]
) -> None:
    """The same bytes and the same counts in pieces of the program's own size."""
    source = tmp_path / "in.jsonl"
    texts = narratives(300)
    rows = (json.dumps({"id": number, "Text": texts[number % 300]}) for number in range(4500))
    source.write_text("\n".join(rows) + "\n")
    coder = open_bundle(tiny_bundle)
    expected = run(Bundles.of(coder), job(coder, source, tmp_path / "whole.csv"))
    done = by_workers(coder, job(coder, source, tmp_path / "out.csv"), tiny_bundle, "2")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert (done.rows, done.blank, done.review, done.resumed) == (*vars(expected).values(),)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.csv", "whole.csv"]


def test_nothing_of_a_narrative_is_told(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path, asked: list[str]
) -> None:
    """Paths and a number for each piece; no digest of the table."""
    by_workers(coder, job(coder, table, tmp_path / "out.csv"), tiny_bundle)
    assert [json.loads(request)[1] for request in asked] == list(range(PIECES))
    words = {
        w
        for line in table.read_text().splitlines()
        for w in json.loads(line)["Text"].split()
        if len(w) > 4
    }
    assert words
    assert not [word for request in asked for word in words if word in request]
    one = job(coder, table, tmp_path / "out.csv")
    assert one.key(Bundles.of(coder)) not in asked[0]
    assert one.table.sha256 not in asked[0]


@pytest.mark.parametrize("after", [0, 1, 4])
def test_what_was_coded_before_a_death_is_kept(
    coder: Coder,
    tiny_bundle: Path,
    table: Path,
    tmp_path: Path,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    """A worker dies after so many pieces, and the asking run with it: the next run asks only for
    the others.
    """
    run(Bundles.of(coder), job(coder, table, tmp_path / "whole.csv"))
    with killed_at(monkeypatch, coding_job, "_write_part", after=after):
        by_workers(coder, job(coder, table, tmp_path / "out.csv"), tiny_bundle)
    asked.clear()
    done = by_workers(coder, job(coder, table, tmp_path / "out.csv"), tiny_bundle)
    assert len(asked) == PIECES - after
    assert done.resumed == 4 * after
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_late_worker_of_another_job_changes_nothing(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path, asked: list[str]
) -> None:
    """Its job has ended, and another one writes to the same file: it finds no place to write to,
    and says so.
    """
    by_workers(coder, job(coder, table, tmp_path / "out.csv"), tiny_bundle)
    before = (tmp_path / "out.csv").read_bytes()
    workers._opened.cache_clear()
    with pytest.raises(StorageError, check=of_kind("workers-differ")):
        workers.compute(asked[0])
    assert (tmp_path / "out.csv").read_bytes() == before


def test_other_versions_and_other_folders_are_refused(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose code is another; answers that never arrive; a bundle that only this process
    has unpacked.
    """
    one = job(coder, table, tmp_path / "out.csv")
    with (
        monkeypatch.context() as patched,
        pytest.raises(StorageError, check=of_kind("pieces-missing")),
    ):
        patched.setattr(workers, "map_parts", lambda *_, **__: None)
        by_workers(coder, one, tiny_bundle)
    real = workers.map_parts

    def upgraded(*given: Any, **options: Any) -> None:
        patched.setattr(coding_job, "_code", lambda: "another")
        real(*given, **options)

    with (
        monkeypatch.context() as patched,
        pytest.raises(StorageError, check=of_kind("workers-differ")),
    ):
        patched.setattr(workers, "map_parts", upgraded)
        by_workers(coder, one, tiny_bundle)
    with pytest.raises(InputError, check=of_kind("engine-needs-folder")):
        by_workers(coder, one, tmp_path / "unpacked")


def test_what_the_command_has_goes_to_the_workers(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path, asked: list[str]
) -> None:
    """Several columns, a template, thresholds of one's own, groups, an output that is added to."""
    known = {"fitted_on": "coded-records", "temperature": 3.0, "thresholds": []}
    (tmp_path / "thresholds.json").write_text(json.dumps(known | {"schema": SCHEMA}))
    places: dict[str, Any] = {"thresholds": tmp_path / "thresholds.json", "levels": "none"}
    own = open_bundle(tiny_bundle, **places)
    answers = (AnswerColumns(2, 0.6, own.groups is not None),)
    whole = job(own, table, tmp_path / "whole.csv")
    source = reader.survey(table, text_columns=("Text", "id"))
    whole = replace(
        whole, table=source, narratives=Narratives(("Text", "id"), "Case {id}: {Text}"), append=True
    )
    whole = replace(whole, answers=answers)
    for _ in range(2):
        run(Bundles.of(own), whole)
        by_workers(own, replace(whole, out=tmp_path / "out.csv"), tiny_bundle, **places)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert asked
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 2 * ROWS
