"""Stage: fits a DP-SGD branch once more with gradient canaries in its sums; only counts remain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechanisms.audit.gradient_canaries import SHARE, GradientCanaries
from mechanisms.mechanism import Mechanism, Records, Run
from mechanisms.model.config import ModelConfig
from mechanisms.model.seeding import generator
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, descent_of
from storage.artifacts import ArtifactRef
from tasks.fitting.fits import plan_of, run_of
from tasks.fitting.model_inputs import load_inputs
from tasks.running.stage import Step, Work


def has_noisy_descent(event: Event) -> bool:
    """Checks that the event contains gradient descent with noise, which gradient canaries need."""
    parts = event.events if isinstance(event, ComposedEvent) else (event,)
    return any(isinstance(part, DpSgdEvent) for part in parts)


def gradients(
    name: str,
    mechanism: Mechanism,
    model: ModelConfig,
    *,
    seed: int,
    canaries: int,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    planned: ArtifactRef,
) -> Step:
    """Declares one more fit of a plan, on the same records and canaries. As a candidate's, its noise has no seed."""

    def body(work: Work) -> Mapping[str, Any]:
        records = Records(*load_inputs(work.inputs["prepared"], "train"))
        given = run_of(work, model, seed)
        head = given.classifier()
        coins = GradientCanaries.toss(
            parameters=head.num_parameters,
            canaries=min(canaries, head.num_parameters // SHARE),
            generator=generator(seed, "audit", "gradient canaries"),
        )
        run = Run(given.classes, seed, lambda: head, progress=work.progress, canaries=coins)
        fitted = plan_of(work.inputs["plan"]).fit(records, run)
        if coins.steps != descent_of(fitted.event).steps:  # the descent of another mechanism, which took no canaries
            return {"coins": 0, "right": 0}
        return {"coins": len(coins.axes), "right": coins.right()}

    return Step(
        name="audit-gradients",
        label=f"gradient canaries ({name})",
        config={"model": model.model_dump(mode="json"), "seed": seed, "canaries": canaries},
        inputs={"dataset": dataset, "prepared": prepared, "plan": planned},
        body=body,
        modules=(type(mechanism).__module__, "tasks.auditing.gradients"),
    )
