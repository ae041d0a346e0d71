"""A slow command says what it begins with, unless it says something sooner."""

import pytest

from flows import cli
from flows.commands import terminal
from flows.commands.terminal import FirstSign


def test_it_says_what_it_begins_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FirstSign, "AFTER", 0.0)
    sign = FirstSign()
    sign.expect("reading …")
    timer = sign._timer
    assert timer is not None
    timer.join()
    assert capsys.readouterr().err == "reading …\n"


def test_what_is_said_sooner_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "first_sign", sign := FirstSign())
    monkeypatch.setattr(FirstSign, "AFTER", 3600.0)
    sign.expect("reading …")
    timer = sign._timer
    assert timer is not None
    terminal.say("error: no such plan", err=True)
    timer.join()
    assert capsys.readouterr().err == "error: no such plan\n"


def test_every_command_that_begins_so_is_one() -> None:
    commands = {name for group in cli._COMMANDS.values() for name in group}
    assert set(cli._BEGINNINGS) - commands == {"retrain"}
