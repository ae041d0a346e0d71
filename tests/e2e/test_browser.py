"""The operator's page in Chromium: a form filled, a wrong value refused in it, a run seen, its
release approved.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from browser import Operator, browsing, chromium
from playwright.sync_api import expect
from runs import SMALL, ended, in_state, release_run, releases
from stacks import Stack

pytestmark = [
    pytest.mark.servers,
    pytest.mark.postgres,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        chromium() is None, reason="the page's test needs Chromium (Debian: chromium)"
    ),
]


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[Operator]:
    with browsing(stack) as logged_in:
        yield logged_in


def test_the_page_wants_a_login(stack: Stack) -> None:
    with browsing(stack) as operator:
        operator.page.context.clear_cookies()
        operator.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        operator.page.goto(f"{stack.state['ui']}/v2/runs")
        operator.page.wait_for_url("**/login**")
        operator.page.locator("input").fill("operator:guess")
        operator.page.get_by_role("button", name="Login").click()
        expect(operator.page.get_by_text("Invalid credentials").first).to_be_visible()
        assert "/login" in operator.page.url


def test_a_wrong_value_is_refused_in_the_form(stack: Stack, operator: Operator) -> None:
    """Out of range by the form itself; a pattern that only the server checks, when the form is
    sent. No run comes.
    """
    before = [len(stack.runs(flow)) for flow in ("audit", "retrain")]
    operator.open_form("audit/audit", section="Effort (Optional)")
    operator.fill("Plan", "PLAN.json")
    wrong = operator.fill("Trials", "-1")
    operator.submit()
    assert wrong.evaluate("field => field.validationMessage")
    assert wrong.evaluate("field => field === document.activeElement"), (
        "the page leads to the wrong field"
    )

    operator.open_form("retrain/demo")
    operator.fill("Population", "no commas, please")
    operator.submit()
    expect(operator.page.get_by_text("'a name of up to 64 letters").first).to_be_visible()
    assert [len(stack.runs(flow)) for flow in ("audit", "retrain")] == before


@pytest.fixture(scope="module")
def retrained(stack: Stack, operator: Operator, officer: Path) -> str:
    """Id of a training run that was started by its form and has ended, under a policy with
    approvals.
    """
    operator.open_form("retrain/demo")
    settings = {"profile": "demo"} | SMALL | {"release": {"label": "from-the-page"}}
    operator.fill(
        "Advanced (YAML)", yaml.safe_dump(settings, default_flow_style=True, width=10_000).strip()
    )
    run_id = operator.submitted()
    assert yaml.safe_load(stack.run(run_id)["parameters"]["parameters"]["advanced"]) == settings

    operator.leave()
    assert (stack.wait("the retrain's end", lambda: ended(stack, run_id)) or {})[
        "state_type"
    ] == "COMPLETED"
    operator.open_run(run_id)
    expect(operator.page.get_by_text("Completed").first).to_be_visible()
    return run_id


def test_a_retrain_and_its_plan_are_seen_in_the_page(
    stack: Stack, operator: Operator, retrained: str
) -> None:
    """Its stages, what would be claimed, and the command that approves it. From the log to the plan
    it is one click.
    """
    page = operator.page
    (plan,) = [a for a in stack.artifacts(retrained) if a["key"] == "release-plan"]
    operator.open_run(retrained)
    link = page.get_by_role("link", name=f"/artifacts/artifact/{plan['id']}")
    page.get_by_text("Beginning flow run").first.hover()
    while not link.count():  # the page draws only the lines in sight
        page.mouse.wheel(0, 4000)
        page.wait_for_timeout(500)
    with page.context.expect_page() as opened:
        link.first.click()
    expect(opened.value.get_by_text("asymptotic-local").first).to_be_visible()
    opened.value.close()
    operator.open_run(retrained, tab="TaskRuns")
    expect(page.get_by_text("scores of swag-ppm-reweighted").first).to_be_visible()
    operator.open_run(retrained, tab="Artifacts")
    page.get_by_text("release-plan").first.click()
    expect(page.get_by_text("asymptotic-local").first).to_be_visible()
    expect(page.get_by_text("autocoder approve").first).to_be_visible()


def test_a_release_is_approved_in_the_page(
    stack: Stack, operator: Operator, officer: Path, retrained: str
) -> None:
    """The question says how strong the promise is, and the field for the signature is in sight with
    it, on a telephone too. Without a
    signature, or with a text that is no decision, the form stays; the officer's signature releases
    what she saw.
    """
    page = operator.page
    asked = stack.wait("the release run", lambda: release_run(stack, retrained))
    stack.wait("its suspension", lambda: in_state(stack, asked["id"], "PAUSED"))
    wide = page.viewport_size
    assert wide is not None
    page.set_viewport_size({"width": 390, "height": 844})
    operator.open_run(asked["id"])
    operator.menu("Resume")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("No formal guarantee is given").first).to_be_visible()
    expect(dialog.get_by_label("Signed decision")).to_be_in_viewport()
    expect(dialog.get_by_role("button", name="Resume", exact=True)).to_be_in_viewport()
    operator.answer("")
    expect(page.get_by_text("'decision' is a required property").first).to_be_visible()
    expect(dialog).to_have_count(1)
    page.set_viewport_size(wide)
    assert stack.run(asked["id"])["state_name"] == "Suspended"
    operator.open_run(asked["id"])
    operator.menu("Resume")
    operator.answer("I approve. B. Officer")
    expect(page.get_by_text("'the line that autocoder approve").first).to_be_visible()
    assert stack.run(asked["id"])["state_name"] == "Suspended"

    signed = stack.command(
        "approve", asked["parameters"]["plan"], "--key", str(officer), "--yes", "--print"
    )
    assert signed.returncode == 0, signed.stderr
    operator.open_run(asked["id"])
    operator.menu("Resume")
    operator.answer(signed.stdout.strip())
    expect(page.get_by_role("dialog")).to_have_count(0)
    operator.leave()
    stack.wait("the release", lambda: in_state(stack, asked["id"], "COMPLETED"))
    (row,) = releases(stack, of_run=retrained)
    assert (row.state, row.reserved.approvals) == ("committed", ("officer",))
    operator.open_run(asked["id"])
    expect(page.get_by_text("Completed").first).to_be_visible()
    operator.leave()


def test_a_plan_is_audited_by_its_form(stack: Stack, operator: Operator, retrained: str) -> None:
    """By its path alone, after its release: the measurement beside the claim.
    Nothing is released.
    """
    asked = stack.wait("the release run", lambda: release_run(stack, retrained))
    plan, page, before = asked["parameters"]["plan"], operator.page, releases(stack)
    operator.open_form("audit/audit", section="Effort (Optional)")
    operator.fill("Plan", plan)
    operator.fill("Trials", "16")
    run_id = operator.submitted()
    operator.leave()
    assert (stack.wait("its end", lambda: ended(stack, run_id)) or {})["state_type"] == "COMPLETED"
    (shown,) = [a for a in stack.artifacts(run_id) if a["key"] == "audit"]
    operator.open_artifact(shown["id"])
    expect(page.get_by_text("% confidence").first).to_be_visible()
    operator.leave()
    assert [row.release_id for row in releases(stack)] == [row.release_id for row in before]
