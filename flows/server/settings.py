"""Settings of Prefect that must stand before it is imported, and the workspace of a command."""

from __future__ import annotations

import atexit
import os
import secrets
import tempfile
from pathlib import Path

DEFAULT_HOME = "workspace"
_NO_ORIGIN = "https://nobody.invalid"
"""No browser is ever there (RFC 6761); set to nothing, Prefect would take its default: every origin."""


def home_of(folder: Path | str | None) -> Path:
    """The workspace: the option, the environment variable AUTOCODER_HOME, or ./workspace.

    Raises:
        InputError: it is a file.
    """
    home = Path(folder or os.environ.get("AUTOCODER_HOME", DEFAULT_HOME)).expanduser().resolve()
    if home.exists() and not home.is_dir():
        from storage.errors import InputError

        raise InputError(f"--home {home}: it is a file; name a folder, by the option or AUTOCODER_HOME")
    return home


def workspace_of(plan: Path) -> Path:
    """The workspace that a plan lies in, WORKSPACE/private/plans/NAME.json; that of `home_of` for a plan elsewhere."""
    folder = plan.expanduser().resolve().parent
    return folder.parent.parent if (folder.name, folder.parent.name) == ("plans", "private") else home_of(None)


def same_house(plan: Path, home: Path) -> None:
    """Refuse to charge the ledger of one workspace for the records of another.

    Raises:
        InputError: the plan lies in another workspace.
    """
    from storage.errors import InputError

    own = workspace_of(plan)
    if plan.expanduser().resolve().is_relative_to(own) and own != home.resolve():
        raise InputError(f"--home: the plan belongs to the workspace {own}, whose ledger counts what its records spent")


def before_prefect(home: Path, *, make_home: bool) -> None:
    """Run without a server unless one is named, tell nobody, and keep Prefect's own files in the workspace.

    Only what the user has not set is set. Exceptions and results go through JSON, since Prefect's default is pickle.
    The terminal is left to our own lines; Prefect's log goes to its server. The server that a run starts for itself
    asks for a password of this process, which its environment hands on to its children and to nobody else, and no
    page of another origin may ask it.

    Args:
        make_home: make Prefect's folder in the workspace, closed to others since its database holds parameters.
            Without it, where the workspace is not there yet, a folder that goes with the process serves.
    """
    settings = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
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
