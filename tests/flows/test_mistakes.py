"""Plausible mistakes end in one line that names the option, before any work; so does what no one
foresaw.
"""

import errno
import socket
from pathlib import Path

import pytest
from in_process import CommandRunner, command

from storage.ledger import Evaluation, Ledger

SECRET = "Worker Jane Roe lost a finger"


def test_what_the_options_name_is_looked_at_first(told: CommandRunner, tmp_path: Path) -> None:
    """A file in place of a folder, no folder, no text, no certificate."""
    file, policy, away = tmp_path / "file", tmp_path / "policy.yaml", tmp_path / "away" / "x.png"
    file.write_bytes(b"\xff\xfe\x00")
    policy.write_text("name: strict\ndefault: {asymptotic-local: {epsilon: 100}}\n")
    change = (
        "ledger",
        "change-policy",
        "--policy",
        policy,
        "--requester",
        "lead",
        "--reason",
        "start",
    )
    serve = ("serve", "--no-key", "--allow-unsigned")
    for arguments, said in (
        (("status", "--home", file), f"--home {file}: it is a file"),
        ((*change, "--home", file), f"--home {file}: it is a file"),
        (
            (*change, "--home", tmp_path / "home", "--approval", file),
            f"--approval {file}: it cannot be read as text",
        ),
        (
            ("retrain", "--data", file),
            "--profile: missing. Choose formal (a proven epsilon, the one to start with)",
        ),
        (
            (
                "train",
                "--profile",
                "demo",
                "--set",
                "data.source=away.csv",
                "--set",
                "data.sorce=x",
            ),
            "parameters: data.sorce: unknown",
        ),
        (
            ("ledger", "show", "--home", tmp_path),
            f"no ledger at {tmp_path / 'ledger.db'}. The first training run creates it",
        ),
        (
            ("code", "x", "--home", tmp_path),
            f"no committed bundle in {tmp_path / 'bundles'}. Make a plan",
        ),
        (("demo-data", "--out", file), f"--out: {file} is a file"),
        (
            ("estimate", "now.csv", "--sample", "s.csv", "--plot", away),
            f"--plot: the folder {away.parent} does not exist",
        ),
        (
            (*serve, "--host", "0.0.0.0"),
            "--host 0.0.0.0 can be reached from elsewhere. Put a proxy in front of it",
        ),
        ((*serve, "--allowed-host", "*"), "--allowed-host '*' is not a host name"),
    ):
        status, error = told(*arguments)
        assert (status, error.startswith(f"error: {said}"), error.count("\n")) == (2, True, 1), (
            error
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "policy.yaml"]


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(
    told: CommandRunner, tmp_path: Path
) -> None:
    """With both options, and what to do; the folder has no bundle, which would be
    reported later.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, error = told(
            "serve", "--no-key", "--allow-unsigned", "--port", port, "--home", tmp_path
        )
    assert (status, error) == (
        2,
        f"error: --host 127.0.0.1, --port {port}: Address already in use. Choose another.\n",
    )


def test_a_column_that_is_missing_names_its_option(
    told: CommandRunner, tiny_bundle: Path, tmp_path: Path
) -> None:
    """`code` reads `Final Narrative` where no one says another, and the columns that the bundle
    names.
    """
    (tmp_path / "n.csv").write_text("Narrative,Nature\nfell,1\n")
    status, error = told(
        "code", "--data", tmp_path / "n.csv", "--out", tmp_path / "o.csv", "--bundle", tiny_bundle
    )
    assert (status, "has no column 'Final Narrative' (--text)" in error) == (2, True), error


def test_a_public_key_signs_nothing(told: CommandRunner, tmp_path: Path) -> None:
    """Anyone who gives the wrong one of the two files gets that message, whatever its mode."""
    command("keys", "new", "--out", tmp_path / "officer")
    (public,) = (
        file for file in (tmp_path / "officer").iterdir() if b"PUBLIC" in file.read_bytes()
    )
    policy = tmp_path / "policy.yaml"
    policy.write_text("name: strict\ndefault: {asymptotic-local: {epsilon: 100}}\n")
    reasons = ("--requester", "lead", "--reason", "start")
    status, error = told("approve", "--policy", policy, *reasons, "--key", public)
    assert (status, "this is a public key" in error) == (2, True), error


def test_what_nobody_foresaw(
    told: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the system's errors its words and the file, of any other the type and the place; never a
    value.
    """

    def wrong_fields(_: str) -> None:
        Evaluation.model_validate(
            {
                "label": "x",
                "population": [SECRET],
                "data_fingerprint": "f",
                "requester": "",
                SECRET: 1,
            }
        )

    def no_text(_: str) -> None:
        SECRET.encode("utf-16").decode("utf-8")

    def no_access(_: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/data/ledger.db")

    for fails, code, said in (
        (
            wrong_fields,
            1,
            "ValidationError (Evaluation: population, requester) at test_mistakes.py",
        ),
        (no_text, 1, "UnicodeDecodeError at test_mistakes.py"),
        (no_access, 2, "Permission denied (/data/ledger.db)"),
    ):
        monkeypatch.setattr(Ledger, "require_existing", fails)
        status, error = told("ledger", "show", "--home", tmp_path)
        assert (status, error.count("\n")) == (code, 1)
        assert error.startswith(f"error: autocoder: {said}")
        assert "Jane" not in error
