"""Sets what Prefect must have before it is imported, and finds the workspace of a command."""

from __future__ import annotations

import atexit
import os
import secrets
import tempfile
from pathlib import Path

from storage.errors import InputError

DEFAULT_HOME = "workspace"
_NO_ORIGIN = "https://nobody.invalid"
"""An origin that no browser has (RFC 6761); an empty value would mean Prefect's default: every origin."""


def home_of(folder: Path | str | None) -> Path:
    """Returns the workspace: the option, the environment variable AUTOCODER_HOME, or ./workspace; refuses a file."""
    home = Path(folder or os.environ.get("AUTOCODER_HOME", DEFAULT_HOME)).expanduser().resolve()
    if home.exists() and not home.is_dir():
        raise InputError(f"--home {home}: it is a file. Name a folder, by the option or AUTOCODER_HOME.")
    return home


def workspace_of(plan: Path) -> Path:
    """Returns the workspace of a plan at WORKSPACE/private/plans/NAME.json; for others, that of `home_of`."""
    folder = plan.expanduser().resolve().parent
    return folder.parent.parent if (folder.name, folder.parent.name) == ("plans", "private") else home_of(None)


def require_same_workspace(plan: Path, home: Path) -> None:
    """Refuse to charge the ledger of one workspace for the records of another."""
    workspace = workspace_of(plan)
    if plan.expanduser().resolve().is_relative_to(workspace) and workspace != home.resolve():
        raise InputError(
            f"--home: the plan belongs to the workspace {workspace}, whose ledger must be charged. Name that one."
        )


def configure_prefect(home: Path, *, make_home: bool) -> None:
    """Configure Prefect to run without a server unless one is named, silently, with its files in the workspace.

    Sets only what the user has not set. Exceptions and results go through JSON, since Prefect's default is pickle.
    Prefect's log goes to its server, not to the terminal. The server that a run starts for itself requires a password
    of this process, which only its children inherit, and refuses pages of other origins.

    Args:
        make_home: make Prefect's folder in the workspace, closed to others since its database holds parameters.
            Otherwise a temporary folder serves where the workspace does not exist yet.
    """
    settings = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }
    if "PREFECT_API_URL" not in os.environ:
        settings["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "true"
        settings["PREFECT_HOME"] = str(_prefect_home(home, make_home=make_home))
        settings["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] = _NO_ORIGIN
        password = os.environ.get("PREFECT_SERVER_API_AUTH_STRING") or f"run:{secrets.token_urlsafe(32)}"
        os.environ["PREFECT_SERVER_API_AUTH_STRING"] = os.environ["PREFECT_API_AUTH_STRING"] = password
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _prefect_home(home: Path, *, make_home: bool) -> Path:
    if not make_home and not home.is_dir():
        folder = tempfile.TemporaryDirectory(prefix="autocoder-")
        atexit.register(folder.cleanup)
        return Path(folder.name)
    path = home / "prefect"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
