"""The diagnostics page: one self-contained private file, written for a review board and not for a statistician."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from storage.artifacts import write_atomically
from tasks.diagnosing import figures
from tasks.diagnosing.claim import RoundClaim
from tasks.pages.html import STYLE, html_table, own_ids
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
    made = [] if left_out is None else [_left_out(left_out, claimed)]
    made += [_fit_gap(rounds, last), _variance(rounds, last), _running(rounds, last), _studies(seen, refits, claimed)]
    made += [_deltas(rounds, claimed), _weights(rounds, last)]
    return made


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
    context: Context,
    parameters: RetrainParameters,
    made: Sequence[Section],
    *,
    epsilon: float,
    key: str,
) -> Path:
    """Write the page into the private workspace; return the file."""
    folder = context.workspace.private / "diagnostics" / key
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.html", page(parameters, made, epsilon=epsilon).encode())
    return folder / "report.html"


_OWN_STYLE = """
.v{display:inline-block;border:2px solid;padding:.05rem .5rem;border-radius:.3rem;font-weight:600;white-space:nowrap}
.v.warning{background:var(--warn);border-color:#d55e00}section{break-inside:avoid}figcaption{color:#1b1b1b;
font-size:13px;padding:.2rem .4rem}h2{margin-top:2.2rem}td{white-space:normal;text-align:left}
"""


def page(parameters: RetrainParameters, made: Sequence[Section], *, epsilon: float) -> str:
    """The HTML. Nothing in it comes from another file or address."""
    source, config = provenance(), parameters.pseudo_posterior
    about = (
        f"Population {parameters.data.population}; mechanism {config.mechanism}; seed {parameters.fit.seed}; claimed "
        f"ε {epsilon:.4g} (asymptotic-local); code {source.code_commit[:12]}"
        f"{' with changes' if source.code_dirty else ''}."
    )
    summary = html_table((["question", "answer"], [[one.question, _MARK[one.verdict]] for one in made]))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Diagnostics (private)</title><style>{STYLE}{_OWN_STYLE}</style>",
        f"<h1>Diagnostics of a retrain</h1><p class=warn role=note><strong>{html.escape(NOTICE)}</strong></p>",
        f"<p>{html.escape(about)}</p>",
        "<p>A claim of this kind rests on assumptions. Each question below looks at one of them. None of it changes "
        "the claim; a warning is a reason to ask before anything is released.</p>",
        summary,
    ]
    for one in made:
        text = html.escape
        parts.append(
            f"<section><h2>{text(one.question)}</h2><p><span class='v {one.verdict}'>{_MARK[one.verdict]}</span> "
            f"{text(one.answer)}</p><figure role=img aria-label='{one.key}'>{own_ids(one.picture, one.key)}"
            f"<figcaption>{text(one.caption)}</figcaption></figure></section>"
        )
    return "\n".join([*parts, "</html>"])
