"""Diagnoses a formal posterior draw: had its chains reached the posterior, as the claim assumes?

A fit with failing diagnostics was refused already; the page shows the margin of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechanisms.mechanism import kinds
from mechanisms.posterior import convergence
from storage.errors import InputError
from storage.ledger import Diagnostics
from tasks.branches import formal
from tasks.branches.experiment import Do
from tasks.diagnosing import figures
from tasks.diagnosing.page import NOTICE, DiagnoseResult, Verdict, save
from tasks.pages.render import render
from tasks.parameters import RetrainParameters
from tasks.releasing import ledger_records
from tasks.releasing.claims import method_digest
from tasks.running.provenance import provenance
from tasks.running.stage import Context

_NEAR = 1.1
"""Margin below which a diagnostic is to be investigated."""


def refuse_early(parameters: RetrainParameters) -> None:
    """Refuses a formal branch that draws from no posterior, and so has no sampler."""
    branch, _ = formal.formal_branch(parameters)
    if "sampler" not in type(branch.mechanism).model_fields:
        drawn = ", ".join(kind for kind, mechanism in kinds().items() if "sampler" in mechanism.model_fields)
        raise InputError(
            f"formal.branch: {branch.name} draws from no posterior, so that diagnose does not apply. "
            f"Measure it with `autocoder audit`; diagnose applies to SWAG-PPM and to {drawn}."
        )


def diagnose(context: Context, parameters: RetrainParameters, do: Do, *, prefect_run_id: str | None) -> DiagnoseResult:
    """Reuses the fit of these parameters (or runs it), and writes one private page on its sampler.

    Raises:
        MechanismError: the diagnostics fail; such a fit is not released either.
    """
    study, outcome = formal.run(context, parameters, do)
    fit_figures = context.store.figures(outcome.fitted)
    diagnostics = {name: float(fit_figures[name]) for name in convergence.FIGURES}
    margin = margins(diagnostics)
    verdict: Verdict = "investigate" if min(margin.values()) < _NEAR else "fine"
    page = render(
        "sampler.html",
        notice=NOTICE,
        parameters=parameters,
        branch=outcome.branch,
        claim=outcome.claim,
        source=provenance(),
        verdict=verdict,
        limits=convergence,
        diagnostics=diagnostics,
        picture=figures.margins(margin),
    )
    report = save(context, page, key=outcome.fitted.sha256[:16])
    ledger_records.record_evaluation(
        context,
        parameters,
        subject=Diagnostics(),
        dataset=study.dataset,
        refs={"fit": outcome.fitted},
        details=diagnostics | {"verdicts": {"sampler": verdict}},
        settings=method_digest(parameters),
        prefect_run_id=prefect_run_id,
    )
    return DiagnoseResult(
        report=report, epsilon=outcome.claim.epsilon or 0.0, verdicts={"sampler": verdict}, figures=diagnostics
    )


def margins(diagnostics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the factor by which each diagnostic could be worse before the fit is refused; at least 1."""
    return {
        "split R-hat, above 1": (convergence.LARGEST_R_HAT - 1) / max(diagnostics["r_hat"] - 1, 1e-6),
        "effective draws, bulk": diagnostics["ess_bulk"] / convergence.SMALLEST_ESS,
        "effective draws, tails": diagnostics["ess_tail"] / convergence.SMALLEST_ESS,
        "acceptance": diagnostics["acceptance"] / convergence.SMALLEST_ACCEPTANCE,
    }
