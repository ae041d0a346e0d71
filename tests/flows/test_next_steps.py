"""Every command that a step prints as the next one runs as it is printed."""

import csv
import re
import shlex
from pathlib import Path

import pytest
from in_process import invoke
from run_options import parameters

from flows.commands.terminal import command_line
from tasks.retraining.run import warnings_of


def printed(text: str) -> list[list[str]]:
    """The words of each command that an output offers, by what is before it."""
    return [
        shlex.split(line)[1:]
        for line in re.findall(r"^(?:read|next|then)[: ]\s*(autocoder .*)$", text, re.M)
    ]


def test_a_command_names_the_workspace_unless_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOCODER_HOME", str(tmp_path))
    assert command_line("release", "a plan.json") == "autocoder release 'a plan.json'"
    assert command_line("status", home=tmp_path) == "autocoder status"
    monkeypatch.delenv("AUTOCODER_HOME")
    assert command_line("status", home=tmp_path) == f"autocoder status --home {tmp_path}"


def follow(words: list[str], **given: str) -> list[list[str]]:
    """Runs a command, a person's words in place of those in capitals, and returns the commands that
    it offers.
    """
    code, out, err = invoke(*[given.get(word, word) for word in words])
    assert code == 0, out + err
    return printed(out)


def test_each_printed_command_runs(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a plan in a workspace of another name to the estimate of a coded file, each following
    command is the printed one: only PARTNER and COLUMN are filled in, the audit has no reruns, and
    the renewed plan is audited anew.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOCODER_HOME", raising=False)
    follow(["demo-data", "--out", "demo", "--records", "600"])
    data = ["--data", "demo/injuries.csv", "--codelist", "demo/codelist.csv", "--home", "a place"]
    tiny = ["--set", f"model.encoder={tiny_bert}", "--set", "model.max_length=32", "--epsilon", "8"]
    read, audit, release = follow(["train", "--profile", "demo-formal", *data, *tiny])
    assert [words[0] for words in (read, audit, release)] == ["plan", "audit", "release"]
    assert follow(read) == []
    assert follow([*audit, "--trials", "0"]) == [release]
    (renewed,) = follow([*read, "--renew"])
    (handover,) = follow(renewed)
    follow(handover, PARTNER="Statistics Office")
    (archive,) = (tmp_path / "outbox").glob("*.tar.zst")
    key = "a place/private/keys/signing-key.pub.pem"
    (code,) = follow(["adopt", str(archive), "--key", key, "--out", "our coder"])
    (tmp_path / "new.csv").write_text((tmp_path / "demo/injuries.csv").read_text())
    assert follow(code, COLUMN="Final Narrative") == []
    (estimate,) = follow(["sample", "coded.csv", "--rows", "100", "--out", "a sample.csv"])
    with (tmp_path / "a sample.csv").open(newline="", encoding="utf-8") as file:
        heading, *rows = csv.reader(file)
    assert heading[-1] == "human_code"
    with (tmp_path / "a sample.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([heading, *([*cells[:-1], "111"] for cells in rows)])
    assert follow(estimate) == []


def test_these_commands_offer_one() -> None:
    """Above, in `test_approval_command` and `test_watching`; a further command that offers one
    belongs there.
    """
    offers = re.compile(r"command_line\(|commands_to_release|next_commands|_remedy\(")
    files = (Path(__file__).resolve().parents[2] / "flows" / "commands").glob("*.py")
    offering = {file.stem for file in files if offers.search(file.read_text())} - {"terminal"}
    assert offering == {"adopt", "approve", "audit", "plan", "release", "sample", "status", "train"}


def test_useless_training_runs_are_warned_of() -> None:
    """Few records, few before the day of the split, and records of no named population."""
    data = parameters("demo", [], data=Path("d.csv")).data
    assert list(warnings_of(data, train=100, test=100, codes=20)) == []
    for train, codes in ((99, 2), (100, 51), (6, 46)):
        (line,) = warnings_of(data, train=train, test=9, codes=codes)
        assert f"{train} training records for {codes} codes" in line
    early = data.model_copy(
        update={"ingest": data.ingest.model_copy(update={"train_before": "2015-01-05"})}
    )
    assert "dated before 2015-01-05" in next(warnings_of(early, train=400, test=1601, codes=2))
    assert list(warnings_of(early, train=400, test=1600, codes=2)) == []
    unnamed = data.model_copy(update={"population": "default"})
    assert "--population" in next(warnings_of(unnamed, train=999, test=9, codes=2))
