"""Writes the diagnostics page: one self-contained private file, for a review board rather than a statistician."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel

from mechanisms.privacy.events import Claim, Event
from storage.durable import write_atomically
from tasks.diagnosing import figures
from tasks.pages.render import render
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import claim_at
from tasks.running.provenance import provenance
from tasks.running.stage import Context

NOTICE = (
    "Private. This page is computed from the records without protection and its plots show single records. It stays in "
    "the private workspace: do not publish it, print it for others or pass it on."
)
Verdict = Literal["fine", "investigate", "warning"]
_GAP, _FEW, _COVERED, _RISE = 0.25, 0.01, 0.8, 1.1
"""Limits of the verdicts: nats of over-fit, share of parameters, coverage of a 95 % interval, rise of Delta."""


class DiagnoseResult(BaseModel, frozen=True):
    """Holds the path of the page, and its verdicts."""

    report: str
    epsilon: float
    verdicts: dict[str, Verdict]
    figures: dict[str, float]


@dataclass(frozen=True)
class RoundClaim:
    """Holds the event of the released round and its claim for a unit of records."""

    event: Event
    claim: Claim

    @property
    def epsilon(self) -> float:
        """Returns epsilon of a unit, in nats."""
        return self.claim.epsilon or 0.0

    @property
    def sensitivity(self) -> float:
        """Returns the sensitivity Delta of one record, in nats, by the claim."""
        return self.claim.sensitivity or 0.0

    def epsilon_at(self, sensitivity: float) -> float:
        """Returns epsilon of a unit at another sensitivity."""
        return claim_at(sensitivity, self.event, self.claim).epsilon or 0.0


@dataclass(frozen=True)
class Section:
    """Holds one question of the page: verdict, figures of the answer, and plot."""

    key: str
    verdict: Verdict
    figures: Mapping[str, Any]
    picture: str


def sections(
    checks: Mapping[str, Any],
    left_out: Mapping[str, Any] | None,
    refits: Sequence[tuple[str, float]],
    claimed: RoundClaim,
) -> list[Section]:
    """Returns the page's questions, the most important first."""
    rounds, last = checks["rounds"], checks["rounds"][checks["released_from"]]
    return [
        *([] if left_out is None else [_left_out(left_out, claimed)]),
        _fit_gap(rounds, last),
        _coverage(rounds, last),
        _running(rounds, last),
        _studies(checks, refits, claimed),
        Section("deltas", "fine", {"most": claimed.claim.max_records_per_unit}, figures.deltas(rounds)),
        _weights(rounds, last),
    ]


def _left_out(effects: Mapping[str, Any], claimed: RoundClaim) -> Section:
    losses = effects["own_loss"]
    worst = max(range(len(losses)), key=losses.__getitem__)
    answer = {
        "records": len(losses),
        "riskiest": effects["riskiest"],
        "above": sum(value > claimed.sensitivity for value in losses),
        "sensitivity": claimed.sensitivity,
        "median": median(losses),
        "most": max(losses),
        "density": median(effects["density_loss"]),
        "worst": {name: effects[name][worst] for name in ("with_mean", "with_std", "without_mean", "without_std")},
    }
    return Section("left-out", "warning" if answer["above"] else "fine", answer, figures.left_out(effects))


def _fit_gap(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    train, test = -last["train_log_likelihood"], -last["test_log_likelihood"]
    wide = test - train > _GAP
    answer = {"train": train, "test": test, "wide": wide}
    return Section("fit-gap", "warning" if wide else "fine", answer, figures.fit_gap(rounds))


def _coverage(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    still, covered = last["share_without_variance"], last["coverage"]
    answer, bad = {"still": still, "inside": None}, still > _FEW
    if covered is not None:
        inside = covered["directions"][covered["nominal"].index(0.95)]
        answer |= {"inside": inside, "drift": covered["drift"]}
        bad = bad or inside < _COVERED
    return Section("coverage", "warning" if bad else "fine", answer, figures.coverage(rounds))


def _running(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    tail, values = last["tail"], last["running"]
    rising = tail is None or tail["expected"] > _RISE * values[-1]
    answer = {"tail": tail, "draws": len(values), "largest": values[-1]}
    return Section("running", "investigate" if rising else "fine", answer, figures.running(rounds))


def _studies(checks: Mapping[str, Any], refits: Sequence[tuple[str, float]], claimed: RoundClaim) -> Section:
    values = [claimed.epsilon_at(value) for _, value in [*checks["scales"], *checks["ranks"]]]
    values += [value for _, value in refits]
    answer = {"least": min(values), "most": max(values), "claimed": claimed.epsilon, "refits": bool(refits)}
    far = answer["most"] > 1.25 * claimed.epsilon or answer["least"] < 0.8 * claimed.epsilon
    return Section(
        "studies", "investigate" if far else "fine", answer, figures.studies(checks, refits, claimed.epsilon_at)
    )


def _weights(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    rare, *_, common = last["mean_weight"]
    answer = {"rare": rare, "common": common}
    return Section("weights", "investigate" if rare < 0.8 * common else "fine", answer, figures.weights(rounds))


def save(context: Context, text: str, *, key: str) -> str:
    """Writes a page into the private workspace; returns the file's path."""
    file = context.workspace.private / "diagnostics" / key / "report.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text.encode())
    return str(file)


def page(parameters: RetrainParameters, answers: Sequence[Section], *, claim: Claim) -> str:
    """Returns the HTML, which refers to no other file or address."""
    source = provenance()
    return render(
        "diagnostics.html", notice=NOTICE, parameters=parameters, claim=claim, source=source, sections=answers
    )
