"""Writes a run's artifacts for Prefect's page: progress, figures, the release and its ledger row."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from mechanisms.privacy.events import Claim
from storage.ledger import ReleasePlan
from storage.ledger.report import markdown_table
from tasks.pages.render import render
from tasks.parameters import LedgerParameters, RetrainParameters
from tasks.releasing.budgets import budget_table
from tasks.releasing.ledger_access import open_ledger
from tasks.releasing.publish import Released
from tasks.running.flow_run import in_flow_run, publish_markdown, publish_table
from tasks.running.progress import Listener
from tasks.running.stage import Context

_SECONDS_BETWEEN_UPDATES = 3.0


class PrefectListener(Listener):
    """Updates a progress artifact of each longer stage, seldom enough not to slow the stage."""

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._last = 0.0
        self._run = copy_context()
        self._shows = False

    def started(self, label: str) -> None:
        """Waits: most stages end before a progress bar is worth a request."""
        self._artifact, self._last = None, time.monotonic()
        self._shows = in_flow_run()
        self._run = copy_context()  # threads of the stage have no run of Prefect's

    def report(self, label: str, done: int, total: int | None) -> None:
        """Creates or updates the bar, at most every few seconds."""
        now = time.monotonic()
        if not self._shows or not total or now - self._last < _SECONDS_BETWEEN_UPDATES:
            return
        self._last = now
        percent = min(100.0, 100.0 * done / total)
        if self._artifact is None:
            from prefect.artifacts import create_progress_artifact

            made = self._run.copy().run(create_progress_artifact, progress=percent, description=label)
            self._artifact = cast(UUID, made)
        else:
            _update(self._artifact, progress=percent)

    def finished(self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
        """Completes the bar. Leaves figures out: the exact number of records must not reach Prefect's database."""
        if self._artifact is not None:
            _update(self._artifact, progress=100.0, description=f"{label}: done")
            self._artifact = None


def _update(artifact: UUID, **values: Any) -> None:
    from prefect.artifacts import update_progress_artifact

    update_progress_artifact(artifact, **values)


def sensitivity_plot(running: Sequence[float], claim: Claim) -> bytes:
    """Draws Delta's running maximum over draws as PNG: still rising at the right means too few draws."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.step(range(1, len(running) + 1), running, where="post", color="#0b5fa5")
    axes.set_xscale("log")
    axes.set_xlabel("draws taken")
    axes.set_ylabel("Δ so far (nats)")
    claimed = f"ε = {claim.epsilon or 0:.4g} ({claim.guarantee_kind}, for one {claim.privacy_unit})"
    axes.set_title(f"Running maximum over draws: Δ seen = {running[-1]:.3f}; claimed {claimed}", fontsize=9)
    axes.grid(alpha=0.3)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def publish_artifacts(
    context: Context,
    parameters: RetrainParameters,
    plan: ReleasePlan,
    released: Released | None,
    *,
    plan_file: Path,
    scores: Mapping[str, Mapping[str, Any]],
    running: Sequence[float] | None = None,
) -> None:
    """Publishes the figures and the release as artifacts of the run.

    Args:
        plan_file: where the plan lies, for what comes next.
        scores: weighted and macro F1 and accuracy on the test half, by model.
        running: Delta after each draw, where it was measured over draws.
    """
    if running is not None:
        picture = sensitivity_plot(running, plan.claim)
        publish_markdown(
            key="sensitivity",
            markdown=f"![running maximum](data:image/png;base64,{base64.b64encode(picture).decode()})",
            description="Sensitivity: the running maximum over draws. Still rising at the right means too few draws.",
        )
    rows = [
        {
            "model": name,
            "weighted F1": f"{one['weighted_f1']:.3f}",
            "macro F1": f"{one['macro_f1']:.3f}",
            "accuracy": f"{one['accuracy']:.3f}",
        }
        for name, one in scores.items()
    ]
    publish_table(
        key="internal-figures", table=rows, description="Test half. Internal: computed from records, not released."
    )
    text = render(
        "release.md",
        plan=plan,
        claim=plan.claim,
        released=released,
        address=None if released is None else Path(released.bundle).as_uri(),
        home=context.home,
        file=plan_file,
        deployment=parameters.release.deployment if parameters.release.enabled else None,
    )
    publish_markdown(
        key="release",
        markdown=text,
        description="What was released, on what claim.",
    )
    publish_budget(context, parameters.release)


def publish_plan(text: str) -> None:
    """Publishes the planned release for the officer."""
    publish_markdown(key="release-plan", markdown=text, description="What would leave, and at what cost.")


def publish_audit(lines: Sequence[str]) -> None:
    """Publishes claim and measurement next to each other; indented lines belong to the line above."""
    items = [f"  - {line.strip()}" if line.startswith(" ") else f"- {line}" for line in lines]
    publish_markdown(key="audit", markdown="\n".join(items), description="Claim and measurement.")


def publish_budget(context: Context, settings: LedgerParameters) -> None:
    """Publishes what each cohort has spent and has left, within a run."""
    if in_flow_run():
        publish_markdown(
            key="budget",
            markdown=markdown_table(*budget_table(open_ledger(context, settings).budget())),
            description="What each cohort has spent, and what is left.",
        )
