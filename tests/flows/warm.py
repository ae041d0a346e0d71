"""`autocoder` without its imports: each command is a fork of one process that has loaded the
libraries. All else is as in a process of its own: arguments, folder, environment, output, exit
code. Prefect is not among what is loaded, since a command sets Prefect's environment before it
imports it.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

AT_LOADING = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
"""What the libraries read when they are loaded; a command can't change it any more."""

FILE_SIZE = "TESTS_LARGEST_FILE"
"""Variable of a command's environment: the bytes that a file of it may have; the limit is its
process's own.
"""


def command(
    address: Path, *arguments: str, env: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `autocoder` with these arguments in a fork of the process at `address`.

    Raises:
        subprocess.TimeoutExpired: it took longer than so many seconds; it was killed.
    """
    asked = {"arguments": arguments, "folder": str(Path.cwd()), "environment": env | AT_LOADING}
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.connect(str(address))
        socket.send_fds(connection, [b"*"], [out.fileno(), err.fileno()])
        connection.sendall(json.dumps(asked).encode() + b"\n")
        connection.settimeout(timeout)
        with connection.makefile() as answers:
            pid = int(answers.readline())
            try:
                code = int(answers.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout) from None
        for file in (out, err):
            file.seek(0)
        texts = [file.read().decode(errors="replace") for file in (out, err)]
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def wait_for_a_command(address: str) -> None:
    """Return once for each command that is asked for, in a fork of its own that is set up as the
    command's process.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        signal.signal(
            signal.SIGCHLD, signal.SIG_IGN
        )  # nobody waits for those that wait for the commands
        while True:
            connection, _ = listener.accept()
            if os.fork():
                connection.close()
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _, (out, err), _, _ = socket.recv_fds(connection, 1, 2)
            with connection, connection.makefile("rw") as talk:
                asked = json.loads(talk.readline())
                child = os.fork()
                if child:
                    print(child, file=talk, flush=True)
                    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=talk, flush=True)
                    os._exit(0)
            break
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(file, number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    if FILE_SIZE in os.environ:
        most = int(os.environ.pop(FILE_SIZE))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    sys.argv = ["autocoder", *asked["arguments"]]


def end_after(main: Callable[[], None]) -> NoReturn:
    """End as Python would, except for an interrupt that no one took: that is exit code 1. What was
    loaded is left to the operating system: to take it apart, page by page of what the forks share,
    takes half a second.
    """
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)  # noqa: T201
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyrefly: ignore[bad-argument-type]
        code = 1
    threading._shutdown()  # pyrefly: ignore[missing-attribute]
    atexit.unregister(gc.freeze)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    os._exit(code)


if __name__ == "__main__":
    import datasets  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import model_signing.signing  # noqa: F401
    import sentence_transformers  # noqa: F401

    from flows import cli

    for ours in ("mechanisms", "storage", "tasks", "service", "flows.commands"):
        for module in pkgutil.walk_packages(importlib.import_module(ours).__path__, f"{ours}."):
            importlib.import_module(module.name)
    if "prefect" in sys.modules:
        sys.exit("Prefect is loaded before the commands")
    gc.freeze()  # the forks share what is not written to
    wait_for_a_command(sys.argv[1])
    end_after(cli.main)
