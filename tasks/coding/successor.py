"""Compares a bundle with a possible successor, on coded and uncoded records, for the person who
decides.

On coded records both models answer the same records. The difference in correct answers has a paired
bootstrap interval, and McNemar's exact test (1947) uses the records that only one of them has
right. Tests by code or group are adjusted together (Holm 1979). On uncoded records the comparison
shows which answers change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.model.calibration import autocoded_shares
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.scorer import Scores
from storage.errors import Contradiction, Missing
from storage.json_values import Json
from storage.spelling import human_codes
from storage.tables.narratives import Narratives
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import pieces, survey
from tasks.coding.coder import Coder
from tasks.pages.render import render
from tasks.running import progress

_RESAMPLES = 2000
_FEWEST = 10
"""Fewest coded records of a code or group for a test."""
_ERROR_RATE = 0.05
_FLOWS = 25


@dataclass(frozen=True)
class Answers:
    old: NDArray[np.str_]
    new: NDArray[np.str_]
    right: NDArray[np.str_]
    """The codes in the table; empty if it has no code column."""
    groups: NDArray[np.str_]
    alone: tuple[dict[str, float], dict[str, float]]
    """Shares that the old and the new model can code without a person, as in `autocoded_shares`;
    empty without codes.
    """


@dataclass(frozen=True)
class Difference:
    name: str
    records: int
    old: float
    new: float
    low: float
    high: float
    """Upper end of the 95% paired bootstrap interval of new - old."""
    chance: float
    """p-value of McNemar's exact test, adjusted if there are several tests."""

    @property
    def verdict(self) -> str:
        if self.records < _FEWEST or self.chance > _ERROR_RATE:
            return "not shown"
        return "better" if self.new > self.old else "worse"


def difference(name: str, old: NDArray[np.bool_], new: NDArray[np.bool_]) -> Difference:
    """Compares two models by whether their answer to each record is right."""
    from scipy.stats import binomtest

    records, lost, won = len(old), int((old & ~new).sum()), int((new & ~old).sum())
    shares = np.array([lost, won, records - lost - won]) / records
    drawn = np.random.default_rng(0).multinomial(
        records, shares, _RESAMPLES
    )  # resampled pairs, of three kinds
    low, high = np.percentile((drawn[:, 1] - drawn[:, 0]) / records, [2.5, 97.5])
    chance = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
    return Difference(
        name, records, float(old.mean()), float(new.mean()), float(low), float(high), chance
    )


def differences(
    names: NDArray[np.str_], old: NDArray[np.bool_], new: NDArray[np.bool_]
) -> list[Difference]:
    """Returns the difference for every name, the most frequent first. p-values are adjusted by
    Holm's step-down method.
    """
    by_name = [
        difference(str(name), old[names == name], new[names == name]) for name in np.unique(names)
    ]
    tested = sorted(
        (entry for entry in by_name if entry.records >= _FEWEST), key=lambda entry: entry.chance
    )
    adjusted, highest = {}, 0.0
    for place, entry in enumerate(tested):
        highest = max(highest, min(1.0, entry.chance * (len(tested) - place)))
        adjusted[entry.name] = highest
    by_name = [replace(entry, chance=adjusted.get(entry.name, 1.0)) for entry in by_name]
    return sorted(by_name, key=lambda entry: (-entry.records, entry.name))


@dataclass(frozen=True)
class Succession:
    old: str
    new: str
    overall: Difference
    codes: list[Difference]
    groups: list[Difference]
    work: list[tuple[str, float, float]]
    """Accuracy, and the share of records that the old and the new model can code
    without a person at it.
    """
    records: int
    """Number of uncoded records, on which the next fields are based."""
    agreement: float
    counts: list[tuple[str, int, int]]
    """Code, records of the old and of the new model; the largest change first."""
    flows: list[tuple[str, str, int]]
    """Old code, new code, records; the largest first."""

    @property
    def sentence(self) -> str:
        overall = self.overall
        worse = [code.name for code in self.codes if code.verdict == "worse"]
        main = {
            "better": "The new model is better",
            "worse": "The new model is worse",
            "not shown": "No significant difference",
        }[overall.verdict]
        codes = f" It is worse at {len(worse)} codes: {', '.join(worse[:8])}." if worse else ""
        return (
            f"{main}: {overall.new:.1%} of {overall.records:,} coded records right, "
            f"{overall.old:.1%} before (difference "
            f"{100 * overall.low:+.1f} to {100 * overall.high:+.1f} points, p = "
            f"{overall.chance:.3g}).{codes} They agree on "
            f"{self.agreement:.1%} of {self.records:,} records without codes."
        )

    def as_dict(self) -> dict[str, Json]:
        verdicts = {"verdict": self.overall.verdict, "sentence": self.sentence}
        by_code = {"codes": [asdict(entry) | {"verdict": entry.verdict} for entry in self.codes]}
        return asdict(self) | verdicts | by_code

    def page(self) -> str:
        head = ["records", "old right", "new right", "difference, 95% interval", "p", "new model"]
        return render(
            "successor.html",
            notice="Internal: it counts your records by code. Do not publish it or pass it on.",
            succession=self,
            by_code=(["code", *head], [_row(entry) for entry in self.codes]),
            by_group=(["group", *head], [_row(entry) for entry in self.groups]),
            work=(
                ["accuracy", "old codes alone", "new codes alone"],
                [
                    [accuracy, f"{before:.0%}", f"{after:.0%}"]
                    for accuracy, before, after in self.work
                ],
            ),
            counts=(
                ["code", "old", "new", "change"],
                [[code, f"{a:,}", f"{b:,}", f"{b - a:+,}"] for code, a, b in self.counts if a != b],
            ),
            flows=(
                ["old code", "new code", "records"],
                [[a, b, f"{count:,}"] for a, b, count in self.flows],
            ),
        )


def _row(entry: Difference) -> list[str]:
    tested = entry.records >= _FEWEST
    interval = (
        f"{100 * (entry.new - entry.old):+.1f} ({100 * entry.low:+.1f} to {100 * entry.high:+.1f})"
    )
    figures = [
        f"{entry.records:,}",
        f"{entry.old:.1%}",
        f"{entry.new:.1%}",
        interval if tested else "too few",
    ]
    return [entry.name, *figures, f"{entry.chance:.3g}" if tested else "–", entry.verdict]


def answers(
    old: Coder,
    new: Coder,
    data: Path,
    narratives: Narratives,
    *,
    option: str,
    label: str = "",
    by: str = "",
    allow_unlisted: bool = False,
    read: ReadOptions = AS_IT_LOOKS,
    report: Callable[[str], object] = lambda sentence: None,
) -> Answers:
    """Codes a table with both models. Skips rows without a text, and rows without a
    code if there is a code column.
    """
    columns = [*narratives.columns, *filter(None, (label, by))]
    table = survey(data, text_columns=columns, option=option, read=read)
    labels: list[str] = []
    if label:
        cells = (cell for (cell,) in table.text_rows([label]))
        listed = set(old.model.codes) | set(new.model.codes)
        place = f"{option}: {data}, column {label!r}"
        labels, people = human_codes(
            cells, listed, place=place, allowed=allow_unlisted, marks=read.missing
        )
        report(people)
    scores_of_old: list[Scores] = []
    scores_of_new: list[Scores] = []
    right: list[str] = []
    groups: list[str] = []
    done = 0
    for piece in pieces(table.text_rows(columns), columns=len(columns)):
        texts = narratives.texts([row[: len(narratives.columns)] for row in piece])
        codes = labels[done : done + len(piece)] if label else [""] * len(piece)
        group_cells = [row[-1] for row in piece] if by else [""] * len(piece)
        usable_texts: list[str] = []
        for text, code, group in zip(texts, codes, group_cells, strict=True):
            if text.strip() and (code or not label):
                usable_texts.append(text)
                right.append(code)
                groups.append(group)
        scores_of_old.append(old.scores(usable_texts))
        scores_of_new.append(new.scores(usable_texts))
        done += len(piece)
        progress.report("successor", done, table.rows)
    if not right:
        wanted = "a text and a code" if label else "a text"
        raise Missing(
            f"{option}: {data} has no row with {wanted}.", kind="no-usable-rows", option=option
        )
    by_old, by_new = np.concatenate(scores_of_old), np.concatenate(scores_of_new)
    return Answers(
        _best_codes(old, by_old),
        _best_codes(new, by_new),
        np.array(right),
        np.array(groups),
        (
            _autocoded_shares(old, by_old, right),
            _autocoded_shares(new, by_new, right),
        ),
    )


def _best_codes(coder: Coder, scores: Scores) -> NDArray[np.str_]:
    return np.array([coder.model.codes[place] for place in scores.argmax(-1).tolist()])


def _autocoded_shares(coder: Coder, scores: Scores, right: Sequence[str]) -> dict[str, float]:
    """Returns the shares that could be coded without a person; empty if no record
    has a code that the model knows.
    """
    places = {code: place for place, code in enumerate(coder.model.codes)}
    labels = torch.tensor([places.get(code, -1) for code in right])
    if not bool((labels >= 0).any()):
        return {}
    return autocoded_shares(FeatureInputs(torch.from_numpy(scores).double().log()), labels)


def compare(old: str, new: str, labelled: Answers, unlabelled: Answers) -> Succession:
    """Compares the answers of both models, which are identified by name."""
    right = [answer == labelled.right for answer in (labelled.old, labelled.new)]
    before, after = Counter(unlabelled.old.tolist()), Counter(unlabelled.new.tolist())
    moved = Counter(
        (a, b)
        for a, b in zip(unlabelled.old.tolist(), unlabelled.new.tolist(), strict=True)
        if a != b
    )
    counts = [(code, before[code], after[code]) for code in sorted(before.keys() | after.keys())]
    grouped = differences(labelled.groups, *right) if labelled.groups.any() else []
    shares = [
        (f"{name.removeprefix('coverage_at_')}%", labelled.alone[0][name], share)
        for name, share in labelled.alone[1].items()
        if name.startswith("coverage_at_") and name in labelled.alone[0]
    ]
    return Succession(
        old=old,
        new=new,
        overall=difference("all", *right),
        codes=differences(labelled.right, *right),
        groups=grouped,
        work=shares,
        records=len(unlabelled.old),
        agreement=float((unlabelled.old == unlabelled.new).mean()),
        counts=sorted(counts, key=lambda row: -abs(row[2] - row[1])),
        flows=[(a, b, count) for (a, b), count in moved.most_common(_FLOWS)],
    )


def require_same_classification(old: Coder, new: Coder) -> None:
    if old.classification != new.classification:
        raise Contradiction(
            f"NEW: it codes {new.classification}, but OLD codes "
            f"{old.classification}. Compare bundles of one classification.",
            kind="another-classification",
        )
