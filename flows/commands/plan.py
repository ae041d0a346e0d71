"""Defines `autocoder plan`: the page that an officer reads before signing."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from flows.commands import file_checks, options
from flows.commands.layout import Console, say_prose
from flows.commands.ledger_options import home_of_plan, select_ledger
from flows.commands.ledger_text import cohorts, spent
from flows.commands.terminal import command_line, escape_text, nearby, say
from flows.server.settings import require_same_workspace
from storage.durable import write_atomically
from storage.figures import delta_text
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tasks.parameters import LedgerParameters
    from tasks.releasing.case import ReleaseCase
    from tasks.releasing.plan_page import PlanPage


def plan(
    plan: options.Plan,
    html: Annotated[Path | None, typer.Option(help="Write the page to this file instead.")] = None,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Refresh a plan that is out of date because its records were used in another "
            "training run.",
        ),
    ] = False,
    home: options.HomeOfPlan = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a planned release as questions with verdicts: promise, accuracy, cost, leakage.

    The promise comes first, then accuracy, the budget before and after, what attacks measured,
    other releases of the same records, and signatures. This command only reads.

    With --renew, the model and its claim stay the same, and the plan's account of how they were
    chosen is updated from the ledger. Approvals of the earlier plan do not count.

    Examples

      autocoder plan workspace/private/plans/0123456789abcdef.json

      autocoder plan PLAN.json --html plan.html
    """
    if renew:
        return _renew(plan, home, as_json=as_json)
    if html is not None:
        file_checks.require_writable("--html", html)
    page = load_page(plan, home)
    options.OutputOptions().note_estimate(page.planned.plan.claim.guarantee_kind)
    if html is not None:
        from tasks.releasing import plan_page

        write_atomically(html, plan_page.html(page).encode())
        say(f"{html}: {page.summary}")
    elif as_json:
        say(json.dumps(_plain(page), indent=2, ensure_ascii=False))
    else:
        _print(page)


def _renew(plan: Path, home: Path | None, *, as_json: bool) -> None:
    workspace = home_of_plan(plan, home)
    require_same_workspace(plan, workspace)
    context, settings = select_ledger(workspace)
    from tasks.releasing import publish

    with private_errors("plan --renew"):
        case = publish.renew_plan(context, plan.expanduser(), settings)
    if as_json:
        say(json.dumps({"plan": str(case.file), "digest": case.digest}))
    else:
        say("\n".join([f"plan: {nearby(case.file)}", *offered(commands_to_release(case))]))


def commands_to_release(case: ReleaseCase) -> list[str]:
    """Returns the commands that a plan still needs: `approve` while signatures are missing, then
    `release`.
    """
    signed = [command_line("approve", case.file, "--key", "KEY.pem")]
    return [*(signed if case.approvals.missing else []), command_line("release", case.file)]


def offered(commands: Sequence[str]) -> list[str]:
    """Returns a line per command, in the order in which they are to be run."""
    return [f"{'then' if number else 'next'}: {each}" for number, each in enumerate(commands)]


@dataclass(frozen=True)
class PlanSummary:
    """Sentences on what a plan would release and charge."""

    lines: tuple[str, ...]
    to_release: tuple[str, ...] = ()
    """Commands from here to the release; none if the budget does not cover it, or it was made."""


def summary_of(file: str, home: str, settings: LedgerParameters) -> PlanSummary:
    """Summarises what a plan would release and charge, for the end of a training run."""
    from storage.ledger import BudgetRefused
    from storage.ledger.wording import budget_after
    from tasks.releasing import ledger_records
    from tasks.releasing.case import ReleaseCase
    from tasks.releasing.plan import PlannedRelease
    from tasks.releasing.scores import candidate_scores
    from tasks.running.stage import Context

    context, path = Context(home=home), Path(file)
    case = ReleaseCase.open(context, PlannedRelease.load(path), settings, file=path)
    plan, claim = case.plan, case.plan.claim
    scores = candidate_scores(case.measurements, case.planned)
    epsilon = "none" if claim.epsilon is None else spent(Decimal(repr(claim.epsilon)))
    kind = "formal" if claim.guarantee_kind == "formal" else "estimated"
    delta = "not quantified" if claim.delta is None else delta_text(claim.delta)
    reached = (
        f"; weighted F1 {scores['weighted_f1']:.3f} (internal)" if "weighted_f1" in scores else ""
    )
    whose = f"{plan.population} {cohorts(plan.cohorts)}".strip()
    if case.released is not None:
        line = (
            f"This plan is already release {case.released.release_id} ({case.released.state}); "
            "nothing more is charged."
        )
        return PlanSummary((line,))
    line = (
        f"Nothing was released. The plan would release {plan.event.of_training.mechanism}: "
        f"{kind}, ε {epsilon}, δ {delta}{reached}."
    )
    try:
        records = ledger_records.find_record_set(context, case.planned.candidate.dataset)
        charges = case.ledger.quote(plan, records=records)
    except BudgetRefused as refused:
        why = str(refused).rstrip(".")
        return PlanSummary((line, f"It does not fit the budget: {why}."))
    tightest = min(charges, key=lambda charge: charge.balance.left)
    charged = f"It would be charged to {whose}; after it the {budget_after(tightest)}."
    return PlanSummary((line, charged), tuple(commands_to_release(case)))


def load_page(plan: Path, home: Path | None) -> PlanPage:
    context, settings = select_ledger(home_of_plan(plan, home))
    from tasks.releasing.case import ReleaseCase
    from tasks.releasing.plan import PlannedRelease
    from tasks.releasing.plan_page import load_plan_page

    planned = PlannedRelease.load(plan.expanduser())
    return load_plan_page(context, ReleaseCase.open(context, planned, settings, file=plan))


def _plain(page: PlanPage) -> dict[str, object]:
    from tasks.releasing import plan_page

    answers = [
        {
            "key": answer.key,
            "question": answer.question,
            "verdict": answer.verdict,
            "answer": answer.text,
        }
        for answer in page.answers
    ]
    return {
        "verdict": page.verdict,
        "summary": page.summary,
        "answers": answers,
        "approved": list(page.status.approved),
        "claim": page.planned.plan.claim.model_dump(mode="json"),
        "facts": dict(plan_page.facts(page)),
        "texts": list(page.planned.output.texts),
        "texts_digest": page.planned.output.texts_digest,
    }


def wrap_lines(text: str, width: int) -> list[str]:
    """Wraps a paragraph. A command is never broken, so that it can be copied."""
    joined = re.sub("`[^`]*`", lambda command: command[0].replace(" ", _BLANK), text)
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_BLANK, " ") for line in lines]


_BLANK = "\x1f"
"""Replaces blanks within a command; no answer contains this character."""


def print_wide_table(console: Console, head: list[str], rows: list[list[str]]) -> None:
    """Prints a table, or a paragraph for each row if the table would break words."""
    words = [
        [word for cell in column for word in cell.split()]
        for column in zip(head, *rows, strict=True)
    ]
    needed = sum(max(map(len, column)) + 3 for column in words) + 1
    if needed > console.width:
        for row in rows:
            told = "; ".join(f"{name} {cell}" for name, cell in zip(head, row, strict=True))
            first, *further = wrap_lines(told, console.width - 4)
            console.print("\n".join([f"  - {first}", *(f"    {line}" for line in further)]))
        return
    table = Table()
    for name in head:
        table.add_column(name, overflow="fold")  # an id must not be truncated
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print(page: PlanPage) -> None:
    from tasks.releasing.plan_page import MARKS, facts

    console, colours = (
        Console(),
        {"fine": "green", "note": "cyan", "investigate": "yellow", "warning": "bold red"},
    )
    plan = page.planned.plan
    console.print(f"{page.title}: {plan.population}, {plan.release_label}", style="bold")
    console.print(
        Text.assemble(
            (MARKS[page.verdict], colours[page.verdict]), f"  {escape_text(page.summary)}"
        )
    )
    width = min(console.width, 110)
    for answer in page.answers:
        console.print()
        console.print(
            Text.assemble(
                (MARKS[answer.verdict], colours[answer.verdict]), "  ", (answer.question, "bold")
            )
        )
        for line in wrap_lines(answer.text, width - 2):
            console.print(f"  {line}", soft_wrap=True)
        if answer.key == "promise" and plan.claim.unprotected_inputs:
            console.print("  Not covered by ε:")
            for item in plan.claim.unprotected_inputs:
                first, *further = wrap_lines(item, width - 6)
                console.print("\n".join([f"    - {first}", *(f"      {line}" for line in further)]))
        if answer.table:
            print_wide_table(console, *answer.table)
    console.print()
    for name, value in facts(page):
        say_prose(f"{name}: {value}", start="  ")
    output = page.planned.output
    if output.texts:
        console.print()
        console.print(
            f"Unpublished texts in the bundle (digest {output.texts_digest}):", style="bold"
        )
        for text in output.texts:
            say_prose(text, start="  ")
    consequences = [f"{one['text']} Otherwise: {one['basis']}" for one in page.assumed]
    for title, lines in (
        ("The claim assumes:", plan.claim.assumptions),
        ("Also assumed, and what follows if it is false:", consequences),
    ):
        console.print()
        console.print(title, style="bold")
        for line in lines:
            say_prose(line, start="  - ")
