"""Opens the case of a plan, and releases a plan, as the commands do once a plan was read."""

from __future__ import annotations

from pathlib import Path

from tasks.parameters import BundleParameters
from tasks.releasing import plan_page, publish
from tasks.releasing.case import ReleaseCase
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.plan_page import PlanPage
from tasks.releasing.publish import Released
from tasks.running.stage import Context


def case_of(context: Context, planned: PlannedRelease, *, file: Path | None = None) -> ReleaseCase:
    """Opens the case of a plan that was not saved, or is in another file."""
    return ReleaseCase.open(
        context, planned, BundleParameters(), file=file or planned.file(context)
    )


def release_plan(context: Context, planned: PlannedRelease, settings: BundleParameters) -> Released:
    """Releases a plan, past the first look that `publish.open_case` takes at it."""
    case = ReleaseCase.open(context, planned, settings, file=planned.file(context))
    return publish.release(context, case, settings)


def page_of_plan(
    context: Context, planned: PlannedRelease, *, file: Path | None = None
) -> PlanPage:
    return plan_page.load_plan_page(context, case_of(context, planned, file=file))
