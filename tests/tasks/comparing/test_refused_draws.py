"""A comparison with a branch whose draws diagnostics refuse: the others are compared, and pages say why it is not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs

from mechanisms.errors import DrawsRefused
from mechanisms.posterior import convergence
from storage.demo_data import write_demo_data
from tasks.auditing.audit_result import AuditResult
from tasks.auditing.findings import lines
from tasks.branches.branch import CompareParameters, choose
from tasks.comparing import report, results, run
from tasks.comparing.assessment import assess
from tasks.comparing.decision import Decision
from tasks.parameters import RetrainParameters
from tasks.running.stage import run_step

SAMPLED = {"kind": "formal-posterior", "draws": 400, "sampler": {"warm_up": 20}}
PAGE: Mapping[str, Any] = {"target": 5.0, "delta": 1e-5, "pictures": {}, "notes": ""}
OWN = {"sampled": {"title": "Sampled", "mechanism": SAMPLED}}


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> RetrainParameters:
    """Invented narratives on the tiny encoder."""
    written = write_demo_data(tmp_path_factory.mktemp("data"), records=200, seed=3)
    data = {"source": str(written.csv), "codelist": str(written.codelist), "population": "demo"}
    model = {"encoder": str(tiny_bert), "trainable": "head", "pooling": "mean", "max_length": 32}
    given: Mapping[str, Any] = {"data": data | {"ingest": {"sampling": "per-record"}}, "model": model}
    return RetrainParameters.model_validate(given)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No draws are ever good enough; Prefect's page is not here."""
    monkeypatch.setattr(report, "_artifacts", lambda *_: None)
    monkeypatch.setattr(convergence, "LARGEST_R_HAT", 0.5)


@pytest.mark.usefixtures("never")
def test_the_others_are_compared_and_the_pages_say_why_one_is_not(
    parameters: RetrainParameters, tmp_path: Path
) -> None:
    """At the target and at a further one; where nothing is left it is an error, as in a retrain."""
    context = tiny_jobs.workspace(tmp_path)
    settings = CompareParameters.model_validate(
        {"target_epsilon": 5, "epsilons": [2], "seeds": 1, "epochs": 1, "branches": OWN}
    )
    compared_with = partial(run.run, context, parameters, settings, do=partial(run_step, context), epsilons=(2,))
    some = choose("non-private,sampled", model=parameters.model, branches=settings.all_branches)
    compared = compared_with(some)
    assert [outcome.branch.name for outcome in compared.outcomes] == ["non-private"]
    assert list(compared.refused) == ["Sampled"]
    assert "split R-hat" in compared.refused["Sampled"]
    assert not compared.further
    page = report.write([Decision.of(compared, assess(compared, {}))])
    for file in (page, page.with_name("decision.html")):
        assert "Sampled is in no table: the sampler" in file.read_text(), file.name
    (alone,) = choose("sampled", model=parameters.model, branches=settings.all_branches)
    told = results.page([], parameters=parameters, settings=settings, **PAGE, refused=["Sampled: its draws disagree"])
    assert "## In no table\n\n- Sampled: its draws disagree\n" in told
    with pytest.raises(DrawsRefused, match="split R-hat"):
        compared_with([alone])


def test_an_audit_names_what_it_could_not_audit() -> None:
    """In its lines."""
    result = AuditResult(branches=(), trials=4, target_epsilon=5, refused={"Sampled": "its draws disagree"})
    assert lines(result) == ["Sampled: not audited, its draws disagree"]
