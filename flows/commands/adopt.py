"""Defines `autocoder adopt`: installs a received bundle once for all later commands."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import bundle_options, file_checks, options
from flows.commands.console import ConsoleListener
from flows.commands.terminal import say
from storage.errors import Contradiction, Missing
from tasks.running.failures import private_errors


def adopt(
    bundle: Annotated[
        Path, typer.Argument(help="The bundle that you received: the .tar.zst file, or its folder.")
    ],
    key: Annotated[
        Path, typer.Option(help="The agency's first public key (PEM), obtained out of band.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to create. Pass it to later commands as --bundle.")
    ],
    roots: bundle_options.Roots = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Records that you coded manually: CSV, Parquet or JSON Lines."),
    ] = None,
    label: options.Label = None,
    text: options.Text = None,
    template: options.Template = None,
    accuracy: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=0.999, help="Accuracy of the codes that no person checks, such as 0.9."
        ),
    ] = None,
    sets: Annotated[
        bool,
        typer.Option(
            "--sets", help="Also fit the limits of sets, for `autocoder code --coverage`."
        ),
    ] = False,
    allow_unlisted: options.AllowUnlisted = False,
    read: options.Read = None,
    as_json: options.AsJson = False,
) -> None:
    r"""Verify and install a bundle you received, fit your thresholds, and write one report.

    Later commands take --bundle FOLDER. They read your columns, your thresholds and the agency's
    key from it, check the bundle again, and refuse it if the file passed as --roots reports that it
    was revoked.

    It prints how often the model is right according to the agency, and with --data whether your own
    records agree with that. Without --data, the thresholds are the bundle's, if it has any. They
    were fitted on the agency's held-out records, and a few hundred manually coded records of your
    own give better ones. The folder then depends on your records, so keep it as confidential as
    they are.

    Examples

      autocoder adopt RELEASE.tar.zst --key signing-key.pub.pem \
          --roots roots.json --out coder

      autocoder adopt RELEASE.tar.zst --key signing-key.pub.pem --out coder \
          --data coded_by_hand.csv --text Narrative --label Code \
          --accuracy 0.9

      autocoder code --bundle coder --data new.csv --out coded.csv
    """
    if data is None and (label or accuracy or sets):
        raise Missing(
            "--label, --accuracy and --sets require --data, a file of records that were coded "
            "manually",
            kind="options-need-data",
        )
    out, bundle, key = out.expanduser(), bundle.expanduser(), key.expanduser()
    if out.exists():
        raise Contradiction(
            f"--out: {out} exists. Choose another folder: each bundle has its own.",
            kind="folder-exists",
        )
    file_checks.require_writable("--out", out)
    with private_errors("adopt"):
        from storage.bundle.adoption import REPORT
        from tasks.coding.adopt import OwnRecords, adopt

        own_records = OwnRecords(
            data=None if data is None else data.expanduser(),
            label=label,
            columns=tuple(text or ()),
            template=template,
            accuracy=accuracy,
            sets=sets,
            allow_unlisted=allow_unlisted,
            read=options.read_options(read),
        )
        with ConsoleListener() as console:
            console.started("adopt")
            report = adopt(
                bundle, out, key, None if roots is None else roots.expanduser(), own_records
            )
    if as_json:
        content = {
            "answers": report.answers,
            "thresholds": report.thresholds,
            "accuracy": report.accuracy_lines,
            "unchecked": report.unchecked,
            "warnings": list(report.notes),
        }
        say(
            json.dumps(
                report.adopted.adoption.model_dump() | {"folder": str(out)} | content, indent=2
            )
        )
        return
    answers = "" if report.answers is None else f", {report.answers} test vectors"
    say(
        f"adopted: release {report.sound.release_id}, {report.sound.files} files{answers}; "
        f"written to {out}"
    )
    for line in report.accuracy_lines:
        say(f"  {line}")
    for line in report.threshold_lines if report.thresholds else ():
        say(f"  {line}")
    if accuracy is not None and report.adopted.adoption.accuracy is None:
        say(f"  rows are not marked for review: no score achieves {accuracy:g}")
    for line in report.notes:
        say(f"warning: {line}", err=True)
    for line in report.unchecked:
        say(f"not checked: {line}")
    say(f"read: {out / REPORT}")
    say(f"next: {report.next_commands[0]}")
