"""Diagnostics of a small finished chain: figures, a page that stands alone, and refits that survive a kill."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from review_browser import CHROMIUM, check_accessible_file

from mechanisms.audit import leave_one_out
from tasks.branches.swag_chain import Chain
from tasks.diagnosing import page as diagnostics_page
from tasks.diagnosing import stages
from tasks.diagnosing.page import RoundClaim
from tasks.diagnosing.stages import DiagnoseParameters
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context, run_step

SETTINGS = DiagnoseParameters(leave_out=7, refits=False, study_draws=10)


@pytest.fixture(scope="module")
def finished(tiny_roberta: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Context, RetrainParameters, Chain]:
    """A chain on the tiny encoder, every stage done."""
    folder = tmp_path_factory.mktemp("diagnose")
    how: dict[str, Any] = {"reweight": False, "sensitivity_draws": 60}
    chosen = tiny_jobs.retrain(tiny_jobs.demo(folder, 160), tiny_roberta, epochs=(2, 8), rate=0.05, **how)
    context = tiny_jobs.workspace(folder / "home")
    return context, chosen, tiny_jobs.fitted(context, chosen)


def test_figures_and_page(finished: tuple[Context, RetrainParameters, Chain], tmp_path: Path) -> None:
    """The studies agree with the chain where nothing was changed; the page is private, alone and accessible."""
    context, chosen, made = finished
    declared = (stages.posterior_checks(chosen, SETTINGS, made), stages.leave_out(chosen, SETTINGS, made))
    looked, left = (run_step(context, step) for step in declared)
    seen, found = stages.read(looked.path), stages.read(left.path)
    last = chosen.rounds[-1]
    one = seen["rounds"][last]
    assert one["delta_quantiles"][-1] == pytest.approx(one["running"][-1], rel=1e-5)
    assert one["tail"]["expected"] >= one["running"][-1]
    unchanged = dict(map(tuple, seen["scales"]))[1.0]
    assert dict(map(tuple, seen["ranks"]))[8] == pytest.approx(unchanged)
    assert len(found["own_loss"]) == 7
    claimed = RoundClaim(*made.claim(context.store, chosen, last))
    sections = diagnostics_page.sections(seen, found, [("seed + 1", 3.2)], claimed)
    page = diagnostics_page.page(chosen, sections, claim=claimed.claim)
    assert "Private. This page is computed from the records" in page
    assert page.count("<svg") == page.count("<figure") == 7
    assert "prefers-color-scheme:dark" in page
    assert not re.search(r"(?:src|href)=['\"](?!data:|#)", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert not re.search(r'fill="#(?![0-9a-fA-F]{6}")', page), "colours are colours, and no one's id"
    assert not re.search(r"employee|worker", page), "no narrative"
    if CHROMIUM is not None:
        (tmp_path / "report.html").write_text(page)
        check_accessible_file(tmp_path / "report.html")


def test_a_killed_leave_one_out_goes_on(
    finished: tuple[Context, RetrainParameters, Chain], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a kill between two groups only the second is fitted again, and the result equals the unbroken one."""
    context, chosen, made = finished
    step = stages.leave_out(chosen, SETTINGS, made)
    whole = json.loads((run_step(context, step).path / stages.FILE).read_text())
    real, fitted = leave_one_out.refit, []

    def refit(*arguments: Any, **options: Any) -> Any:
        fitted.append(len(options["weights"]))
        if fitted == [1, 5, 2]:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(leave_one_out, "refit", refit)
    other = tiny_jobs.workspace(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_step(other, step)
    again = json.loads((run_step(other, step).path / stages.FILE).read_text())
    assert fitted == [1, 5, 2, 1, 2]
    assert again == whole
