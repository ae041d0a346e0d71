"""Reads an agency's reported accuracy from the verified files of a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from storage.bundle.folder import ACCURACY
from storage.egress.allow_list import FILES


class Share(TypedDict):
    """A share with its 95 % interval."""

    estimate: float
    low: float
    high: float


class GroupShares(TypedDict):
    """Accuracy of the model on one group of codes."""

    names: list[str]
    share: float
    """Share of all records."""
    right: Share
    among_3_best: Share


class ScoreShare(TypedDict):
    """Accuracy of answers with at least this score, up to the next higher one."""

    score: float
    share: float
    """Share of all answers."""
    right: Share


class ClearScore(ScoreShare):
    up_to: float


class HeldOutRecords(TypedDict):
    dated_from: str | None
    """Day of the first record, if the records are split by date."""
    unit: str


class AccuracyFile(TypedDict):
    """Fields that `accuracy.json` always has. If `stated` is true, it is an `AccuracyFigures`."""

    schema: int
    stated: bool
    test_half: HeldOutRecords


class AccuracyFigures(AccuracyFile):
    """The content of `accuracy.json` if the noise does not hide the accuracy."""

    confidence: float
    records: int
    temperature: float
    right: Share
    among_3_best: Share
    groups: list[GroupShares]
    scores: list[ScoreShare]


NOT_STATED = "the agency states no accuracy"


def stated_accuracy(contents: Mapping[str, Any]) -> AccuracyFigures | None:
    """The content of `accuracy.json`; None if the bundle has none or the noise hides the accuracy.

    Args:
        contents: the bundle's parsed files.
    """
    told = contents.get(ACCURACY)
    return told if told is not None and told["stated"] else None


def read_stated(folder: Path) -> AccuracyFigures | None:
    """Reads `accuracy.json` in a bundle's folder and validates it.

    Raises:
        UnsoundBundle: it has unexpected fields.
    """
    file = folder / ACCURACY
    return stated_accuracy(
        {ACCURACY: FILES[ACCURACY].read(ACCURACY, file)} if file.is_file() else {}
    )


def clear_scores(told: AccuracyFigures) -> list[ClearScore]:
    """The score ranges with enough records, highest first, each with its upper end (`up_to`)."""
    ends = [1.0, *(step["score"] for step in told["scores"])]
    return [
        {**step, "up_to": end}
        for step, end in zip(told["scores"], ends, strict=False)
        if step["share"] >= _LEAST and step["right"]["high"] - step["right"]["low"] <= _WIDEST
    ]


_LEAST, _WIDEST = 0.01, 0.5
"""Minimum share of the records in a score range, and maximum width of its accuracy interval."""


NO_GROUPS = (
    "accuracy by group is not stated: there are too few held-out records of each group for the "
    "noise"
)


def lacks_groups(told: AccuracyFigures) -> bool:
    """Whether the noise hides every group of a code list, so that all are reported as one.

    A list with a single group lacks none.
    """
    groups = told["groups"]
    return not groups or (len(groups) == 1 and len(groups[0]["names"]) > 1)


def errs_in_rare_groups(told: AccuracyFigures) -> bool:
    """Whether the rarest stated group is coded right less often than the most frequent one, so
    clearly that their intervals do not overlap.
    """
    by_share = sorted(told["groups"], key=lambda group: group["share"])
    if not by_share:
        return False
    rarest, commonest = by_share[0], by_share[-1]
    return rarest["right"]["high"] < commonest["right"]["low"]


def accuracy_lines(told: AccuracyFigures | None) -> list[str]:
    """The reported accuracy as sentences, followed by the groups with the lowest accuracy."""
    if told is None:
        return [NOT_STATED]
    day = told["test_half"]["dated_from"]
    whose = "a random share" if day is None else f"dated from {day} on"
    lines = [
        f"the agency states {_share(told['right'])} right and {_share(told['among_3_best'])} among "
        f"the three best, of about {told['records']:,} of its records, {whose} (95% intervals)"
    ]
    groups = told["groups"] if len(told["groups"]) > 1 else []
    for group in sorted(groups, key=lambda one: one["right"]["estimate"])[:_WORST]:
        lines.append(
            f"least often right: {_named(group['names'])}, {_share(group['right'])} of "
            f"{group['share']:.1%} of the records"
        )
    return [*lines, NO_GROUPS] if lacks_groups(told) else lines


_WORST, _NAMED = 2, 3


def _named(names: Sequence[str]) -> str:
    return "; ".join(names) if len(names) <= _NAMED else "all other groups together"


def _share(figure: Share) -> str:
    low, high = 100 * figure["low"], 100 * figure["high"]
    return f"{figure['estimate']:.1%} ({low:.1f} to {high:.1f})"


def difference(
    told: AccuracyFigures | None, right: float, records: int, *, set_aside: int = 0
) -> str:
    """Compares a partner's own accuracy with the reported one; empty if none is reported.

    Args:
        right: share of the partner's own records for which the best code is right.
        records: number of these records.
        set_aside: number of further records, which fitted the temperature of the scores.
    """
    if told is None or not records:
        return ""
    reported = told["right"]
    own_error = (right * (1 - right) / records) ** 0.5
    theirs = (reported["high"] - reported["low"]) / (2 * 1.96)
    deviations = abs(right - reported["estimate"]) / max((own_error**2 + theirs**2) ** 0.5, 1e-9)
    whose = f"{records:,} of your {records + set_aside:,}" if set_aside else f"your {records:,}"
    own_figure = f"the best code is right for {right:.1%} of {whose} records"
    remainder = f". The other {set_aside:,} set the temperature of the scores" if set_aside else ""
    if deviations <= _LIKELY:
        return f"{own_figure}, which agrees with the stated {reported['estimate']:.1%}{remainder}"
    kind = "less" if right < reported["estimate"] else "more"
    return (
        f"{own_figure}, significantly {kind} than the stated {reported['estimate']:.1%}. Your "
        f"records may differ from the agency's, so use your own thresholds{remainder}"
    )


_LIKELY = 1.96
"""Standard deviations that a difference exceeds by chance in 5 % of cases."""
