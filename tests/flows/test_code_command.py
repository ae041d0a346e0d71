"""`autocoder code` as its users call it: files in and out, what cannot be coded, `kill -9`."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm
from in_process import CommandRunner, invoke
from jobs import Job, environment, read_csv, write_csv
from refusals import of_kind

from flows.commands.code import ReviewOptions
from storage.errors import InputError, StorageError
from tasks.coding import job as coding_job


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", "code", *arguments]


def code(job: Job, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return warm.command(job.warm, "code", *map(str, arguments), env=environment(), timeout=500)


def test_a_file_is_coded_with_its_columns_kept(new: Job, tiny_bundle: Path, tmp_path: Path) -> None:
    """Line breaks inside quotes, blank narratives and other columns go through; nothing of a
    narrative is reported.
    """
    texts = {"=1+1": "Employee fell\nfrom a ladder.", "2": "", "3": "Burned by hot oil."}
    source = write_csv(
        tmp_path / "new.csv", [{"id": name, "Text": text} for name, text in texts.items()]
    )
    out = tmp_path / "coded.csv"
    options = ("--text", "Text", "--top-k", "2", "--threshold", "0.9", "--json")
    done = code(new, "--bundle", tiny_bundle, "--data", source, "--out", out, *options)
    assert done.returncode == 0, done.stderr
    coded = read_csv(out)
    assert [row["Text"] for row in coded] == list(texts.values())
    assert coded[0]["id"] == "'=1+1", "a formula is made text"
    for row in coded:
        assert bool(row["code"]) == bool(row["code_2"]) == bool(row["Text"]), (
            "a blank narrative gets no code"
        )
        assert not row["code"] or 0 <= float(row["score"]) <= 1
    told = json.loads(done.stdout)
    assert (told["rows"], told["blank"]) == (3, 1)
    assert {row["bundle_digest"] for row in coded} == {told["bundle_digest"]}
    assert {
        (row["model"], row["classification"], row["classification_version"]) for row in coded
    } == {("tiny", "OIICS", "2.01")}
    assert "ladder" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("content", "column", "out", "said"),
    [
        (b"id,Text\n1,x\n", "Narrative", "coded.csv", "has no column 'Narrative'"),
        (b"", "Text", "coded.csv", "empty"),
        (b"Text\n\xff\xfe\x00x\n", "Text", "coded.csv", "NUL byte"),
        (None, "Text", "coded.csv", "no file"),
        (b"Text,code\nx,111\n", "Text", "coded.csv", "would overwrite"),
        (b"Jane Roe cut her hand,x\nfell,y\n", "Text", "coded.csv", "put column names above it"),
        (b"Text\nx\n", "Text", "coded.xlsx", ".parquet"),
        (b"Text\nx\n", "Text", "nowhere/coded.csv", "does not exist"),
    ],
    ids=["column", "empty", "encoding", "missing", "code taken", "no header", "suffix", "folder"],
)
def test_what_cannot_be_coded_leaves_no_output(
    tiny_bundle: Path,
    tmp_path: Path,
    told: CommandRunner,
    content: bytes | None,
    column: str,
    out: str,
    said: str,
) -> None:
    """One line, exit code 2, neither the output nor a part of it."""
    source = tmp_path / "new.csv"
    if content is not None:
        source.write_bytes(content)
    arguments = (
        "--bundle",
        tiny_bundle,
        "--data",
        source,
        "--text",
        column,
        "--out",
        tmp_path / out,
    )
    status, error = told("code", *arguments)
    assert (status, "error: " in error) == (2, True)
    assert said in error
    assert "Jane" not in error
    assert [p.name for p in tmp_path.iterdir()] == (["new.csv"] if content is not None else [])


@pytest.mark.servers
def test_killed_it_goes_on(
    new: Job, tiny_bundle: Path, tmp_path: Path, narratives: Callable[..., list[str]]
) -> None:
    """SIGKILL once some pieces are done: no output, the next run takes them over and equals an
    unbroken one.
    """
    texts = narratives(64_000)
    source = write_csv(tmp_path / "new.csv", [{"Text": text} for text in texts])
    whole, out = tmp_path / "whole.csv", tmp_path / "coded.csv"
    arguments = (
        "--bundle",
        str(tiny_bundle),
        "--data",
        str(source),
        "--text",
        "Text",
        "--json",
        "--out",
    )
    process = subprocess.Popen(
        command(*arguments, str(out)), env=environment(), stdout=subprocess.DEVNULL
    )
    pieces = tmp_path / ".coded.csv.coding"
    while len(list(pieces.glob("*/*.parquet"))) < 3:
        assert process.poll() is None, "it ended before it could be killed; give it more rows"
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not out.exists()
    done = code(new, *arguments, out)
    assert done.returncode == 0, done.stderr
    resumed = json.loads(done.stdout)["resumed"]
    assert 3 * 2048 <= resumed < 64_000
    assert code(new, *arguments, whole).returncode == 0
    assert out.read_bytes() == whole.read_bytes()
    assert not pieces.exists()


def test_standard_input_goes_on_like_a_file(
    tiny_bundle: Path,
    tmp_path: Path,
    narratives: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same bytes again take over the pieces of a run that failed; no narrative stays behind."""
    texts = narratives(3000)
    source, out = write_csv(tmp_path / "new.csv", [{"Text": text} for text in texts]), "out.csv"
    given = ("code", "--bundle", tiny_bundle, "--text", "Text", "--json", "--out")

    def piped() -> dict[str, object]:
        content = source.read_bytes()
        return json.loads(invoke(*given, tmp_path / out, "--data", "-", stdin=content)[1])

    write_part = coding_job._write_part

    def full(part: Path, *more: Any) -> None:
        if part.stem != "00000000":
            raise StorageError("the disk is full", kind="disk")
        write_part(part, *more)

    with monkeypatch.context() as patch, pytest.raises(StorageError, check=of_kind("disk")):
        patch.setattr(coding_job, "_write_part", full)
        piped()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.csv.coding", "new.csv"]
    told = piped()
    assert (told["rows"], told["resumed"]) == (3000, 2048)
    invoke(*given, tmp_path / "whole.csv", "--data", source)
    assert (tmp_path / out).read_bytes() == (tmp_path / "whole.csv").read_bytes()
    with pytest.raises(InputError, check=of_kind("engine-and-stream")):
        invoke(*given, tmp_path / out, "--overwrite", "--data", "-", "--engine", "2")


def test_a_folder_is_coded_into_one_table(
    tiny_bundle: Path, tmp_path: Path, narratives: Callable[..., list[str]]
) -> None:
    """In the order of the names; files with other columns are refused, since all are written."""
    (tmp_path / "new").mkdir()
    texts = narratives(6)
    for n in (1, 0):
        rows = [{"Text": text, "id": f"{n}"} for text in texts[3 * n : 3 * n + 3]]
        write_csv(tmp_path / "new" / f"{n}.csv", rows)
    given = ("code", "--bundle", tiny_bundle, "--text", "Text", "--data", tmp_path / "new", "--out")
    invoke(*given, tmp_path / "out.csv")
    assert [row["Text"] for row in read_csv(tmp_path / "out.csv")] == texts
    write_csv(tmp_path / "new" / "2.csv", [{"Text": "cut"}])
    with pytest.raises(InputError, check=of_kind("other-columns"), match=r"2\.csv"):
        invoke(*given, tmp_path / "more.csv")


@pytest.mark.servers
def test_a_full_disk_is_one_line_and_the_finished_pieces_stay(
    new: Job, tiny_bundle: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands for the full disk: the merge fails, the output of before
    is untouched.
    """
    source = write_csv(tmp_path / "new.csv", [{"Text": f"fell {n} " * 20} for n in range(3000)])
    out = tmp_path / "coded.csv"
    out.write_text("mine\n")
    line = ["bash", "-c", 'ulimit -f 200; trap "" XFSZ; exec "$@"', "bash"]
    given = (
        "--bundle",
        str(tiny_bundle),
        "--data",
        str(source),
        "--text",
        "Text",
        "--overwrite",
        "--out",
        str(out),
    )
    full = subprocess.run(
        [*line, *command(*given)], capture_output=True, text=True, env=environment(), timeout=300
    )
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr
    assert "code: " in full.stderr
    assert out.read_text() == "mine\n"
    done = code(new, *given, "--json")
    assert json.loads(done.stdout)["resumed"] == 3000


def test_options_that_do_not_go_together_are_refused(told: CommandRunner) -> None:
    for arguments, said in (
        ((), "no narratives, or two sources"),
        (("x", "--data", "a.csv"), "no narratives, or two sources"),
        (("--data", "a.csv"), "--out"),
        (("x", "--out", "a.csv"), "require --data"),
        (("x", "--threshold", "0.5", "--accuracy", "0.9"), "mutually exclusive"),
        (("--data", "a.csv", "--out", "b.csv", "--read-codelist", "skip=1"), "a list as --groups"),
        (
            ("--data", "a.csv", "--out", "b.csv", "--engine", "many"),
            "--engine many: expected a number of processes",
        ),
    ):
        status, error = told("code", *arguments)
        assert status == 2
        assert said in error, arguments


def test_a_score_of_ones_own_counts_before_an_adopted_accuracy() -> None:
    """An accuracy becomes the bundle's score for it; without any option, nothing needs review."""
    coder: Any = SimpleNamespace(threshold_for={0.8: 0.7, 0.9: 0.95}.__getitem__)
    adopted: Any = SimpleNamespace(adoption=SimpleNamespace(accuracy=0.9))
    for options, start, score in (
        (ReviewOptions(), None, None),
        (ReviewOptions(), adopted, 0.95),
        (ReviewOptions(accuracy=0.8), None, 0.7),
        (ReviewOptions(accuracy=0.8), adopted, 0.7),
        (ReviewOptions(threshold=0.2), adopted, 0.2),
    ):
        assert options.threshold_of(coder, start) == score


def test_a_list_alone_codes_and_says_that_no_record_made_it(tmp_path: Path) -> None:
    """Answers, file, summary and service: each is marked, and no workspace is made."""
    titles = {"111": "Fractures", "152": "Burns", "132": "Cuts, lacerations"}
    rows = [{"code": code, "title": title} for code, title in titles.items()]
    given = ("code", "--codelist", write_csv(tmp_path / "list.csv", rows))
    home = ("--home", tmp_path / "home")
    texts = ["Broke (fractured) his wrist.", "Burned by hot oil."]
    answers = [json.loads(line) for line in invoke(*given, *home, *texts, "--json")[1].splitlines()]
    assert [answer["codes"][0]["code"] for answer in answers] == ["111", "152"]
    assert {answer["model_kind"] for answer in answers} == {"untrained"}
    source = write_csv(tmp_path / "new.csv", [{"Text": text} for text in texts])
    invoke(*given, *home, "--data", source, "--text", "Text", "--out", tmp_path / "coded.csv")
    coded = read_csv(tmp_path / "coded.csv")
    assert [(row["code"], row["model_kind"]) for row in coded] == [
        ("111", "untrained"),
        ("152", "untrained"),
    ]
    assert "Untrained:" in (tmp_path / "coded.csv.summary.html").read_text()
    assert not (tmp_path / "home").exists()


def test_what_a_list_alone_cannot_do_is_refused(told: CommandRunner, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("code,title\n1,Fall\n2,Burn\n")
    given = ("code", "--codelist", listed)
    for arguments, said in (
        ((*given, "x", "--bundle", "b"), "--bundle and --codelist"),
        ((*given, "x", "--engine", "2"), "--engine"),
        ((*given, "x", "--sentence", "no place"), "prior_sentence"),
        (("code", "x", "--sentence", "Had {}."), "--sentence: requires --codelist"),
        (("code", "--codelist", tmp_path / "none.csv", "x"), "does not exist"),
        (("serve", "--codelist", listed, "--no-key", "--key", listed), "--key, --roots"),
        (("serve", "--codelist", listed, "--no-key", "--bundle", "b"), "--bundle and --codelist"),
    ):
        status, error = told(*arguments)
        assert status == 2
        assert said in error, arguments
