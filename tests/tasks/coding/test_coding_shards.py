"""A table that several workers code is the one that a single process writes; no piece is lost, none coded twice.

The server and its workers are played here; tests/flows/test_fanned_out.py has real ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import played_workers
import pytest
from kills import killed_at

from storage.errors import InputError, StorageError
from storage.tables import reader
from storage.tables.narratives import Narratives
from tasks.bundle.thresholds import SCHEMA
from tasks.coding import job as coding_job
from tasks.coding import shards
from tasks.coding.coder import Coder
from tasks.coding.columns import AnswerColumns
from tasks.coding.job import CodingJob, CodingReport, run
from tasks.coding.joint import open_bundle
from tasks.coding.shards import Pieces
from tasks.parameters import ShardSettings

ROWS, PIECES = 25, 7


@pytest.fixture
def table(tmp_path: Path, narratives: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """25 rows, one of them blank, in pieces of four."""
    monkeypatch.setattr(reader, "_PIECE_ROWS", 4)
    texts = narratives(ROWS)
    texts[3] = ""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": n, "Text": text}) + "\n" for n, text in enumerate(texts)))
    return path


def job(coder: Coder, source: Path, out: Path) -> CodingJob:
    table = reader.survey(source, text_columns=("Text",))
    return shards.job_of(coder, table, out=str(out), column="Text", top_k=2, threshold=0.6)


def spread(coder: Coder, one: CodingJob, bundle: Path, number: int = 3, **settings: Any) -> CodingReport:
    """As the flow does."""
    told = shards.pieces_of(coder, one, bundle=bundle)
    chosen = ShardSettings(**{"shards": number, "patience_seconds": 1000} | settings)

    def tell(done: int, total: int) -> None:
        assert done <= total

    return run(coder, one, spread=lambda: shards.finish(coder, one, told, chosen, tell))


def on_a_worker(asked: dict[str, Any]) -> int:
    return shards.compute(Pieces.model_validate(asked["settings"]), asked["key"])


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Pieces as they are coded, whoever does it."""
    seen: list[Path] = []
    real = coding_job.code_piece

    def counted(coder: Coder, one: CodingJob, piece: Any, part: Path) -> None:
        seen.append(part)
        real(coder, one, piece, part)

    monkeypatch.setattr(coding_job, "code_piece", counted)
    monkeypatch.setattr(shards, "code_piece", counted)
    return seen


@pytest.mark.parametrize(
    ("fates", "number", "asked"),
    [
        ([], 3, 3),
        (["crashed", "done", "failed"], 3, 5),
        (["twice"] * 3, 3, 3),
        ([], 50, PIECES),
        (["queued"] * 3, 3, 3),
    ],
    ids=["unbroken", "lost", "twice", "more-than-pieces", "no-worker"],
)
def test_shards_write_what_one_process_writes(
    coder: Coder,
    tiny_bundle: Path,
    table: Path,
    tmp_path: Path,
    coded: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    fates: list[str],
    number: int,
    asked: int,
) -> None:
    """The same bytes and the same counts, whatever became of the workers; each piece was coded once."""
    expected = run(coder, job(coder, table, tmp_path / "whole.csv"))
    coded.clear()
    workers = played_workers.play(monkeypatch, on_a_worker, *fates)
    patience = 0.1 if "queued" in fates else 1000
    done = spread(coder, job(coder, table, tmp_path / "out.csv"), tiny_bundle, number, patience_seconds=patience)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert (done.rows, done.blank, done.review, done.resumed) == (*vars(expected).values(),)
    assert sorted(part.name for part in coded) == [f"{n:08}.parquet" for n in range(PIECES)]
    assert len(workers.requests) == asked
    assert set(workers.deployments) == {("shard/shard", "coding")}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.csv", "whole.csv"]


def test_nothing_of_a_narrative_goes_through_prefect(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths, a digest and numbers."""
    workers = played_workers.play(monkeypatch, on_a_worker)
    spread(coder, job(coder, table, tmp_path / "out.csv"), tiny_bundle)
    words = {w for line in table.read_text().splitlines() for w in json.loads(line)["Text"].split() if len(w) > 4}
    assert words
    for asked in workers.requests:
        assert not [word for word in words if word in asked]


@pytest.mark.parametrize("after", [0, 1, 4])
def test_what_was_coded_before_a_death_is_kept(
    coder: Coder,
    tiny_bundle: Path,
    table: Path,
    tmp_path: Path,
    coded: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    """A worker dies after so many pieces, and the asking run with it: the next run, spread or not, codes the others."""
    run(coder, job(coder, table, tmp_path / "whole.csv"))
    played_workers.play(monkeypatch, on_a_worker)
    with killed_at(monkeypatch, coding_job, "_write_part", after=after):
        spread(coder, job(coder, table, tmp_path / "out.csv"), tiny_bundle)
    coded.clear()
    one = job(coder, table, tmp_path / "out.csv")
    done = run(coder, one) if after == 1 else spread(coder, one, tiny_bundle, 5)
    assert len(coded) == PIECES - after
    assert done.resumed == 4 * after
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_late_worker_of_another_job_changes_nothing(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job was given up, and another one writes to the same file: it finds no place to write to, and says so."""
    one = job(coder, table, tmp_path / "out.csv")
    late = shards.pieces_of(coder, one, bundle=tiny_bundle)
    played_workers.play(monkeypatch, on_a_worker, "failed")
    with pytest.raises(StorageError, match="lost 1 times"):
        spread(coder, one, tiny_bundle, attempts=1)
    assert isinstance(one.answers, AnswerColumns)
    run(coder, replace(one, answers=replace(one.answers, top_k=1)))
    before = (tmp_path / "out.csv").read_bytes()
    with pytest.raises(StorageError, match="that run has ended"):
        shards.compute(late, shards.key_of(late))
    assert (tmp_path / "out.csv").read_bytes() == before


def test_other_files_and_other_versions_are_refused(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose table was changed meanwhile, or whose code is another; answers that never arrive."""
    one = job(coder, table, tmp_path / "out.csv")
    told = shards.pieces_of(coder, one, bundle=tiny_bundle)
    with pytest.raises(StorageError, match="code or libraries differ"):
        shards.compute(told, "0" * 32)
    played_workers.play(monkeypatch, on_a_worker, "elsewhere")
    with pytest.raises(StorageError, match="Give all workers of the queue the folder of the output"):
        spread(coder, one, tiny_bundle)
    table.write_text(table.read_text().replace("fell", "fall"))
    with pytest.raises(StorageError, match="the bundle or one of its files differs"):
        shards.compute(told, shards.key_of(told))


def test_what_the_command_has_goes_to_the_workers(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several columns, a template, thresholds of one's own, groups, an output that is added to."""
    known = {"fitted_on": "records of one's own", "temperature": 3.0, "thresholds": []}
    (tmp_path / "thresholds.json").write_text(json.dumps(known | {"schema": SCHEMA}))
    places: dict[str, Any] = {"thresholds": [tmp_path / "thresholds.json"], "by_digits": False}
    own = open_bundle(tiny_bundle, **places)
    assert isinstance(own, Coder)
    answers = AnswerColumns(2, 0.6, own.groups is not None)
    workers = played_workers.play(monkeypatch, on_a_worker)

    def to(name: str) -> CodingJob:
        source = reader.survey(table, text_columns=("Text", "id"))
        narratives = Narratives(("Text", "id"), "Case {id}: {Text}")
        return CodingJob(source, tmp_path / name, narratives, answers, append=True)

    for _ in range(2):
        run(own, to("whole.csv"))
        told = shards.pieces_of(own, to("out.csv"), bundle=tiny_bundle, **places)
        chosen = ShardSettings(shards=3, patience_seconds=1000)
        run(own, to("out.csv"), spread=partial(shards.finish, own, to("out.csv"), told, chosen, lambda *_: None))
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert len(workers.requests) == 6
    keys = {json.loads(request)["settings"]["job"] for request in workers.requests}
    assert len(keys) == 2, "a key of its own for each job, though table and bundle are the same"
    assert not keys & {to("out.csv").key(own), "0" * 64}
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 2 * ROWS


def test_what_workers_would_do_otherwise_is_refused(
    coder: Coder, tiny_bundle: Path, table: Path, tmp_path: Path
) -> None:
    """A bundle that only this process has unpacked, and passes that each processor rounds in its own way."""
    one = job(coder, table, tmp_path / "out.csv")
    with pytest.raises(InputError, match="--bundle: shards cannot use a packed bundle"):
        shards.pieces_of(coder, one, bundle=tmp_path / "unpacked")
    rounded = replace(coder, model=replace(coder.model, precision="bfloat16"))
    with pytest.raises(InputError, match="--precision float32"):
        shards.pieces_of(rounded, one, bundle=tiny_bundle)
