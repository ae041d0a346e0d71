"""A commit that a page names can be looked up: `git show` finds it."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEX = re.compile(
    r"(?<![\w./-])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])(?:[0-9a-f]{7,12}|[0-9a-f]{40})\b"
)


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_commit_that_a_study_names_exists() -> None:
    """Tags do not travel with a clone, so that figures name the commit that made them."""
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("this clone has no history")
    pages = git("ls-files", "README.md", "docs/studies/*.md", "docs/explanation/*.md").stdout
    named = {
        (page, commit)
        for page in pages.split()
        for commit in HEX.findall((ROOT / page).read_text(encoding="utf-8"))
    }
    assert named, "no page names a commit, so this test reads the wrong pages"
    lost = [
        f"{page}: {commit}"
        for page, commit in sorted(named)
        if git("cat-file", "-e", f"{commit}^{{commit}}").returncode
    ]
    assert lost == []
