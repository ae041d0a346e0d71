"""A partner's half on a system without what POSIX and Linux alone have: `fcntl`, files in memory,
flags against links. The absence is played: modules and names are removed before anything is
imported.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import environment, read_csv, write_csv
from sealed_bundle import Sealed

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, json, os, shutil, signal, subprocess, sys, tempfile

for name in MODULES:
    sys.modules[name] = None
for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
shutil._use_fd_functions = False  # decided at its import, by functions that Windows lacks

from pathlib import Path
from storage.tables import inputs
inputs._OPEN_FILES = Path("absent")  # /proc cannot be removed

import uvicorn
from starlette.testclient import TestClient

def ask(server):
    with TestClient(server.config.app, base_url="http://localhost") as client:
        one = client.post("/code", json={"narratives": "Employee fell."})
        file = client.post("/file?column=Text", content=b"Text\\nEmployee fell.\\n")
    print(json.dumps([one.status_code, file.status_code, file.text.count("\\n")]))

uvicorn.Server.run = ask
from flows.cli import main
for words in COMMANDS:
    sys.argv = ["autocoder", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
MODULES = ("fcntl", "resource", "grp", "pwd", "termios")
OF_OS = (
    *("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "O_TMPFILE", "pread", "pwrite"),
    *("geteuid", "getuid", "getegid", "getgid", "fchmod", "chown", "memfd_create", "MFD_CLOEXEC"),
    *("sched_getaffinity", "mkfifo", "fork", "killpg", "getpgid", "setsid"),
)
OF_SIGNAL = ("SIGALRM", "alarm", "setitimer", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGPIPE")


def run(folder: Path, *commands: tuple[Any, ...], stdin: bytes = b"") -> str:
    names: dict[str, Any] = {"MODULES": MODULES, "OF_OS": OF_OS, "OF_SIGNAL": OF_SIGNAL}
    names["COMMANDS"] = tuple(tuple(map(str, words)) for words in commands)
    setting = "\n".join(f"{name} = {value!r}" for name, value in names.items())
    done = subprocess.run(
        [sys.executable, "-c", f"{setting}\n{PROGRAM}"],
        input=stdin,
        capture_output=True,
        timeout=300,
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT)),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_bundle_is_verified_adopted_coded_with_and_served(
    titled: Sealed, tmp_path: Path, narratives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same commands and answers as elsewhere; what is left behind is what is meant to be."""
    monkeypatch.delenv("AUTOCODER_HOME", raising=False)
    texts = narratives(12)
    data = write_csv(tmp_path / "new.csv", [{"Text": text} for text in texts])
    given = ("code", "--bundle", "coder", "--text", "Text", "--out")
    told = run(
        tmp_path,
        ("verify", titled.folder, "--key", titled.trust.pinned),
        ("adopt", titled.folder, "--key", titled.trust.pinned, "--out", "coder"),
        (*given, "coded.csv", "--data", data),
        (*given, "piped.csv", "--data", "-"),
        ("serve", "--bundle", "coder", "--no-key"),
        stdin=data.read_bytes(),
    )
    assert json.loads(told.splitlines()[-1]) == [200, 200, 2]
    coded = read_csv(tmp_path / "coded.csv")
    assert [row["Text"] for row in coded] == texts
    assert read_csv(tmp_path / "piped.csv") == coded
    left = {path.name for path in tmp_path.iterdir()}
    outputs = {f"{name}.csv{more}" for name in ("coded", "piped") for more in ("", ".summary.html")}
    assert left == {"new.csv", "coder", *outputs}
    plain = subprocess.run(
        [sys.executable, "-m", "flows.cli", *given, "here.csv", "--data", str(data)],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr.decode()
    assert read_csv(tmp_path / "here.csv") == coded
