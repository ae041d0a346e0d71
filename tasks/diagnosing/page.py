"""The diagnostics page: one self-contained private file, written for a review board and not for a statistician."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from mechanisms.privacy.events import Claim
from storage.durable import write_atomically
from tasks.diagnosing import figures
from tasks.diagnosing.claim import RoundClaim
from tasks.pages.render import render
from tasks.parameters import RetrainParameters
from tasks.running.provenance import provenance
from tasks.running.stage import Context

NOTICE = (
    "Private. This page is computed from the records without protection and its plots show single records. It stays in "
    "the private workspace: do not publish it, print it for others or pass it on."
)
Verdict = Literal["fine", "look", "warning"]
_GAP, _FEW, _COVERED, _RISE = 0.25, 0.01, 0.8, 1.1
"""Where a verdict turns: nats of over-fit, share of parameters, coverage of a 95 % interval, rise of Delta."""


@dataclass(frozen=True)
class Section:
    """One question of the page: its verdict, the figures in its answer's words, and the plot behind them."""

    key: str
    verdict: Verdict
    figures: Mapping[str, Any]
    picture: str


def sections(
    seen: Mapping[str, Any],
    left_out: Mapping[str, Any] | None,
    refits: Sequence[tuple[str, float]],
    claimed: RoundClaim,
) -> list[Section]:
    """The page's questions, most telling first."""
    rounds, last = seen["rounds"], seen["rounds"][seen["released_from"]]
    return [
        *([] if left_out is None else [_left_out(left_out, claimed)]),
        _fit_gap(rounds, last),
        _coverage(rounds, last),
        _running(rounds, last),
        _studies(seen, refits, claimed),
        Section("deltas", "fine", {"most": claimed.claim.max_records_per_unit}, figures.deltas(rounds)),
        _weights(rounds, last),
    ]


def _left_out(found: Mapping[str, Any], claimed: RoundClaim) -> Section:
    own = found["own_loss"]
    worst = max(range(len(own)), key=own.__getitem__)
    told = {
        "records": len(own),
        "riskiest": found["riskiest"],
        "above": sum(value > claimed.sensitivity for value in own),
        "sensitivity": claimed.sensitivity,
        "median": median(own),
        "most": max(own),
        "density": median(found["density_loss"]),
        "worst": {name: found[name][worst] for name in ("with_mean", "with_std", "without_mean", "without_std")},
    }
    return Section("left-out", "warning" if told["above"] else "fine", told, figures.left_out(found))


def _fit_gap(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    train, test = -last["train_log_likelihood"], -last["test_log_likelihood"]
    wide = test - train > _GAP
    told = {"train": train, "test": test, "wide": wide}
    return Section("fit-gap", "warning" if wide else "fine", told, figures.fit_gap(rounds))


def _coverage(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    still, covered = last["share_without_variance"], last["coverage"]
    told, bad = {"still": still, "inside": None}, still > _FEW
    if covered is not None:
        inside = covered["directions"][covered["nominal"].index(0.95)]
        told |= {"inside": inside, "drift": covered["drift"]}
        bad = bad or inside < _COVERED
    return Section("coverage", "warning" if bad else "fine", told, figures.coverage(rounds))


def _running(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    tail, values, bound = last["tail"], last["running"], last["bound"]
    rising = tail is None or tail["expected"] > _RISE * values[-1]
    told = {"tail": tail, "draws": len(values), "largest": values[-1], "bound": bound}
    return Section("running", "look" if rising and bound is None else "fine", told, figures.running(rounds))


def _studies(seen: Mapping[str, Any], refits: Sequence[tuple[str, float]], claimed: RoundClaim) -> Section:
    values = [claimed.epsilon_at(value) for _, value in [*seen["scales"], *seen["ranks"]]]
    values += [value for _, value in refits]
    told = {"least": min(values), "most": max(values), "claimed": claimed.epsilon, "refits": bool(refits)}
    far = told["most"] > 1.25 * claimed.epsilon or told["least"] < 0.8 * claimed.epsilon
    return Section("studies", "look" if far else "fine", told, figures.studies(seen, refits, claimed.epsilon_at))


def _weights(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    rare, *_, common = last["mean_weight"]
    told = {"rare": rare, "common": common}
    return Section("weights", "look" if rare < 0.8 * common else "fine", told, figures.weights(rounds))


def write(
    context: Context, parameters: RetrainParameters, answers: Sequence[Section], *, claim: Claim, key: str
) -> Path:
    """Write the page into the private workspace; return the file."""
    folder = context.workspace.private / "diagnostics" / key
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.html", page(parameters, answers, claim=claim).encode())
    return folder / "report.html"


def page(parameters: RetrainParameters, answers: Sequence[Section], *, claim: Claim) -> str:
    """The HTML. Nothing in it comes from another file or address."""
    return render(
        "diagnostics.html",
        notice=NOTICE,
        parameters=parameters,
        claim=claim,
        source=provenance(),
        sections=answers,
    )
