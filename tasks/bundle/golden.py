"""Golden answers: titles of the code list with what the released model says of them, for a partner to try its copy on.

They are words of the agency's own task, whatever it is, and already in the bundle.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.bundle.folder import GOLDEN, UnsoundBundle
from storage.codelist import Code

if TYPE_CHECKING:
    from mechanisms.model.export import Released

_COUNT, _SEED, _TOP = 48, 20260103, 3
TOLERANCE = 2e-3
"""Of a probability: float32 sums in another order, on another machine, stay a hundred times below it."""


def texts(codes: Sequence[Code]) -> tuple[str, ...]:
    """Titles, and pairs of them where they are few; the codes where no title is known.

    Drawn from the list alone: they owe nothing to any record.
    """
    titles = list(dict.fromkeys(entry.title.strip() for entry in codes if entry.title.strip()))
    said = titles or [f"code {entry.code}" for entry in codes]
    pick = random.Random(_SEED)
    chosen = pick.sample(said, min(_COUNT, len(said)))
    if len(chosen) < _COUNT:
        pairs = [f"{first}; {second}" for first in said for second in said if first != second]
        chosen += pick.sample(pairs, min(_COUNT - len(chosen), len(pairs)))
    return tuple(chosen)


def public(titles: Collection[str]) -> tuple[str, ...]:
    """What of the golden file is public where these titles are, as it may be read: each between its field names.

    A letter of a name beside a title's first letters would else look like private words that happen to begin so.
    """
    return tuple(f"text {title} codes" for title in titles)


def write(released: Released, codes: Sequence[Code], path: Path) -> None:
    """Write each text with the best codes and their probabilities, one JSON object a line."""
    chosen = texts(codes)
    scores = released.logits(chosen).softmax(-1)
    best = scores.topk(min(_TOP, scores.shape[1]), dim=-1)
    with path.open("w", encoding="utf-8") as file:
        for number, (text, values, places) in enumerate(
            zip(chosen, best.values.tolist(), best.indices.tolist(), strict=True), start=1
        ):
            answer = {
                "id": number,
                "text": text,
                "codes": [released.codes[at] for at in places],
                "scores": [round(value, 6) for value in values],
            }
            file.write(json.dumps(answer, ensure_ascii=False) + "\n")


def check(released: Released, answers: Sequence[dict[str, Any]], *, file: str = GOLDEN) -> None:
    """Code the texts again and compare.

    Args:
        released: of several fields, the one whose answers these are.
        file: that they are from.

    Raises:
        UnsoundBundle: a probability differs by more than `TOLERANCE`, or another code is best by more than that.
    """
    at = {code: place for place, code in enumerate(released.codes)}
    scores = released.logits([answer["text"] for answer in answers]).softmax(-1)
    for row, answer in zip(scores.tolist(), answers, strict=True):
        found = [row[at[code]] for code in answer["codes"]]
        far = max(abs(value - score) for value, score in zip(found, answer["scores"], strict=True))
        if not (far <= TOLERANCE and max(row) - found[0] <= TOLERANCE):  # also where a score is no number
            raise UnsoundBundle(file, f"narrative {answer['id']}: the model answers otherwise")
