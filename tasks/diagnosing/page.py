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
_MARK = {"fine": "✓ fine", "look": "● look at this", "warning": "▲ warning"}
_GAP, _FEW, _COVERED, _RISE = 0.25, 0.01, 0.8, 1.1
"""Where a verdict turns: nats of over-fit, share of parameters, coverage of a 95 % interval, rise of Delta."""


@dataclass(frozen=True)
class Section:
    """One question, its answer in words, and the plot behind it."""

    key: str
    question: str
    verdict: Verdict
    answer: str
    caption: str
    picture: str


def sections(
    seen: Mapping[str, Any],
    left_out: Mapping[str, Any] | None,
    refits: Sequence[tuple[str, float]],
    claimed: RoundClaim,
) -> list[Section]:
    """The page's questions, most telling first."""
    rounds, last = seen["rounds"], seen["rounds"][seen["released_from"]]
    answers = [] if left_out is None else [_left_out(left_out, claimed)]
    answers += [
        _fit_gap(rounds, last),
        _variance(rounds, last),
        _running(rounds, last),
        _studies(seen, refits, claimed),
    ]
    answers += [_deltas(rounds, claimed), _weights(rounds, last)]
    return answers


def _left_out(found: Mapping[str, Any], claimed: RoundClaim) -> Section:
    own, density = found["own_loss"], found["density_loss"]
    above = sum(value > claimed.sensitivity for value in own)
    worst = max(range(len(own)), key=lambda i: found["own_loss"][i])
    return Section(
        "left-out",
        "Can somebody tell from the released model whether one person's record was used?",
        "warning" if above else "fine",
        f"{len(own)} records were left out one at a time ({found['riskiest']} of them the riskiest, the others at "
        f"random) and the last fit was made again, with the same seed and weights. For {above} of them what one draw "
        "says of the record alone gives away more than the claim allows when one record is left out (Δ = "
        f"{claimed.sensitivity:.2f} nats): {median(own):,.0f} nats for the median record, {max(own):,.0f} at most. To "
        f"somebody who reads every parameter and knows all other records and the seed, {_words(median(density))} nats "
        f"in the median. An example: with one record in training a draw gave its code a log-likelihood of "
        f"{found['with_mean'][worst]:.2f} ± {found['with_std'][worst]:.2f}, without it "
        f"{found['without_mean'][worst]:.2f} ± {found['without_std'][worst]:.2f}.",
        "Each column is one record. Where dots and triangles are further apart than their bars are long, one draw "
        "tells whether the record was used. The claim takes the SWAG posterior for the true one; this plot does not. "
        "An outsider who does not know the seed sees less than this: the audit measures that.",
        figures.left_out(found),
    )


def _words(value: float) -> str:
    return f"{value:,.0f}" if abs(value) < 1e6 else f"about {value:.0e}"


def _fit_gap(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    train, test = -last["train_log_likelihood"], -last["test_log_likelihood"]
    gap = test - train
    return Section(
        "fit-gap",
        "Has the model learned its records by heart?",
        "warning" if gap > _GAP else "fine",
        f"Records it was trained on surprise it by {train:.2f} nats on average, records it never saw by {test:.2f}: "
        f"{'a wide' if gap > _GAP else 'a narrow'} gap of {gap:.2f}. A wide gap makes ε look small, because ε is "
        "measured on the very records that the model knows.",
        "Bars of one round should be about as high as each other. Fewer epochs narrow the gap.",
        figures.fit_gap(rounds),
    )


def _variance(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    still, covered = last["share_without_variance"], last["coverage"]
    words = f"{still:.0%} of the parameters have no randomness at all: they leave the house exactly as trained. "
    bad = still > _FEW
    if covered is not None:
        inside = covered["directions"][covered["nominal"].index(0.95)]
        bad = bad or inside < _COVERED
        words += (
            f"A Gaussian from the first half of the training path should hold 95 % of the second half; it holds "
            f"{inside:.0%}. The path moved by {covered['drift']:.1f} times its own spread between the halves."
        )
    return Section(
        "coverage",
        "Is the SWAG posterior a posterior?",
        "warning" if bad else "fine",
        words,
        "Lines below the diagonal: training was still moving when the posterior was collected, so that it says where "
        "the optimiser was, and is too narrow. The claim is conditional on this posterior.",
        figures.coverage(rounds),
    )


def _running(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    tail, top = last["tail"], last["running"][-1]
    if tail is None:
        verdict, words = "look", "Too few draws were taken (below 50) to say how the maximum would grow with more."
    else:
        verdict = "look" if tail["expected"] > _RISE * top else "fine"
        words = (
            f"Over {len(last['running'])} draws Δ is {top:.3f}. Over {tail['draws']:,} it would be about "
            f"{tail['expected']:.3f} (90 % interval {tail['low']:.3f} to {tail['high']:.3f}). A fresh draw exceeds "
            f"what was seen with probability {tail['failure_probability']:.2%} by this fit (at most "
            f"{tail['failure_high']:.2%} at 95 % confidence), {tail['plain']:.2%} without any assumption."
        )
    if last["bound"] is not None:
        words += f" No draw can exceed {last['bound']:.3g}: the likelihood is bounded by construction."
        verdict = "fine"
    return Section(
        "running",
        "Would more draws have given a larger ε?",
        verdict,
        words,
        "A curve still rising at the right means that too few draws were taken.",
        figures.running(rounds),
    )


def _studies(seen: Mapping[str, Any], refits: Sequence[tuple[str, float]], claimed: RoundClaim) -> Section:
    epsilon, studied = claimed.epsilon, [value for _, value in [*seen["scales"], *seen["ranks"]]]
    values = [claimed.epsilon_at(value) for value in studied] + [value for _, value in refits]
    missing = "" if refits else " Other learning rates and seeds were not tried (--no-refits)."
    return Section(
        "studies",
        "How much does ε depend on settings that nobody could justify exactly?",
        "look" if max(values) > 1.25 * epsilon or min(values) < 0.8 * epsilon else "fine",
        f"One setting changed at a time, ε lies between {min(values):.2f} and {max(values):.2f}; claimed is "
        f"{epsilon:.2f}.{missing}",
        "SWAG scale and rank are changed at the last round's weights, with fewer draws; learning rates and seeds rerun "
        "the whole chain. A setting that moves ε a lot is a setting that the claim rests on.",
        figures.studies(seen, refits, claimed.epsilon_at),
    )


def _deltas(rounds: Mapping[str, Any], claimed: RoundClaim) -> Section:
    most = claimed.claim.max_records_per_unit or 1
    unit = "" if most == 1 else f", for each of the {most} records that a unit may have"
    return Section(
        "deltas",
        "Which share of the records sets ε?",
        "fine",
        f"ε is twice the highest point of the last round's curve{unit}; every other record has less. The weights cut "
        "the right end of the base round's curve down; reweighting raises what lies below the cap towards it.",
        "All training records, sorted. A curve that touches its cap only at the far right leaves most records far "
        "below the claim.",
        figures.deltas(rounds),
    )


def _weights(rounds: Mapping[str, Any], last: Mapping[str, Any]) -> Section:
    rare, common = last["mean_weight"][0], last["mean_weight"][3]
    return Section(
        "weights",
        "Who pays for the protection?",
        "look" if rare < 0.8 * common else "fine",
        f"Records of the rarest quarter of codes keep {rare:.0%} of their influence on average, those of the commonest "
        f"quarter {common:.0%}.",
        "Low bars at the left: rare injuries are taught less, and are coded worse for it.",
        figures.weights(rounds),
    )


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
        marks=_MARK,
        summary=(["question", "answer"], [[one.question, _MARK[one.verdict]] for one in answers]),
        sections=answers,
    )
