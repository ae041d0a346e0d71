"""Defines `autocoder deploy`: work pools, deployments and automations of the Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.terminal import say
from flows.server.settings import configure_prefect, home_of
from tasks.catalogue import CATALOGUE

POOLS = {"cpu": None, "gpu": None}
"""Work pools and the runs that each may have; a GPU worker takes one at a time (`--limit 1`)."""


def deploy(
    file: Annotated[Path, typer.Option(help="Deployments.")] = CATALOGUE / "prefect.yaml",
    rules: Annotated[Path, typer.Option("--automations", help="Automations.")] = CATALOGUE / "automations.yaml",
) -> None:
    r"""Apply work pools, deployments and automations to the server at PREFECT_API_URL. It is safe to repeat.

    [bold]Example[/bold]

      PREFECT_API_URL=http://127.0.0.1:4200/api \
          AUTOCODER_DATA=/data/injuries.csv \
          AUTOCODER_CODELIST=/data/oiics.csv autocoder deploy
    """
    from storage.errors import InputError, StorageError

    if "PREFECT_API_URL" not in os.environ:
        raise InputError("PREFECT_API_URL is not set. Name the server, such as http://127.0.0.1:4200/api.")
    for path in (file, rules):
        if not path.is_file():
            raise InputError(f"{path} does not exist. Name a file.")
    configure_prefect(home_of(None), make_home=False)
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
    """Returns the environment; unset paths appear in the forms as what to fill in."""
    unset = {"AUTOCODER_DATA": "FILL IN: path of the records", "AUTOCODER_CODELIST": "FILL IN: path of the code list"}
    return {**unset, **{name: value for name, value in environment.items() if value or name not in unset}}
