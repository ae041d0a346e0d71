"""Tests on the golden answers of a bundle whether its model codes in bfloat16 as in float32."""

from __future__ import annotations

import json
import math
from pathlib import Path

from mechanisms.model.export import NEAR_TIE, Released, lead_of, margin_errors
from storage.bundle.folder import GOLDEN

NEAR = 0.02
"""Difference of probabilities below which rounding may swap two codes."""

WIDEST, SHARE = 0.5, 1 / 8
"""Difference of logits above which bfloat16 would need too many repeats in float32; or, of a head whose logits are
large, its share of the usual lead of the best code."""


def near_tie(released: Released, folder: Path) -> float | None:
    """Returns the gap of the two best logits below which a text is scored again in float32; None: use float32 alone.

    The gap is the largest rounding error between two codes of a golden text, in steps of 0.01 and at least `NEAR_TIE`:
    heads with larger weights have larger logits and errors. A code that still differs is a near tie in float32.
    Returns None if a golden text gets another code than in float32, if the error exceeds both `WIDEST` and `SHARE`,
    and if the golden answers cannot be read.
    """
    try:
        lines = (folder / GOLDEN).read_text(encoding="utf-8").splitlines()
        answers = [json.loads(line) for line in lines]
        expected = [dict(zip(answer["codes"], answer["scores"], strict=True)) for answer in answers]
        texts = [str(answer["text"]) for answer in answers]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not expected:
        return None
    logits = released.logits(texts)
    best, lead = logits.argmax(-1).tolist(), float(lead_of(logits)[0].median())
    moved = float(margin_errors(released, texts).max())
    holds = moved <= max(WIDEST, SHARE * lead) and all(
        max(scores.values()) - scores.get(released.codes[at], 0.0) <= NEAR
        for at, scores in zip(best, expected, strict=True)
    )
    return max(NEAR_TIE, math.ceil(100 * moved) / 100) if holds else None
