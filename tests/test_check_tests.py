"""Every larger source file is tested where a reader looks, or a line says where."""

from __future__ import annotations

from pathlib import Path

import check_tests
import pytest

LONG = "x = 1\n" * (check_tests.LINES + 1)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a project of one long and one short file."""
    monkeypatch.chdir(tmp_path)
    for room in (*check_tests.ROOMS, "storage/ledger", "tests/storage/ledger", "flows/commands", "tests/flows"):
        Path(room).mkdir(parents=True)
    Path("storage/ledger/chain.py").write_text(LONG)
    Path("storage/ledger/words.py").write_text("x = 1\n")
    return tmp_path


def test_a_long_file_without_tests_is_listed(tree: Path) -> None:
    """A short one is not."""
    (message,) = check_tests.faults({})
    assert message.startswith("storage/ledger/chain.py: has no test file. Add tests/storage/ledger/test_chain.py")


@pytest.mark.parametrize("name", ["test_chain.py", "test_ledger_chain.py"])
def test_a_mirrored_file_needs_no_line(tree: Path, name: str) -> None:
    """A line for it is refused."""
    Path("tests/storage/ledger", name).touch()
    assert not list(check_tests.faults({}))
    (message,) = check_tests.faults({"storage/ledger/chain.py": f"tests/storage/ledger/{name}"})
    assert "needs no line" in message


def test_a_command_is_mirrored_without_its_folder(tree: Path) -> None:
    """`flows/commands/code.py` has `tests/flows/test_code_command.py`."""
    Path("storage/ledger/chain.py").unlink()
    Path("flows/commands/code.py").write_text(LONG)
    assert list(check_tests.faults({}))
    Path("tests/flows/test_code_command.py").touch()
    assert not list(check_tests.faults({}))


def test_a_line_names_a_file_that_exists(tree: Path) -> None:
    """Otherwise it is refused."""
    lines = {"storage/ledger/chain.py": "tests/storage/test_tampering.py"}
    (message,) = check_tests.faults(lines)
    assert "does not exist" in message
    Path("tests/storage/test_tampering.py").touch()
    assert not list(check_tests.faults(lines))


def test_two_files_of_one_name_are_refused(tree: Path) -> None:
    """Pytest imports test files by their names alone."""
    Path("tests/flows/test_chain.py").touch()
    Path("tests/storage/ledger/test_chain.py").touch()
    (message,) = check_tests.faults({})
    assert message.startswith("test_chain.py: two test files have this name")
