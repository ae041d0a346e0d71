"""Answers Ctrl-C within a second, even if a long computation or a library's threads would not."""

import os
import select
import signal
import sys
from threading import Thread

EXIT_CODE = 130
_PATIENCE = 0.5
"""Seconds for the command to end by itself. After that it is ended like a killed
run, which can be resumed.
"""


def answer() -> None:
    """Handles SIGINT, unless it is already handled: a shell's background job ignores it."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    if sys.platform == "win32":  # its pipes wake no thread; Ctrl-C ends the command when it can
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGINT, _interrupt)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    Thread(target=_watch, args=(reading,), daemon=True).start()


def leave() -> None:
    """Ends the process at once, because torch's threads abort if the interpreter
    ends under them.
    """
    restored = (
        "\r\x1b[2K\x1b[?25h" if sys.stderr.isatty() else ""
    )  # a line with a bar, and the cursor that it hides
    os.write(2, f"{restored}error: interrupted. Run the same command to resume.\n".encode())
    os._exit(EXIT_CODE)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _watch(reading: int) -> None:
    """Reads the signal numbers, which Python writes as they arrive, whatever the
    main thread is doing.
    """
    while number := os.read(reading, 1):
        # a server has a handler of its own, which lets running requests finish
        if number[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is _interrupt:
            select.select([reading], [], [], _PATIENCE)
            leave()
