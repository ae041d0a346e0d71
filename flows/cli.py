"""The `autocoder` command."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Annotated

import typer

from flows.commands import (
    approve,
    audit,
    calibrate,
    code,
    compare,
    demo_data,
    deploy,
    diagnose,
    doctor,
    drift,
    handover,
    imbalance,
    keys,
    ledger,
    metrics,
    options,
    override,
    plan,
    qa,
    release,
    retrain,
    serve,
    status,
    verify,
)
from flows.commands.terminal import Group, say

_INTERRUPTED = 130

app = typer.Typer(
    name="autocoder", cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
)
for _command in (
    *(retrain.retrain, compare.compare, diagnose.diagnose, audit.audit, override.override, release.release),
    *(approve.approve, approve.refuse, verify.verify, handover.handover, handover.revoke, code.code, drift.drift),
    *(calibrate.calibrate, serve.serve, demo_data.demo_data, deploy.deploy, doctor.doctor, status.status),
    *(metrics.metrics, imbalance.imbalance),
):
    app.command()(options.grouped(_command))
app.add_typer(ledger.app, name="ledger")
app.add_typer(plan.app, name="plan")
app.add_typer(qa.app, name="qa")
app.add_typer(keys.app, name="keys")


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import version

    from tasks.running.provenance import provenance

    source, changed = provenance(), ", changed" if provenance().code_dirty else ""
    typer.echo(f"autocoder {version('swag-ppm-autocoder')}, commit {source.code_commit}{changed}")
    raise typer.Exit


@app.callback()
def _autocoder(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit, and end.")
    ] = False,
) -> None:
    """Train an autocoder on confidential narratives and release one private draw of it."""


def main() -> None:
    """Run the command; errors of the user's or the machine's making end in one line, not in a traceback."""
    # Before torch starts its threads: waiting ones sleep instead of spinning, which halves the time on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The libraries make a million objects that live as long as the process. Looking for garbage among them as often as
    # Python does by default costs a second or two of every command, most of it after the work is done.
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)
    from tasks.running.failures import SAFE, StageError, private_errors

    try:
        with private_errors("autocoder"):  # most commands have one of their own, which names the stage
            app()
    except StageError as error:
        _end(str(error), code=1)
    except SAFE as error:
        _end(str(error), code=2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # typer has turned Ctrl-C into this
            _end("interrupted; the same command goes on where it stopped", code=_INTERRUPTED)
        raise


def _end(text: str, *, code: int) -> None:
    indented = text.replace("\n", "\n  ")  # so that no line but the first begins with what somebody wrote
    say(f"error: {indented}", err=True)
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
