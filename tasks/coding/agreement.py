"""Whether a released model codes in bfloat16 as it does in float32, tried on the golden answers of its bundle."""

from __future__ import annotations

import json
import math
from pathlib import Path

from mechanisms.model.export import NEAR_TIE, Released, margin_errors
from storage.bundle.folder import GOLDEN

NEAR = 0.02
"""Of a probability: of codes that lie closer than this, rounding may put either first."""

WIDEST = 0.5
"""Of a logit: where rounding moves two codes by more than this, bfloat16 is not worth its second looks."""


def near_tie(released: Released, folder: Path) -> float | None:
    """How close the two best logits may be for the text to be scored again in float32; None: code in float32 alone.

    It is the most that rounding moves two codes of a golden text towards each other or apart, in steps of 0.01 and
    never below `NEAR_TIE`: heads of larger weights have larger logits, and larger errors of them. A code that differs
    all the same is then a near tie in float32. None where a golden text, in the precision that the model is set to,
    gets another code than float32's, where rounding is wider than `WIDEST`, and where no golden answers can be read.
    """
    try:
        lines = (folder / GOLDEN).read_text(encoding="utf-8").splitlines()
        answers = [json.loads(line) for line in lines]
        known = [dict(zip(answer["codes"], answer["scores"], strict=True)) for answer in answers]
        texts = [str(answer["text"]) for answer in answers]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not known:
        return None
    best = released.logits(texts).argmax(-1).tolist()
    moved = float(margin_errors(released, texts).max())
    holds = moved <= WIDEST and all(
        max(scores.values()) - scores.get(released.codes[at], 0.0) <= NEAR
        for at, scores in zip(best, known, strict=True)
    )
    return max(NEAR_TIE, math.ceil(100 * moved) / 100) if holds else None
