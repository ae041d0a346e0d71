"""`autocoder plan show`: what an officer reads before signing."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.settings import before_prefect

if TYPE_CHECKING:
    from tasks.releasing.plan_page import PlanPage

app = typer.Typer(no_args_is_help=True, help="Read a planned release before deciding on it.")


def show(
    plan: options.Plan,
    html: Annotated[Path | None, typer.Option("--html", help="Write the page to this file instead.")] = None,
    as_json: options.AsJson = False,
    ledger_url: options.LedgerUrl = None,
    home: options.PlansHome = None,
) -> None:
    """Show a planned release as questions with verdicts: what it leaks, promises, costs, how well it codes.

    Measured leakage comes first, then the claim, the budget before and after, accuracy, what a formal release would
    cost and lose, the diagnostics' warnings, other releases of the same records, and who has signed. It reads only.

    [bold]Examples[/bold]

      autocoder plan show workspace/private/plans/0123456789abcdef.json

      autocoder plan show PLAN.json --html plan.html
    """
    if html is not None:
        options.require_place("--html", html)
    page = read(plan, home, ledger_url)
    if html is not None:
        from storage.durable import write_atomically
        from tasks.releasing import plan_page

        write_atomically(html, plan_page.html(page).encode())
        say(f"{html}: {page.summary}")
    elif as_json:
        say(json.dumps(_plain(page), indent=2, ensure_ascii=False))
    else:
        _print(page)


def read(plan: Path, home: Path | None, ledger_url: str | None) -> PlanPage:
    """The page of a plan, from the workspace that it lies in or the one named."""
    workspace = options.plans_home(plan, home)
    before_prefect(workspace, make_home=False)
    from tasks.releasing.plan import PlannedRelease
    from tasks.releasing.reading import read as page_of
    from tasks.running.stage import Context

    planned = PlannedRelease.load(plan.expanduser())
    return page_of(Context(home=str(workspace)), planned, file=plan, url=ledger_url)


def _plain(page: PlanPage) -> dict[str, object]:
    from tasks.releasing import plan_page

    answers = [
        {"key": one.key, "question": one.question, "verdict": one.verdict, "answer": one.text} for one in page.answers
    ]
    return {
        "verdict": page.verdict,
        "summary": page.summary,
        "answers": answers,
        "approved": list(page.standing.approved),
        "claim": page.planned.plan.claim.model_dump(mode="json"),
        "facts": dict(plan_page.facts(page)),
    }


def lines_of(text: str, width: int) -> list[str]:
    """Lines of a paragraph; a command stays on one, so that it runs as it is copied."""
    whole = re.sub("`[^`]*`", lambda command: command[0].replace(" ", _KEPT), text)
    lines = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_KEPT, " ") for line in lines]


_KEPT = "\x1f"
"""In the place of a blank within a command; no answer holds one."""


def _print(page: PlanPage) -> None:
    from rich.table import Table
    from rich.text import Text

    from flows.commands.terminal import Console, shown
    from tasks.releasing.plan_page import MARKS, facts

    console, colours = Console(), {"fine": "green", "look": "yellow", "warning": "bold red"}
    plan = page.planned.plan
    console.print(f"Planned release: {plan.population}, {plan.release_label}", style="bold")
    console.print(Text.assemble((MARKS[page.verdict], colours[page.verdict]), f"  {shown(page.summary)}"))
    width = min(console.width, 110)
    for answer in page.answers:
        console.print()
        console.print(Text.assemble((MARKS[answer.verdict], colours[answer.verdict]), "  ", (answer.question, "bold")))
        for line in lines_of(answer.text, width - 2):
            console.print(f"  {line}", soft_wrap=True)
        if answer.table:
            head, rows = answer.table
            table = Table()
            for name in head:
                table.add_column(name, overflow="fold")  # an id that is cut is none
            for row in rows:
                table.add_row(*row)
            console.print(table)
    console.print()
    for name, value in facts(page):
        console.print(f"  {name}: {value}", soft_wrap=True)


app.command()(options.grouped(show))
