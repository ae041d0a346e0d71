"""Reads what an agency states about a bundle's accuracy, from its files as they were checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from storage.bundle.folder import ACCURACY
from storage.egress.allow_list import FILES


class Share(TypedDict):
    """A share with the ends of its 95 % interval."""

    estimate: float
    low: float
    high: float


class GroupShares(TypedDict):
    """How often the model is right on one group of codes."""

    names: list[str]
    share: float
    """Of the records."""
    right: Share
    among_3_best: Share


class ScoreShare(TypedDict):
    """How often answers from a score on are right, up to the next higher one."""

    score: float
    share: float
    """Of the answers."""
    right: Share


class ClearScore(ScoreShare):
    up_to: float


class HeldOutRecords(TypedDict):
    dated_from: str | None
    """Day from which the records are, where the halves are split by date."""
    unit: str


class AccuracyFile(TypedDict):
    """Fields of `accuracy.json` that it always has; where `stated`, it is `AccuracyFigures`."""

    schema: int
    stated: bool
    test_half: HeldOutRecords


class AccuracyFigures(AccuracyFile):
    """The content of `accuracy.json` where the noise does not hide the accuracy."""

    confidence: float
    records: int
    temperature: float
    right: Share
    among_3_best: Share
    groups: list[GroupShares]
    scores: list[ScoreShare]


NOT_STATED = "the agency states no accuracy"


def stated_accuracy(contents: Mapping[str, Any]) -> AccuracyFigures | None:
    """Returns the content of `accuracy.json`; None where the bundle has none or its noise hides it.

    Args:
        contents: the bundle's files, parsed.
    """
    told = contents.get(ACCURACY)
    return told if told is not None and told["stated"] else None


def read_stated(folder: Path) -> AccuracyFigures | None:
    """Reads `accuracy.json` of a bundle's folder, by its schema.

    Raises:
        UnsoundBundle: it has other fields.
    """
    file = folder / ACCURACY
    return stated_accuracy(
        {ACCURACY: FILES[ACCURACY].read(ACCURACY, file)} if file.is_file() else {}
    )


def clear_scores(told: AccuracyFigures) -> list[ClearScore]:
    """Returns the steps of scores that enough records have, with the end of each (`up_to`), the
    highest first.
    """
    ends = [1.0, *(one["score"] for one in told["scores"])]
    return [
        {**one, "up_to": end}
        for one, end in zip(told["scores"], ends, strict=False)
        if one["share"] >= _LEAST and one["right"]["high"] - one["right"]["low"] <= _WIDEST
    ]


_LEAST, _WIDEST = 0.01, 0.5
"""Share of the records of a step, and the width of its interval."""


NO_GROUPS = (
    "accuracy by group is not stated: the test half has too few records of each group for the noise"
)


def lacks_groups(told: AccuracyFigures) -> bool:
    """Checks whether the noise hides every group of a code list, so that all are told as one.

    A list that has one group only lacks none.
    """
    groups = told["groups"]
    return not groups or (len(groups) == 1 and len(groups[0]["names"]) > 1)


def accuracy_lines(told: AccuracyFigures | None) -> list[str]:
    """Returns what is stated in sentences, the groups that the model is worst at last."""
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
    """Returns how a partner's own accuracy compares with what is stated; empty where it is not.

    Args:
        right: share of the partner's own records with the right best code.
        records: how many these are.
        set_aside: how many more the partner has, by which the temperature of the scores was fitted.
    """
    if told is None or not records:
        return ""
    stated = told["right"]
    own = (right * (1 - right) / records) ** 0.5
    theirs = (stated["high"] - stated["low"]) / (2 * 1.96)
    deviations = abs(right - stated["estimate"]) / max((own**2 + theirs**2) ** 0.5, 1e-9)
    whose = f"{records:,} of your {records + set_aside:,}" if set_aside else f"your {records:,}"
    own_figure = f"the best code is right for {right:.1%} of {whose} records"
    others = f". The other {set_aside:,} set the temperature of the scores" if set_aside else ""
    if deviations <= _LIKELY:
        return f"{own_figure}, which agrees with the stated {stated['estimate']:.1%}{others}"
    kind = "less" if right < stated["estimate"] else "more"
    return (
        f"{own_figure}, significantly {kind} than the stated {stated['estimate']:.1%}. Your "
        f"records may differ from the agency's, so use your own thresholds{others}"
    )


_LIKELY = 1.96
"""Standard deviations that a difference has by chance, in 95 of 100 cases."""
