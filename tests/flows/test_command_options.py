"""Options that come in groups, and what the command says of itself."""

from __future__ import annotations

import json
import threading
from contextvars import copy_context
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from rich.progress import Progress
from typer.testing import CliRunner

from flows import cli
from flows.commands import options
from flows.commands.console import ConsoleListener, RateColumn
from tasks.running import progress


@dataclass(frozen=True)
class Group:
    """Some options."""

    name: Annotated[str, typer.Option(help="Needed.")]
    twice: Annotated[bool, typer.Option("--twice", help="Say it twice.")] = False


def test_a_group_is_spread_into_options() -> None:
    """Those without a default are needed, the others have theirs; the command gets the group."""
    app = typer.Typer()

    @app.command()
    @options.expand_groups
    def hello(group: Group, output: options.OutputOptions, times: int = 1) -> None:
        typer.echo(json.dumps([group.name, group.twice, output.as_json, times]))

    runner = CliRunner()
    assert json.loads(runner.invoke(app, ["--name", "a", "--json", "--times", "2"]).stdout) == ["a", False, True, 2]
    assert json.loads(runner.invoke(app, ["--name", "a", "--twice"]).stdout) == ["a", True, False, 1]
    refused = runner.invoke(app, [])
    assert refused.exit_code == 2
    assert "--name" in refused.stderr


def test_version_names_the_commit() -> None:
    """Exit code 0, without a command."""
    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("autocoder ")
    assert "commit " in result.stdout


def test_the_help_shows_defaults_that_are_found_at_run_time() -> None:
    """Square brackets in a help text are markup, and would be left out."""
    text = CliRunner().invoke(cli.app, ["code", "--help"], env={"COLUMNS": "200"}).stdout
    assert "$AUTOCODER_HOME or ./workspace" in text


def test_stages_side_by_side_have_a_line_each_and_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """Ends are told from several threads at once."""
    labels = [f"stage {number}" for number in range(20)]

    def stage(label: str) -> None:
        progress.started(label)
        progress.finished(label, {}, reused=True, seconds=0)

    with ConsoleListener(bars=False):
        threads = [threading.Thread(target=copy_context().run, args=(stage, label)) for label in labels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line.split("  ")[1] for line in lines if "reused" in line) == sorted(labels)


def test_a_bar_says_how_fast_it_moves() -> None:
    """Nothing before it moved; then steps a second, by a clock that the test turns."""
    now = [0.0]
    bars, column = Progress(get_time=lambda: now[0]), RateColumn()
    bars.add_task("draws", total=100)
    (task,) = bars.tasks
    assert str(column.render(task)) == ""
    for now[0], done in ((2.0, 30), (4.0, 60), (6.0, 90)):
        bars.update(task.id, completed=done)
    assert str(column.render(task)) == "15/s"


def test_help_wraps_paragraphs_once_and_leaves_examples_whole() -> None:
    """On a terminal of 80 columns, each line of an example can be copied; no paragraph breaks before its margin."""
    text = options.unwrap("One\n    two.\n\n    [bold]Example[/bold]\n\n      autocoder x \\\n          --y\n    ")
    assert text == "One two.\n\n[bold]Example[/bold]\n\n  autocoder x \\\n      --y"
    runner = CliRunner()
    for command in ("retrain", "compare", "audit", "code", "verify", "handover", "serve", "diagnose"):
        shown = runner.invoke(cli.app, [command, "--help"], env={"COLUMNS": "80"}).stdout.split("╭")[0].splitlines()
        examples = [line.rstrip() for line in shown if line.startswith("   ") and line.strip()]
        assert examples, command
        for line in examples:
            assert line.lstrip().startswith(("autocoder ", "--")), line
