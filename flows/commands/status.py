"""`autocoder status`: what runs, what waits for whom, what is left of the budget."""

from __future__ import annotations

import json
import os
from typing import Any

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.settings import before_prefect, home_of

_QUIET = 60
"""Seconds without a sign of life; a stage at work gives one every few."""


def status(home: options.Home = None, ledger_url: options.LedgerUrl = None, as_json: options.AsJson = False) -> None:
    """Show runs and workers of the Prefect server (PREFECT_API_URL), stages at work in this workspace or interrupted,
    plans that wait, open releases and the budget.

    Reads only. Exits with 1 when something wants a person: a failed run, a worker gone, a plan without its approvals, a
    release that a crash left open.

    [bold]Examples[/bold]

      autocoder status

      watch -n 10 autocoder status
    """
    workspace = home_of(home)
    before_prefect(workspace, make_home=False)
    from tasks.parameters import LedgerParameters
    from tasks.releasing.overview import ledger_overview
    from tasks.running.stage import Context

    overview = ledger_overview(Context(home=str(workspace)), LedgerParameters(ledger_url=ledger_url))
    overview["server"] = _server()
    if as_json:
        say(json.dumps(overview, indent=1, default=str))
    else:
        _show(overview)
    if _wants_a_person(overview):
        raise typer.Exit(1)


def _server() -> dict[str, Any] | None:
    if "PREFECT_API_URL" not in os.environ:
        return None
    from flows.server.waiting import overview

    return overview()


def _wants_a_person(overview: dict[str, Any]) -> bool:
    server = overview["server"] or {"runs": {}, "unserved": []}
    return bool(
        overview["open_releases"]
        or any(plan["missing"] and not plan["refused"] for plan in overview["plans"])
        or server["runs"].get("Failed")
        or server["runs"].get("Crashed")
        or server["unserved"]
    )


def _show(overview: dict[str, Any]) -> None:
    from rich.table import Table

    from flows.commands.console import duration
    from flows.commands.terminal import Console

    console = Console()
    server, ledger = overview["server"], overview["ledger"]
    if server is None:
        console.print("server    none named (PREFECT_API_URL)")
    else:
        runs = ", ".join(f"{count} {name.lower()}" for name, count in sorted(server["runs"].items())) or "none"
        console.print(f"runs      {runs} (last 7 days)")
        lacking = server["unserved"]
        workers = ", ".join(
            f"{pool}: {online} online{', needs one' if pool in lacking else ''}"
            for pool, online in sorted(server["workers"].items())
        )
        console.print(f"workers   {workers or 'no work pool; apply them with `autocoder deploy`'}")
        for run in server["waiting"]:
            console.print(f"waiting   {run['name']} for {run['plan']}", soft_wrap=True)
    for stage in overview["stages"]:
        ago, share = stage["seconds_since"], f"{stage['share']:.0%}"
        what = f"{stage['flow']}: {stage['stage']}, {share}"
        if ago < _QUIET:
            console.print(f"stage     {what}; heard of {ago:.0f} s ago", soft_wrap=True)
        else:
            console.print(
                f"stage     {what}; not heard of for {duration(ago)}: interrupted, or slow; the same command goes on",
                soft_wrap=True,
            )
    if ledger is None:
        console.print("ledger    none yet")
        return
    console.print(f"ledger    row {ledger['row']}, policy {ledger['policy']}")
    for release in overview["open_releases"]:
        console.print(f"open      release {release['release']} is {release['state']}: `autocoder ledger recover`")
    for plan in overview["plans"]:
        approvers = ", ".join(plan["approved_by"]) or "nobody"
        stands = plan["refused"] or f"approved by {approvers}, {plan['missing']} missing"
        console.print(f"plan      {plan['population']} {plan['label']}: {stands}; {plan['file']}", soft_wrap=True)
    table = Table("account", "kind", "ε spent", "ε left", "ε cap")
    for line in overview["budget"]:
        account = f"{line['population']}/{line['cohort']}"
        cells = (line["epsilon_spent"], line["epsilon_left"], line["epsilon_cap"] or "–")
        table.add_row(account, line["guarantee_kind"], *cells)
    if overview["budget"]:
        console.print(table)
