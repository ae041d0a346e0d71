"""A closer look at a retrain: its finished stages, refits of it, one private page, and a row of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from mechanisms.posterior import checks
from storage.artifacts import ArtifactRef, digest
from storage.errors import InputError
from tasks.branches.swag_chain import chain
from tasks.diagnosing import page, sampler, stages
from tasks.diagnosing.claim import RoundClaim
from tasks.diagnosing.page import Verdict
from tasks.diagnosing.stages import DiagnoseParameters
from tasks.parameters import RetrainParameters
from tasks.releasing import preflight, recorded, rows
from tasks.releasing.claims import method_digest
from tasks.releasing.estimate import Estimate
from tasks.running import timings
from tasks.running.stage import Context, Step

Do = Callable[[Step], ArtifactRef]


class DiagnoseResult(BaseModel, frozen=True):
    """Where the page lies, and its verdicts."""

    report: str
    epsilon: float
    verdicts: dict[str, Verdict]
    figures: dict[str, float]


def refuse_early(context: Context, parameters: RetrainParameters, settings: DiagnoseParameters) -> Estimate:
    """What needs no work to be refused; the command asks it before Prefect's server starts. What the stages would take.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    if parameters.formal is not None:
        sampler.refuse_early(parameters)
    elif settings.leave_out and not parameters.model.linear_head:
        raise InputError("--leave-out: needs model.trainable=head and model.pooling=mean; give --leave-out 0")
    estimate = preflight.check(context, parameters)
    refits = 1 + settings.leave_out if settings.leave_out else 0
    return estimate.with_studies(draws=checks.MOST_VARIANTS * settings.study_draws, refits=refits)


def to_compute(context: Context, parameters: RetrainParameters, settings: DiagnoseParameters) -> list[str]:
    """Labels of the stages that are not finished: of the retrain, of the looks at it, and of its refits."""
    labels: list[str] = []

    def find(step: Step) -> ArtifactRef | None:
        found = step.find(context.store)
        shared = step.label in labels and timings.kind_of(step.label) == "features"  # refits encode nothing anew
        if found is None and not shared:
            labels.append(step.label)
        return found

    fitted = chain(parameters, find)
    found: Any = {"dataset": fitted.dataset, "prepared": fitted.prepared}
    measured: Any = fitted.measured
    posteriors: Any = fitted.posteriors
    find(stages.look(parameters, settings, posteriors=posteriors, measured=measured, **found))
    if settings.leave_out:
        find(stages.leave_out(parameters, settings, measured=measured[parameters.rounds[-1]], **found))
    for changed in _changed(parameters).values() if settings.refits else ():
        chain(changed, find)
    return labels


def diagnose(
    context: Context, parameters: RetrainParameters, settings: DiagnoseParameters, do: Do, *, prefect_run_id: str | None
) -> DiagnoseResult:
    """Reuse what the retrain of these parameters finished (or run it), look at it, and write the page.

    Args:
        parameters: with c and k settled, where a target epsilon leaves them open.
        do: runs a step, or finds it finished.
    """
    if parameters.formal is not None:
        return _sampled(context, parameters, do, prefect_run_id=prefect_run_id)
    fitted = chain(parameters, do)
    posteriors, measured = _finished(fitted.posteriors), _finished(fitted.measured)
    if fitted.dataset is None or fitted.prepared is None:
        raise RuntimeError("a stage left no output")
    common = {"dataset": fitted.dataset, "prepared": fitted.prepared}
    last, store = parameters.rounds[-1], context.store
    looks = [do(stages.look(parameters, settings, posteriors=posteriors, measured=measured, **common))]
    if settings.leave_out:
        looks.append(do(stages.leave_out(parameters, settings, measured=measured[last], **common)))
    claimed = RoundClaim.of(
        store, parameters, dataset=fitted.dataset, posterior=posteriors[last], measured=measured[last]
    )
    refits = _refits(context, parameters, claimed, do) if settings.refits else []
    seen, *left_out = (stages.read(store.open(ref)) for ref in looks)
    sections = page.sections(seen, left_out[0] if left_out else None, refits, claimed)
    key = digest({"refs": [ref.sha256 for ref in looks], "refits": [list(pair) for pair in refits]})[:16]
    file = page.write(context, parameters, sections, claim=claimed.claim, key=key)
    figures = {k: float(v) for ref in looks for k, v in store.figures(ref).items() if isinstance(v, int | float)}
    verdicts: dict[str, Verdict] = {section.key: section.verdict for section in sections}
    rows.record(
        context,
        parameters,
        label=recorded.DIAGNOSED,
        dataset=fitted.dataset,
        refs={ref.kind: ref for ref in looks},
        details=figures | {f"epsilon at {name}": value for name, value in refits} | {"verdicts": verdicts},
        key=f"diagnosed-{parameters.data.population}-{key}",
        settings=method_digest(parameters),
        prefect_run_id=prefect_run_id,
    )
    return DiagnoseResult(report=str(file), epsilon=claimed.epsilon, verdicts=verdicts, figures=figures)


def _sampled(context: Context, parameters: RetrainParameters, do: Do, *, prefect_run_id: str | None) -> DiagnoseResult:
    """Of a formal posterior draw: its sampler."""
    found = sampler.look(
        context, parameters, do, notice=page.NOTICE, label="diagnostics of a retrain", prefect_run_id=prefect_run_id
    )
    return DiagnoseResult(
        report=found.report, epsilon=found.epsilon, verdicts={"sampler": found.verdict}, figures=dict(found.figures)
    )


def _finished(refs: Mapping[str, ArtifactRef | None]) -> dict[str, ArtifactRef]:
    return {name: ref for name, ref in refs.items() if ref is not None}


def _refits(context: Context, parameters: RetrainParameters, claimed: RoundClaim, do: Do) -> list[tuple[str, float]]:
    """Epsilon of whole chains at half and twice the collection's learning rate, and at two other seeds."""
    epsilons = []
    for name, changed in _changed(parameters).items():
        figures = context.store.figures(_finished(chain(changed, do).measured)[changed.rounds[-1]])
        epsilons.append((name, claimed.epsilon_at(float(figures.get("largest_seen", figures["sensitivity"])))))
    return epsilons


def _changed(parameters: RetrainParameters) -> dict[str, RetrainParameters]:
    """The retrain with settings that nobody could justify exactly, changed one at a time."""
    fit, sgd = parameters.fit, parameters.fit.sgd
    changes: dict[str, Mapping[str, object]] = {
        f"SGD rate × {factor:g}": {"sgd": sgd.model_copy(update={"learning_rate": factor * sgd.learning_rate})}
        for factor in (0.5, 2.0)
    }
    changes |= {f"seed + {more}": {"seed": fit.seed + more} for more in (1, 2)}
    return {
        name: parameters.model_copy(update={"fit": fit.model_copy(update=update)}) for name, update in changes.items()
    }
