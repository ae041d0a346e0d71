"""Diagnoses a retrain: reads its finished stages, refits it, writes one private page and a row of the ledger."""

from __future__ import annotations

from collections.abc import Mapping

from mechanisms.posterior import checks
from storage.artifacts import ArtifactRef, digest
from storage.errors import InputError
from storage.ledger import Diagnostics
from tasks.branches.experiment import Do
from tasks.branches.swag_chain import run_chain
from tasks.diagnosing import page, stages
from tasks.diagnosing.page import DiagnoseResult, RoundClaim, Verdict
from tasks.diagnosing.stages import DiagnoseParameters
from tasks.parameters import RetrainParameters
from tasks.releasing import ledger_records, preflight
from tasks.releasing.claims import method_digest
from tasks.releasing.preflight import Estimate
from tasks.running import timings
from tasks.running.stage import Context, Step


def refuse_early(context: Context, parameters: RetrainParameters, settings: DiagnoseParameters) -> Estimate:
    """Refuses what needs no computation, before Prefect's server starts; returns the estimate of the stages.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    if parameters.formal is not None:
        raise InputError(
            f"formal.branch: {parameters.formal.branch} draws from no posterior, so that diagnose does not apply. "
            "Measure it with `autocoder audit`; diagnose applies to SWAG-PPM."
        )
    if settings.leave_out and not parameters.model.linear_head:
        raise InputError("--leave-out needs model.trainable=head and model.pooling=mean. Give --leave-out 0.")
    estimate = preflight.check(context, parameters)
    refits = 1 + settings.leave_out if settings.leave_out else 0
    return estimate.with_studies(draws=checks.MOST_VARIANTS * settings.study_draws, refits=refits)


def to_compute(context: Context, parameters: RetrainParameters, settings: DiagnoseParameters) -> list[str]:
    """Lists labels of the unfinished stages: of the retrain, of its diagnostics, and of its refits."""
    labels: list[str] = []

    def find(step: Step) -> ArtifactRef | None:
        output = step.find(context.store)
        shared = step.label in labels and timings.kind_of(step.label) == "features"  # refits reuse the features
        if output is None and not shared:
            labels.append(step.label)
        return output

    fitted = run_chain(parameters, find)
    find(stages.posterior_checks(parameters, settings, fitted))
    if settings.leave_out:
        find(stages.leave_out(parameters, settings, fitted))
    for changed in _changed(parameters).values() if settings.refits else ():
        run_chain(changed, find)
    return labels


def diagnose(
    context: Context, parameters: RetrainParameters, settings: DiagnoseParameters, do: Do, *, prefect_run_id: str | None
) -> DiagnoseResult:
    """Reuses the retrain of these parameters (or runs it), diagnoses it, and writes the page.

    A target epsilon that leaves c and k open has been settled before.
    """
    fitted, store = run_chain(parameters, do), context.store
    assert fitted.dataset is not None
    outputs = [do(stages.posterior_checks(parameters, settings, fitted))]
    if settings.leave_out:
        outputs.append(do(stages.leave_out(parameters, settings, fitted)))
    claimed = RoundClaim(*fitted.claim(store, parameters, parameters.rounds[-1]))
    refits = _refits(context, parameters, claimed, do) if settings.refits else []
    checked, *left_out = (stages.read(store.open(ref)) for ref in outputs)
    sections = page.sections(checked, left_out[0] if left_out else None, refits, claimed)
    key = digest({"refs": [ref.sha256 for ref in outputs], "refits": [list(pair) for pair in refits]})[:16]
    report = page.save(context, page.page(parameters, sections, claim=claimed.claim), key=key)
    figures = {k: float(v) for ref in outputs for k, v in store.figures(ref).items() if isinstance(v, int | float)}
    verdicts: dict[str, Verdict] = {section.key: section.verdict for section in sections}
    ledger_records.record_evaluation(
        context,
        parameters,
        subject=Diagnostics(refits=len(refits)),
        dataset=fitted.dataset,
        refs={ref.kind: ref for ref in outputs},
        details=figures | {f"epsilon at {name}": value for name, value in refits} | {"verdicts": verdicts},
        key=f"diagnosed-{parameters.data.population}-{key}",
        settings=method_digest(parameters),
        prefect_run_id=prefect_run_id,
    )
    return DiagnoseResult(report=report, epsilon=claimed.epsilon, verdicts=verdicts, figures=figures)


def _refits(context: Context, parameters: RetrainParameters, claimed: RoundClaim, do: Do) -> list[tuple[str, float]]:
    """Returns epsilon of whole chains at half and twice the collection's learning rate, and at two other seeds."""
    epsilons = []
    for name, changed in _changed(parameters).items():
        measured = run_chain(changed, do).measured[changed.rounds[-1]]
        assert measured is not None
        figures = context.store.figures(measured)
        epsilons.append((name, claimed.epsilon_at(float(figures.get("largest_seen", figures["sensitivity"])))))
    return epsilons


def _changed(parameters: RetrainParameters) -> dict[str, RetrainParameters]:
    """Returns the retrain with settings that cannot be justified exactly, changed one at a time."""
    fit, sgd = parameters.fit, parameters.fit.sgd
    changes: dict[str, Mapping[str, object]] = {
        f"SGD rate × {factor:g}": {"sgd": sgd.model_copy(update={"learning_rate": factor * sgd.learning_rate})}
        for factor in (0.5, 2.0)
    }
    changes |= {f"seed + {more}": {"seed": fit.seed + more} for more in (1, 2)}
    return {
        name: parameters.model_copy(update={"fit": fit.model_copy(update=update)}) for name, update in changes.items()
    }
