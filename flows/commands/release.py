"""`autocoder release`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands import options
from flows.server.settings import before_prefect, same_house
from flows.server.temporary import own_server


@dataclass(frozen=True)
class SettingOptions:
    """Ledger, policy and bundle."""

    policy: Annotated[Path | None, typer.Option(help="Budget policy (YAML).", show_default="the one in force")] = None
    ledger_url: options.LedgerUrl = None
    signing_key: Annotated[
        Path | None, typer.Option(help="Private key that signs the bundle.", show_default="the workspace's own")
    ] = None
    signing_certificate: Annotated[Path | None, typer.Option(help="X.509 certificate of that key (PEM).")] = None
    certificate_chain: Annotated[list[Path] | None, typer.Option(help="Authorities above it (PEM); repeatable.")] = None
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Leave the bundle without a signature.")] = False
    precision: Annotated[str, typer.Option(help="Of the weights: float32 or bfloat16.")] = "float32"
    licence: Annotated[
        str | None, typer.Option(help="SPDX name or text file; must be the plan's.", show_default="the plan's")
    ] = None

    def values(self) -> dict[str, Any]:
        """As the flow's parameters hold them: paths as text."""
        chain = [str(path) for path in self.certificate_chain or ()]
        texts = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        return texts | {"certificate_chain": chain}


def release(
    plan: options.Plan,
    settings: SettingOptions,
    output: options.OutputOptions,
    home: options.PlansHome = None,
    device: options.Device = "auto",
) -> None:
    """Release what a plan says: charge the budget, draw once, bundle, record, sign.

    A plan that is released already returns its bundle and spends nothing more.

    [bold]Example[/bold]

      autocoder retrain --data injuries.csv

      autocoder release workspace/private/plans/0123456789abcdef.json
    """
    from flows.commands.profiles import checked
    from tasks.parameters import BundleParameters

    ledger = checked(BundleParameters, settings.values(), at="")
    workspace = options.plans_home(plan, home)
    same_house(plan, workspace)
    before_prefect(workspace, make_home=True)

    import flows.release as job

    with output.progress(), own_server():
        result = job.release(plan=str(plan), home=str(workspace), device=device, ledger=ledger)
    output.warn(result.warnings)
    output.answer(result, result.bundle)
