"""Diagnostics of a formal posterior draw: the page says what the sampler's diagnostics were, and a fit that fails them
leaves neither page nor draw."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import tiny_jobs
from review_browser import CHROMIUM, check_accessible_file

from mechanisms.errors import MechanismError
from mechanisms.posterior import convergence
from storage.errors import InputError
from tasks.diagnosing import run
from tasks.diagnosing.sampler import margins
from tasks.diagnosing.stages import DiagnoseParameters
from tasks.parameters import RetrainParameters
from tasks.releasing.ledger_access import open_ledger
from tasks.running.stage import Context, run_step

SETTINGS = DiagnoseParameters()


def parameters(folder: Path, encoder: Path, branch: str) -> RetrainParameters:
    chosen = tiny_jobs.retrain(tiny_jobs.demo(folder, 120, ingest={"sampling": "per-record"}), encoder)
    return RetrainParameters.model_validate(
        chosen.model_dump() | {"formal": {"branch": branch, "target_epsilon": 3.0, "delta": 1e-4}}
    )


def diagnosed(context: Context, chosen: RetrainParameters) -> run.DiagnoseResult:
    run.refuse_early(context, chosen, SETTINGS)
    return run.diagnose(context, chosen, SETTINGS, partial(run_step, context), prefect_run_id=None)


def test_the_page_of_a_posterior_draw(tmp_path: Path, tiny_roberta: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are the fit's; the ledger keeps them; the same again is the same page. Where the diagnostics fail the
    reason comes, and no page."""
    context = tiny_jobs.workspace(tmp_path / "home")
    chosen = parameters(tmp_path, tiny_roberta, "formal-posterior")
    found = diagnosed(context, chosen)
    text = Path(found.report).read_text()
    assert f"<td>{found.figures['r_hat']:.3f}</td>" in text
    assert f"<td>{found.figures['ess_tail']:.0f}</td>" in text
    assert "assumed, not proven" in text
    assert not re.search(r"(?:src|href)=\"(?!#)", text)
    if CHROMIUM is not None:
        check_accessible_file(Path(found.report))
    assert found.figures["chains"] == 4
    assert found.figures["draws"] >= 400
    assert min(margins(found.figures).values()) >= 1
    last = open_ledger(context, chosen.release).rows()[-1]
    assert last.details["r_hat"] == pytest.approx(found.figures["r_hat"], abs=1e-6)
    assert last.details["verdicts"] == {"sampler": found.verdicts["sampler"]}
    assert diagnosed(context, chosen) == found
    monkeypatch.setattr(convergence, "LARGEST_R_HAT", 0.9)
    other = tiny_jobs.workspace(tmp_path / "other")
    with pytest.raises(MechanismError, match="split R-hat"):
        diagnosed(other, chosen)
    assert not (other.workspace.private / "diagnostics").exists()


def test_a_branch_without_a_sampler_is_refused(tmp_path: Path, tiny_roberta: Path) -> None:
    """It says which have one."""
    with pytest.raises(InputError, match=r"formal-head draws from no posterior.*bounded-posterior.*formal-posterior"):
        diagnosed(tiny_jobs.workspace(tmp_path / "home"), parameters(tmp_path, tiny_roberta, "formal-head"))


def test_margin_is_to_the_limit() -> None:
    """At the limit it is 1, twice as far from it 2."""
    at = {"r_hat": 1.05, "ess_bulk": 100.0, "ess_tail": 200.0, "acceptance": 0.75}
    assert list(margins(at).values()) == pytest.approx([1, 1, 2, 1.5])
