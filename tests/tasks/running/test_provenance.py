"""Which code a release names: of a checkout, of an image, of neither."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.running import provenance

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The code is in a folder that is no git checkout, as in an image."""
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    provenance.provenance.cache_clear()
    yield tmp_path
    provenance.provenance.cache_clear()


@pytest.mark.parametrize(
    ("told", "commit", "dirty"),
    [
        (COMMIT, COMMIT, False),
        (f"{COMMIT}-dirty", COMMIT, True),
        (f"v1.2-7-g{COMMIT}", COMMIT, False),
        ("", "unknown", True),
        ("dev", "unknown", True),
        (COMMIT[:7], "unknown", True),
        (None, "unknown", True),
    ],
)
def test_an_image_knows_the_commit_that_it_was_built_from(
    elsewhere: Path, told: str | None, commit: str, dirty: bool
) -> None:
    """As `git describe --always --dirty --abbrev=40` says it; anything else counts as uncommitted
    code.
    """
    if told is not None:
        (elsewhere / "COMMIT").write_text(f"{told}\n")
    found = provenance.provenance()
    assert (found.code_commit, found.code_dirty) == (commit, dirty)


def test_data_in_a_checkout_are_no_uncommitted_code(elsewhere: Path) -> None:
    """A mechanism of one's own is, committed or not: it is imported where it is."""
    (elsewhere / "mechanisms").mkdir()
    (elsewhere / "mechanisms" / "mechanism.py").touch()
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init",), ("add", "."), (*author, "commit", "--message", "first")):
        subprocess.run(("git", *words), cwd=elsewhere, check=True, capture_output=True)
    (elsewhere / "claims.csv").write_text("Narrative,Code\n")
    assert not provenance.provenance().code_dirty
    provenance.provenance.cache_clear()
    (elsewhere / "mechanisms" / "mine.py").touch()
    assert provenance.provenance().code_dirty
