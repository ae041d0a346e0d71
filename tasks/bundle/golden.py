"""Golden answers: generated narratives with what the released model says of them, for a partner to try its copy on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.bundle.folder import GOLDEN, UnsoundBundle
from storage.demo_data import narratives

if TYPE_CHECKING:
    from mechanisms.model.export import Released

_COUNT, _SEED, _TOP = 48, 20260103, 3
TOLERANCE = 2e-3
"""Of a probability: float32 sums in another order, on another machine, stay a hundred times below it."""


@cache
def texts() -> tuple[str, ...]:
    """The narratives: the same in every bundle, and they owe nothing to any record."""
    return tuple(narratives(_COUNT, seed=_SEED))


def public() -> tuple[str, ...]:
    """What of the golden file is public, as it may be read: the narratives in a row, and each between its field names.

    A letter of a name beside a narrative's first letters would else look like private words that happen to begin so.
    """
    return (*texts(), *(f"text {text} codes" for text in texts()))


def write(released: Released, path: Path) -> None:
    """Write each narrative with the best codes and their probabilities, one JSON object a line."""
    scores = released.logits(texts()).softmax(-1)
    best = scores.topk(min(_TOP, scores.shape[1]), dim=-1)
    with path.open("w", encoding="utf-8") as file:
        for number, (text, values, places) in enumerate(
            zip(texts(), best.values.tolist(), best.indices.tolist(), strict=True), start=1
        ):
            answer = {
                "id": number,
                "text": text,
                "codes": [released.codes[at] for at in places],
                "scores": [round(value, 6) for value in values],
            }
            file.write(json.dumps(answer, ensure_ascii=False) + "\n")


def check(released: Released, answers: Sequence[dict[str, Any]]) -> None:
    """Code the narratives again and compare.

    Raises:
        UnsoundBundle: a probability differs by more than `TOLERANCE`, or another code is best by more than that.
    """
    at = {code: place for place, code in enumerate(released.codes)}
    scores = released.logits([answer["text"] for answer in answers]).softmax(-1)
    for row, answer in zip(scores.tolist(), answers, strict=True):
        found = [row[at[code]] for code in answer["codes"]]
        far = max(abs(value - score) for value, score in zip(found, answer["scores"], strict=True))
        if not (far <= TOLERANCE and max(row) - found[0] <= TOLERANCE):  # also where a score is no number
            raise UnsoundBundle(GOLDEN, f"narrative {answer['id']}: the model answers otherwise")
