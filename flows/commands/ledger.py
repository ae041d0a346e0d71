"""Defines `autocoder ledger`: releases, their records and cost, and proof that
nobody changed the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.commands import options
from flows.commands.console import ConsoleListener
from flows.commands.help import Command
from flows.commands.layout import Column, Console, print_table, say_prose
from flows.commands.ledger_options import LedgerOptions
from flows.commands.ledger_text import (
    budget_text,
    every_row_columns,
    release_columns,
    release_text,
)
from flows.commands.terminal import count_of, say
from storage.errors import InputError, Missing

if TYPE_CHECKING:
    from storage.json_values import Json
    from storage.ledger import Ledger
    from storage.ledger.reader import Report
    from storage.ledger.recovery import Finding
    from storage.paths import Workspace

app = typer.Typer(help="The release ledger: budget, history, proof.", no_args_is_help=True)


def _print_json(data: Any) -> None:
    say(json.dumps(data, ensure_ascii=False, indent=1))


@app.command(cls=Command)
@options.expand_groups
def show(
    place: LedgerOptions,
    release: Annotated[
        str | None, typer.Argument(help="The release's id.", metavar="[RELEASE]")
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Show every row, including evaluations, audits and budget changes."
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the releases and each cohort's spending, or everything that the ledger records of one
    release.

    For each cohort, it shows the remaining budget, and how many releases of the last size fit. If
    the noise is Gaussian or sampled, the epsilon is given at the delta of the cap, and it is less
    than the sum of the releases' own (docs/explanation/how-budgets-add-up.md explains why).

    Examples

      autocoder ledger show

      autocoder ledger show 3f2a9c41d07b65e8 --json
    """
    if release is not None:
        return _show_release(place.open(), release, as_json=as_json)
    from storage.ledger.report import current_rows, revocation_text
    from storage.ledger.wording import budget_json

    ledger = place.open()
    lines, releases = ledger.budget(), ledger.releases()
    if as_json:
        chain = ledger.rows() if every else current_rows(ledger)
        rows = [row.as_json() for row in (*chain, *ledger.measurements())]
        return _print_json({"rows": rows, "budget": budget_json(lines)})
    say(
        f"{'Rows' if every else 'Releases'} in {ledger.database.name} (policy "
        f"{ledger.policy().name})\n"
    )
    for revoked in sorted(ledger.revoked()):
        say_prose(f"Release {revoked}: {revocation_text(ledger, revoked)}\n")
    if every and ledger.rows():
        all_rows = [*ledger.rows(), *ledger.measurements()]
        print_table(every_row_columns(all_rows, ledger.revoked()))
    elif releases:
        print_table(release_columns(releases, ledger.revoked()))
    else:
        say("none")
    say("")
    records: dict[str, int] = {}
    for row in releases:
        population, count = row.plan.population, row.plan.records_rounded
        records[population] = max(records.get(population, 0), count)
    for line in budget_text(lines, ledger.policy().name, records):
        say_prose(line)
    say("\nDetail: autocoder ledger show RELEASE. Every row: --all")


def _show_release(ledger: Ledger, release: str, *, as_json: bool) -> None:
    current, revocation = ledger.release(release), ledger.revocation(release)
    if as_json:
        from storage.ledger.wording import charge_json

        revocation_facts: dict[str, Json] = {
            "revoked_on": None if revocation is None else revocation.recorded_at[:10]
        }
        revocation_facts["charges"] = [charge_json(charge) for charge in ledger.charges(release)]
        revocation_facts["history"] = [row.as_json() for row in ledger.history(release)]
        return _print_json({**current.as_json(), **revocation_facts})
    from storage.ledger.report import describe, partners_of, revocation_text, shared_text

    say_prose(f"Release {release}: {revocation_text(ledger, release) or current.state}\n")
    if revocation is None and partners_of(ledger, release):
        say_prose(f"{shared_text(ledger, release)}\n")
    for line in release_text(describe(ledger, release), width=min(Console().width, 110)):
        say(line)
    say("\nEvery field: --json")


@app.command(cls=Command)
@options.expand_groups
def verify(
    place: LedgerOptions,
    head: Annotated[
        list[Path] | None,
        typer.Option(help="Exported head that the ledger must contain; repeatable."),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Check the heads' signatures with this key.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="An earlier JSON export to compare row by row.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every row. If the ledger was changed, list each bad row and exit with 1.

    Without --head or --against, a ledger that was cut at its end, or rewritten as a whole, looks
    sound. With --json, `tail_checked` reports whether this was checked, and `signatures_checked`
    whether signatures of heads were checked (null: no head has one).
    """
    from storage.ledger.checkpoints import read_checkpoint
    from storage.ledger.keys import load_public_key
    from storage.ledger.report import read_export

    key = None if public_key is None else load_public_key(public_key)
    heads = [read_checkpoint(path, key=key) for path in head or ()]
    anchored = place.journal_checkpoints()
    earlier = () if against is None else read_export(against)
    ledger = place.open()
    rows = ledger.head()[0]
    with ConsoleListener() as console:
        tell = console.bar("checking rows")
        report = ledger.verify(
            checkpoints=[*heads, *anchored],
            earlier=earlier,
            progress=lambda done: tell(done, max(rows, done)),
        )
    tail_checked = bool(heads or anchored or earlier)
    has_signature = any(saved.signature for saved in heads)
    if as_json:
        checks = {
            "ok": report.ok,
            "signatures_checked": key is not None if has_signature else None,
            "tail_checked": tail_checked,
        }
        _print_json(checks | asdict(report) | {"bad": [bad._asdict() for bad in report.bad]})
    else:
        _say_report(report)
        if report.ok and has_signature and key is None:
            say("not checked: signatures of the heads (use --public-key)")
        elif report.ok and not tail_checked:
            say("not checked: the end of the ledger, where rows could be missing (use --head)")
    if not report.ok:
        raise typer.Exit(1)


def _say_report(report: Report) -> None:
    rows = count_of(report.rows, "row")
    say(f"{rows} read, up to row {report.sequence} {report.hash}; {len(report.bad)} bad")
    for note in report.notes:
        say(f"note: {note}")
    for bad in report.bad:
        effect = " (has no effect)" if bad.void else ""
        say(f"bad row {bad.sequence}{effect}: {bad.problem}")


@app.command("change-policy", cls=Command)
@options.expand_groups
def change_policy(
    policy: Annotated[Path, typer.Option(help="The new policy file.")],
    requester: Annotated[str, typer.Option(help="Who requests the change.")],
    reason: Annotated[str, typer.Option(help="Reason for the change, which the ledger records.")],
    place: LedgerOptions,
    approval: Annotated[
        list[str] | None,
        typer.Option(
            help="A signed approval, or a file with one (`autocoder approve --policy`); repeatable."
        ),
    ] = None,
) -> None:
    """Replace the budget policy, and record the change. Spent budgets are not refunded."""
    from storage.ledger import Decision, Ledger, Policy

    loaded = Policy.load(policy)
    decisions = [Decision.read(options.approval_text(text)) for text in approval or ()]
    if place.url == place.workspace.ledger_url:
        place.workspace.create()
    ledger = Ledger.open(place.url, journals=place.journals())
    row = ledger.change_policy(loaded, requester=requester, reason=reason, decisions=decisions)
    say(
        f"policy {row.title} is the current one since row {row.sequence}, digest "
        f"{row.entry.policy.digest}"
    )


@app.command(cls=Command)
@options.expand_groups
def export(
    place: LedgerOptions,
    what: Annotated[
        Literal["rows", "head", "copy", "page", "record", "answers"],
        typer.Argument(help="What to write.", metavar="WHAT"),
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write, or standard output.")] = None,
    release: Annotated[
        str | None, typer.Option(help="The release, for page, record and answers.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Private key that signs the head (`autocoder keys new`).")
    ] = None,
) -> None:
    """Export from the ledger for others.

    WHAT is one of:

      rows     every row as JSON, for `ledger verify --against`
      head     sequence and hash of the newest row, for a partner's later check
      copy     a copy of a SQLite ledger, for an officer without the workspace
      page     everything recorded of one release, for a review board
      record   entry of a committed release for a public registry of deployments
      answers  a page that answers the questions of NIST SP 800-226

    The record takes curators, region, domain, actors, refreshment, justification, sources, code,
    access and authors from `registry` in the policy.

    Examples

      autocoder ledger export rows --out ledger.json

      autocoder ledger export record --release 3f9c2a7e --out record.json
    """
    ledger = place.open()
    if what == "copy":
        return _copy(ledger, out)
    if what in ("page", "record", "answers") and release is None:
        raise Missing("--release: missing. Specify the release.", kind="no-release")
    if what == "head":
        from storage.ledger.checkpoints import state_checkpoint
        from storage.ledger.keys import load_private_key

        head = state_checkpoint(*ledger.head(), key=None if key is None else load_private_key(key))
        text = json.dumps(head.model_dump(), indent=1) + "\n"
    elif what in ("record", "answers"):
        from storage.bundle.folder import json_text
        from storage.bundle.stated import accuracy_lines, read_stated
        from tasks.bundle.deployment import stated_deployment

        deployment = stated_deployment(ledger, str(release))
        accuracy = read_stated(place.workspace.bundles / deployment.row.release_id)
        utility = [] if accuracy is None else accuracy_lines(accuracy)
        text = (
            json_text(deployment.registry_record(utility))
            if what == "record"
            else deployment.answers(utility)
        )
    else:
        from storage.ledger import report

        text = report.page(ledger, str(release)) if what == "page" else report.export(ledger)
    if out is None:
        say(text, end="")
    else:
        _write(out, text)
        say(f"{what}: {out}", err=True)
    if what == "head" and place.workspace.private.is_dir():
        from flows.commands.metrics import TIMES

        # The time of the export is a metric, because a head that was exported long ago proves
        # little.
        with suppress(OSError):  # a person may export without permission to write here
            (place.workspace.private / TIMES["head_exported"][0]).touch()


def _copy(ledger: Ledger, out: Path | None) -> None:
    if out is None:
        raise Missing("--out: missing. A copy is a file, such as desk/ledger.db.", kind="no-copy")
    ledger.database.copy_to(out)
    say(f"copy: {out}", err=True)


@app.command(cls=Command)
def migrate(
    url: Annotated[
        str,
        typer.Option(
            envvar="AUTOCODER_LEDGER_URL", help="Database URL, with the role that owns the tables."
        ),
    ],
    app_role: Annotated[
        str | None,
        typer.Option(
            help="Role of training, upkeep and metrics: reads, adds evaluations and audits."
        ),
    ] = None,
    release_role: Annotated[
        str | None,
        typer.Option(help="Role of the releasing worker: reads, appends any row."),
    ] = None,
    read_role: Annotated[str | None, typer.Option(help="Role of an officer's desk: reads.")] = None,
) -> None:
    """Create the ledger's tables, or migrate them."""
    from storage.ledger import Ledger
    from storage.ledger.database import Database, migrate

    revision = migrate(
        Database(url, lock_timeout=60.0),
        app_role=app_role,
        release_role=release_role,
        read_role=read_role,
    )
    if (
        app_role or release_role or read_role
    ):  # training makes plans under it but may not add the first row
        Ledger.open(url).ensure_genesis_row(requester="owner")
    text = f"ledger schema {revision}"
    text += f", {app_role} may read and add evaluations" if app_role else ""
    text += f", {release_role} may read and append" if release_role else ""
    text += f", {read_role} may read" if read_role else ""
    say(text)


def _write(path: Path, text: str) -> None:
    from storage.durable import write_atomically

    try:
        if path.is_symlink() or (
            path.exists() and not path.is_file()
        ):  # a pipe, a terminal, /dev/stdout
            path.write_text(text, encoding="utf-8", newline="")
        else:
            write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", kind="unwritable-export") from error


@app.command(cls=Command)
@options.expand_groups
def recover(
    place: LedgerOptions,
    apply: Annotated[
        bool, typer.Option("--apply", help="Record saved samples, commit bundles, burn lost ones.")
    ] = False,
    burn: Annotated[
        list[str] | None, typer.Option(help="Also burn this release; repeatable.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="Policy in the missing rows that may be restored without signatures."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the state of each release after a crash. With --apply, complete or burn it.

    The steps `draw`, `measure` and `build` need the model: run the same release again to resume.
    This command exits with 1 while a release is open. If the ledger was rolled back or lost, its
    missing rows are restored from this workspace or the witness, after all of them were checked.

    Example

      autocoder ledger recover --apply
    """
    from storage.ledger import recovery

    workspace = place.workspace
    if not workspace.home.is_dir():
        raise Missing(
            f"--home {workspace.home}: the folder does not exist, and every "
            "sample would look lost. Specify the workspace.",
            kind="no-workspace",
        )
    if burn and not apply:
        raise Missing("--burn: requires --apply", kind="burn-without-apply")
    if not _is_current(place, apply=apply, policy=policy):
        raise typer.Exit(1)
    ledger = place.open_to_sign() if apply else place.open()
    findings = (
        recovery.recover(ledger, workspace, burn=burn or ())
        if apply
        else recovery.inspect(ledger, workspace)
    )
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    elif not findings:
        say("nothing to recover: every release is committed or burned, every bundle has its row")
    else:
        _show_findings(findings)
        for command in _resuming(ledger, workspace, findings):
            say(f"next: {command} (resumes it without a second charge)")
    if not all(finding.done for finding in findings):
        raise typer.Exit(1)


def _is_current(place: LedgerOptions, *, apply: bool, policy: Path | None) -> bool:
    from storage.bundle.seal import release_key
    from storage.ledger import Policy
    from storage.ledger.recovery import detect, restore

    rollback = detect(place.url, place.workspace)
    if rollback is None:
        return True
    if not rollback.missing:
        say(
            f"{rollback.problem}\nThe ledger has other rows than this workspace and the witness. "
            "Restore it from a "
            "backup, or start a new workspace and a policy of smaller caps."
        )
    elif not apply:
        missing = count_of(len(rollback.missing), "row")
        say(f"{rollback.problem}\n{missing} can be restored. Use --apply.")
    else:
        loaded = None if policy is None else Policy.load(policy)
        public_key = release_key(place.workspace).public_key()
        rows = restore(place.url, place.workspace, rollback, key=public_key, policy=loaded)
        say(f"{count_of(rows, 'row')} restored: {rollback.mark}")
    return bool(rollback.missing) and apply


def _resuming(ledger: Ledger, workspace: Workspace, findings: Sequence[Finding]) -> Iterator[str]:
    from tasks.releasing.budgets import resuming_command

    still = {finding.release_id for finding in findings if not finding.done}
    for row in ledger.open_releases():
        command = resuming_command(workspace, row)
        if row.release_id in still and command is not None:
            yield command


def _show_findings(findings: Sequence[Finding]) -> None:
    print_table(
        [
            Column("release", [finding.release_id for finding in findings]),
            Column("was", [finding.state for finding in findings]),
            Column("step", [finding.step.value for finding in findings]),
            Column("state", ["done" if finding.done else "open" for finding in findings]),
            Column("why", [finding.why for finding in findings], wraps=True),
        ]
    )
