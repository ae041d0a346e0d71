"""Checks with a bundle's test vectors whether its graph in eight bits gives the
same codes as the one in float32.
"""

import json
import math
from pathlib import Path

import numpy as np

from mechanisms.model.scorer import Graph, lead_of, margin_errors
from storage.bundle.folder import GOLDEN

WIDEST, SHARE = 0.5, 1 / 4
"""Logit gap above which eight bits would need too many repeats in float32. For a head with large
logits, the limit is this share of the best code's usual lead.
"""
_MARGIN = 1.5
"""Factor on the largest observed error, because other texts may have larger errors."""


def near_tie(graph: Graph, folder: Path) -> float | None:
    """Returns the gap between the two best logits below which a text is scored again in float32.
    None means that only float32 is used.

    It is None if a test vector that is not a near tie gets another code than in float32, if the gap
    would be too wide, or if the test vectors cannot be read.
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
