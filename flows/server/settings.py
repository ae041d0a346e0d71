"""Makes the settings that Prefect needs before it is imported, and finds the
workspace of a command.
"""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import Contradiction

DEFAULT_HOME = "workspace"


def home_of(folder: Path | str | None) -> Path:
    """Returns the workspace: the option, the environment variable AUTOCODER_HOME,
    or ./workspace. Refuses a file.
    """
    home = Path(folder or os.environ.get("AUTOCODER_HOME", DEFAULT_HOME)).expanduser().resolve()
    if home.exists() and not home.is_dir():
        raise Contradiction(
            f"--home {home}: it is a file. Specify a folder, with the option or AUTOCODER_HOME.",
            kind="home-is-file",
        )
    return home


def workspace_of(plan: Path) -> Path:
    """Returns the workspace of a plan at WORKSPACE/private/plans/NAME.json; for other plans the
    result of `home_of`.
    """
    folder = plan.expanduser().resolve().parent
    return (
        folder.parent.parent
        if (folder.name, folder.parent.name) == ("plans", "private")
        else home_of(None)
    )


def require_same_workspace(plan: Path, home: Path) -> None:
    """Refuse to charge the ledger of one workspace for the records of another."""
    workspace = workspace_of(plan)
    if plan.expanduser().resolve().is_relative_to(workspace) and workspace != home.resolve():
        raise Contradiction(
            f"--home: the plan belongs to the workspace {workspace}, and the ledger there must be "
            "charged. Specify that workspace.",
            kind="plan-of-another-workspace",
        )


def configure_prefect() -> None:
    """Makes the settings that Prefect reads when it is imported, unless the user has set them.

    Exceptions and results are stored as JSON, because Prefect's default is pickle. Its log goes to
    its server, not to the terminal.
    """
    settings = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
