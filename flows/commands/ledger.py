"""`autocoder ledger`: what was released, from which records, at what cost, and whether anybody changed it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.commands import options
from flows.commands.terminal import say

if TYPE_CHECKING:
    from storage.ledger import Row
    from storage.ledger.recovery import Finding

app = typer.Typer(help="The release ledger: budget, history, proof.", no_args_is_help=True)

ReleaseId = Annotated[str, typer.Argument(help="The release's id.", metavar="RELEASE")]


def _print_json(data: Any) -> None:
    say(json.dumps(data, ensure_ascii=False, indent=1))


def _answer(data: Any, text: str, *, as_json: bool) -> None:
    _print_json(data) if as_json else say(text)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    from flows.commands.terminal import Console

    table = Table(title=title, title_justify="left")
    for name in header:
        table.add_column(
            name, overflow="fold", no_wrap=name in ("row", "at", "state", "release", "guarantee", "ε", "Δ")
        )
    for row in rows:
        table.add_row(*row)
    console = Console()
    # A pipe has no width; the 80 columns assumed for it would fold every cell.
    (console if console.is_terminal else Console(width=160)).print(table)


@app.command("list")
@options.grouped
def list_rows(
    place: options.LedgerOptions,
    as_json: options.AsJson = False,
    history: Annotated[bool, typer.Option(help="Every row, not each release's newest.")] = False,
) -> None:
    """List releases in their current state, and evaluations, audits and budget changes."""
    from storage.ledger.amounts import brief, short

    ledger = place.open()
    rows = ledger.rows() if history else ledger.current()
    if as_json:
        _print_json([row.as_json() for row in rows])
        return

    def number(value: Any) -> str:
        return "–" if value is None else brief(value)

    header = (
        "row",
        "at",
        "state",
        "release",
        "population",
        "label",
        "mechanism",
        "guarantee",
        "ε",
        "δ",
        "Δ",
        "cohorts",
    )
    cells = [
        (
            str(row.sequence), row.recorded_at[:16], row.state if row.kind == "release" else row.kind,
            row.release_id or "–", row.population or "–", row.label, row.mechanism or "–", row.guarantee_kind,
            number(row.epsilon), short(row.delta) if row.delta is not None else "–", number(row.sensitivity),
            ", ".join(row.cohorts),
        )
        for row in rows
    ]  # fmt: skip
    _table(f"Ledger {ledger.database.name}", header, cells)


@app.command()
@options.grouped
def show(release: ReleaseId, place: options.LedgerOptions, as_json: options.AsJson = False) -> None:
    """Show all that is known of one release, and how it came there."""
    ledger = place.open()
    current, history = ledger.release(release), ledger.history(release)
    if as_json:
        _print_json({**current.as_json(), "history": [row.as_json() for row in history]})
        return
    fields = current.as_json()
    cells = [(name, _shown(value)) for name, value in fields.items() if value not in (None, "", [], {})]
    _table(f"Release {release}: {current.state}", ("field", "value"), cells)
    _table(
        "History",
        ("row", "at", "kind", "state", "reason", "hash"),
        [(str(r.sequence), r.recorded_at, r.kind, r.state, r.reason, r.hash) for r in history],
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@app.command()
@options.grouped
def verify(
    place: options.LedgerOptions,
    head: Annotated[
        list[Path] | None, typer.Option(help="An exported head that the ledger must still go through; repeatable.")
    ] = None,
    public_key: Annotated[Path | None, typer.Option(help="Check the heads' signatures with this key.")] = None,
    against: Annotated[Path | None, typer.Option(help="An earlier JSON export to compare row by row.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every row; exit code 1 and the first bad row when somebody changed the ledger.

    Without --head or --against a ledger whose tail was cut, or that was rewritten as a whole, looks sound; --json says
    so in `tail_checked`, and in `signatures_checked` whether the heads' signatures were (null: none has one).
    """
    from storage.ledger.heads import load_public_key, read_head
    from storage.ledger.report import read_export

    key = None if public_key is None else load_public_key(public_key)
    heads = [read_head(path, key=key) for path in head or ()]
    kept = place.kept_heads()
    earlier: Sequence[Row] = () if against is None else read_export(against)
    from flows.commands.console import ConsoleListener

    ledger = place.open()
    rows = ledger.head()[0]
    with ConsoleListener() as console:
        tell = console.bar("checking rows")
        report = ledger.verify(
            heads=[*heads, *kept], earlier=earlier, progress=lambda done: tell(done, max(rows, done))
        )
    if as_json:
        signatures = None if not any(one.signature for one in heads) else key is not None
        told = {"ok": report.ok, "signatures_checked": signatures, "tail_checked": bool(heads or kept or earlier)}
        _print_json(told | asdict(report))
    else:
        say(f"{report.rows} rows sound, up to row {report.sequence} {report.hash}")
        for note in report.notes:
            say(f"note: {note}")
        if not report.ok:
            say(f"first bad row: {report.first_bad_row}: {report.problem}")
        elif key is None and any(one.signature for one in heads):
            say("note: the heads' signatures weren't checked; give --public-key")
        elif not (heads or kept or earlier):
            say("note: without --head nobody can tell that rows were cut off at the end")
    if not report.ok:
        raise typer.Exit(1)


@app.command()
@options.grouped
def budget(
    place: options.LedgerOptions,
    policy: Annotated[Path | None, typer.Option(help="Show this policy before anything is spent.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what each account has spent of its cap. `*` stands for any cohort or population not named."""
    from storage.errors import InputError
    from storage.ledger import Policy
    from storage.ledger.budget import budget_lines
    from storage.ledger.report import BUDGET_COLUMNS, budget_cells, budget_json

    if policy is not None:
        # The given policy beside what was really spent, whether or not it is in force yet.
        given = Policy.load(policy)
        try:
            accounts = [line.account for line in place.open().budget() if line.account.sequence]
        except InputError:  # no ledger yet
            accounts = []
        lines, name = budget_lines(given, accounts), given.name
    else:
        ledger = place.open()
        lines, name = ledger.budget(), ledger.policy().name
    if as_json:
        _print_json(budget_json(lines))
    else:
        _table(f"Budget, policy {name}", BUDGET_COLUMNS, budget_cells(lines))


@app.command("change-policy")
@options.grouped
def change_policy(
    policy: Annotated[Path, typer.Option(help="The policy file to put in force.")],
    requester: Annotated[str, typer.Option(help="Who wants the change.")],
    reason: Annotated[str, typer.Option(help="Why.")],
    place: options.LedgerOptions,
    approval: Annotated[
        list[str] | None,
        typer.Option(help="A signed approval, or a file that holds one (`autocoder approve --policy`); repeatable."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Put another policy in force and record it for ever. What was spent stays spent."""
    from storage.ledger import Decision, Ledger, Policy

    loaded = Policy.load(policy)
    decisions = [Decision.read(_content(text)) for text in approval or ()]
    if place.url == place.workspace.ledger_url:
        place.workspace.create()
    ledger = Ledger.open(place.url, journals=place.journals())
    row = ledger.change_policy(loaded, requester=requester, reason=reason, decisions=decisions)
    text = f"policy {row.label} in force since row {row.sequence}, digest {row.policy_digest}"
    _answer(row.as_json(), text, as_json=as_json)


def _content(text: str) -> str:
    """What a file of this name holds; where there is none, the text itself."""
    from storage.errors import InputError

    if len(text) >= 250 or not Path(text).is_file():
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"--approval {text}: it cannot be read as text; name what `autocoder approve` wrote") from None


@app.command()
@options.grouped
def export(
    out: Annotated[Path, typer.Option(help="The file to write.")],
    place: options.LedgerOptions,
    format: Annotated[Literal["json", "csv"], typer.Option(help="JSON can be verified against later.")] = "json",
    as_json: options.AsJson = False,
) -> None:
    """Write every row to a file."""
    from storage.ledger.report import to_csv, to_json

    rows = place.open().rows()
    _write(out, to_json(rows) if format == "json" else to_csv(rows))
    _answer({"rows": len(rows), "out": str(out), "format": format}, f"{len(rows)} rows in {out}", as_json=as_json)


@app.command()
@options.grouped
def head(
    place: options.LedgerOptions,
    key: Annotated[Path | None, typer.Option(help="Private key to sign with (`autocoder keys new`).")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; without it, standard output.")] = None,
) -> None:
    """State sequence and hash of the newest row, for a partner to keep and verify against later."""
    from storage.ledger.heads import load_private_key, state_head

    private = None if key is None else load_private_key(key)
    statement = state_head(*place.open().head(), key=private)
    text = json.dumps(statement.model_dump(), indent=1) + "\n"
    if out is None:
        say(text, end="")
    else:
        _write(out, text)
        say(f"head of row {statement.sequence} in {out}")


@app.command()
def migrate(
    url: Annotated[str, typer.Option(envvar="AUTOCODER_LEDGER_URL", help="As the owner of the tables.")],
    app_role: Annotated[
        str | None, typer.Option(help="The role that the pipeline connects as: SELECT and INSERT, nothing else.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Create the ledger's tables or bring them up to date."""
    from storage.ledger.database import Database, migrate

    revision = migrate(Database(url, lock_timeout=60.0), app_role=app_role)
    text = f"ledger schema {revision}" + (f", role {app_role} may read and append" if app_role else "")
    _answer({"schema": revision, "app_role": app_role}, text, as_json=as_json)


@app.command()
def witness(
    url: Annotated[str, typer.Option(help="Of the witness's database, as its owner.")],
    app_role: Annotated[
        str | None,
        typer.Option(help="The role that the pipeline connects as: it may read and add heads, nothing else."),
    ] = None,
) -> None:
    """Put the table of a witness into a second database, whose URL AUTOCODER_LEDGER_WITNESS then names.

    It gets the head of every transaction, and tells when ledger and workspace went back together. Best on a server that
    others keep.

    [bold]Example[/bold]

      autocoder ledger witness --url postgresql+psycopg://witness_owner@elsewhere/witness --app-role autocoder
    """
    from storage.ledger.database import parse_url
    from storage.ledger.witness import make_witness

    make_witness(url, app_role=app_role)
    shown = parse_url(url).render_as_string(hide_password=True)
    say(f"witness {shown} is ready: AUTOCODER_LEDGER_WITNESS names it, with the role that may add to it")


def _write(path: Path, text: str) -> None:
    from storage.errors import InputError

    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


@app.command()
@options.grouped
def recover(
    place: options.LedgerOptions,
    apply: Annotated[bool, typer.Option("--apply", help="Record kept draws, commit bundles, burn lost draws.")] = False,
    burn: Annotated[list[str] | None, typer.Option(help="Also burn this release; repeatable.")] = None,
    ask: Annotated[
        Path | None, typer.Option(help="Write what approvers sign to go on with a ledger that went back or is new.")
    ] = None,
    requester: Annotated[str, typer.Option(help="Who asks that; with --ask.")] = "operator",
    reason: Annotated[str, typer.Option(help="Why; with --ask.")] = "",
    accept: Annotated[Path | None, typer.Option(help="That file, signed; with --approval.")] = None,
    approval: Annotated[
        list[str] | None,
        typer.Option(help="A signed approval, or a file that holds one (`autocoder approve --recovery`); repeatable."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say in what state a crash left each release, and with --apply bring it on or burn it.

    Steps `draw`, `measure` and `build` need the model: run the same release again, which resumes. Exits with 1 while
    anything is open. A ledger that went back to an older state gets the rows that it lacks from this workspace; where
    that can't be, it is gone on with only when those who approve releases have signed that.

    [bold]Example[/bold]

      autocoder ledger recover --apply

      autocoder ledger recover --ask recovery.json --requester lead --reason "the disk is lost"
      autocoder approve --recovery recovery.json --key officer/signing-key.pem > approval.txt
      autocoder ledger recover --accept recovery.json --approval approval.txt
    """
    from storage.errors import InputError
    from storage.ledger import recovery

    workspace = place.workspace
    if not workspace.home.is_dir():
        raise InputError(f"--home {workspace.home}: no such folder; every draw would look lost")
    if burn and not apply:
        raise InputError("--burn: nothing is changed without --apply")
    if accept is not None:
        return _accept(place, accept, approval or ())
    if not _in_its_place(place, apply=apply, ask=ask, requester=requester, reason=reason):
        raise typer.Exit(1)
    ledger = place.open()
    findings = recovery.recover(ledger, workspace, burn=burn or ()) if apply else recovery.inspect(ledger, workspace)
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    elif not findings:
        say("nothing to recover: every release is committed or burned, every bundle has its row")
    else:
        _show_findings(findings)
    if not all(finding.done for finding in findings):
        raise typer.Exit(1)


def _in_its_place(place: options.LedgerOptions, *, apply: bool, ask: Path | None, requester: str, reason: str) -> bool:
    """Whether the ledger is the one that was used before, or is again with the rows that it lacked."""
    from storage.ledger import lost

    found = lost.look(place.url, place.workspace)
    if found is None:
        return True
    if ask is not None:
        content = lost.ask(place.url, place.workspace, found, requester=requester, reason=reason)
        _write(ask, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
        say(f"{found.problem}\nto be signed: {ask} (`autocoder approve --recovery`)")
    elif found.missing and apply:
        say(f"{lost.put_back(place.url, place.workspace, found)} rows put back: {found.mark}")
        return True
    elif found.missing:
        say(f"{found.problem}\n{len(found.missing)} rows that it lacks are kept here: --apply puts them back")
    else:
        say(
            f"{found.problem}\nwhat it lacks is not kept here, or it went another way: restore it, or have it signed "
            "that it is gone on with (--ask)"
        )
    return False


def _accept(place: options.LedgerOptions, file: Path, approval: Sequence[str]) -> None:
    from storage.errors import InputError
    from storage.ledger import Decision, lost

    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        decisions = [Decision.read(_content(text)) for text in approval]
        row = lost.accept(place.url, place.workspace, content, decisions)
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"--accept {file}: not what `autocoder ledger recover --ask` wrote") from None
    say(f"recovered: ledger row {row.sequence}; plans and approvals from before it count no more")


def _show_findings(findings: Sequence[Finding]) -> None:
    cells = [(f.release_id, f.state, f.step.value, "done" if f.done else "open", f.why) for f in findings]
    _table("Recovery", ("release", "was", "step", "state", "why"), cells)


@app.command()
@options.grouped
def certificate(
    release: ReleaseId,
    out: Annotated[Path, typer.Option(help="Folder for certificate.md and spend.png.")],
    place: options.LedgerOptions,
    as_json: options.AsJson = False,
) -> None:
    """Write the certificate of one release: what a review board files."""
    from storage.ledger.certificate import write_certificate

    written = str(write_certificate(place.open(), release, out))
    _answer({"release": release, "certificate": written}, written, as_json=as_json)
