"""The tutorials as a person types them, in their order, on a small encoder; outputs have the pages'
form.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from in_process import invoke
from printed_pages import code_blocks

from flows import cli

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yields the blocks of a page with their language, whole commands a line each."""
    for language, body in code_blocks(page.read_text()):
        yield language, body.replace("\\\n", " ")


def form(line: str) -> str:
    """Takes out of a line of output what differs from run to run: ids, paths, numbers, the title of
    a code.
    """
    line = re.sub(r"\S*/(\S+/)?", "", re.sub(r"\b[0-9a-f]{16}\b", "ID", line))
    line = re.sub(r"\d+(,\d{3})*(\.\d+)?(e-\d+)?", "#", line)
    return " ".join(re.sub(r"^(\s+#\s+#%)\s+.*", r"\1 TITLE", line).split())


def walk(page: Path, words: dict[str, str], small: str) -> list[str]:
    """Runs each command of a page, and compares each block `text` with the output before it."""
    printed: list[str] = []
    ran: list[str] = []
    for language, body in blocks(page):
        if language == "text":
            expected, got = (
                [form(line) for line in body.splitlines() if line],
                [form(line) for line in printed],
            )
            assert [line for line in expected if line not in got] == [], printed
            continue
        for line in body.splitlines():
            if not line.startswith("autocoder ") or "--roots " in line:
                continue
            line += {"train": small, "audit": " --trials 0"}.get(line.split()[1], "")
            for word, value in words.items():
                line = re.sub(rf"\b{word}\b", value, line)
            # with few records the noise of a release may hide every code, or leave no score that is
            # right often enough
            line = re.sub(r"--records \d+", "--records 1800", line)
            code, out, err = invoke(*shlex.split(line)[1:])
            assert code == 0, line + out + err
            printed = (out + err).splitlines()
            ran.append(line)
            for name, pattern in (
                ("PLAN", r"^plan: (\S+)$"),
                ("RELEASE", r"^released\s+([0-9a-f]{16})"),
            ):
                if match := re.search(pattern, out + err, flags=re.MULTILINE):
                    words[name] = match[1]
    return ran


@pytest.fixture
def small(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Options of a training run on the tiny encoder; the test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return f" --set model.encoder={shlex.quote(str(tiny_bert))} --set model.max_length=32"


def test_a_first_release_ends_as_the_page_shows(small: str) -> None:
    """From synthetic reports to a coded narrative, with plan, budget and score."""
    ran = walk(TUTORIALS / "first-release.md", {}, small)
    assert [line.split()[1] for line in ran] == [
        "demo-data",
        "train",
        "plan",
        "release",
        "ledger",
        "code",
    ]
    assert len(list(Path("first-workspace/bundles").glob("*/model.sig"))) == 1


def test_own_data_end_in_a_bundle_that_the_partner_uses(small: str) -> None:
    """Dry run, retrain, audit, release, handover, revocation; the partner's page follows on the
    same archive.
    """
    words = {"epsilon 2": "epsilon 8"}  # noise that the tiny encoder bears
    ran = walk(TUTORIALS / "own-data.md", words, small)
    commands = ["demo-data", "train", "train", "audit", "plan", "release", "handover", "revoke"]
    assert [line.split()[1] for line in ran] == commands
    (archive,) = Path("outbox").glob("*.tar.zst")
    assert archive.name == f"{words['RELEASE']}.tar.zst"
    rows = (
        Path("demo/injuries.csv")
        .read_text()
        .replace("Final Narrative", "Narrative")
        .replace("Nature", "Code")
    )
    for name in ("new.csv", "coded_by_hand.csv"):
        Path(name).write_text(rows)
    Path("signing-key.pub.pem").write_bytes(Path("work/signing-key.pub.pem").read_bytes())
    reached = {"accuracy 0.8": "accuracy 0.1"}  # the tiny encoder is right about one time in five
    ran = walk(
        TUTORIALS / "use-a-bundle.md", {"RELEASE": f"outbox/{words['RELEASE']}", **reached}, ""
    )
    assert [line.split()[1] for line in ran] == ["adopt", "code", "adopt", "code"]
    assert "needs_review" in Path("new_coded.csv").read_text().splitlines()[0]
    assert "for a person" in Path("new_coded.csv.summary.html").read_text()


def test_the_readme_shows_what_the_tutorial_prints() -> None:
    """The demo's end: a narrative with its code, in the form of the page, and the script's own last
    lines.
    """
    (shown,) = (body for _, body in blocks(ROOT / "README.md") if "Done in" in body)
    lines = shown.splitlines()
    assert form(lines[1]) == "# #% TITLE"
    script = (ROOT / "scripts" / "demo.sh").read_text()
    for part in (lines[0], "You made one release from synthetic reports:", ", in {release["):
        assert part in script


PAGES = [ROOT / "README.md", ROOT / "PRIVACY.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_option_on_a_page_is_the_command_s(page: Path) -> None:
    """A command that is not there, or an option that it does not have, is found in blocks and in
    sentences.
    """
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(
        r"(?:^|`|\$ |&& |cli )autocoder ([^`\n#|>;]*)", text, flags=re.MULTILINE
    ):
        command: Any = typer.main.get_command(cli.app)
        words = line.split()
        while hasattr(command, "commands"):
            if not words or not re.fullmatch(r"[a-z-]+", words[0]):
                break  # `autocoder` alone, or a word in place of a command
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {
            name
            for parameter in command.params
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        given = {word.split("=")[0] for word in words if re.match(r"--[a-z]", word)}
        assert given <= known | {"--help", "--help-all", "--version"}, line
