"""Ctrl-C ends a command, whatever it is at; a server that handles it ends as it likes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import hashlib, signal, time
from flows.commands import interruption
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
interruption.answer()
{before}
told = []
def tell():
    if not told:
        told.append(True)
        print("waiting", flush=True)
{waiting}
"""
SWALLOWED = """
while True:
    try:
        tell()
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""
BY_ITSELF = """
try:
    tell()
    time.sleep(60)
except KeyboardInterrupt:
    interruption.leave()
"""
COMPUTING = BY_ITSELF.replace(
    "time.sleep(60)", 'hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)'
)


def interrupted(waiting: str, *, before: str = "") -> tuple[int, str, str]:
    """Exit code and output of a program that gets one SIGINT once it waits."""
    command = [sys.executable, "-c", PROGRAM.format(before=before, waiting=waiting)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "waiting", [SWALLOWED, BY_ITSELF, COMPUTING], ids=["swallowed", "by itself", "computing"]
)
def test_one_sentence_and_130(waiting: str) -> None:
    """Also where a library swallows the exception, or computes for minutes without a look at
    signals.
    """
    assert interrupted(waiting) == (
        130,
        "",
        "error: interrupted. Run the same command to resume.\n",
    )


def test_a_server_ends_by_its_own_handler() -> None:
    own = 'signal.signal(signal.SIGINT, lambda *_: print("stopping", flush=True))'
    assert interrupted("tell(); time.sleep(3)", before=own) == (0, "stopping\n", "")
