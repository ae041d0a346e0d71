"""Would win: records or the ledger, from a file that another user of the machine may read."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from sealed_bundle import Sealed

from storage.bundle.seal import workspace_key
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ledger import Ledger
from storage.paths import Workspace
from storage.shared_store import SharedStore
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.coding.bundles import Bundles
from tasks.coding.coded_summary import write_summary
from tasks.coding.coder import Coder
from tasks.coding.columns import answer_columns
from tasks.coding.job import CodingJob, run
from tasks.coding.quality import draw

ROOT = Path(__file__).parents[2]
DECLARES = """
no file lies open
| a partner's adoption under four umasks; ledgers behind links that lead nowhere, in a circle, over
two; shared storage with seven modes, by links and URLs; Prefect's folder; core dumps, to files and
to programs; coded copies, summaries and samples of closed files, and files that replace closed ones
| what was open before, and access lists; S3's rights; swap
"""


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_ledger_behind_a_link_that_leads_nowhere_yet(tmp_path: Path) -> None:
    """Is made closed, like one without a link; over two links, and relative ones, too."""
    (tmp_path / "far").mkdir()
    (tmp_path / "one.db").symlink_to(tmp_path / "two.db")
    (tmp_path / "two.db").symlink_to(Path("far") / "ledger.db")
    Ledger.open(f"sqlite:///{tmp_path / 'one.db'}")
    made = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.name.split(".")[0] for path in made} == {"ledger"}
    assert {oct(path.stat().st_mode & 0o777) for path in made} == {"0o600"}


def test_a_ledger_behind_a_link_into_no_folder_or_a_circle(tmp_path: Path) -> None:
    """Is refused, and nothing made."""
    (tmp_path / "lost.db").symlink_to(tmp_path / "nowhere" / "ledger.db")
    (tmp_path / "round.db").symlink_to(tmp_path / "round.db")
    for name in ("lost", "round"):
        with pytest.raises(StorageError):
            Ledger.open(f"sqlite:///{tmp_path / name}.db")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o701, 0o704, 0o1777, 0o703, 0o2755])
@pytest.mark.parametrize("link", [False, True], ids=["itself", "by a link"])
def test_a_shared_storage_that_is_open(tmp_path: Path, mode: int, link: bool) -> None:
    """And there already: refused before a record is written into it."""
    place = tmp_path / "stages"
    place.mkdir()
    place.chmod(mode)
    if link:
        (tmp_path / "link").symlink_to(place)
    for url in [str(tmp_path / "link") if link else str(place), f"file://{place}"]:
        with pytest.raises(InputError, check=of_kind("open-to-every-user")):
            SharedStore(url)


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o2770, 0o750])
def test_a_shared_storage_that_is_closed(tmp_path: Path, mode: int) -> None:
    """To all but a group is taken; one that was not there is made closed."""
    place = tmp_path / "stages"
    place.mkdir()
    place.chmod(mode)
    SharedStore(str(place))
    SharedStore(str(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("umask", [0o000, 0o020, 0o002, 0o077])
def test_a_umask_that_lets_everyone_write(sealed: Sealed, tmp_path: Path, umask: int) -> None:
    """A partner adopts under it, from a folder that everyone may write: nobody else may write a
    file of the bundle, its thresholds or what is known of the agency. One that shares with a group
    stays, and one that is closer.
    """
    bundle = sealed.copy(tmp_path)
    for path in (bundle, *bundle.rglob("*")):
        path.chmod(path.stat().st_mode | 0o022)
    command = [sys.executable, "-m", "flows.cli", "adopt", str(bundle)]
    command += ["--key", str(sealed.home / "signing-key.pub.pem"), "--out", str(tmp_path / "a")]
    subprocess.run(command, umask=umask, check=True, capture_output=True, cwd=ROOT)
    modes = [one.stat().st_mode & 0o777 for one in (tmp_path / "a", *(tmp_path / "a").rglob("*"))]
    assert len(modes) > 10
    forbidden = 0o022 if not umask & 0o002 else umask
    assert not any(mode & forbidden for mode in modes)
    assert any(mode & 0o020 for mode in modes) == (umask == 0o002)


DIES = """
import os, signal, sys
from {module} import {name}
{act}
os.chdir(sys.argv[1])
os.kill(os.getpid(), signal.SIGABRT)
"""


@pytest.mark.parametrize(
    ("module", "name", "act"),
    [
        ("tasks.running.failures", "private_errors", "private_errors('x').__enter__()"),
        ("storage.core_dumps", "forbid", "forbid()\nforbid()"),
    ],
)
@pytest.mark.parametrize("allowed", [resource.RLIM_INFINITY, 0], ids=["without a limit", "none"])
def test_a_process_that_dies_with_narratives(
    tmp_path: Path, module: str, name: str, act: str, allowed: int
) -> None:
    """Leaves no core dump, neither a file nor what the system pipes to a program: the limit is one
    byte, not more.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard != resource.RLIM_INFINITY and allowed:
        allowed = hard
    script = DIES.format(module=module, name=name, act=act).replace(
        "os.chdir",
        "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[1], flush=True)\nos.chdir",
    )
    died = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (allowed, allowed)),
    )
    assert died.returncode == -signal.SIGABRT, died.stderr
    assert int(died.stdout) == min(allowed if allowed != resource.RLIM_INFINITY else 1, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("closed", [0o600, 0o640, 0o400])
def test_copy_of_a_closed_file(
    coder: Coder, tmp_path: Path, narratives: Callable[..., list[str]], closed: int
) -> None:
    """Coded, sampled, summed up or revised, narratives are as closed as they were, also in the
    place of an older file that someone closed.
    """
    source, out, sample = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "sample.csv"
    source.write_text("\n".join(["Text", *narratives(30)]))
    source.chmod(closed)

    def code(**options: Any) -> None:
        table = survey(source, text_columns=["Text"])
        answers = (answer_columns(coder, top_k=1, threshold=None),)
        run(Bundles.of(coder), CodingJob(table, out, Narratives(("Text",)), answers, **options))

    code()
    page = write_summary(out)
    draw(out, sample, columns=["Text"], share=0.5, seed=1)
    for file in (out, page, sample):
        assert file.stat().st_mode & 0o777 == closed | 0o600, file.name
    source.chmod(0o644)
    for mode in (0o600, 0o664):
        out.chmod(mode)
        code(overwrite=True)
        assert out.stat().st_mode & 0o777 == mode
    assert not list(tmp_path.glob(".out*"))


def test_a_file_that_others_may_write(tmp_path: Path) -> None:
    """Under umask 000: the public halves of the workspace's key, which partners get, and every
    other small file stay the owner's; one that was opened on purpose keeps its rights.
    """
    os.umask(0)
    workspace = Workspace(tmp_path / "home").create()
    workspace_key(workspace.private, workspace.home)
    write_atomically(tmp_path / "adoption.json", b"{}")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert {path.stat().st_mode & 0o022 for path in files} == {0}
    files[0].chmod(0o666)
    write_atomically(files[0], b"again")
    assert files[0].stat().st_mode & 0o777 == 0o666
