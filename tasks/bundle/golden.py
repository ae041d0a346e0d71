"""Writes and checks test vectors: the released model's codes for titles of the code list, which
test a partner's copy.

The titles belong to the agency's task and are already in the bundle.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.model.scorer import GRAPH, INT8, LABELS, Graph, Scorer, softmax
from storage.bundle.folder import GOLDEN, UnsoundBundle
from storage.errors import Missing
from tasks.bundle.tokenizer import check_tokenizer
from tasks.running import installation

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.model.export import Released
    from storage.codelist import Code
    from storage.egress.allow_list import GoldenAnswer

_COUNT, _SEED, _TOP = 48, 20260103, 3
TOLERANCE = 2e-3
"""Tolerance of a probability. Float32 sums in another order on another machine differ by a
hundredth of it.
"""


def texts(codes: Sequence[Code]) -> tuple[str, ...]:
    """Returns titles, or pairs of them if there are few, or the codes if there are no titles.

    They come only from the code list and depend on no record.
    """
    titles = list(dict.fromkeys(entry.title.strip() for entry in codes if entry.title.strip()))
    phrases = titles or [f"code {entry.code}" for entry in codes]
    pick = random.Random(_SEED)
    chosen = pick.sample(phrases, min(_COUNT, len(phrases)))
    if len(chosen) < _COUNT:
        pairs = [f"{first}; {second}" for first in phrases for second in phrases if first != second]
        chosen += pick.sample(pairs, min(_COUNT - len(chosen), len(pairs)))
    return tuple(chosen)


def answers_text(
    released: Released,
    codes: Sequence[Code],
    *,
    score: Callable[[Released, Sequence[str]], Tensor] | None = None,
) -> str:
    """Returns each text with the best codes and their probabilities, one JSON object per line.

    Args:
        score: computes the model's scores of texts; by default with the model's encoder.
    """
    chosen = texts(codes)
    scores = (released.logits(chosen) if score is None else score(released, chosen)).softmax(-1)
    best = scores.topk(min(_TOP, scores.shape[1]), dim=-1)
    lines = []
    for number, (text, values, places) in enumerate(
        zip(chosen, best.values.tolist(), best.indices.tolist(), strict=True), start=1
    ):
        answer: GoldenAnswer = {
            "id": number,
            "text": text,
            "codes": [released.codes[place] for place in places],
            "scores": [round(value, 6) for value in values],
        }
        lines.append(json.dumps(answer, ensure_ascii=False) + "\n")
    return "".join(lines)


def check(scorer: Scorer, answers: Sequence[GoldenAnswer]) -> None:
    """Codes the texts again and compares the results.

    Raises:
        UnsoundBundle: a probability differs by more than `TOLERANCE`, or another code is better by
            more than that.
    """
    place = {code: number for number, code in enumerate(scorer.codes)}
    scores = softmax(np.asarray(scorer.logits([answer["text"] for answer in answers])))
    for row, answer in zip(scores.tolist(), answers, strict=True):
        probabilities = [row[place[code]] for code in answer["codes"]]
        far = max(
            abs(value - score) for value, score in zip(probabilities, answer["scores"], strict=True)
        )
        if not (
            far <= TOLERANCE and max(row) - probabilities[0] <= TOLERANCE
        ):  # also true if a score is NaN
            raise UnsoundBundle(
                GOLDEN,
                f"narrative {answer['id']}: the model gives a different answer",
                kind="answer-differs",
            )


def check_answers(
    bundle: Path, contents: Mapping[str, Any], *, required: bool = False
) -> int | None:
    """Loads a bundle's graph, or its model if it has no graph, checks the test vectors, and returns
    their number.

    Returns None if there is no graph and the extra `train`, which loads the model, is not
    installed.

    Args:
        contents: the bundle's files, parsed.

    Raises:
        UnsoundBundle: model, graphs or tokenizer cannot be loaded, or the model gives a different
            answer.
        InputError: the answers are required and cannot be computed here.
    """
    with_graph = (bundle / GRAPH).is_file()
    if not with_graph and (
        absent := [name for name in ("torch", "transformers") if find_spec(name) is None]
    ):
        if required:
            raise Missing(
                f"--golden: this bundle has no {GRAPH}. {installation.refusal(absent)}",
                kind="no-graph",
            )
        return None
    check_tokenizer(bundle, [answer["text"] for answer in contents[GOLDEN]])
    name = GRAPH if with_graph else LABELS if (bundle / LABELS).is_file() else "config.json"
    # on a malformed model libraries may raise any exception
    try:
        if with_graph:
            scorer: Scorer = Graph.load(bundle)
            if (bundle / INT8).is_file():
                name = INT8
                Graph.load(bundle, int8=True)
        else:
            from mechanisms.model import export

            scorer = export.load(bundle)
    except Exception as error:
        raise UnsoundBundle(
            name,
            f"the model cannot be loaded with it ({type(error).__name__})",
            kind="model-does-not-load",
        ) from None
    try:
        check(scorer, contents[GOLDEN])
    except UnsoundBundle:
        raise
    except Exception as error:
        raise UnsoundBundle(
            GOLDEN,
            f"the model cannot answer ({type(error).__name__})",
            kind="model-does-not-answer",
        ) from None
    return len(contents[GOLDEN])
