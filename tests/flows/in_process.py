"""Commands in pytest's own process: those that load neither torch nor a server, and those that are
refused.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from typer.testing import CliRunner

from flows import cli
from tasks.running.failures import SAFE


def invoke(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit code, stdout and stderr; a refusal is raised."""
    with patch.dict(os.environ):
        result = CliRunner().invoke(cli.app, [str(part) for part in arguments], input=stdin)
    if isinstance(result.exception, SAFE):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def command(*arguments: object) -> str:
    """What a command prints that is to end well."""
    code, out, err = invoke(*arguments)
    assert code == 0, out + err
    return out


class CommandRunner:
    """A command that ends itself: the exit code and what stderr says. What it sets in the
    environment is undone.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> tuple[int, str]:
        words = ["autocoder", *map(str, arguments)]
        with (
            patch.dict(os.environ),
            patch.object(sys, "argv", words),
            pytest.raises(SystemExit) as end,
        ):
            cli.main()
        return int(end.value.code or 0), self._capsys.readouterr().err


def write_policy(folder: Path, *names: str, minimum: int) -> Path:
    """A policy whose approvers have their keys in `folder`; returns the file."""
    keys = {}
    for name in names:
        if not (folder / name).exists():
            command("keys", "new", "--out", str(folder / name))
        keys[name] = (folder / name / "signing-key.pub.pem").read_text()
    content = {
        "name": "strict",
        "approvals": {"minimum": minimum, "approvers": keys},
        "default": {"asymptotic-local": {"epsilon": 100}},
    }
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump(content))
    return file
