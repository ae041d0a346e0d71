"""Would win: a file of another, changed or emptied through a link; a release that hangs on a pipe;
an archive, a clock or a machine beside this one that has two things believed.
"""

import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from in_process import invoke
from releases import make_plan, release_key
from sealed_bundle import Sealed

from storage.artifacts import Store
from storage.bundle.archive import unpack
from storage.bundle.folder import UnsoundBundle
from storage.bundle.trust import lock_roots
from storage.durable import open_lock, read_regular, write_atomically
from storage.errors import InputError, StorageError
from storage.ledger import Ledger, chain
from storage.ledger.journal import ForeignLedger, journals_of
from storage.paths import Workspace
from tasks.running import worker_metrics

DECLARES = """
no file of another is changed through a link, and nothing hangs on a pipe
| three kinds of locks as links to files, to nothing, to folders, as pipes, sockets and folders; an
outbox with links, hard links, pipes and folders in the place of archive and roots; 140 headers of
archives; two machines of other names on one file system, with locks and pieces left by dead ones; a
clock set back by a minute to ten years
| a file system that loses locks; a clock that was never right
"""

VICTIM = b"a signing key, or a ledger, of whoever takes the lock\n"


def link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def relative_link(place: Path, victim: Path) -> None:
    place.symlink_to(os.path.relpath(victim, place.parent))


def link_to_a_link(place: Path, victim: Path) -> None:
    (place.parent / "between").symlink_to(victim)
    place.symlink_to(place.parent / "between")


def link_to_nothing(place: Path, victim: Path) -> None:
    place.symlink_to(victim.with_name("absent"))


def link_to_a_device(place: Path, victim: Path) -> None:
    place.symlink_to("/dev/zero")


def circle(place: Path, victim: Path) -> None:
    place.symlink_to(place)


def pipe(place: Path, victim: Path) -> None:
    os.mkfifo(place)


def folder(place: Path, victim: Path) -> None:
    place.mkdir()


def listening(place: Path, victim: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(place.parent)  # a socket's path is short
        server.bind(place.name)
        os.chdir(here)


IN_PLACE: list[Callable[[Path, Path], None]] = [
    link,
    relative_link,
    link_to_a_link,
    link_to_nothing,
    link_to_a_device,
    circle,
    pipe,
    folder,
    listening,
]


def lock_of_a_stage(home: Path) -> None:
    with Store(home / "private").lock("release-x"):
        pass


def lock_of_the_roots(home: Path) -> None:
    with lock_roots(Workspace(home)):
        pass


def lock_of_a_file(home: Path) -> None:
    with open_lock(home / "private" / "locks" / "any.lock"):
        pass


LOCKS = {
    "release-x.lock": lock_of_a_stage,
    "roots.lock": lock_of_the_roots,
    "any.lock": lock_of_a_file,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("put", IN_PLACE, ids=lambda put: put.__name__)
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_that_is_a_link(
    tmp_path: Path, name: str, put: Callable[[Path, Path], None]
) -> None:
    """Whoever writes the workspace chooses the file that the releasing worker opens: it is neither
    emptied, made, nor waited for.
    """
    victim, place = tmp_path / "victim", tmp_path / "private" / "locks" / name
    victim.write_bytes(VICTIM)
    place.parent.mkdir(parents=True)
    put(place, victim)
    with pytest.raises((InputError, StorageError, OSError)):
        LOCKS[name](tmp_path)
    assert victim.read_bytes() == VICTIM
    assert not (tmp_path / "absent").exists()
    assert not Store(tmp_path / "private").is_locked("release-x")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("put", IN_PLACE, ids=lambda put: put.__name__)
def test_a_lock_of_a_run_that_is_a_pipe(tmp_path: Path, put: Callable[[Path, Path], None]) -> None:
    """Status and metrics read whose locks are held; they do not wait for a writer."""
    place = worker_metrics.folder(tmp_path) / "x.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "victim").write_bytes(VICTIM)
    put(place, tmp_path / "victim")
    assert worker_metrics.running_stages(tmp_path) == []


# -- the outbox


@pytest.fixture
def home(sealed: Sealed, tmp_path: Path) -> Path:
    shutil.copytree(sealed.home, tmp_path / "home")
    return tmp_path / "home"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("put", IN_PLACE, ids=lambda put: put.__name__)
def test_what_lies_in_the_outbox(
    sealed: Sealed, home: Path, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    """In the place of the archive and of `roots.json`, as a partner's share has them: replaced or
    refused, and what they lead to stays as it is.
    """
    release, outbox, victim = sealed.folder.name, tmp_path / "outbox", tmp_path / "victim"
    outbox.mkdir()
    victim.write_bytes(VICTIM)
    for name in (f"{release}.tar.zst", "roots.json"):
        (outbox / "between").unlink(missing_ok=True)
        put(outbox / name, victim)
    commands: list[tuple[Any, ...]] = [
        ("handover", release, "--to", "Office", "--out", outbox, "--home", home),
        ("revoke", release, "--reason", "r", "--out", outbox / "roots.json", "--home", home),
    ]
    for command in commands:
        try:
            assert invoke(*command)[0] == 0
        except (InputError, StorageError, OSError):
            assert put in (folder,)
    assert victim.read_bytes() == VICTIM
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("through", ["symlink", "hard link"])
def test_a_file_that_is_replaced_is_not_written_through(tmp_path: Path, through: str) -> None:
    victim, place = tmp_path / "victim", tmp_path / "place"
    victim.write_bytes(VICTIM)
    (place.symlink_to if through == "symlink" else place.hardlink_to)(victim)
    write_atomically(place, b"new")
    assert (victim.read_bytes(), place.read_bytes()) == (VICTIM, b"new")
    assert not place.is_symlink()


# -- archives

TOP, NAME = "0123456789abcdef", "codelist.csv"
TYPES = [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"D", b"K", b"L", b"M", b"N", b"S", b"V", b"X"]
TYPES += [b"x", b"g", b"\x00", b"A", b"Z", b"9"]
NAMES = [
    f"/{TOP}/{NAME}",
    f"//{TOP}/{NAME}",
    f"./{TOP}/{NAME}",
    f"{TOP}/./{NAME}",
    f"{TOP}//{NAME}",
    f"{TOP}/../{NAME}",
    f"../{TOP}/{NAME}",
    f"{TOP}/{NAME}/",
    f"{TOP}/{NAME}/.",
    f"{TOP}\\{NAME}",
    f"{TOP}/{NAME}\\",
    f"C:{TOP}/{NAME}",
    f"{TOP.upper()}/{NAME}",
    f"{TOP}0/{NAME}",
    f"{TOP[:-1]}/{NAME}",
    f"{TOP}/{NAME.upper()}",
    f"{TOP}/{NAME} ",
    f" {TOP}/{NAME}",
    f"{TOP}/{NAME}\n",
    f"{TOP}/\u202e{NAME}",
    f"{TOP}/{NAME}:stream",
    f"{TOP}/code\u200blist.csv",
    f"{TOP}/.{NAME}",
    f"{TOP}/{NAME}.partial",
    f"{TOP}/0_Transformer/../{NAME}",
    f"{TOP}/0_transformer/config.json",
    f"{TOP}/CON",
    f"{TOP}/model.pt",
    f"{TOP}/pytorch_model.bin",
    f"{TOP}/__init__.py",
    f"{TOP}/.git/config",
    f"{TOP}/private/keys/signing-key.pem",
    f"{TOP}/adoption.json",
    f"~/{NAME}",
    f"$HOME/{NAME}",
    f"%00/{NAME}",
    f"{TOP}/%2e%2e/{NAME}",
    NAME,
    TOP,
    "",
]


def archive(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "a.tar.zst"
    file.write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    return file


def header(name: str = f"{TOP}/{NAME}", **fields: Any) -> bytes:
    entry = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry.tobuf(tarfile.USTAR_FORMAT)


def refused(tmp_path: Path, content: bytes) -> None:
    """Nothing of it is anywhere but in the folder that it is unpacked into, and nothing hangs."""
    into = tmp_path / "deep" / "to"
    into.mkdir(parents=True)
    before = {path for path in tmp_path.rglob("*") if into not in path.parents}
    file = archive(tmp_path, content)
    with pytest.raises((UnsoundBundle, InputError)):
        unpack(file, into)
    assert {path for path in tmp_path.rglob("*") if into not in path.parents} == before | {file}
    assert not any(path.is_symlink() for path in into.rglob("*"))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.hex())
@pytest.mark.parametrize("to", ["", "/etc/passwd", f"../{NAME}"])
def test_entries_of_every_type(tmp_path: Path, kind: bytes, to: str) -> None:
    if kind == b"\x00" and not to:
        pytest.skip("a regular file, as old programs wrote it")
    end = bytes(1024)
    refused(tmp_path, header(type=kind, linkname=to) + header(f"{TOP}/../x", type=kind) + end)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_entries_of_other_names(tmp_path: Path, name: str) -> None:
    refused(tmp_path, header(name) + bytes(1024))


def changed(place: int, value: bytes) -> bytes:
    """One field of a sound header, with the sum that fits."""
    raw = bytearray(header())
    raw[place : place + len(value)] = value
    raw[148:156] = b" " * 8
    raw[148:156] = f"{sum(raw[:512]):06o}\0 ".encode()
    return bytes(raw)


HEADERS = {
    "size of 8 GB": changed(124, b"77777777777\0"),
    "size in base 256": changed(124, b"\x80" + b"\xff" * 11),
    "negative size": changed(124, b"\xff" * 12),
    "size of letters": changed(124, b"zzzzzzzzzzz\0"),
    "size of blanks and a sign": changed(124, b"      -0001\0"),
    "size with an underscore": changed(124, b"0000000_001\0"),
    "no end of name": changed(0, b"a" * 100),
    "name of other bytes": changed(0, b"\xff\xfe" + b"a" * 98),
    "prefix leads out": changed(345, b"../../.."),
    "prefix is absolute": changed(345, b"/etc"),
    "prefix is a release": changed(345, TOP.encode()),
    "a wrong sum": header()[:148] + b"0000000\0" + header()[156:],
    "no sum": header()[:148] + bytes(8) + header()[156:],
    "cut in the header": header()[:300],
    "cut in the content": header(size=4000) + b"x" * 100,
    "no end": header(),
    "something after": header() + bytes(512) + header(f"{TOP}/../x"),
    "only noise": os.urandom(4096),
    "nothing": b"",
    "only an end": bytes(10240),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_no_program_writes(tmp_path: Path, name: str) -> None:
    """What does not fit is refused, or it holds one file of an allowed name and nothing else."""
    into, file = tmp_path / "to", archive(tmp_path, HEADERS[name])
    into.mkdir()
    try:
        unpack(file, into)
    except (UnsoundBundle, InputError):
        return
    found = [path.relative_to(into).as_posix() for path in into.rglob("*") if path.is_file()]
    assert found == [f"{TOP}/{NAME}"]


def zipped() -> bytes:
    import zipfile

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        made.writestr("../x", "x")
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        zipped(),
        b"\x1f\x8b" + bytes(100),
        b"BZh9" + bytes(100),
        b"\xfd7zXZ\0" + bytes(100),
        b"!<arch>\n" + bytes(100),
        b"Rar!\x1a\x07\0" + bytes(100),
        b"7z\xbc\xaf\x27\x1c" + bytes(100),
        b"\x28\xb5\x2f\xfd",
        b"\x28\xb5\x2f\xfd" + b"\xff" * 100,
        b"\x50\x2a\x4d\x18" + b"\xff\xff\xff\x7f",
        b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd",
        bytes(10_000),
    ],
    ids=range(12),
)
def test_files_that_are_no_such_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "a.tar.zst").write_bytes(content)
    with pytest.raises((UnsoundBundle, InputError)):
        unpack(tmp_path / "a.tar.zst", tmp_path / "to")
    assert not list((tmp_path / "to").rglob("*"))


# -- two machines on one file system

MACHINE = """
import socket, sys
socket.gethostname = lambda: sys.argv[1]
from pathlib import Path
from storage.artifacts import Store
from storage.durable import write_atomically
store = Store(Path(sys.argv[2]) / "private")
for _ in range(25):
    with store.lock("one"):
        file = Path(sys.argv[2]) / "count"
        count = int(file.read_text())
        write_atomically(file, str(count + 1).encode())
"""


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a"), ("", "x" * 64), ("localhost",) * 3])
def test_machines_that_take_turns(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Whatever they are called: the lock is the file system's, not a name in a file."""
    (tmp_path / "count").write_text("0")
    running = [
        subprocess.Popen([sys.executable, "-c", MACHINE, name, str(tmp_path)]) for name in names
    ]
    assert [process.wait() for process in running] == [0] * len(names)
    assert (tmp_path / "count").read_text() == str(25 * len(names))


LEFT = ["", "host-of-a-dead-machine\n12345\n", "\0" * 4096, "{", "9" * 100_000, "\u202e\n"]


@pytest.mark.parametrize("content", LEFT, ids=range(len(LEFT)))
@pytest.mark.parametrize("age", [0, 10, 10_000], ids=["new", "10 days", "27 years"])
def test_a_lock_that_a_dead_machine_left(tmp_path: Path, content: str, age: int) -> None:
    """It is taken whatever is in it and however old it is, and nobody holds it before."""
    store, lock = Store(tmp_path), tmp_path / "locks" / "x.lock"
    lock.parent.mkdir()
    lock.write_text(content)
    long_ago = (datetime.now(UTC) - timedelta(days=age)).timestamp()
    os.utime(lock, (long_ago, long_ago))
    assert not store.is_locked("x")
    with store.lock("x"):
        assert store.is_locked("x")
    assert not store.is_locked("x")


@pytest.mark.parametrize("left", [".nfs0000000001", "x.partial", ".x.swp", "lost+found"])
def test_what_a_network_file_system_leaves_behind(sealed: Sealed, home: Path, left: str) -> None:
    """In a bundle's folder: it is not released as if it belonged there."""
    (home / "bundles" / sealed.folder.name / left).write_text("a narrative")
    with pytest.raises((UnsoundBundle, StorageError)):
        invoke(
            *("handover", sealed.folder.name, "--to", "Office"),
            *("--out", home / "outbox", "--home", home),
        )


def test_two_machines_with_two_journals_of_one_ledger(tmp_path: Path) -> None:
    """Each knows what the other added once it opens the ledger; one that stayed behind goes on."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    homes = [Workspace(tmp_path / name).create() for name in ("a", "b")]
    for number, home in enumerate(homes * 3):
        ledger = Ledger.open(url, journals=journals_of(home), key=release_key())
        ledger.reserve(make_plan(f"k{number}", claim={"epsilon": 1.0, "sensitivity": 0.5}))
    assert [row.sequence for row in Ledger.open(url).rows()] == list(range(1, 8))


# -- a clock that is set back

BACK = [60, 3600, 86_400, 86_400 * 365, 86_400 * 3650]


@pytest.mark.parametrize("seconds", BACK)
@pytest.mark.parametrize("what", ["reserve", "draw", "commit"])
def test_a_clock_that_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, what: str
) -> None:
    """Between two rows: rows are in the order of their numbers, so nothing is charged twice, taken
    back or drawn again.
    """
    house = Workspace(tmp_path).create()
    ledger = Ledger.open(house.ledger_url, journals=journals_of(house), key=release_key())
    first = ledger.reserve(make_plan("k"))
    assert first.release_id
    spent = [line.used for line in ledger.budget()]

    class Earlier:
        @staticmethod
        def now(tz: Any) -> datetime:
            return datetime.now(tz) - timedelta(seconds=seconds)

    monkeypatch.setattr(chain, "datetime", Earlier)
    again = Ledger.open(house.ledger_url, journals=journals_of(house), key=release_key())
    assert again.reserve(make_plan("k")).release_id == first.release_id
    if what != "reserve":
        again.mark_drawn(first.release_id, draw_digest="d" * 64)
        with pytest.raises((InputError, StorageError)):
            again.mark_drawn(first.release_id, draw_digest="e" * 64)
    if what == "commit":
        again.commit(first.release_id, bundle_digest="b" * 64)
        with pytest.raises((InputError, StorageError)):
            again.mark_drawn(first.release_id, draw_digest="e" * 64)
    assert [line.used for line in again.budget()] == spent
    assert again.verify().ok
    times = [row.recorded_at for row in again.history(first.release_id)]
    assert what == "reserve" or times[1] < times[0], "the clock was set back"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("put", IN_PLACE, ids=lambda put: put.__name__)
@pytest.mark.parametrize("reads", ["ledger.journal", "a plan"])
def test_a_file_that_is_read(tmp_path: Path, put: Callable[[Path, Path], None], reads: str) -> None:
    """A workspace's journal, or a plan, that is a link, a pipe or a folder: refused at once, or
    read as what it leads to, which is no journal and no plan.
    """
    (tmp_path / "victim").write_bytes(VICTIM)
    if reads == "a plan":
        put(tmp_path / "plan.json", tmp_path / "victim")
        try:
            assert read_regular(tmp_path / "plan.json", 1 << 20) == VICTIM
        except InputError:
            assert put not in (link, relative_link, link_to_a_link)
        return
    house = Workspace(tmp_path / "house").create()
    put(house.private / "ledger.journal", tmp_path / "victim")
    try:
        opened = Ledger.open(house.ledger_url, journals=journals_of(house), key=release_key())
        opened.ensure_genesis_row(requester="operator")
    except (InputError, StorageError, ForeignLedger, OSError):
        pass
    else:
        pytest.fail("a journal that is no file of the workspace was written")
    assert (tmp_path / "victim").read_bytes() == VICTIM
