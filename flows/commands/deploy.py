"""Defines `autocoder deploy`: work pools, deployments and automations of the Prefect server."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flows.commands.terminal import say
from flows.server.settings import configure_prefect
from storage.errors import Missing, StorageError
from tasks.catalogue import CATALOGUE

POOLS = ("cpu", "gpu")
"""Work pools. A GPU worker takes one run at a time (`--limit 1`)."""


def deploy() -> None:
    r"""Apply work pools, deployments and automations to the server at PREFECT_API_URL. It is safe
    to repeat.

    Example

      PREFECT_API_URL=http://127.0.0.1:4200/api \
          AUTOCODER_DATA=/data/injuries.csv \
          AUTOCODER_CODELIST=/data/oiics.csv autocoder deploy
    """
    if "PREFECT_API_URL" not in os.environ:
        raise Missing(
            "PREFECT_API_URL is not set. Set it to the server's address, such as "
            "http://127.0.0.1:4200/api.",
            kind="no-server",
        )
    file, rules = CATALOGUE / "prefect.yaml", CATALOGUE / "automations.yaml"
    content = _without_unset(yaml.safe_load(file.read_text(encoding="utf-8")), os.environ)
    if pool := os.environ.get("AUTOCODER_TRAINING_POOL"):
        _train_in(content, pool)
    configure_prefect()
    from flows.server.automations import apply_pools, apply_rules

    apply_pools(POOLS)
    with tempfile.TemporaryDirectory() as folder:
        applied_file = Path(folder) / "prefect.yaml"
        applied_file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        # `prefect deploy` has no Python equivalent that reads the file.
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "prefect",
                "--no-prompt",
                "deploy",
                "--all",
                "--prefect-file",
                str(applied_file),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise StorageError(
            f"prefect deploy: {done.stdout[-2000:]}{done.stderr[-2000:]}", kind="deploy-failed"
        )
    applied = apply_rules(rules, webhook=os.environ.get("AUTOCODER_NOTIFY_WEBHOOK"))
    told = ", ".join(applied) or "none (AUTOCODER_NOTIFY_WEBHOOK is not set)"
    say(f"work pools {', '.join(POOLS)}; deployments of {file.name}; notifications: {told}")


def _train_in(content: dict[str, Any], pool: str) -> None:
    """Moves training flows from the pool `cpu` to another pool, such as one of type kubernetes.

    Releases, coding and housekeeping are not moved. Each has a queue and a worker of its own.
    """
    for deployment in content["deployments"]:
        place = deployment["work_pool"]
        if (place["name"], place["work_queue_name"]) == ("cpu", "default"):
            deployment["work_pool"] = place | {"name": pool}


def _without_unset(content: Any, environment: Mapping[str, str]) -> Any:
    """Returns the deployments without paths that the environment does not set.
    Their forms ask for them.
    """
    unset = [
        f"{{{{ ${name} }}}}"
        for name in ("AUTOCODER_DATA", "AUTOCODER_CODELIST")
        if not environment.get(name)
    ]
    if isinstance(content, dict):
        return {
            key: _without_unset(value, environment)
            for key, value in content.items()
            if value not in unset
        }
    if isinstance(content, list):
        return [_without_unset(value, environment) for value in content]
    return content
