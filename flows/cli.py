"""Runs the `autocoder` command."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, ClassVar

import typer

from deployments import VERSION
from flows.commands import (
    adopt,
    approve,
    audit,
    calibrate,
    code,
    codelist,
    compare,
    demo_data,
    deploy,
    doctor,
    drift,
    engine,
    estimate,
    handover,
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
from flows.commands.help import Commands, table, use_plain_help
from flows.commands.terminal import say
from storage.errors import InputError
from tasks.running.failures import SAFE, StageError, private_errors

_INTERRUPTED = 130
_TRAINING = {
    *(
        "train",
        "retrain",
        "audit",
        "release",
        "plan",
        "status",
        "approve",
        "refuse",
        "override",
        "compare",
    ),
    *("deploy", "metrics", "engine", "worker"),
}
"""Commands that are refused in the light installation before they import anything; others once an import fails."""

_COMMANDS: dict[str, dict[str, tuple[Callable[..., None] | typer.Typer, str]]] = {
    "Train": {
        "demo-data": (demo_data.demo_data, "Write made-up records and their code list, to try everything"),
        "train": (retrain.retrain, "Train on your records; ends with a plan, releases nothing"),
        "status": (status.status, "What waits, and the command to type next"),
        "doctor": (doctor.doctor, "Check this installation"),
    },
    "Decide": {
        "plan": (plan.app, "Read a plan: what it would release, guarantee, cost, accuracy"),
        "audit": (audit.audit, "Attack the model and compare with the claimed epsilon"),
        "approve": (approve.approve, "Sign a plan, policy or recovery"),
        "refuse": (approve.refuse, "Sign that a plan must not be released"),
        "override": (override.override, "Release against an audit, signed and with a reason"),
        "release": (release.release, "Charge the budget, then build and sign the bundle"),
    },
    "Share": {
        "handover": (handover.handover, "Pack a bundle for a partner"),
        "revoke": (handover.revoke, "Withdraw a released bundle"),
        "keys": (keys.app, "Make signing keys and replace them"),
    },
    "Use": {
        "adopt": (adopt.adopt, "Check and unpack a bundle that you received"),
        "code": (code.code, "Code texts or a file"),
        "serve": (serve.serve, "Code over HTTP, with pages to try and to review"),
        "verify": (verify.verify, "Check a bundle's signature and contents"),
        "calibrate": (calibrate.calibrate, "Fit thresholds on records that you coded"),
        "qa": (qa.app, "Draw a sample for coders and measure agreement"),
        "estimate": (estimate.estimate, "Counts by code with intervals, from a coded file and a sample"),
        "drift": (drift.drift, "Compare a period with an earlier one"),
        "successor": (successor.successor, "Compare a new bundle with the one in use"),
    },
    "Admin": {
        "ledger": (ledger.app, "Releases, budgets, verification, recovery"),
        "codelist": (codelist.app, "Write a code list from SKOS"),
        "deploy": (deploy.deploy, "Register flows on a Prefect server"),
        "metrics": (metrics.metrics, "Figures for Prometheus"),
        "engine": (engine.app, "Certificates and scheduler of a cluster"),
        "worker": (engine.worker, "Compute parts for a cluster"),
    },
    "Research": {
        "compare": (compare.compare, "Compare methods on the same records"),
    },
}
"""Section -> command -> what runs, and what the overview says of it."""
_START = (
    "train",
    "demo-data",
    "status",
    "doctor",
    "plan",
    "audit",
    "approve",
    "release",
    "handover",
    "adopt",
    "code",
    "serve",
)
"""Commands of the first page; `autocoder more` has all."""
_SHORT_HELP = {
    "train": (
        *("profile", "data", "text", "label", "codelist", "population", "classification", "classification_version"),
        *("target_epsilon", "delta", "dry_run", "home"),
    ),
    "audit": ("trials", "canaries", "confidence", "strict", "home", "device", "as_json"),
    "compare": (
        *("profile", "data", "text", "label", "codelist", "branches", "target_epsilon", "epsilons", "delta", "seeds"),
        *("results", "home"),
    ),
    "code": (
        *("data", "column", "out", "bundle", "top_k", "threshold", "accuracy", "coverage", "append", "overwrite"),
        *("home", "as_json"),
    ),
    "serve": (
        *("bundle", "verify_key", "host", "port", "proxy", "api_key_file", "no_key", "allow_unsigned", "thresholds"),
        *("sensitive", "rate", "home"),
    ),
    "adopt": (*("key", "roots", "out", "data", "column", "label_column", "accuracy", "template", "field", "home"),),
}
"""Options that `--help` shows of a command with more than twelve."""


class _Overview(Commands):
    overview: ClassVar = {
        title: {name: _COMMANDS[title][name][1] for name in sorted(set(commands) & set(_START), key=_START.index)}
        for title, commands in _COMMANDS.items()
        if set(commands) & set(_START)
    }
    intro = (
        "Train a text classifier on confidential records with differential privacy, and share it as a signed bundle."
    )
    ending = "All commands: autocoder more. Options of one: autocoder COMMAND --help"


app = typer.Typer(
    name="autocoder", cls=_Overview, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)
for _group in _COMMANDS.values():
    for _name, (_command, _) in _group.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name)
        else:
            app.command(_name)(options.expand_groups(_command))
app.command("retrain", hidden=True)(options.expand_groups(retrain.retrain))


@app.command("more")
def more() -> None:
    """List all commands."""
    for title, commands in _COMMANDS.items():
        say("\n".join([title, *table({name: text for name, (_, text) in commands.items()}), ""]))


use_plain_help(app, _SHORT_HELP | {"retrain": _SHORT_HELP["train"]})


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
    if context.invoked_subcommand in _TRAINING and not {"--help", "--help-all"} & set(sys.argv):
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
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    try:
        with private_errors("autocoder"):  # most commands have one of their own, which names the stage
            app()
    except StageError as error:
        _end(str(error), code=1)
    except SAFE as error:
        _end(str(error), code=2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # typer has turned Ctrl-C into this
            say("error: interrupted. Run the same command to resume.", err=True)
            sys.stderr.flush()
            os._exit(_INTERRUPTED)  # threads of torch abort where the interpreter ends under them
        raise


def _stop(*_: object) -> None:
    """Answers Ctrl-C at once, even in the middle of a long computation; a second one ends the process."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    os.write(2, b"\nstopping: finished stages are kept. Press Ctrl-C again to stop now.\n")
    raise KeyboardInterrupt


def _end(text: str, *, code: int) -> None:
    # guard: a name begins no line of a verdict
    indented = text.replace("\n", "\n  ")  # so that a text from elsewhere cannot start a line
    say(f"error: {indented}", err=True)
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
