"""Runs the `autocoder` command."""

import atexit
import gc
import os
import sys
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer

from deployments import VERSION
from flows.commands import interruption, options
from flows.commands.help import Command, Commands
from flows.commands.terminal import first_sign, say
from storage.errors import NotInstalled
from tasks.running.failures import SAFE, StageError, private_errors

_TRAINING = {
    "train",
    "retrain",
    "audit",
    "release",
    "plan",
    "approve",
    "compare",
    "deploy",
    "engine",
    "purge",
}
"""Commands that the light installation refuses before any import. Other commands
are refused when an import fails.
"""

_COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "train": ("train:train", "Train on your records and write a plan; releases nothing"),
        "demo-data": (
            "demo_data:demo_data",
            "Write synthetic records and their code list, to try everything",
        ),
        "status": ("status:status", "Show what is waiting, and the next command to type"),
    },
    "Decide": {
        "plan": ("plan:plan", "Read a plan: guarantee, cost, accuracy, leakage"),
        "audit": ("audit:audit", "Attack the model and compare with the claimed epsilon"),
        "approve": ("approve:approve", "Sign a decision on a plan or a policy"),
        "release": ("release:release", "Charge the budget, then build and sign the bundle"),
    },
    "Share": {
        "handover": ("handover:handover", "Pack a bundle for a partner"),
        "revoke": ("handover:revoke", "Withdraw a released bundle"),
        "keys": ("keys:app", "Make signing keys and replace them"),
    },
    "Use": {
        "adopt": (
            "adopt:adopt",
            "Check and unpack a bundle that you received, fit your thresholds",
        ),
        "code": ("code:code", "Code texts or a file"),
        "serve": ("serve:serve", "Code over HTTP, with pages to try and to review"),
        "verify": ("verify:verify", "Check a bundle's signature and contents"),
        "sample": ("sample:sample", "Take a sample of a coded table for people to code"),
        "estimate": (
            "estimate:estimate",
            "Measure agreement with people, and estimate counts by code",
        ),
        "drift": ("drift:drift", "Compare a period with an earlier one"),
        "successor": ("successor:successor", "Compare a new bundle with the one in use"),
        "relabel": ("relabel:relabel", "Move coded rows to a revised classification"),
    },
    "Admin": {
        "ledger": ("ledger:app", "Show releases and budgets, verify, recover"),
        "codelist": ("codelist:codelist", "Write a code list from SKOS, ClaML, SDMX or FHIR"),
        "join": ("join:join", "Join two tables by an id, such as reports and their codes"),
        "deploy": ("deploy:deploy", "Register flows on a Prefect server"),
        "engine": ("engine:engine", "Run the scheduler or a worker of a cluster"),
        "purge": ("purge:purge", "Remove old stages from the private workspace"),
    },
    "Research": {
        "compare": ("compare:compare", "Compare methods on the same records"),
    },
}
"""By section and command: module and name of the function, and its line in the overview."""
_START = {
    "train",
    "demo-data",
    "status",
    "plan",
    "audit",
    "approve",
    "release",
    "handover",
    "adopt",
    "code",
    "serve",
}
"""Commands on the first page; `autocoder --help-all` lists all."""


_RECORDS = "checking the settings, the records and the code list"
_BEGINNINGS = {
    "train": _RECORDS,
    "retrain": _RECORDS,
    "compare": _RECORDS,
    "audit": "reading the plan and the ledger",
    "release": "reading the plan and the ledger",
    "adopt": "checking the bundle",
    "handover": "checking the bundle",
    "verify": "checking the bundle",
}
"""First message of commands that work for more than a few seconds."""


class _Overview(Commands):
    ending = "All commands: autocoder --help-all. Options: autocoder COMMAND --help"
    sections: ClassVar = {
        title: {name: text for name, (_, text) in commands.items() if name in _START}
        for title, commands in _COMMANDS.items()
        if set(commands) & _START
    }


def _app(chosen: str | None) -> typer.Typer:
    app = typer.Typer(
        name="autocoder",
        cls=_Overview,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    commands = {name: place for group in _COMMANDS.values() for name, (place, _) in group.items()}
    commands["retrain"] = commands["train"]
    for name, place in commands.items():
        if chosen in commands and name != chosen:
            continue
        module, _, attribute = place.partition(":")
        command = getattr(import_module(f"flows.commands.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, cls=Commands)
        else:
            app.command(name, hidden=name == "retrain", cls=Command)(options.expand_groups(command))
    app.callback()(_autocoder)
    return app


def _version(requested: bool) -> None:
    if requested:
        from tasks.running.provenance import provenance

        source = provenance()
        say(
            f"autocoder {VERSION}, commit "
            f"{source.code_commit}{', changed' if source.code_dirty else ''}"
        )
        raise typer.Exit


def _every_command(requested: bool) -> None:
    if requested:
        for title, commands in _COMMANDS.items():
            say(
                "\n".join(
                    [
                        f"{title}:",
                        *(f"  {name:<11}{text}" for name, (_, text) in commands.items()),
                        "",
                    ]
                )
            )
        raise typer.Exit


def _autocoder(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
    every_command: Annotated[
        bool, typer.Option("--help-all", callback=_every_command, is_eager=True)
    ] = False,
) -> None:
    """Train a text classifier on confidential records with differential privacy, and share it as a
    signed bundle.
    """
    if context.invoked_subcommand in _TRAINING and not {"--help", "--help-all"} & set(sys.argv):
        from tasks.running import installation

        if absent := installation.missing():
            raise NotInstalled(installation.refusal(absent), kind="not-installed")


def __getattr__(name: str) -> Any:
    if name == "app":
        return _app(None)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Run the command. Expected errors end in one line, not in a traceback."""
    # Set before torch starts its threads. Waiting threads then sleep instead of spinning, which
    # halves the time on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The libraries create a million objects that live as long as the process. Collecting garbage as
    # often as Python does by default would cost every command a second or two, mostly after its
    # work is done.
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)
    interruption.answer()
    chosen = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if chosen in _BEGINNINGS and "--help" not in sys.argv:
        first_sign.expect(f"{_BEGINNINGS[chosen]} …")
    try:
        with private_errors(
            "autocoder"
        ):  # most commands have a message of their own, which names the stage
            _app(chosen)()
    except StageError as error:
        _end(str(error), code=1)
    except SAFE as error:
        _end(str(error), code=2)
    except SystemExit as end:
        if end.code == interruption.EXIT_CODE:  # typer turns Ctrl-C into this
            interruption.leave()
        raise


def _end(text: str, *, code: int) -> None:
    # guard: test_a_name_that_holds_a_verdict
    indented = text.replace("\n", "\n  ")  # so that text from elsewhere cannot start a line
    say(f"error: {indented}", err=True)
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
