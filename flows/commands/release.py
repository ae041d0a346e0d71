"""`autocoder release`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.server.settings import before_prefect, home_of, same_house, workspace_of


def release(
    plan: options.Plan,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Budget policy (YAML). [default: the one in force]")
    ] = None,
    ledger_url: options.LedgerUrl = None,
    signing_key: Annotated[
        Path | None,
        typer.Option("--signing-key", help="Private key that signs the bundle. [default: the workspace's own]"),
    ] = None,
    signing_certificate: Annotated[
        Path | None,
        typer.Option("--signing-certificate", help="X.509 certificate of that key (PEM).", show_default=False),
    ] = None,
    certificate_chain: Annotated[
        list[Path] | None,
        typer.Option("--certificate-chain", help="Authorities above it (PEM); repeatable.", show_default=False),
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Leave the bundle without a signature.")] = False,
    precision: Annotated[str, typer.Option("--precision", help="Of the weights: float32 or bfloat16.")] = "float32",
    licence: Annotated[
        Path | None, typer.Option("--licence", help="Licence text for the bundle. [default: Apache 2.0]")
    ] = None,
    home: options.PlansHome = None,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Release what a plan says: charge the budget, draw once, bundle, record, sign.

    A plan that is released already returns its bundle and spends nothing more.

    [bold]Example[/bold]

      autocoder retrain --data injuries.csv --set release.enabled=false

      autocoder release workspace/private/plans/0123456789abcdef.json
    """
    from pydantic import ValidationError

    from flows.commands.profiles import explain
    from storage.errors import InputError
    from tasks.parameters import BundleParameters

    try:
        settings = BundleParameters.model_validate(
            {
                "policy": None if policy is None else str(policy),
                "ledger_url": ledger_url,
                "signing_key": None if signing_key is None else str(signing_key),
                "signing_certificate": None if signing_certificate is None else str(signing_certificate),
                "certificate_chain": tuple(str(path) for path in certificate_chain or ()),
                "unsigned": unsigned,
                "precision": precision,
                "licence": None if licence is None else str(licence),
            }
        )
    except ValidationError as error:
        raise InputError("; ".join(explain(entry) for entry in error.errors(include_input=False))) from None
    workspace = home_of(home) if home else workspace_of(plan)
    same_house(plan, workspace)
    before_prefect(workspace, make_home=True)

    import flows.release as job
    from flows.commands.console import ConsoleListener
    from tasks.running.progress import listening

    with ConsoleListener(quiet=quiet) as listener, listening(listener):
        done = job.release(plan=str(plan), home=str(workspace), device=device, ledger=settings)
    typer.echo(done.model_dump_json(indent=2) if as_json else done.bundle)
