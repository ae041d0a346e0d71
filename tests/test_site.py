"""The documentation as a site: whole, searchable, and readable from a disk without a network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STARTS = (
    *(
        "tutorials/own-data",
        "how-to/approve",
        "tutorials/use-a-bundle",
        "tutorials/published-table",
    ),
    *("how-to/operate", "how-to/compare-methods"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a page outside the list, or a link or anchor that leads nowhere, ends the
    build.
    """
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_each_reader_has_a_page_to_begin_at(site: Path) -> None:
    """The first page leads there."""
    assert (site / "pictures" / "plan-page.png").is_file()
    first = (site / "index.html").read_text()
    for name in STARTS:
        assert f'href="{name}.html"' in first
        assert (site / f"{name}.html").is_file()


def test_links_lead_somewhere_in_the_repository_too() -> None:
    """Where these pages are read as often as on the site."""
    files = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pages = files.stdout.splitlines()
    assert len(pages) > 30
    lost = [
        f"{page}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text(encoding="utf-8"))
        if ":" not in target
        and not target.startswith("../../security/")  # GitHub's own page of the repository
        and not (ROOT / page).parent.joinpath(target).exists()
    ]
    assert lost == []


@pytest.mark.parametrize("page", ["tutorials/use-a-bundle.md", "how-to/code-files.md"])
def test_a_partners_commands_name_the_bundle(page: str) -> None:
    """A partner has no workspace whose newest release would be taken."""
    text = (ROOT / "docs" / page).read_text().replace("\\\n", " ")
    commands = re.findall(r"autocoder (?:code|calibrate|serve) --.*", text)
    whole = [command for command in commands if "--data" in command]
    assert whole
    assert [command for command in whole if "--bundle" not in command] == []


def test_nothing_is_loaded_from_a_network(site: Path) -> None:
    """No script, style, font or picture of another host, on any page."""
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:|//)|<link[^>]*stylesheet[^>]*href=\"?(https?:|//)"
    )
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), page.name


def test_pages_of_the_repository_are_in_it_and_found(site: Path) -> None:
    """What is outside docs/, with its links led to pages; search knows its words."""
    promise = (site / "PRIVACY.html").read_text()
    assert 'href="explanation/threat-model.html"' in promise
    index = (site / "search" / "search_index.js").read_text()
    for words in (
        "The privacy guarantee and its limits",
        "Use a bundle",
        "Add a mechanism",
        "mechanisms.mechanism.Mechanism",
    ):
        assert words in index


def test_the_notebook_is_a_page_with_what_it_showed(site: Path) -> None:
    """Outputs and picture, only from the file; the calls that it uses are on the Python page."""
    page = (site / "tutorials" / "own-model.html").read_text()
    assert "guarantee: asymptotic-local" in page
    assert 'src="own-model-1.png"' in page
    assert (site / "tutorials" / "own-model-1.png").read_bytes().startswith(b"\x89PNG")
    python = (site / "reference" / "python.html").read_text()
    assert 'id="autocoder.swag_ppm"' in python
