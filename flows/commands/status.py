"""Defines `autocoder status`: runs, waiting plans, the remaining budget, and the
state of the installation.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from flows.commands import checks, ledger_text, metrics, options
from flows.commands.console import duration
from flows.commands.layout import Console
from flows.commands.ledger_options import select_ledger
from flows.commands.terminal import command_of, say
from flows.server.settings import home_of
from storage.figures import left_text

if TYPE_CHECKING:
    from flows.server.waiting_runs import ServerOverview
    from tasks.releasing.budgets import LedgerOverview, WaitingPlan

    class Overview(LedgerOverview):
        server: ServerOverview | None


_SHOWN = 10
"""Number of stopped runs that are shown, the newest first."""
_QUIET = 60
"""Seconds without a report. A running stage reports every few seconds, and on this host its process
is checked directly.
"""


def status(
    home: options.Home = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check this installation instead, and report missing parts."),
    ] = False,
    prometheus: Annotated[
        bool,
        typer.Option(
            "--prometheus",
            help="Print the figures in Prometheus' format instead, for node_exporter.",
        ),
    ] = False,
    serve: Annotated[
        str | None,
        typer.Option(
            help="Answer Prometheus at this address, such as 127.0.0.1:9464, until interrupted."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show runs, workers, stages, waiting plans, open releases and the budget, with the command
    for each problem.

    This command only reads. It exits with 1 if a person must act: on a failed run, a run without a
    heartbeat for ten minutes, a lost worker, a plan without its approvals, or a release that a
    crash left open. Runs and workers are those of the Prefect server (PREFECT_API_URL).

    Examples

      autocoder status

      autocoder status --check

      autocoder status --serve 127.0.0.1:9464
    """
    workspace = home_of(home)
    if check:
        raise typer.Exit(0 if checks.show_checks(workspace, as_json=as_json) else 1)
    if prometheus or serve:
        return metrics.show(workspace, serve)
    context, settings = select_ledger(workspace)
    from tasks.releasing.budgets import ledger_overview

    overview: Overview = {**ledger_overview(context, settings), "server": _server()}
    _mark_releasing(overview)
    if as_json:
        say(json.dumps(overview, indent=1, default=str))
    else:
        _show(overview)
    if _needs_a_person(overview):
        raise typer.Exit(1)


def _server() -> ServerOverview | None:
    if "PREFECT_API_URL" not in os.environ:
        return None
    from flows.server.waiting_runs import overview

    return overview()


def _mark_releasing(overview: Overview) -> None:
    """Marks plans of the server's release runs, which may be running on another machine."""
    server = overview["server"]
    names = {Path(plan).name for plan in server["releasing"]} if server else set()
    for plan in overview["plans"]:
        if Path(plan["file"]).name in names:
            plan["releasing"], plan["remedy"] = True, ""


def _needs_a_person(overview: Overview) -> bool:
    waits = any(plan["missing"] and not plan["refused"] for plan in overview["plans"])
    if overview["open_releases"] or waits:
        return True
    server = overview["server"]
    if server is None:
        return False
    runs = server["runs"]
    stopped = any(runs.get(state) for state in ("Failed", "Refused", "Crashed"))
    waits = server["silent"] or server["unserved"] or server["unserved_queues"]
    return bool(stopped or waits)


def _show(overview: Overview) -> None:
    console = Console()
    server, ledger = overview["server"], overview["ledger"]
    if server is None:
        console.print("server    not set (PREFECT_API_URL)")
    else:
        runs = (
            ", ".join(f"{count} {name.lower()}" for name, count in sorted(server["runs"].items()))
            or "none"
        )
        console.print(f"runs      {runs} (last 7 days)")
        lacking = server["unserved"]
        workers = ", ".join(
            f"{pool}: {online} online{', needs one' if pool in lacking else ''}"
            for pool, online in sorted(server["workers"].items())
        )
        console.print(f"workers   {workers or 'no work pool; apply them with `autocoder deploy`'}")
        for pool in lacking:
            _remedy(console, f"prefect worker start --pool {pool}")
        for lost in server["unserved_queues"]:
            console.print(f"queue     {lost['queue']} of {lost['pool']} has lost its worker")
            _remedy(
                console,
                f"prefect worker start --pool {lost['pool']} --work-queue {lost['queue']}",
            )
        for run in server["stopped"][:_SHOWN]:
            reason = f": {run['reason']}" if run["reason"] else ""
            console.print(
                f"{run['state'].lower():<9} {run['flow']} {run['name']}, {run['since']}{reason}",
                soft_wrap=True,
            )
            _remedy(console, run["remedy"])
        if len(server["stopped"]) > _SHOWN:
            console.print(
                f"          and {len(server['stopped']) - _SHOWN} more (--json lists them)"
            )
        for run in server["waiting"]:
            console.print(f"waiting   {run['name']} for {run['plan']}", soft_wrap=True)
            _remedy(
                console, f"autocoder approve {shlex.quote(run['plan'])} --key YOUR-KEY.pem --post"
            )
    for stage in overview["stages"]:
        ago, share = stage["seconds_since"], f"{stage['share']:.0%}"
        what = f"{stage['flow']}: {stage['stage']}, {share}"
        gone = not stage["working"] and (ago >= _QUIET or stage["host"] == socket.gethostname())
        if not gone and ago < _QUIET:
            told = f"last report {ago:.0f} s ago"
        elif not gone:
            told = f"no report for {duration(ago)}; its process is running"
        else:
            told = f"no report for {duration(ago)}; its process is gone"
        console.print(f"stage     {what}; {told}", soft_wrap=True)
        if gone and not _goes_on(server, stage["flow"]):
            _remedy(
                console,
                (
                    f"repeat its command, `autocoder {command_of(stage['flow'])}` with the same "
                    "options, to resume"
                ),
            )
    if ledger is None:
        console.print("ledger    none yet")
        return
    console.print(f"ledger    row {ledger['row']}, policy {ledger['policy']}")
    for release in overview["open_releases"]:
        console.print(f"open      release {release['release']} is {release['state']}")
        if release["remedy"]:
            _remedy(console, release["remedy"])
    for plan in overview["plans"]:
        decision = plan["refused"] or _approval(plan)
        console.print(
            f"plan      {plan['population']} {plan['label']}: {decision}: {plan['file']}",
            soft_wrap=True,
        )
        if plan["remedy"]:
            _remedy(console, plan["remedy"])
    table = Table("account", "kind", "ε spent", "ε left", "ε cap")
    for line in overview["budget"]:
        account = f"{line['population']}/{line['cohort']}"
        cells = (
            ledger_text.spent(Decimal(line["epsilon_spent"])),
            left_text(Decimal(line["epsilon_left"])),
        )
        table.add_row(account, line["guarantee_kind"], *cells, line["epsilon_cap"] or "–")
    if overview["budget"]:
        console.print(table)


def _goes_on(server: ServerOverview | None, flow: str) -> bool:
    """Whether the server has a run of this flow that is running or is resumed automatically."""
    return server is not None and flow in server["unended"]


def _remedy(console: Console, command: str) -> None:
    console.print(f"  next    {command}", soft_wrap=True)


def _approval(plan: WaitingPlan) -> str:
    if plan["releasing"]:
        return "is being released"
    if plan["unfit"]:
        return f"does not fit the budget: {plan['unfit'].rstrip('.')}"
    if plan["obstacle"]:
        return str(plan["obstacle"])
    approvers, missing = ", ".join(plan["approved_by"]), plan["missing"]
    if missing:
        return (
            f"waits for {missing} more approval{'s' if missing > 1 else ''} (approved by "
            f"{approvers or 'no one yet'})"
        )
    return f"ready to release ({f'approved by {approvers}' if approvers else 'no approval needed'})"
