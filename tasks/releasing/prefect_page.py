"""Publishes figures, the release and its ledger row on a run's page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from mechanisms.privacy.events import Claim
from mechanisms.privacy.numerics import epsilon_text
from storage.figures import delta_text, left_text
from storage.ledger import Ledger, ReleasePlan
from storage.ledger.report import markdown_table
from tasks.pages.render import render
from tasks.parameters import RetrainParameters
from tasks.releasing.publish import Released
from tasks.running.run import Run
from tasks.running.stage import Context


def sensitivity_plot(running: Sequence[float], claim: Claim) -> bytes:
    """Plots Delta's running maximum over draws as PNG. If it still rises at the
    right, there are too few draws.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.step(range(1, len(running) + 1), running, where="post", color="#0b5fa5")
    axes.set_xscale("log")
    axes.set_xlabel("samples taken")
    axes.set_ylabel("Δ so far (nats)")
    epsilon = epsilon_text(claim.epsilon or 0.0)
    claimed = f"ε = {epsilon} ({claim.guarantee_kind}, for one {claim.privacy_unit})"
    axes.set_title(
        f"Running maximum over samples: Δ seen = {running[-1]:.3f}; claimed {claimed}", fontsize=9
    )
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
    ledger: Ledger,
    plan_file: Path,
    scores: Mapping[str, Mapping[str, float | None]],
    running: Sequence[float] | None = None,
) -> None:
    """Publishes the figures and the release as artifacts of the run.

    Args:
        plan_file: path of the plan, for the next commands.
        scores: weighted and macro F1 and accuracy on the held-out records, by model.
        running: Delta after each draw, if it was measured over draws.
    """
    if running is not None:
        picture = sensitivity_plot(running, plan.claim)
        encoded = base64.b64encode(picture).decode()
        context.run.publish_markdown(
            key="sensitivity",
            markdown=f"![running maximum](data:image/png;base64,{encoded})",
            description=(
                "Sensitivity: the running maximum over samples. Still rising at the "
                "right: too few samples."
            ),
        )
    measures = ("weighted_f1", "macro_f1", "accuracy")
    rows = [
        [name, *(f"{figures[measure]:.3f}" for measure in measures)]
        for name, figures in scores.items()
    ]
    context.run.publish_markdown(
        key="internal-figures",
        markdown=markdown_table(["model", "weighted F1", "macro F1", "accuracy"], rows),
        description="Held-out records. Internal: computed from records, not released.",
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
    context.run.publish_markdown(
        key="next-step" if released is None else "release",
        markdown=text,
        description=(
            "Nothing is released yet: the plan, and how to continue."
            if released is None
            else "What was released, and under which claim."
        ),
    )
    publish_budget(context.run, ledger)


def publish_plan(run: Run, text: str) -> str | None:
    """Publishes the plan, and returns the address of its page, which the run's log also shows."""
    address = run.publish_markdown(
        key="release-plan", markdown=text, description="What would be released, and at what cost."
    )
    if address is not None:
        run.log(f"Plan of the release: {address}")
    return address


def publish_audit(run: Run, lines: Sequence[str]) -> None:
    """Publishes claim and measurement side by side. Indented lines belong to the line above."""
    items = [f"  - {line.strip()}" if line.startswith(" ") else f"- {line}" for line in lines]
    address = run.publish_markdown(
        key="audit", markdown="\n".join(items), description="Claim and measurement."
    )
    if address is not None:
        run.log(f"Result of the audit: {address}")


def publish_budget(run: Run, ledger: Ledger) -> None:
    if run.shows:
        # Prefect's page fits seven short columns; `autocoder ledger show` has the rest.
        rows = [
            [
                line.account.population,
                line.account.cohort,
                line.account.guarantee_kind,
                _of(line.account.epsilon, line.cap.epsilon if line.cap else None, epsilon_text),
                left_text(line.left),
                "–" if line.more is None else str(line.more),
                _of(line.account.delta, line.cap.delta if line.cap else None, delta_text),
            ]
            for line in ledger.budget()
        ]
        head = ["population", "cohort", "guarantee", "ε spent", "ε left", "more", "δ spent"]
        run.publish_markdown(
            key="budget",
            markdown=markdown_table(head, rows),
            description=(
                "What each cohort has spent of its caps, what is left, and how many more releases "
                "of the last one's size fit."
            ),
        )


def _of(spent: Decimal, cap: Decimal | None, write: Callable[[Decimal], str]) -> str:
    return f"{write(spent)} of {write(cap)}" if cap else write(spent)
