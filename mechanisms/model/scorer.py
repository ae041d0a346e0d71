"""Scores narratives with the graph of a released folder, using only onnxruntime."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

GRAPH, INT8 = "model.onnx", "model.int8.onnx"
LABELS = "labels.json"
"""File with the codes in the order of the scores, for layouts in which no transformers
configuration lists them.
"""
MOST_CHARACTERS = 1 << 15
"""Number of characters of a text that are read, many times the length of an encoder's tokens of
prose.
"""
Numbers = Literal["float32", "int8"]
Scores = NDArray[np.float32]


class Scorer(Protocol):
    @property
    def codes(self) -> tuple[str, ...]: ...
    @property
    def precision(self) -> Numbers: ...
    @property
    def near_tie(self) -> float: ...
    def logits(self, texts: Sequence[str]) -> Any:
        """Scores float32 [n, codes], in the order of the texts."""
        ...


@dataclass(frozen=True)
class Graph:
    """A graph in onnxruntime. Each text is a separate batch on one core, and several texts run in
    parallel.

    The scores of a text therefore depend only on that text, bit for bit, whatever else is scored
    and on any number of cores.
    """

    session: Any
    codes: tuple[str, ...]
    precision: Numbers = "float32"
    near_tie: float = 0.0
    """In logits. Texts with a smaller lead of the best code in eight bits are scored again in
    float32.
    """
    exact: Graph | None = None
    """The same model in float32, for a graph in eight bits."""

    def logits(self, texts: Sequence[str]) -> Scores:
        """Scores float32 [n, codes], in the order of the texts. Only the first 32,768 characters of
        a text are read.
        """
        scores = self.rounded(texts)
        if self.exact is not None:
            near = np.flatnonzero(lead_of(scores)[0] < self.near_tie)
            scores[near] = self.exact.logits([texts[row] for row in near.tolist()])
        return scores

    def rounded(self, texts: Sequence[str]) -> Scores:
        """Scores without the second pass in float32."""
        scores = np.empty((len(texts), len(self.codes)), np.float32)

        def score(row: int) -> None:
            read = np.array([texts[row][:MOST_CHARACTERS]], dtype=object)
            scores[row] = self.session.run(["logits"], {"texts": read})[0][0]

        # longest first, so that no core is left with a long one at the end
        rows = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        cores = min(_cores(), len(texts))
        if cores < 2:
            for row in rows:
                score(row)
            return scores
        with ThreadPoolExecutor(cores, thread_name_prefix="scores") as pool:
            list(pool.map(score, rows))
        return scores

    @staticmethod
    def load(folder: Path, *, int8: bool = False) -> Graph:
        """Opens a folder's graph; with `int8`, the 8-bit graph and also the float32 one.

        Raises:
            OSError, ValueError, KeyError or an error of onnxruntime: the folder is damaged.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        file = str(folder / (INT8 if int8 else GRAPH))
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        if not int8:
            return Graph(session, codes_of(folder))
        return Graph(session, codes_of(folder), "int8", exact=Graph.load(folder))


def _cores() -> int:
    """Number of texts scored at a time: the number of threads that torch would use."""
    if wanted := int(os.environ.get("OMP_NUM_THREADS") or 0):
        return wanted
    # only Linux reports which cores this process may use
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def codes_of(folder: Path) -> tuple[str, ...]:
    labels = folder / LABELS
    if not labels.is_file():
        code_of_place = json.loads((folder / "config.json").read_text())["id2label"]
        return tuple(code_of_place[str(place)] for place in range(len(code_of_place)))
    return tuple(map(str, json.loads(labels.read_text(encoding="utf-8"))["codes"]))


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def lead_of(scores: Scores) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The lead of the best code over the second [n], and the indices of these two codes [n, 2].
    With a single code the lead is infinite.
    """
    if scores.shape[1] < 2:
        return np.full(len(scores), math.inf, np.float32), np.zeros((len(scores), 2), np.int64)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :2]
    first, second = np.take_along_axis(scores, best, 1).T
    return first - second, best


def margin_errors(rounded: Scores, exact: Scores) -> NDArray[np.float32]:
    """By how much rounding changes the difference between the logits of the two leading codes,
    [n].
    """
    lead, best = lead_of(rounded)
    if rounded.shape[1] < 2:
        return np.zeros(len(rounded), np.float32)
    first, second = np.take_along_axis(exact, best, 1).T
    return np.abs(lead - (first - second))
