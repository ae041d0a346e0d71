"""What a training run measures of its own thresholds reaches the page that an officer reads."""

from __future__ import annotations

from pathlib import Path

import tiny_jobs

from tasks.releasing import ledger_access, ledger_records, plan_page, publish


def test_the_retrains_own_figures_are_on_the_plans_page(tiny_roberta: Path, tmp_path: Path) -> None:
    """Of the round that is released, by the names that the page asks for; a hardly trained model
    reaches no target.
    """
    context = tiny_jobs.workspace(tmp_path / "home")
    chosen = tiny_jobs.retrain(
        tiny_jobs.demo(tmp_path / "data", records=300, population="demo"), tiny_roberta
    )
    made = tiny_jobs.fitted(context, chosen)
    assert made.evaluated
    planned = publish.save_plan(context, tiny_jobs.planned(context, chosen, made), chosen.release)[
        0
    ]
    ledger_records.record_retrain(
        context,
        chosen,
        planned.plan,
        dataset=made.dataset,
        evaluated=made.evaluated,
        measured=made.measured,
    )
    own = plan_page.candidate_scores(ledger_access.open_ledger(context, chosen.release), planned)
    figures = context.store.figures(made.evaluated)
    last = chosen.rounds[-1]
    for name, value in own.items():
        assert abs(value - figures[f"{last}_{name}"]) < 1e-5
    assert {"alone_at_80", "alone_at_90", "alone_at_95", "surest_accuracy", "surest_share"} <= set(
        own
    )
    answer = plan_page._alone(own)
    assert answer.verdict == "note"
    assert "80 % right: no score reaches it" in answer.text
