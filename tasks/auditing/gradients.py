"""Stage: one more fit of a DP-SGD branch, with gradient canaries in its sums; nothing of it but counts is kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mechanisms import dp_sgd
from mechanisms.audit.gradient_canaries import SHARE, GradientCanaries
from mechanisms.mechanism import Mechanism, Records, Run
from mechanisms.model.classifier import ModelConfig
from mechanisms.model.seeding import generator
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event
from storage.artifacts import ArtifactRef
from tasks.fitting.fits import plan_of, run_of
from tasks.fitting.prepared import load_inputs
from tasks.running.stage import Step, Work


def descends(event: Event) -> bool:
    """Whether gradient descent with noise is in the event: what gradient canaries can be put into."""
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
    """Fit a plan once more, on the same records and canaries. Its noise has no seed, as a candidate's has none."""
    return Step(
        name="audit-gradients",
        label=f"gradient canaries ({name})",
        config={"model": model.model_dump(mode="json"), "seed": seed, "canaries": canaries},
        inputs={"dataset": dataset, "prepared": prepared, "plan": planned},
        body=partial(_gradients, model=model, seed=seed, canaries=canaries),
        modules=(type(mechanism).__module__, "tasks.auditing.gradients"),
    )


def _gradients(work: Work, *, model: ModelConfig, seed: int, canaries: int) -> Mapping[str, Any]:
    records = Records(*load_inputs(work.inputs["prepared"], "train"))
    given = run_of(work, model, seed)
    head = given.classifier()
    coins = GradientCanaries.toss(
        parameters=head.num_parameters,
        canaries=min(canaries, head.num_parameters // SHARE),
        generator=generator(seed, "audit", "gradient canaries"),
    )
    run = Run(given.classes, seed, lambda: head, fields=given.fields, progress=work.progress, canaries=coins)
    fitted = plan_of(work.inputs["plan"]).fit(records, run)
    if coins.steps != dp_sgd.descent_of(fitted.event).steps:  # a descent of another's, which took no canaries
        return {"coins": 0, "right": 0, "right_at_half_noise": 0}
    return {"coins": len(coins.axes), "right": coins.right(), "right_at_half_noise": coins.right(halved=True)}
