"""A closer look at a retrain: its finished stages, refits of it, and one private page. Releases nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict

from flows.retrain import settled
from storage.artifacts import ArtifactRef, digest
from storage.errors import InputError
from tasks.branches.swag_chain import Chain, chain
from tasks.diagnosing import page as diagnostics_page
from tasks.diagnosing import stages
from tasks.diagnosing.claim import RoundClaim
from tasks.diagnosing.page import Verdict
from tasks.diagnosing.stages import DiagnoseParameters
from tasks.parameters import RetrainParameters
from tasks.releasing import prefect_page, preflight, rows
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, submit


class DiagnoseResult(BaseModel):
    """Where the page lies, and its verdicts."""

    model_config = ConfigDict(frozen=True)

    report: str
    epsilon: float
    verdicts: dict[str, Verdict]
    figures: dict[str, float]


@flow(
    name="diagnose",
    description="Look closely at a retrain. Private: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def diagnose(
    parameters: RetrainParameters, settings: DiagnoseParameters, home: str = "workspace", device: str = "auto"
) -> DiagnoseResult:
    """Reuse what the retrain of these parameters finished (or run it), look at it, and write the page.

    Raises:
        InputError: records cannot be left out of this kind of model.
    """
    context = Context(home=str(Path(home).expanduser().resolve()), device=device)
    with private_errors("diagnose"), listening(prefect_page.PrefectListener()):
        refuse_early(context, parameters, settings)
        context.workspace.create()
        parameters = settled(context, parameters)
        made = chain(parameters, lambda step: submit(context, step))
        posteriors, measured = _whole(made.posteriors), _whole(made.measured)
        if made.dataset is None or made.prepared is None:
            raise RuntimeError("a stage left no output")
        common = {"dataset": made.dataset, "prepared": made.prepared}
        last, store = parameters.rounds[-1], context.store
        looked = submit(context, stages.look(parameters, settings, posteriors=posteriors, measured=measured, **common))
        left_out = None
        if settings.leave_out:
            left_out = submit(context, stages.leave_out(parameters, settings, measured=measured[last], **common))
        claimed = RoundClaim.of(
            store, parameters, dataset=made.dataset, posterior=posteriors[last], measured=measured[last]
        )
        refits = _refits(context, parameters, claimed) if settings.refits else []
        sections = diagnostics_page.sections(
            stages.read(store.open(looked)),
            None if left_out is None else stages.read(store.open(left_out)),
            refits,
            claimed,
        )
        refs = [looked] if left_out is None else [looked, left_out]
        key = digest({"refs": [ref.sha256 for ref in refs], "refits": [list(pair) for pair in refits]})[:16]
        file = diagnostics_page.write(context, parameters, sections, claim=claimed.claim, key=key)
        figures = {k: float(v) for ref in refs for k, v in store.figures(ref).items() if isinstance(v, int | float)}
        rows.record(
            context,
            parameters,
            label="diagnostics of a retrain",
            dataset=made.dataset,
            refs={ref.kind: ref for ref in refs},
            details=figures | {f"epsilon at {name}": value for name, value in refits},
            prefect_run_id=str(flow_run.get_id() or "") or None,
        )
        create_markdown_artifact(
            key="diagnostics",
            markdown=f"{diagnostics_page.NOTICE}\n\nThe page: `{file}`",
            description="Where the diagnostics page lies.",
        )
        verdicts: dict[str, Verdict] = {one.key: one.verdict for one in sections}
        return DiagnoseResult(report=str(file), epsilon=claimed.epsilon, verdicts=verdicts, figures=figures)


def refuse_early(context: Context, parameters: RetrainParameters, settings: DiagnoseParameters) -> None:
    """What needs no work to be refused; the command asks it before Prefect's server starts.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    batched = parameters.model.trainable == "head" and parameters.model.pooling == "mean"
    if settings.leave_out and not batched:
        raise InputError("--leave-out: needs model.trainable=head and model.pooling=mean; give --leave-out 0")
    preflight.check(context, parameters)


def _whole(refs: Mapping[str, ArtifactRef | None]) -> dict[str, ArtifactRef]:
    return {name: ref for name, ref in refs.items() if ref is not None}


def _refits(context: Context, parameters: RetrainParameters, claimed: RoundClaim) -> list[tuple[str, float]]:
    """Epsilon of whole chains at half and twice the collection's learning rate, and at two other seeds."""
    fit, found = parameters.fit, []
    rates = [(f"SGD rate × {by:g}", {"sgd": _at_rate(parameters, by)}) for by in (0.5, 2.0)]
    seeds = [(f"seed + {more}", {"seed": fit.seed + more}) for more in (1, 2)]
    for name, update in [*rates, *seeds]:
        changed = parameters.model_copy(update={"fit": fit.model_copy(update=update)})
        made: Chain = chain(changed, lambda step: submit(context, step))
        figures = context.store.figures(_whole(made.measured)[changed.rounds[-1]])
        found.append((name, claimed.epsilon_at(float(figures.get("largest_seen", figures["sensitivity"])))))
    return found


def _at_rate(parameters: RetrainParameters, factor: float) -> object:
    sgd = parameters.fit.sgd
    return sgd.model_copy(update={"learning_rate": factor * sgd.learning_rate})
