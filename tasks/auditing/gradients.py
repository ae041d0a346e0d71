"""Stage: fits a plan once more with canary records and inspects every noisy sum. Only counts and
p-values are kept.
"""

from mechanisms.audit.gradient_canaries import GradientCanaries
from mechanisms.mechanism import Mechanism, Records, Run
from mechanisms.model.config import ModelConfig
from mechanisms.model.seeding import generator
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, descent_of
from storage.artifacts import ArtifactRef
from storage.json_values import Figures
from tasks.fitting.fits import plan_of, run_of
from tasks.fitting.model_inputs import load_inputs
from tasks.running.stage import Step, Work

KIND = "gradient canaries"


def has_noisy_descent(event: Event) -> bool:
    parts = event.events if isinstance(event, ComposedEvent) else (event,)
    return any(isinstance(part, DpSgdEvent) for part in parts)


def gradients(
    name: str,
    mechanism: Mechanism,
    model: ModelConfig,
    event: Event,
    *,
    seed: int,
    canaries: int,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    planned: ArtifactRef,
) -> Step:
    """Declares another fit of a plan, on the same records and canaries. Like the candidate's, its
    noise has no seed.
    """

    def body(work: Work) -> Figures:
        fit_run = run_of(work, model, seed)
        witness = GradientCanaries.toss(
            load_inputs(work.inputs["prepared"], "train"),
            descent_of(event),
            classes=fit_run.classes,
            canaries=canaries,
            generator=generator(seed, "audit", "gradient canaries"),
        )
        run = Run(
            fit_run.classes,
            seed,
            fit_run.classifier,
            progress=work.progress,
            witness=witness,
            resampled=True,
        )
        plan_of(work.inputs["plan"]).fit(Records(*witness.fitted), run)
        if witness.steps != len(witness.stated):  # the mechanism's fit exposes no noisy sums
            return {"coins": 0, "right": 0, "checks": {}}
        checks = {check.value: p_value for check, p_value in witness.checks().items()}
        return {"coins": len(witness.included), "right": witness.right(), "checks": checks}

    return Step(
        name="audit-gradients",
        label=f"{KIND} ({name})",
        config={
            "model": model.model_dump(mode="json"),
            "seed": seed,
            "canaries": canaries,
            "event": event.model_dump(mode="json"),
        },
        inputs={"dataset": dataset, "prepared": prepared, "plan": planned},
        body=body,
        modules=(type(mechanism).__module__, "tasks.auditing.gradients"),
    )
