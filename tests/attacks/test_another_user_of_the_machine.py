"""Would win: records, keys or a place in a release, as another user of the machine: with the rights
that the system gives, not with those of these tests.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sealed_bundle import Sealed

from storage.durable import own_folder

DECLARES = """
another user of the machine reads no records and changes nothing
| 24 ways to read, change, link, rename and remove what is in a workspace and in the folder of a
releasing step, as user 65534
| root, and processes of the same user
"""
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as another user: run this file as root"
)

ATTEMPTS = """
import json, os, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)  # this Python may be closed to that user
home, own = sys.argv[1:]
def attempt(act):
    try:
        act()
    except (PermissionError, FileExistsError, FileNotFoundError):
        return False
    return True
private = f"{home}/private"
bundles = f"{home}/bundles"
release = os.listdir(bundles)[0]
card = f"{bundles}/{release}/README.md"
print(json.dumps({
    "control: read a bundle": attempt(lambda: open(card).read()),
    "list private": attempt(lambda: os.listdir(private)),
    "enter private": attempt(lambda: os.chdir(private)),
    "read ledger": attempt(lambda: open(f"{private}/ledger.db", "rb").read()),
    "write ledger": attempt(lambda: open(f"{private}/ledger.db", "r+b").close()),
    "append journal": attempt(lambda: open(f"{private}/ledger.journal", "ab").close()),
    "read key": attempt(lambda: open(f"{private}/keys/signing-key.pem").read()),
    "read registry key": attempt(lambda: open(f"{private}/registry.key", "rb").read()),
    "new file in private": attempt(lambda: open(f"{private}/new", "w").close()),
    "new file in home": attempt(lambda: open(f"{home}/new", "w").close()),
    "move private": attempt(lambda: os.rename(private, f"{home}/moved")),
    "move bundles": attempt(lambda: os.rename(bundles, f"{home}/moved")),
    "link for private": attempt(lambda: os.symlink("/tmp", f"{home}/private")),
    "change a bundle": attempt(lambda: open(card, "r+").close()),
    "remove of a bundle": attempt(lambda: os.remove(card)),
    "another bundle": attempt(lambda: os.mkdir(f"{bundles}/" + "0" * 16)),
    "move a bundle": attempt(lambda: os.rename(f"{bundles}/{release}", f"{bundles}/x")),
    "hard link to ledger": attempt(lambda: os.link(f"{private}/ledger.db", f"{own}/../l")),
    "change public key": attempt(lambda: open(f"{home}/signing-key.pub.pem", "r+").close()),
    "replace public key": attempt(lambda: os.remove(f"{home}/signing-key.pub.pem")),
    "open rights": attempt(lambda: os.chmod(private, 0o777)),
    "take over": attempt(lambda: os.chown(private, 65534, 65534)),
    "list own folder": attempt(lambda: os.listdir(own)),
    "write into own folder": attempt(lambda: open(f"{own}/fit.safetensors", "r+").close()),
    "move own folder": attempt(lambda: os.rename(own, own + "-moved")),
}))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="autocoder-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@needs_root
def test_another_user_reads_no_records_and_changes_nothing(
    sealed: Sealed, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a workspace made by `train` and `release`, and of the folder in which a release has what
    it read. The control: a bundle is readable, so that he could get there at all.
    """
    home = open_folder / "home"
    shutil.copytree(sealed.home, home)
    home.chmod(0o755)  # pytest's is closed
    scratch = open_folder / "tmp"
    scratch.mkdir()
    scratch.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with own_folder("release") as own:
        (own / "fit.safetensors").write_bytes(b"parameters")
        done = subprocess.run(
            [sys.executable, "-I", "-c", ATTEMPTS, str(home), str(own)],
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert (own / "fit.safetensors").read_bytes() == b"parameters"
    assert done.returncode == 0, done.stderr
    succeeded = {name for name, won in json.loads(done.stdout).items() if won}
    assert succeeded == {"control: read a bundle"}
