"""Every command that a step prints as the next one runs as it is printed."""

import re
import shlex
from pathlib import Path

import pytest
from in_process import invoke

from flows.commands.profiles import parameters
from flows.commands.terminal import command_line
from tasks.retraining.run import warnings_of


def printed(text: str) -> list[list[str]]:
    """The words of each command that an output offers, by what is before it."""
    return [shlex.split(line)[1:] for line in re.findall(r"^(?:read|next|then)[: ]\s*(autocoder .*)$", text, re.M)]


def test_a_command_names_the_workspace_unless_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCODER_HOME", str(tmp_path))
    assert command_line("release", "a plan.json") == "autocoder release 'a plan.json'"
    assert command_line("status", home=tmp_path) == "autocoder status"
    monkeypatch.delenv("AUTOCODER_HOME")
    assert command_line("status", home=tmp_path) == f"autocoder status --home {tmp_path}"


def test_each_printed_command_runs(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a plan in a workspace of another name, each following command is the printed one: read, audit, release and
    handover; only PARTNER is filled in, and the audit has no reruns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOCODER_HOME", raising=False)
    assert invoke("demo-data", "--out", "demo", "--records", "600")[0] == 0
    data = ("--data", "demo/injuries.csv", "--codelist", "demo/codelist.csv", "--home", "a place")
    tiny = ("--set", f"model.encoder={tiny_bert}", "--set", "model.max_length=32", "--epsilon", "8")
    code, out, err = invoke("train", "--profile", "demo-formal", *data, *tiny)
    assert code == 0, out + err
    commands = printed(out)
    assert [words[0] for words in commands] == ["plan", "audit", "release"]
    for words in commands:
        code, out, err = invoke(*words, *(["--trials", "0"] if words[0] == "audit" else []))
        assert code == 0, out + err
    (handover,) = printed(out)
    code, out, err = invoke(*["Statistics Office" if word == "PARTNER" else word for word in handover])
    assert code == 0, out + err
    assert len(list((tmp_path / "outbox").glob("*.tar.zst"))) == 1


def test_useless_training_runs_are_warned_of() -> None:
    """Few records, few before the day of the split, and records of no named population."""
    data = parameters("demo", [], data=Path("d.csv")).data
    assert list(warnings_of(data, train=100, test=100, codes=20)) == []
    for train, codes in ((99, 2), (100, 51), (6, 46)):
        (line,) = warnings_of(data, train=train, test=9, codes=codes)
        assert f"{train} training records for {codes} codes" in line
    early = data.model_copy(update={"ingest": data.ingest.model_copy(update={"train_before": "2015-01-05"})})
    assert "dated before 2015-01-05" in next(warnings_of(early, train=400, test=1601, codes=2))
    assert list(warnings_of(early, train=400, test=1600, codes=2)) == []
    unnamed = data.model_copy(update={"population": "default"})
    assert "--population" in next(warnings_of(unnamed, train=999, test=9, codes=2))
