"""Whether a released model codes in bfloat16 as it does in float32, tried on the golden answers of its bundle."""

from __future__ import annotations

import json
from pathlib import Path

from mechanisms.model.export import NEAR_TIE, Released, margin_errors
from storage.bundle.folder import GOLDEN

NEAR = 0.02
"""Of a probability: of codes that lie closer than this, rounding may put either first."""


def agrees(released: Released, folder: Path) -> bool:
    """Whether the model, in the precision that it is set to, gives the golden texts the codes of float32.

    A narrative whose two best codes are a near tie may get either. And rounding must move no distance between two codes
    by more than twice what counts as a near tie and is looked at again in float32: a code that differs all the same is
    then a near tie in float32. A bundle without golden answers agrees with nothing.
    """
    try:
        lines = (folder / GOLDEN).read_text(encoding="utf-8").splitlines()
        answers = [json.loads(line) for line in lines]
        known = [dict(zip(answer["codes"], answer["scores"], strict=True)) for answer in answers]
        texts = [str(answer["text"]) for answer in answers]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if not known:
        return False
    best = released.logits(texts).argmax(-1).tolist()
    narrow = float(margin_errors(released, texts).max()) <= 2 * NEAR_TIE
    return narrow and all(
        max(scores.values()) - scores.get(released.codes[at], 0.0) <= NEAR
        for at, scores in zip(best, known, strict=True)
    )
