"""A unit of up to three records: every epsilon that is shown is the accountant's, three times that
of one record.
"""

from pathlib import Path
from typing import Any

import pytest
import tiny_jobs

from tasks.branches import search
from tasks.branches.swag_chain import Chain, run_chain
from tasks.fitting.risks import running_maximum
from tasks.parameters import RetrainParameters
from tasks.releasing import ledger_records, prefect_page
from tasks.running import progress
from tasks.running.run import Run
from tasks.running.stage import Context, run_step

UNIT = {"unit_column": "Establishment", "max_per_unit": 3}


class Lines(progress.Listener):
    def __init__(self) -> None:
        self.shown: dict[str, dict[str, Any]] = {}

    def finished(self, label: str, figures: Any, *, reused: bool, seconds: float) -> None:
        self.shown[label] = dict(figures)


@pytest.fixture(scope="module")
def finished(
    tiny_roberta: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Context, RetrainParameters, Chain, Lines]:
    """A chain on the tiny encoder, every stage done, with the lines that it showed."""
    folder = tmp_path_factory.mktemp("units")
    how = {"reweight": False, "sensitivity_draws": 10}
    data = tiny_jobs.demo(folder, records=160, ingest=UNIT)
    chosen = tiny_jobs.retrain(data, tiny_roberta, epochs=(1, 6), rate=0.05, **how)
    context = tiny_jobs.workspace(folder / "home")
    lines = Lines()
    with progress.listening(lines):
        return context, chosen, tiny_jobs.fitted(context, chosen), lines


def sensitivity(made: Chain) -> float:
    measured = made.measured["weighted"]
    assert measured is not None
    return running_maximum(measured.path)[-1]


class Page(Run):
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def publish_markdown(self, *, key: str, markdown: str, description: str) -> None:
        self.texts[key] = markdown


def test_a_plan_that_is_not_released(
    finished: tuple[Context, RetrainParameters, Chain, Lines],
) -> None:
    """The page of a run that stops after its plan shows the plan's claim."""
    context, chosen, made, _ = finished
    page = Page()
    context, texts = context.model_copy(update={"run": page}), page.texts
    planned = tiny_jobs.planned(context, chosen, made)
    assert planned.plan.claim.epsilon == pytest.approx(6 * sensitivity(made))
    file = planned.save(context)
    measured = made.measured["weighted"]
    assert measured is not None
    running = running_maximum(measured.path)
    prefect_page.publish_artifacts(
        context, chosen, planned.plan, None, plan_file=file, scores={}, running=running
    )
    assert f"autocoder audit {file}" in texts["release"], "what comes next is named"
    assert f"| epsilon | {6 * sensitivity(made):.4g} |" in texts["release"]
    assert f"| sensitivity | {sensitivity(made):.4g} |" in texts["release"]


def test_the_lines_of_a_terminal(finished: tuple[Context, RetrainParameters, Chain, Lines]) -> None:
    """No stage shows an epsilon of its own: the row of the ledger is the accountant's, and its line
    shows that.
    """
    context, chosen, made, lines = finished
    assert not any("epsilon" in figures for figures in lines.shown.values())
    refs: Any = {"dataset": made.dataset, "evaluated": made.evaluated, "measured": made.measured}
    with progress.listening(lines):
        ledger_records.record_retrain(
            context, chosen, tiny_jobs.planned(context, chosen, made).plan, **refs
        )
    assert lines.shown["claim (weighted)"]["epsilon"] == pytest.approx(6 * sensitivity(made))


def test_a_target_is_met_by_the_unit(
    finished: tuple[Context, RetrainParameters, Chain, Lines], tmp_path: Path
) -> None:
    """The search says what the accountant says of each fit, and its target is the unit's."""
    context, chosen, made, _ = finished
    target = round(6 * sensitivity(made), 2)
    config = chosen.pseudo_posterior.model_copy(update={"target_epsilon": target})
    aimed: Any = chosen.model_copy(update={"pseudo_posterior": config})
    lines = Lines()
    with progress.listening(lines):
        settled = search.meet_target(context, aimed, lambda step: run_step(context, step))
    again = run_chain(settled, lambda step: run_step(context, step), rounds=settled.rounds)
    assert lines.shown["search"]["epsilon"] == pytest.approx(6 * sensitivity(again))
    assert lines.shown["search"]["epsilon"] <= target
