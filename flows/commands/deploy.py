"""`autocoder deploy`: work pools, deployments and automations onto the Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.terminal import say
from flows.server.settings import before_prefect, home_of

FOLDER = Path(__file__).resolve().parents[2] / "deployments"
POOLS = {"cpu": None, "gpu": None}
"""Work pools and how many runs each may have in all; a GPU worker takes one at a time (`--limit 1`)."""


def deploy(
    file: Annotated[Path, typer.Option(help="Deployments.")] = FOLDER / "prefect.yaml",
    rules: Annotated[Path, typer.Option("--automations", help="Automations.")] = FOLDER / "automations.yaml",
) -> None:
    """Apply work pools, deployments and automations to the server at PREFECT_API_URL. Again changes nothing more.

    [bold]Example[/bold]

      PREFECT_API_URL=http://127.0.0.1:4200/api AUTOCODER_DATA=/data/injuries.csv \
AUTOCODER_CODELIST=/data/oiics.csv autocoder deploy
    """
    from storage.errors import InputError, StorageError

    if "PREFECT_API_URL" not in os.environ:
        raise InputError("PREFECT_API_URL: name the server, such as http://127.0.0.1:4200/api")
    for path in (file, rules):
        if not path.is_file():
            raise InputError(f"no file {path}")
    before_prefect(home_of(None), make_home=False)
    from flows.server.automations import apply_pools, apply_rules

    apply_pools(POOLS)
    # `prefect deploy` has no counterpart in Python that reads the file.
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)],
        env=_defaults(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StorageError(f"prefect deploy: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    applied = apply_rules(rules, webhook=os.environ.get("AUTOCODER_NOTIFY_WEBHOOK"))
    say(f"work pools {', '.join(POOLS)}; deployments of {file.name}; automations {', '.join(applied)}")


def _defaults(environment: Any) -> dict[str, str]:
    """Unset names stand in the forms as what to fill in."""
    unset = {"AUTOCODER_DATA": "FILL IN: path of the records", "AUTOCODER_CODELIST": "FILL IN: path of the code list"}
    return {**unset, **{name: value for name, value in environment.items() if value or name not in unset}}
