"""Runs the `autocoder` command."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Annotated

import typer

from deployments import VERSION
from flows.commands import (
    adopt,
    approve,
    audit,
    budget,
    calibrate,
    code,
    codelist,
    compare,
    curve,
    demo_data,
    deploy,
    diagnose,
    doctor,
    drift,
    estimate,
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
    successor,
    verify,
)
from flows.commands.terminal import Group, say
from storage.errors import InputError
from tasks.running.failures import SAFE, StageError, private_errors

_INTERRUPTED = 130
_TRAINING = {
    *("retrain", "audit", "release", "plan", "status", "approve", "refuse", "override", "compare", "curve", "diagnose"),
    *("imbalance", "deploy", "metrics"),
}
"""Commands that are refused in the light installation before they import anything; others once an import fails."""

app = typer.Typer(
    name="autocoder", cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
)
_PANELS = {
    "Everyday": (estimate.estimate, retrain.retrain, audit.audit, release.release, code.code, status.status),
    "Approve": (approve.approve, approve.refuse, override.override),
    "Partner": (adopt.adopt, verify.verify, calibrate.calibrate, drift.drift, serve.serve),
    "Agency": (handover.handover, handover.revoke, successor.successor),
    "Research": (compare.compare, curve.curve, diagnose.diagnose, imbalance.imbalance),
    "Server and setup": (demo_data.demo_data, doctor.doctor, deploy.deploy, metrics.metrics),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(options.expand_groups(_command))
app.add_typer(plan.app, name="plan", rich_help_panel="Everyday")
app.add_typer(keys.app, name="keys", rich_help_panel="Approve")
app.add_typer(qa.app, name="qa", rich_help_panel="Partner")
app.add_typer(codelist.app, name="codelist", rich_help_panel="Server and setup")
app.add_typer(budget.app, name="budget", rich_help_panel="Agency")
app.add_typer(ledger.app, name="ledger", rich_help_panel="Agency")


def _version(requested: bool) -> None:
    if not requested:
        return
    from tasks.running.provenance import provenance

    source, changed = provenance(), ", changed" if provenance().code_dirty else ""
    typer.echo(f"autocoder {VERSION}, commit {source.code_commit}{changed}")
    raise typer.Exit


@app.callback()
def _autocoder(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit.")
    ] = False,
) -> None:
    """Train an autocoder on confidential narratives, and release it under a privacy claim."""
    if context.invoked_subcommand in _TRAINING and "--help" not in sys.argv:
        from tasks.running import installation

        if absent := installation.missing():
            raise InputError(installation.refusal(absent))


def main() -> None:
    """Run the command; expected errors end in one line, not in a traceback."""
    # Before torch starts its threads: waiting ones sleep instead of spinning, which halves the time on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The libraries make a million objects that live as long as the process. Looking for garbage among them as often as
    # Python does by default costs a second or two of every command, most of it after the work is done.
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)
    try:
        with private_errors("autocoder"):  # most commands have one of their own, which names the stage
            app()
    except StageError as error:
        _end(str(error), code=1)
    except SAFE as error:
        _end(str(error), code=2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # typer has turned Ctrl-C into this
            _end("interrupted. Run the same command to resume.", code=_INTERRUPTED)
        raise


def _end(text: str, *, code: int) -> None:
    # guard: a name begins no line of a verdict
    indented = text.replace("\n", "\n  ")  # so that a text from elsewhere cannot start a line
    say(f"error: {indented}", err=True)
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
