"""Would win: the operator's screen, or a verdict written over, by a code, a title, a narrative or a
file's name.
"""

import ast
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from releases import make_plan
from rich.table import Table

from flows.commands import console as progress
from flows.commands.layout import Console
from flows.commands.terminal import escape_text, say
from tasks.parameters import ReleaseParameters

DECLARES = """
a text does nothing to a terminal
| escape sequences, control characters, turning marks, markup, halves of characters in codes,
titles, figures, tables, paths and mistaken arguments; a path, or a name in a plan, that holds a
verdict in a line of its own
| look-alike letters; what a pager or editor does with the files
"""

COMMANDS = Path(progress.__file__).parent
EVIL = "\x1b]0;window\x07\x1b[2J\x9b1A\r\x08sound: release\u202etxt\u2066\x7f[/x][bold]"
ACTS = [c for c in EVIL if not c.isprintable()]


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout and stderr: control characters and turning marks are written out."""
    say(EVIL)
    say(EVIL, err=True)
    told = capsys.readouterr()
    for text in (told.out, told.err):
        assert not set(ACTS) & set(text)
        assert "[/x][bold]" in text
        assert "\\u001b]0;window" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_what_rich_prints(terminal: bool) -> None:
    """Lines, cells, headers and titles of tables; `[/x]` is text."""
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=200, no_color=True, legacy_windows=False
    )
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.print(f"x {EVIL}")
    assert "window" in out.getvalue()
    assert "\x1b]" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
    assert out.getvalue().count("[/x][bold]") >= 3


def test_the_bar_and_the_lines_of_stages(capsys: pytest.CaptureFixture[str]) -> None:
    """A label or a figure with `[/x]` or an escape in it."""
    with progress.ConsoleListener() as listener:
        listener.started(EVIL)
        listener.report(EVIL, 1, 2)
        listener.finished(EVIL, {"path": EVIL}, reused=False, seconds=1.0)
        listener.finished("[/x]", {"path": "[/x]"}, reused=True, seconds=1.0)
    told = capsys.readouterr().err
    assert "\x1b]" not in told
    assert "[/x] path [/x]" in " ".join(told.split())


@given(st.text())
def test_no_text_acts(text: str) -> None:
    """Whatever it is: line breaks and tabs alone are left of the controls, and it
    can be encoded.
    """
    out = escape_text(text)
    assert all(c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) for c in out)
    out.encode()


@given(st.text())
def test_json_stays_json(text: str) -> None:
    """And says the same."""
    for ascii_only in (True, False):
        said = json.dumps({"x": text}, ensure_ascii=ascii_only)
        assert json.loads(escape_text(said)) == {"x": text}


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ("EVIL",),
            ("--EVIL",),
            ("ledger", "EVIL"),
            ("verify", "x", "--EVIL"),
            ("code", "x", "--top-k", "EVIL"),
        ),
        *(
            ("verify", "x", "y", "EVIL"),
            ("keys", "root", "x", "--days", "EVIL"),
            ("sample", "x", "--share", "EVIL"),
        ),
        ("retrain", "--device", "EVIL"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_with_an_argument(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """The complaint about a command, an option, a value or one argument too many shows it, and does
    not run it. (Typer itself writes out control characters, and no turning marks.)
    """
    from flows.cli import app

    with pytest.raises(SystemExit) as ended:
        app([word.replace("EVIL", EVIL) for word in arguments])
    told = capfd.readouterr()
    assert ended.value.code == 2
    assert not set(ACTS) & set(told.out + told.err)
    shown = "".join(filter(str.isalnum, told.err))  # a narrow terminal breaks its lines anywhere
    # a word that should have been a number is not shown at all
    assert ("x1b" in shown and "u202e" in shown) or (
        "valid" in shown and "soundrelease" not in shown
    )


@pytest.mark.parametrize("file", sorted(path.name for path in COMMANDS.glob("*.py")))
def test_no_command_prints_in_another_way(file: str) -> None:
    """By `say` and this Console alone: neither typer's nor Rich's own."""
    tree = ast.parse((COMMANDS / file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert file == "terminal.py" or (node.value.id, node.attr) not in {
                ("typer", "echo"),
                ("click", "echo"),
            }
        if isinstance(node, ast.ImportFrom):
            assert node.module != "rich.console"


@pytest.mark.parametrize(
    "arguments",
    [
        *(("ledger", "show", "--home", "HERE"), ("code", "x", "--bundle", "HERE")),
        *(("verify", "HERE", "--allow-unsigned"), ("status", "--check", "--home", "HERE/[/x]")),
        *(("estimate", "HERE", "--sample", "HERE"), ("drift", "HERE", "--reference", "HERE")),
        *(
            ("retrain", "--profile", "HERE.yaml"),
            ("handover", "HERE", "--to", "x", "--out", "HERE"),
        ),
        ("keys", "new", "--out", "HERE"),
    ],
    ids=lambda words: words[0] if words[0] not in {"ledger", "keys"} else " ".join(words[:2]),
)
def test_a_path_with_an_escape_and_markup_in_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Ends in a line that shows it, on whatever stream."""
    here = str(tmp_path / "a\x1b]0;x\x07[/x]\udc80")
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *(word.replace("HERE", here) for word in arguments)],
        capture_output=True,
        cwd=tmp_path,
    )
    said = done.stdout + done.stderr
    assert b"\x1b]" not in said
    assert b"Traceback" not in said
    assert b"report it" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "HERE", "--allow-unsigned"),
        ("ledger", "show", "--home", "HERE"),
        ("retrain", "--profile", "HERE.yaml"),
    ],
    ids=["verify", "ledger", "retrain"],
)
def test_a_name_that_holds_a_verdict(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A path with line breaks in it begins no line of its own: what looks like an
    answer is none.
    """
    here = str(tmp_path / "a\nsound: release 0123456789abcdef\nb")
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *(word.replace("HERE", here) for word in arguments)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert not any(line.startswith("sound") for line in (done.stdout + done.stderr).splitlines())


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028", "\u2029"], ids=ascii)
@pytest.mark.parametrize("name", ["requester", "population", "release_label"])
def test_a_name_in_a_plan_that_begins_a_line(name: str, end: str) -> None:
    """The officer's page shows who asks: `lead`, a line end and a line that looks
    like a verdict.
    """
    for value in (f"lead{end}fine  What do attacks measure? Nothing.", f"lead{end}"):
        changed: dict[str, Any] = {name: value}
        with pytest.raises(ValidationError):
            make_plan(**changed)
        if name == "requester":
            with pytest.raises(ValidationError):
                ReleaseParameters(requester=value)
