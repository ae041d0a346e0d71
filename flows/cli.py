"""The `autocoder` command."""

from __future__ import annotations

import atexit
import gc
import os
import sys

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
    keys,
    ledger,
    metrics,
    override,
    qa,
    release,
    retrain,
    serve,
    status,
    verify,
)

_INTERRUPTED = 130

app = typer.Typer(
    name="autocoder",
    help="Train an injury autocoder on confidential narratives and release one private draw of it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("retrain")(retrain.retrain)
app.command("compare")(compare.compare)
app.command("diagnose")(diagnose.diagnose)
app.command("audit")(audit.audit)
app.command("override")(override.override)
app.command("release")(release.release)
app.command("approve")(approve.approve)
app.command("refuse")(approve.refuse)
app.command("verify")(verify.verify)
app.command("handover")(handover.handover)
app.command("revoke")(handover.revoke)
app.command("code")(code.code)
app.command("drift")(drift.drift)
app.command("calibrate")(calibrate.calibrate)
app.command("serve")(serve.serve)
app.command("demo-data")(demo_data.demo_data)
app.command("deploy")(deploy.deploy)
app.command("doctor")(doctor.doctor)
app.command("status")(status.status)
app.command("metrics")(metrics.metrics)
app.add_typer(ledger.app, name="ledger")
app.add_typer(qa.app, name="qa")
app.add_typer(keys.app, name="keys")


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
    print(f"error: {text}", file=sys.stderr)  # noqa: T201  (the one place that ends a command)
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
