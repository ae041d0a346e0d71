"""A unit of up to three records: every epsilon that is shown is the accountant's, three times that
of one record.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs

from mechanisms.privacy.numerics import epsilon_text, upper_text
from storage.ledger import ComparisonFit
from tasks.comparing import summary
from tasks.parameters import RetrainParameters
from tasks.releasing import ledger_access, prefect_page
from tasks.running import progress
from tasks.running.run import Run
from tasks.running.stage import Context

UNIT = {"unit_column": "Establishment", "max_per_unit": 3}


class Lines(progress.Listener):
    def __init__(self) -> None:
        self.shown: dict[str, dict[str, Any]] = {}

    def finished(self, label: str, figures: Any, *, reused: bool, seconds: float) -> None:
        self.shown[label] = dict(figures)


@pytest.fixture(scope="module")
def finished(
    tiny_roberta: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Context, RetrainParameters, tiny_jobs.Made, Lines]:
    """A chain on the tiny encoder, every stage done, with the lines that it showed."""
    folder = tmp_path_factory.mktemp("units")
    how = {"round_name": "weighted", "sensitivity_draws": 10}
    data = tiny_jobs.demo(folder, records=160, ingest=UNIT)
    chosen = tiny_jobs.retrain(data, tiny_roberta, epochs=(1, 6), rate=0.05, **how)
    context = tiny_jobs.workspace(folder / "home")
    lines = Lines()
    with progress.listening(lines):
        return context, chosen, tiny_jobs.fitted(context, chosen), lines


def sensitivity(made: tiny_jobs.Made) -> float:
    return running(made)[-1]


def running(made: tiny_jobs.Made) -> Sequence[float]:
    last = made.outcomes[-1]
    deltas = last.mechanism.running_sensitivity(last.fitted.path)
    assert deltas is not None
    return deltas


class Page(Run):
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def publish_markdown(self, *, key: str, markdown: str, description: str) -> None:
        self.texts[key] = markdown


def test_a_plan_that_is_not_released(
    finished: tuple[Context, RetrainParameters, tiny_jobs.Made, Lines],
) -> None:
    """The page of a run that stops after its plan shows the plan's claim."""
    context, chosen, made, _ = finished
    page = Page()
    context, texts = context.model_copy(update={"run": page}), page.texts
    planned = tiny_jobs.planned(context, chosen, made)
    assert planned.plan.claim.epsilon == pytest.approx(6 * sensitivity(made))
    file = planned.save(context)
    prefect_page.publish_artifacts(
        context,
        chosen,
        planned.plan,
        None,
        ledger=ledger_access.open_ledger(context, chosen.release),
        plan_file=file,
        scores={},
        running=running(made),
    )
    assert f"autocoder audit {file}" in texts["next-step"], "what comes next is named"
    assert f"| epsilon | {epsilon_text(6 * sensitivity(made))} |" in texts["next-step"]
    assert f"| sensitivity | {upper_text(sensitivity(made))} |" in texts["next-step"]


def test_the_lines_of_a_terminal(
    finished: tuple[Context, RetrainParameters, tiny_jobs.Made, Lines],
) -> None:
    """No stage shows an epsilon of its own: the row of the ledger is the accountant's."""
    context, chosen, made, lines = finished
    assert not any("epsilon" in figures for figures in lines.shown.values())
    *earlier, outcome = made.outcomes
    summary.record_claims(made.study, [outcome], earlier=earlier)
    rows = ledger_access.open_ledger(context, chosen.release).measurements()
    (row,) = (row for row in rows if isinstance(row.evaluation.subject, ComparisonFit))
    assert row.epsilon is not None
    assert float(row.epsilon) == pytest.approx(6 * sensitivity(made))


def test_a_target_is_met_by_the_unit(
    finished: tuple[Context, RetrainParameters, tiny_jobs.Made, Lines],
) -> None:
    """The search says what the accountant says of each fit, and its target is the unit's."""
    context, chosen, made, _ = finished
    target = round(6 * sensitivity(made), 2)
    aimed = tiny_jobs.with_settings(chosen, target_epsilon=target)
    again = tiny_jobs.fitted(context, aimed)
    assert again.of("base").fitted == made.of("base").fitted, "the base round is not fitted again"
    epsilon = again.outcomes[-1].claim.epsilon
    assert epsilon == pytest.approx(6 * sensitivity(again))
    assert epsilon is not None
    assert epsilon <= target
