"""Defines `autocoder engine` and `autocoder worker`: a cluster that computes the parts of large stages."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.settings import home_of
from storage.errors import InputError

app = typer.Typer(no_args_is_help=True, help="A cluster that computes the parts of large stages (Dask).")


@app.command()
def certificates(out: Annotated[Path, typer.Argument(help="New folder for certificate and key.")]) -> None:
    r"""Make the certificates of a cluster, once; copy the folder to each of its machines.

    Whoever holds them can join the cluster and run code on its workers.

    Example

      autocoder engine certificates cluster
    """
    from tasks.running.engine import CERTIFICATES, make_certificates

    make_certificates(out.expanduser())
    say(f"certificates in {out}\nnext: export {CERTIFICATES}={out.resolve()}, and autocoder engine scheduler")


@app.command()
def scheduler(port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of all interfaces.")] = 8786) -> None:
    r"""Run the scheduler of a cluster, with the certificates of $AUTOCODER_ENGINE_CERTIFICATES.

    Example

      AUTOCODER_ENGINE_CERTIFICATES=cluster autocoder engine scheduler
    """
    say(f"workers: autocoder worker --engine tls://HOST:{port}", err=True)
    _run("dask_scheduler", "--protocol", "tls", "--port", str(port), *_tls(f"tls://localhost:{port}"))


def worker(
    engine: Annotated[
        str, typer.Option(envvar="AUTOCODER_ENGINE", show_envvar=False, help="Address of the scheduler.")
    ] = "",
    processes: Annotated[int, typer.Option(min=1, help="Parts at once; each takes its share of the cores.")] = 1,
    home: options.Home = None,
) -> None:
    r"""Compute parts for an engine, until it is stopped. It needs neither records' file, ledger nor signing key.

    Machines share finished stages by AUTOCODER_STORAGE, or have the workspace at the same path. The same code as on the
    machine that asks is required.

    Example

      AUTOCODER_ENGINE_CERTIFICATES=cluster AUTOCODER_STORAGE=s3://bucket/stages \
          autocoder worker --engine tls://10.0.0.5:8786
    """
    if "://" not in engine:
        raise InputError("--engine: missing. Give the scheduler's address, such as tls://host:8786.")
    os.environ["AUTOCODER_HOME"] = str(home_of(home))
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    for name in ("OMP", "MKL", "OPENBLAS"):
        os.environ[f"DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON__{name}_NUM_THREADS"] = threads
    _run("dask_worker", engine, "--nworkers", str(processes), "--nthreads", "1", "--memory-limit", "0", *_tls(engine))


def _tls(address: str) -> list[str]:
    from tasks.running.engine import certificates, security_of

    if security_of(address) is None:
        return []
    certificate, key = map(str, certificates())
    return ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key]


def _run(program: str, *arguments: str) -> None:
    """Becomes a program of Dask's, whose own pages are left out."""
    import json

    from tasks.running.engine import SILENT

    for name, value in SILENT.items():
        os.environ[f"DASK_{name.upper().replace('.', '__')}"] = json.dumps(value)
    os.execv(sys.executable, [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *arguments])
