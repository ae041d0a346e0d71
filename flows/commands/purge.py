"""Defines `autocoder purge`: removes old records, features and models from the
private workspace.
"""

import getpass
from collections import defaultdict
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.ledger_options import select_ledger
from flows.commands.terminal import say
from flows.server.settings import home_of
from storage.errors import InputError


def purge(
    older_than: Annotated[
        float,
        typer.Option(
            min=1, help="Remove stages that were last written to more than this many days ago."
        ),
    ] = 365,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Remove the stages. Without this option they are only listed."),
    ] = False,
    home: options.Home = None,
) -> None:
    """List, or with --yes remove, stages of the private workspace that were not used for a while.

    Stages contain records, features, posteriors and weights. Bundles, the ledger, keys and plans
    are kept, and so are stages that a plan of the same period or an open release needs. The ledger
    records what was removed. A later training run computes removed stages again, from the records
    file.

    Examples

      autocoder purge --older-than 180

      autocoder purge --older-than 180 --yes
    """
    context, settings = select_ledger(home_of(home))
    from storage.ledger.models import Evaluation, Purge
    from storage.retention import expired, remove
    from tasks.releasing.ledger_access import existing_ledger, open_ledger

    ledger = existing_ledger(context, settings)
    if ledger is not None and (release := next(iter(ledger.open_releases()), None)) is not None:
        raise InputError(
            f"release {release.release_id} is open, and needs its stages. Finish it with "
            "`autocoder release`, or see "
            "`autocoder ledger recover`.",
            kind="open-release",
        )
    entries = expired(context.workspace.private, older_than_days=older_than)
    if not entries:
        say(f"nothing in {context.workspace.private} is older than {older_than:g} days")
        return
    by_stage: dict[str, list[int]] = defaultdict(list)
    for entry in entries:
        by_stage[
            entry.stage if entry.place == "stages" else f"{entry.stage} ({entry.place})"
        ].append(entry.bytes)
    for stage, sizes in sorted(by_stage.items(), key=lambda item: -sum(item[1])):
        say(f"{stage:32} {len(sizes):6,}  {sum(sizes) / 1e6:12,.1f} MB")
    total = f"{len(entries):,} folders, {sum(entry.bytes for entry in entries) / 1e6:,.1f} MB"
    if not yes:
        say(f"would remove {total}. Add --yes to remove them.")
        return
    subject = Purge(folders=len(entries), older_than_days=older_than)
    requester = getpass.getuser()
    evaluation = Evaluation(
        subject=subject, population="workspace", data_fingerprint="none", requester=requester
    )
    row = (ledger or open_ledger(context, settings)).record(evaluation)
    for entry in entries:
        remove(context.store, entry)
    say(f"removed {total}; measurement {row.sequence}")
