"""Runs commands in a pseudo-terminal of a given width, as a person sees them."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress


def seen(width: int, *arguments: object, code: int = 0) -> list[str]:
    """Returns the lines that a command writes on a terminal of this width, without colours and
    movements.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {
        "TERM": "xterm"
    }
    command = [sys.executable, "-m", "flows.cli", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, close_fds=True
    )
    os.close(theirs)
    output = b""
    with suppress(OSError):  # the terminal ends with the process
        while part := os.read(ours, 65536):
            output += part
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    assert process.wait() == code, text
    return text.replace("\r\n", "\n").split("\n")
