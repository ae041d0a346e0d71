"""`autocoder status`: what runs, what waits for whom, what is left of the budget."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from flows.commands import options
from flows.server.settings import before_prefect, home_of


@dataclass(frozen=True)
class PlanStatus:
    """A plan that is not released."""

    file: str
    population: str
    label: str
    epsilon: float | None
    approved_by: tuple[str, ...]
    missing: int
    refused: str | None


def status(
    home: options.Home = None,
    ledger_url: options.LedgerUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Show runs and workers of the Prefect server (PREFECT_API_URL), plans that wait, open releases and the budget.

    Reads only. Exits with 1 when something wants a person: a failed run, a worker gone, a plan without its approvals, a
    release that a crash left open.

    [bold]Examples[/bold]

      autocoder status

      watch -n 10 autocoder status
    """
    workspace = home_of(home)
    before_prefect(workspace, make_home=False)
    found = ledger_standing(workspace, ledger_url) | {"server": _server()}
    if as_json:
        typer.echo(json.dumps(found, indent=1, default=str))
    else:
        _show(found)
    if _wants_a_person(found):
        raise typer.Exit(1)


def ledger_standing(workspace: Path, url: str | None) -> dict[str, Any]:
    """The ledger's head, budgets that were drawn on, releases that a crash left open, plans not yet released.

    Raises:
        StorageError: the ledger does not answer, or is damaged.
    """
    from storage.ledger.report import budget_json
    from tasks.parameters import LedgerParameters
    from tasks.releasing import publish
    from tasks.releasing.claims import ledger_url
    from tasks.running.stage import Context

    context, settings = Context(home=str(workspace)), LedgerParameters(ledger_url=url)
    address = ledger_url(context, settings)
    if address.startswith("sqlite:///") and not Path(address.removeprefix("sqlite:///")).exists():
        return {"ledger": None, "budget": [], "open_releases": [], "plans": []}
    ledger = publish.open_ledger(context, settings)
    sequence, row_hash = ledger.head()
    spent = [line for line in ledger.budget() if line.account.sequence]
    return {
        "ledger": {"row": sequence, "hash": row_hash, "policy": ledger.policy().name},
        "budget": budget_json(spent),
        "open_releases": [
            {"release": row.release_id, "state": row.state, "since": row.recorded_at} for row in ledger.open_releases()
        ],
        "plans": [asdict(plan) for plan in _plans(context, ledger)],
    }


def _plans(context: Any, ledger: Any) -> list[PlanStatus]:
    from storage.errors import InputError
    from tasks.releasing import approval
    from tasks.releasing.plan import PlannedRelease

    waiting = []
    for file in sorted((context.workspace.private / "plans").glob("*.json")):
        try:
            planned = PlannedRelease.load(file)
        except InputError:
            continue  # of an older version: to be planned again before it can be released
        if ledger.release_of(planned.plan) is not None:
            continue
        stands = approval.standing(context, ledger, planned)
        refusal = ledger.refusal(planned.digest)
        waiting.append(
            PlanStatus(
                file=str(file),
                population=planned.plan.population,
                label=planned.plan.release_label,
                epsilon=planned.plan.claim.epsilon,
                approved_by=stands.approved,
                missing=stands.missing,
                refused=None if refusal is None else refusal.reason,
            )
        )
    return waiting


def _server() -> dict[str, Any] | None:
    if "PREFECT_API_URL" not in os.environ:
        return None
    from flows.server.waiting import overview

    return overview()


def _wants_a_person(found: dict[str, Any]) -> bool:
    server = found["server"] or {"runs": {}, "workers": {}}
    return bool(
        found["open_releases"]
        or any(plan["missing"] and not plan["refused"] for plan in found["plans"])
        or server["runs"].get("Failed")
        or server["runs"].get("Crashed")
        or any(not online for online in server["workers"].values())
    )


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    server, ledger = found["server"], found["ledger"]
    if server is None:
        console.print("server    none named (PREFECT_API_URL)")
    else:
        runs = ", ".join(f"{count} {name.lower()}" for name, count in sorted(server["runs"].items())) or "none"
        console.print(f"runs      {runs} (last 7 days)")
        workers = ", ".join(f"{pool}: {online} online" for pool, online in sorted(server["workers"].items()))
        console.print(f"workers   {workers or 'no work pool; apply them with `autocoder deploy`'}")
        for run in server["waiting"]:
            console.print(f"waiting   {run['name']} for {run['plan']}", soft_wrap=True)
    if ledger is None:
        console.print("ledger    none yet")
        return
    console.print(f"ledger    row {ledger['row']}, policy {ledger['policy']}")
    for release in found["open_releases"]:
        console.print(f"open      release {release['release']} is {release['state']}: `autocoder ledger recover`")
    for plan in found["plans"]:
        given = ", ".join(plan["approved_by"]) or "nobody"
        stands = plan["refused"] or f"approved by {given}, {plan['missing']} missing"
        console.print(f"plan      {plan['population']} {plan['label']}: {stands}; {plan['file']}", soft_wrap=True)
    table = Table("account", "kind", "ε spent", "ε left", "ε cap")
    for line in found["budget"]:
        account = f"{line['population']}/{line['cohort']}"
        cells = (line["epsilon_spent"], line["epsilon_left"], line["epsilon_cap"] or "–")
        table.add_row(account, line["guarantee_kind"], *cells)
    if found["budget"]:
        console.print(table)
