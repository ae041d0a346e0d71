"""What a training run measures of its own thresholds reaches the page that an officer reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_jobs

from tasks.comparing import summary
from tasks.releasing import plan_page, publish
from tasks.releasing.scores import candidate_scores, reference_f1


def test_the_retrains_own_figures_are_on_the_plans_page(tiny_roberta: Path, tmp_path: Path) -> None:
    """Of the round that is released, by the names that the page asks for; a hardly trained model
    reaches no target.
    """
    context = tiny_jobs.workspace(tmp_path / "home")
    chosen = tiny_jobs.retrain(
        tiny_jobs.demo(tmp_path / "data", records=300, population="demo"), tiny_roberta
    )
    made = tiny_jobs.fitted(context, chosen)
    case = publish.save_plan(context, tiny_jobs.planned(context, chosen, made), chosen.release)
    *earlier, outcome = made.outcomes
    summary.record_claims(made.study, [outcome], earlier=earlier)
    measurements = case.reread(context).measurements
    own = candidate_scores(measurements, case.planned)
    base = made.of("base").figures["weighted_f1"]
    assert reference_f1(measurements, case.planned) == pytest.approx(base, abs=1e-5)
    for name, value in own.items():
        assert abs(value - (outcome.figures[name] or 0.0)) < 1e-5
    assert {
        "coverage_at_80",
        "coverage_at_90",
        "coverage_at_95",
        "best_accuracy",
        "best_coverage",
    } <= set(own)
    answer = plan_page._autocoded(own, table=False)
    assert answer.verdict == "note"
    assert "80% right: no threshold achieves it" in answer.text
