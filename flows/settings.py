"""Settings of Prefect that must stand before it is imported, and the workspace of a command."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_HOME = "workspace"


def home_of(given: Path | None) -> Path:
    """The workspace: the option, the environment variable AUTOCODER_HOME, or ./workspace."""
    return (given or Path(os.environ.get("AUTOCODER_HOME", DEFAULT_HOME))).expanduser().resolve()


def before_prefect(home: Path) -> None:
    """Run without a server unless one is named, tell nobody, and keep Prefect's own files in the workspace.

    Only what the user has not set is set. Exceptions and results go through JSON, since Prefect's default is pickle.
    """
    quiet = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_CLI_COLORS": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }
    if "PREFECT_API_URL" not in os.environ:
        quiet["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "true"
        quiet["PREFECT_HOME"] = str(home / "prefect")
    for name, value in quiet.items():
        os.environ.setdefault(name, value)


def hush_prefect_console() -> None:
    """Leave the terminal to our own lines: Prefect's log goes to its server, and tracebacks with it."""
    import logging

    from prefect.logging.handlers import PrefectConsoleHandler

    names = ["prefect", *(name for name in logging.root.manager.loggerDict if name.startswith("prefect."))]
    for name in names:
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, PrefectConsoleHandler):
                handler.setLevel(logging.CRITICAL + 1)
