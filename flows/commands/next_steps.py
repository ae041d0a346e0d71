"""Writes the command to type next, as it can be pasted: quoted, with the workspace where the command would miss it."""

import shlex
from pathlib import Path

from flows.server.settings import home_of


def command_line(*words: str | Path, home: str | Path | None = None) -> str:
    """Quotes the words of `autocoder`; capitals such as PARTNER stand for what a person fills in.

    Args:
        home: workspace that the command must find; it is named unless the command finds it without.
    """
    named = [] if home is None or Path(home).resolve() == home_of(None) else ["--home", str(home)]
    return shlex.join(["autocoder", *map(str, words), *named])


def command_of(flow: str) -> str:
    return "train" if flow == "retrain" else flow
