"""Defines `autocoder engine`: a cluster that computes the parts of large stages."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.settings import home_of
from storage.errors import OutOfRange


def engine(
    join: Annotated[
        str,
        typer.Option(
            help=(
                "Address of the scheduler to compute for. Without it, this process is "
                "the scheduler."
            )
        ),
    ] = "",
    port: Annotated[
        int, typer.Option(min=1, max=65_535, help="Port of the scheduler, on all interfaces.")
    ] = 8786,
    processes: Annotated[
        int,
        typer.Option(
            min=1, help="Number of parts to compute at once. Each takes its share of the cores."
        ),
    ] = 1,
    new_certificates: Annotated[
        Path | None,
        typer.Option(help="Create the certificates of a cluster in this new folder, and exit."),
    ] = None,
    home: options.Home = None,
) -> None:
    r"""Run the scheduler or a worker of a cluster that computes the parts of large stages (Dask),
    until it is stopped.

    A worker needs no records file, ledger or signing key. All machines need the same code, and
    either AUTOCODER_STORAGE or the workspace at the same path, so that they share finished stages.
    Copy the folder of certificates to each machine and set AUTOCODER_ENGINE_CERTIFICATES to it.
    Whoever has the certificates can join the cluster and run code on its workers.

    Examples

      autocoder engine --new-certificates cluster
      export AUTOCODER_ENGINE_CERTIFICATES=$PWD/cluster
      autocoder engine
      autocoder engine --join tls://10.0.0.5:8786
      autocoder train ... --engine tls://10.0.0.5:8786
    """
    from tasks.running.engine import make_certificates, worker_variables

    if new_certificates is not None:
        make_certificates(new_certificates.expanduser())
        say(f"certificates in {new_certificates}")
    elif not join:
        say(f"workers: autocoder engine --join tls://HOST:{port}", err=True)
        _become(
            "dask_scheduler",
            "--protocol",
            "tls",
            "--port",
            str(port),
            *_tls(f"tls://localhost:{port}"),
        )
    elif "://" not in join:
        raise OutOfRange(
            "--join: not a valid address. Expected something like tls://host:8786.",
            kind="join-address",
        )
    else:
        os.environ["AUTOCODER_HOME"] = str(home_of(home))
        for name, value in worker_variables(processes).items():
            os.environ.setdefault(name, value)  # Dask prefers these to its own
        workers = ["--nworkers", str(processes), "--nthreads", "1", "--memory-limit", "0"]
        if processes > 1:  # Dask appends each process's number, which chooses its card
            workers += ["--name", f"{platform.node() or 'worker'}-{os.getpid()}"]
        _become("dask_worker", join, *workers, *_tls(join))


def _tls(address: str) -> list[str]:
    from tasks.running.engine import certificates, security_of

    if security_of(address) is None:
        return []
    certificate, key = map(str, certificates())
    return ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key]


def _become(program: str, *arguments: str) -> None:
    from tasks.running.engine import SILENT

    for name, value in SILENT.items():
        os.environ[f"DASK_{name.upper().replace('.', '__')}"] = json.dumps(value)
    os.execv(
        sys.executable,
        [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *arguments],
    )
