"""Defines `autocoder handover` and `autocoder revoke`: bundles for partners, and
their revocation.
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from flows import handover as handing
from flows.commands import options
from flows.commands.ledger_options import LedgerOptions
from flows.commands.terminal import say


def handover(
    place: LedgerOptions,
    release: Annotated[str, typer.Argument(help="Release to hand over.")],
    to: Annotated[str, typer.Option(help="Name of the partner.")],
    out: Annotated[Path, typer.Option(help="Folder to write the .tar.zst file to.")],
    as_json: options.AsJson = False,
) -> None:
    r"""Pack a release for a partner, and record the handover as a row of the ledger.

    The bundle is first checked as the partner will check it. `autocoder ledger show RELEASE` lists
    its partners.

    Example

      autocoder handover 3f2a9c41d07b65e8 \
          --to "Statistics Office of Freedonia" --out outbox
    """
    handed = handing.hand_over(release, to, out, place)
    if as_json:
        say(handed.model_dump_json())
        return
    say(
        f"{handed.archive}  for {handed.partner}: ledger row {handed.row}, release row "
        f"{handed.release_row}"
    )
    say(f"next: send the wheel too: uv build --wheel --out-dir {shlex.quote(str(out))}")
    say(f"next: send your public key separately: {handed.public_key or 'signing-key.pub.pem'}")


def revoke(
    release: Annotated[str, typer.Argument(help="Release to revoke.")],
    reason: Annotated[
        str, typer.Option(help="Reason for the revocation, which partners can read.")
    ],
    place: LedgerOptions,
    out: Annotated[Path, typer.Option(help="File of roots to write for partners.")] = Path(
        "roots.json"
    ),
    as_json: options.AsJson = False,
) -> None:
    r"""Revoke a release in the ledger, and write the agency's next root, which lists all
    revocations.

    The spent budget is not refunded. Send the file to every partner that has the bundle (see
    `autocoder ledger show RELEASE`). `autocoder verify --roots` then refuses the revoked releases.
    If a root needs more signatures, each holder of a root key adds one with `autocoder keys sign`.

    Example

      autocoder revoke 3f2a9c41d07b65e8 --out roots.json \
          --reason "superseded: the code list had an error"
    """
    revoked = handing.revoke(release, reason, out, place)
    lacks, partners = revoked.missing_signatures, ", ".join(revoked.partners)
    if revoked.note:
        say(f"note: {revoked.note}", err=True)
    if as_json:
        say(revoked.model_dump_json(exclude={"revocations", "note"}))
        return
    say(
        f"release {release} revoked; root {revoked.version} with {revoked.revocations} "
        f"revocations in {out}"
    )
    if lacks:
        say(
            f"it needs {lacks} more signatures. Next, each holder of a root: autocoder keys sign "
            f"{out} --key KEY.pem"
        )
    if partners:
        say(f"handed to: {partners}. Send them {out}{' once it is signed' if lacks else ''}.")
