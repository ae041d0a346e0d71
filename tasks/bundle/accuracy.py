"""Reports the released model's accuracy to partners, from the noisy table that was drawn with it.

No record is read here. A group of codes is named by the prefix of its codes, and by a title if the
bundle's code list or a published list has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mechanisms.model.config import TARGETS
from mechanisms.model.conformal import COVERAGES
from mechanisms.privacy.accuracy_table import AccuracyTable
from mechanisms.privacy.events import ParallelEvent
from mechanisms.privacy.stated_accuracy import (
    CONFIDENCE,
    GroupAccuracy,
    StatedAccuracy,
    state,
)
from storage.bundle.stated import AccuracyFigures, AccuracyFile, GroupShares, HeldOutRecords
from storage.code_levels import groups
from storage.codelist import Code
from storage.egress.public_lists import is_published
from storage.ingest import IngestConfig

_SIGNS = ".-/ "


@dataclass(frozen=True)
class ToldAccuracy:
    """The accuracy figures of a table; None if its noise hides them."""

    stated: StatedAccuracy | None
    names: tuple[str, ...]
    """Names of the groups of codes."""
    dated_from: str | None
    """First day of the held-out records, if the records are split by date."""
    unit: str
    """Whether each `record` or each `unit` is in one set only."""

    @staticmethod
    def of(
        table: AccuracyTable, event: ParallelEvent, codes: Sequence[Code], ingest: IngestConfig
    ) -> ToldAccuracy:
        accuracy = state(table, event.evaluation, targets=TARGETS, coverages=COVERAGES)
        day = ingest.train_before
        unit = "unit" if event.split == "unit" else "record"
        return ToldAccuracy(accuracy, group_names(codes), None if day is None else str(day), unit)

    def as_json(self) -> AccuracyFile:
        test_half: HeldOutRecords = {"dated_from": self.dated_from, "unit": self.unit}
        if self.stated is None:
            return {"schema": 1, "stated": False, "test_half": test_half}
        return self._figures(self.stated, test_half)

    def _figures(self, stated: StatedAccuracy, test_half: HeldOutRecords) -> AccuracyFigures:
        return {
            "schema": 1,
            "stated": True,
            "test_half": test_half,
            "confidence": CONFIDENCE,
            "records": round(stated.records),
            "temperature": stated.temperature,
            "right": stated.right.as_json(),
            "among_3_best": stated.among_best.as_json(),
            "groups": [self._group(group) for group in stated.groups],
            "scores": list(stated.bins),
        }

    def _group(self, group: GroupAccuracy) -> GroupShares:
        return {
            "names": [self.names[number] for number in group.groups],
            "share": group.share,
            "right": group.right.as_json(),
            "among_3_best": group.among_best.as_json(),
        }


def group_names(codes: Sequence[Code]) -> tuple[str, ...]:
    """Returns a name for each group of a code list, using only codes and published titles."""
    names, group_of = groups(codes)
    members: list[list[Code]] = [[] for _ in names]
    for code, number in zip(codes, group_of, strict=True):
        members[number].append(code)
    if len(names) == 1:
        return ("all codes",)
    titles = {code.code: code.title for code in codes}
    begins = [_common_beginning(group) for group in members]
    return tuple(
        _name(group, begin if begins.count(begin) == 1 else "", titles)
        for group, begin in zip(members, begins, strict=True)
    )


def _common_beginning(group: Sequence[Code]) -> str:
    columns = zip(*(code.code for code in group), strict=False)
    same = takewhile(lambda signs: len(set(signs)) == 1, columns)
    return "".join(signs[0] for signs in same).rstrip(_SIGNS)


def _name(group: Sequence[Code], begin: str, titles: Mapping[str, str]) -> str:
    first, last = group[0].code, group[-1].code
    if not begin:
        return first if first == last else f"{first} to {last}"
    above = {title for code in group for title in code.above}
    siblings = {code.code for code in group if code.title not in above and len(group) > 1}
    for written in _levels_above(begin, first):
        if written in siblings and not begin.startswith(written):
            continue
        # guard: test_a_level_above_that_nobody_published_names_no_group
        found = titles.get(written) or _published_title(written, group)
        if found:
            return f"{written} {found}"
    return begin


def _levels_above(begin: str, code: str) -> Iterator[str]:
    """Yields possible names of a level above a code, the most detailed first: the prefix of the
    codes, or the prefix padded with zeros.
    """
    for end in range(len(begin), 0, -1):
        yield begin[:end]
        yield begin[:end] + re.sub(r"[0-9]", "0", code[end:])


def _published_title(written: str, group: Sequence[Code]) -> str:
    above = dict.fromkeys(title for code in group for title in code.above)
    return next((title for title in above if is_published(Code(written, title))), "")
