"""Words the command that installs an extra (`train`, `partner`, `stats`), for whoever lacks it."""

from pathlib import Path

_IN_CHECKOUT = (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file()
WHEEL = "autocoder-VERSION-py3-none-any.whl"
"""The wheel's file; its reader knows the version."""


def install_command(extra: str, *, in_checkout: bool = _IN_CHECKOUT) -> str:
    """Returns the command for this installation.

    The program runs from a checkout where that is installed as editable, and a plain
    `pip install .` would put a copy in its place.

    >>> install_command("train", in_checkout=True)
    "pip install -e '.[train]'"
    >>> install_command("train", in_checkout=False)
    "pip install 'autocoder-VERSION-py3-none-any.whl[train]'"
    """
    return f"pip install -e '.[{extra}]'" if in_checkout else f"pip install '{WHEEL}[{extra}]'"
