"""Follows the epsilon of an event over delta, by the accountants that state claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mechanisms.errors import MechanismError
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import Event

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)


@dataclass(frozen=True)
class CostPoint:
    """Holds the epsilon of one privacy unit at a delta; None where no finite one holds."""

    delta: float
    epsilon: float | None
    epsilon_replaced: float | None


def cost_curve(event: Event, deltas: Sequence[float], *, records_per_unit: int = 1) -> list[CostPoint]:
    """Returns a point at each delta, the largest delta first."""
    points = []
    for delta in sorted(set(deltas), reverse=True):
        claim = claim_of(
            event,
            delta=delta,
            privacy_unit="unit",
            max_records_per_unit=records_per_unit,
            unprotected_inputs=(),
        )
        if claim.guarantee_kind != "formal":
            raise MechanismError(f"`{event.mechanism}` makes no formal claim, so its epsilon does not follow delta")
        points.append(CostPoint(delta, claim.epsilon, claim.epsilon_replaced))
    return points


def plot(points: Sequence[CostPoint], path: Path, *, marked: CostPoint | None) -> None:
    """Draws both epsilons over delta, and the point of a plan."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, colour in (("epsilon", "#1d4ed8"), ("epsilon_replaced", "#6b7280")):
        label = {"epsilon": "added or removed", "epsilon_replaced": "replaced"}[name]
        held = [(point.delta, getattr(point, name)) for point in points if getattr(point, name) is not None]
        axes.plot([delta for delta, _ in held], [epsilon for _, epsilon in held], "o-", label=label, color=colour)
    if marked is not None and marked.epsilon is not None:
        text = f"the plan: ε {marked.epsilon:.4g}, δ {marked.delta:g}"
        axes.annotate(text, (marked.delta, marked.epsilon), xytext=(0, -18), textcoords="offset points")
    axes.set(xscale="log", xlabel="δ", ylabel="ε of one privacy unit", ylim=(0, None))
    axes.invert_xaxis()
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
