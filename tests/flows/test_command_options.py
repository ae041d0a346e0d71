"""Options that come in groups, and what the command says of itself."""

import json
import threading
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from refusals import of_kind
from typer._click.core import Context
from typer.main import get_command
from typer.testing import CliRunner

from flows import cli
from flows.commands import options
from flows.commands.console import ConsoleListener
from storage.errors import InputError
from tasks.running import progress


@dataclass(frozen=True)
class Group:
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
    assert json.loads(runner.invoke(app, ["--name", "a", "--json", "--times", "2"]).stdout) == [
        "a",
        False,
        True,
        2,
    ]
    assert json.loads(runner.invoke(app, ["--name", "a", "--twice"]).stdout) == [
        "a",
        True,
        False,
        1,
    ]
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
    text = CliRunner().invoke(cli.app, ["code", "--help"]).stdout
    assert "$AUTOCODER_HOME or ./workspace" in " ".join(text.split())


def every_command() -> Iterator[tuple[str, Any]]:
    waiting: list[tuple[str, Any]] = [("", get_command(cli.app))]
    while waiting:
        path, command = waiting.pop()
        inner = getattr(command, "commands", None)
        if inner is None:
            yield path.strip(), command
        waiting += [(f"{path} {name}", one) for name, one in (inner or {}).items()]


@pytest.mark.parametrize("path", sorted(path for path, _ in every_command()))
def test_help_fits_the_terminal_and_a_value_is_given_once(path: str) -> None:
    """At most 80 columns and 12 options, without boxes; --help-all has every option; each option
    that takes one value is refused when it is given twice, whatever the values are.
    """
    command = dict(every_command())[path]
    short = CliRunner().invoke(cli.app, [*path.split(), "--help"]).stdout
    whole = CliRunner().invoke(cli.app, [*path.split(), "--help-all"]).stdout
    offered = [line for line in short.splitlines() if line.startswith("  --")]
    assert len(offered) <= 12
    assert [line for line in whole.splitlines() if len(line) > 80] == []
    assert [word for word in ("│", "[bold]", "<bool>") if word in whole] == []
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    assert all(f"  {option.opts[0]}" in whole for option in options)
    for option in options:
        given = [option.opts[0]] if option.is_flag else [option.opts[0], "1"]
        if option.multiple:
            continue
        with pytest.raises(InputError, check=of_kind("option-repeated", option=option.opts[0])):
            command.parse_args(Context(command, info_name=path), [*given, *given])


def test_the_first_page_has_twelve_commands_and_the_other_all() -> None:
    """Training comes first; --help-all lists each that is not hidden."""
    first = CliRunner().invoke(cli.app, ["--help"]).stdout
    offered = [
        line.split()[0] for line in first.splitlines() if line.startswith("  ") and line[2] != " "
    ][2:]
    names = {path.split()[0] for path, command in every_command() if not command.hidden}
    assert len(offered) <= 12
    assert offered[0] == "train"
    assert set(offered) <= names
    listed = CliRunner().invoke(cli.app, ["--help-all"]).stdout
    assert {line.split()[0] for line in listed.splitlines() if line.startswith("  ")} == names
    assert all(len(line) <= 80 for line in (first + listed).splitlines())


def test_stages_side_by_side_have_a_line_each_and_no_bar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels = [f"stage {number}" for number in range(20)]

    def stage(label: str) -> None:
        progress.started(label)
        progress.finished(label, {}, reused=True, seconds=0)

    with ConsoleListener(bars=False):
        threads = [
            threading.Thread(target=copy_context().run, args=(stage, label)) for label in labels
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line.split("  ")[1] for line in lines if "reused" in line) == sorted(labels)


def test_a_stage_has_its_bar_again_after_the_one_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the encoding of records after that of titles: it is the longest, and was without a bar to
    its end.
    """
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ConsoleListener() as listener:
        progress.started("features")
        progress.started("titles")
        progress.report("titles", 3, 4)
        progress.finished("titles", {}, reused=False, seconds=0)
        progress.report("features", 1, 4)
        (bar,) = listener._progress.tasks
        assert (bar.description, bar.completed, bar.total) == ("features", 1, 4)


def test_help_leaves_examples_whole() -> None:
    """Each line of an example can be copied."""
    for path, _ in every_command():
        shown = CliRunner().invoke(cli.app, [*path.split(), "--help"]).stdout
        _, _, examples = shown.partition("\n  Example")
        lines = [line for line in examples.splitlines()[1:] if line.startswith("    ")]
        for line in lines[
            : next((n for n, one in enumerate(lines) if one.startswith("     ")), None)
        ]:
            assert line.startswith("    "), line
