"""What diagnostics have still to do, and how long that takes, is known before they begin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tiny_jobs

from tasks.diagnosing.run import refuse_early, to_compute
from tasks.diagnosing.stages import DiagnoseParameters

PLAIN = DiagnoseParameters(leave_out=0, refits=False, study_draws=10)


def test_finished_stages_are_left_out(tiny_roberta: Path, tmp_path: Path) -> None:
    """Of the retrain all at first and none later; each look and each refit where it is wanted; time follows."""
    context = tiny_jobs.workspace(tmp_path / "home")
    chosen = tiny_jobs.retrain(tiny_jobs.demo(tmp_path / "data", population="demo"), tiny_roberta)
    fresh = to_compute(context, chosen, PLAIN)
    assert {"ingest", "features", "fine-tune (base)", "diagnostics"} <= set(fresh)
    tiny_jobs.fitted(context, chosen)
    assert to_compute(context, chosen, PLAIN) == ["diagnostics"]
    one = PLAIN.model_copy(update={"leave_out": 20})
    assert to_compute(context, chosen, one) == ["diagnostics", "leave one out"]
    closely = one.model_copy(update={"refits": True})
    labels = to_compute(context, chosen, closely)
    assert labels.count("SWAG (base)") == 4, "two learning rates and two seeds"
    assert labels.count("features") <= 1
    seconds = [
        refuse_early(context, chosen, settings).of_labels(to_compute(context, chosen, settings))
        for settings in (PLAIN, one, closely)
    ]
    assert seconds[0] < seconds[1] < seconds[2]
    estimate = refuse_early(context, chosen, one)
    slow = replace(estimate, timed={"leave one out": 10.0})
    assert slow.of_kind("leave one out") == 10 * estimate.stages["leave one out"], "corrected by what was timed here"
