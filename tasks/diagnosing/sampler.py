"""A closer look at a formal posterior draw: had its chains reached the posterior, as the claim assumes?

The fit was refused already if its diagnostics spoke against it; the page says by how much they did not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mechanisms.mechanism import kinds
from mechanisms.posterior import convergence
from storage.artifacts import ArtifactRef
from storage.durable import write_atomically
from storage.errors import InputError
from tasks.branches import formal
from tasks.diagnosing import figures
from tasks.pages.render import render
from tasks.parameters import RetrainParameters
from tasks.releasing import rows
from tasks.releasing.claims import method_digest
from tasks.running.provenance import provenance
from tasks.running.stage import Context, Step

_NEAR = 1.1
"""A diagnostic with less room than this to its limit is to be looked at."""


@dataclass(frozen=True)
class Look:
    """Where the page lies, its verdict, and the figures."""

    report: str
    epsilon: float
    verdict: Literal["fine", "look"]
    figures: Mapping[str, float]


def refuse_early(parameters: RetrainParameters) -> None:
    """What has no sampler to look at.

    Raises:
        InputError: the formal branch draws from no posterior.
    """
    branch, _ = formal.branch_of(parameters)
    if "sampler" not in type(branch.mechanism).model_fields:
        drawn = ", ".join(kind for kind, mechanism in kinds().items() if "sampler" in mechanism.model_fields)
        raise InputError(
            f"formal.branch: {branch.name} draws from no posterior, and its claim rests on none; `autocoder audit` "
            f"measures it, and diagnose looks at SWAG-PPM and at {drawn}"
        )


def look(
    context: Context,
    parameters: RetrainParameters,
    do: Callable[[Step], ArtifactRef],
    *,
    notice: str,
    label: str,
    prefect_run_id: str | None,
) -> Look:
    """Reuse the fit of these parameters (or run it), and write one private page on its sampler.

    Args:
        notice: what the page begins with. label: of the ledger's row.

    Raises:
        MechanismError: the diagnostics fail: nothing is released from such a fit either.
    """
    study, outcome = formal.run(context, parameters, do)
    found = context.store.figures(outcome.fitted)
    told = {name: float(found[name]) for name in convergence.FIGURES}
    room = rooms(told)
    verdict = "look" if min(room.values()) < _NEAR else "fine"
    folder = context.workspace.private / "diagnostics" / outcome.fitted.sha256[:16]
    folder.mkdir(parents=True, exist_ok=True)
    page = render(
        "sampler.html",
        notice=notice,
        parameters=parameters,
        branch=outcome.branch,
        claim=outcome.claim,
        source=provenance(),
        verdict=verdict,
        limits=convergence,
        found=told,
        picture=figures.rooms(room),
    )
    write_atomically(folder / "report.html", page.encode())
    rows.record(
        context,
        parameters,
        label=label,
        dataset=study.dataset,
        refs={"fit": outcome.fitted},
        details=told | {"verdicts": {"sampler": verdict}},
        settings=method_digest(parameters),
        prefect_run_id=prefect_run_id,
    )
    return Look(str(folder / "report.html"), outcome.claim.epsilon or 0.0, verdict, told)


def rooms(found: Mapping[str, Any]) -> dict[str, float]:
    """How many times each diagnostic could be worse before the fit would have been refused; at least 1 of each."""
    return {
        "split R-hat, above 1": (convergence.LARGEST_R_HAT - 1) / max(found["r_hat"] - 1, 1e-6),
        "effective draws, bulk": found["ess_bulk"] / convergence.SMALLEST_ESS,
        "effective draws, tails": found["ess_tail"] / convergence.SMALLEST_ESS,
        "acceptance": found["acceptance"] / convergence.SMALLEST_ACCEPTANCE,
    }
