"""Would win: half a file in the place of a whole one, another's work written over, hours of coding
for nothing.
"""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from planned_chain import nothing_charged
from refusals import of_kind

from flows import release as release_flow
from flows.commands import file_checks
from flows.commands import ledger as ledger_command
from storage.errors import InputError
from storage.paths import Workspace
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.coding.bundles import Bundles
from tasks.coding.coder import Coder
from tasks.coding.columns import answer_columns
from tasks.coding.job import CodingJob, run
from tasks.parameters import BundleParameters
from tasks.releasing.case import ReleaseCase
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

DECLARES = """
what was written is whole, and takes nobody else's place
| a ledger's export, head and record on a disk that becomes full; an output that appears while a
table is coded; outputs whose name is no UTF-8, or whose folder is closed; a workspace whose path
ends a URL; a FIFO, a file or a broken link in the place of the bundles when a plan is released
| a file that appears in the moment of the rename itself
"""


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: what fits is written, as on a disk
    that becomes full.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_export_on_a_full_disk(tmp_path: Path) -> None:
    """The earlier one stays as it was, which `ledger verify --against` needs, and no piece of
    another is near.
    """
    out = tmp_path / "kept"
    out.write_text(earlier := "an earlier export\n" * 100)
    with (
        pytest.raises(
            InputError, check=of_kind("unwritable-export", saying=("kept", "File too large"))
        ),
        full_disk(100),
    ):
        ledger_command._write(out, "a later one\n" * 100)
    assert out.read_text() == earlier
    assert list(tmp_path.iterdir()) == [out]
    ledger_command._write(out, "a later one\r\n")
    assert out.read_bytes() == b"a later one\r\n"


def job(coder: Coder, texts: list[str], out: Path, **changes: Any) -> CodingJob:
    """A table next to its output."""
    source = out.with_name("in.csv")
    source.write_text("\n".join(["Text", *texts]))
    answers = (answer_columns(coder, top_k=1, threshold=None),)
    return CodingJob(
        survey(source, text_columns=["Text"]), out, Narratives(("Text",)), answers, **changes
    )


def test_an_output_that_appears_meanwhile(
    coder: Coder, tmp_path: Path, narratives: Callable[..., list[str]]
) -> None:
    """It was not there when the work began: it is not written over without --overwrite, which then
    takes no time.
    """
    out = tmp_path / "out.csv"

    def appears() -> None:
        out.write_text("another's work\n")

    with pytest.raises(InputError, check=of_kind("output-exists")):
        run(Bundles.of(coder), job(coder, narratives(6), out), distribute=appears)
    assert out.read_text() == "another's work\n"
    again = run(Bundles.of(coder), job(coder, narratives(6), out, overwrite=True))
    assert again.resumed == again.rows == 6


def test_an_output_whose_name_is_no_text(tmp_path: Path) -> None:
    """A name in cp1252, as old shares have them: refused before the work, which would fail at its
    first piece.
    """
    with pytest.raises(InputError, check=of_kind("name-not-utf-8", saying="--out")):
        file_checks.require_writable(
            "--out", Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv"))
        )


def test_a_folder_that_is_closed_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before a table and a model are read."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode & os.W_OK == 0)
    with pytest.raises(InputError, check=of_kind("folder-not-writable", saying="--out")):
        file_checks.require_writable("--out", tmp_path / "out.csv")


def test_a_workspace_whose_path_ends_a_url(tmp_path: Path) -> None:
    """`a?1` and `a?2` had one ledger, at `a`, outside of both."""
    for name in ("a?1", "a?x=1"):
        with pytest.raises(InputError, check=of_kind("question-mark")):
            _ = Workspace(tmp_path / name).create().ledger_url
    assert Workspace(tmp_path / "a #%41&").create().ledger_url.endswith("/a #%41&/ledger.db")


PLACES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "file": Path.touch,
    "broken link": lambda place: place.symlink_to(place.parent / "absent"),
}


@pytest.mark.parametrize("put", PLACES.values(), ids=PLACES)
def test_something_else_in_the_place_of_the_bundles(
    made: tuple[Context, PlannedRelease], put: Callable[[Path], object]
) -> None:
    """The plan is refused before its cost is reserved and a sample is taken, which a bundle that
    cannot be written would leave behind.
    """
    context, planned = made
    settings, bundles = BundleParameters(), context.workspace.bundles
    case = ReleaseCase.open(context, planned, settings, file=planned.file(context))
    bundles.rmdir()
    put(bundles)
    try:
        with pytest.raises(InputError, check=of_kind("bundles-not-a-folder")):
            release_flow.release(case, context, settings=settings)
    finally:
        bundles.unlink()
        bundles.mkdir()
    assert nothing_charged(context)


def test_bundles_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the folder exists or is to be made in a workspace that is read-only."""
    workspace = Workspace(tmp_path / "home").create()
    workspace.require_bundles()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    for _ in ("exists", "is to be made"):
        with pytest.raises(InputError, check=of_kind("bundles-not-writable")):
            workspace.require_bundles()
        if workspace.bundles.exists():
            workspace.bundles.rmdir()
