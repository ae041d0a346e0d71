"""What GitHub reads of the repository: workflows, forms and templates parse and
name what is there.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from storage import strict_yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def loaded(path: Path) -> Any:
    return strict_yaml.load(path.read_text(encoding="utf-8"))


def test_ci_runs_the_checks_and_the_nightly_tests() -> None:
    """Every command of a step exists: the script is executable, each target is the Makefile's."""
    jobs = loaded(GITHUB / "workflows" / "ci.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    targets = jobs["nightly"]["strategy"]["matrix"]["target"]
    assert set(targets) == {"test-long", "test-clients"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_a_workflow_may_only_read() -> None:
    """Neither a token that writes nor credentials that a step could use stay on the machine."""
    workflow = loaded(GITHUB / "workflows" / "ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_github_shows(form: Path) -> None:
    """Name, description and fields of known kinds, each with an id of its own and a label."""
    content = loaded(form)
    assert content["name"]
    assert content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_a_vulnerability_is_reported_privately() -> None:
    """SECURITY.md and the chooser of forms lead to GitHub's private report, and to no address."""
    text = (ROOT / "SECURITY.md").read_text()
    (link,) = loaded(GITHUB / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]
    assert "security/advisories/new" in text
    assert link["url"].endswith("security/advisories/new")
    assert not re.search(r"[\w.]+@[\w.]+", text)
