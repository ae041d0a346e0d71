"""Tests on the test vectors of a bundle whether its graph in eight bits codes as the one in
float32.
"""

import json
import math
from pathlib import Path

import numpy as np

from mechanisms.model.scorer import Graph, lead_of, margin_errors
from storage.bundle.folder import GOLDEN

WIDEST, SHARE = 0.5, 1 / 4
"""Difference of logits above which eight bits would need too many repeats in float32; or, of a head
whose logits are large, its share of the usual lead of the best code.
"""
_MARGIN = 1.5
"""Of the largest error that is seen: other texts have larger ones."""


def near_tie(graph: Graph, folder: Path) -> float | None:
    """Returns the gap of the two best logits below which a text is scored again in float32; None:
    use float32 alone.

    None if a test vector that is no such near tie gets another code than in float32, if the gap
    would be too wide, and if the test vectors cannot be read.
    """
    assert graph.exact is not None
    try:
        answers = [
            json.loads(line) for line in (folder / GOLDEN).read_text(encoding="utf-8").splitlines()
        ]
        texts = [str(answer["text"]) for answer in answers]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not texts:
        return None
    rounded, exact = graph.rounded(texts), graph.exact.logits(texts)
    gap = math.ceil(100 * _MARGIN * float(margin_errors(rounded, exact).max())) / 100
    lead, _ = lead_of(rounded)
    surely = lead >= gap
    same = bool((rounded.argmax(1) == exact.argmax(1))[surely].all())
    return gap if same and gap <= max(WIDEST, SHARE * float(np.median(lead))) else None
