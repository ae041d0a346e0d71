"""Computes which words of a narrative spoke for a code of a released model. Nothing is logged.

The logit of a code is taken relative to the mean over all codes, which changes no probability.

- **Words next to the encoder**: the head is linear in them, so a word's contribution is feature times weight, exactly.
- **The encoder**: gradient times input at the embeddings of the tokens, e_t . d logit / d e_t, a first-order share
  (Shrikumar et al. 2017, "Learning Important Features Through Propagating Activation Differences", section 1).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from mechanisms.model.classifier import MeanPooled
from mechanisms.model.encoders import width
from mechanisms.model.lexicon import MOST_CHARACTERS, Lexicon
from storage.errors import InputError
from storage.tables.reader import read_small
from tasks.coding.coder import Coder

_WORD = re.compile(r"\w+|[^\w\s]")
_LEXICAL_WORD = re.compile(r"[^\W\d_]{3,}")
_AT_ONCE = 256
"""Words whose columns are in memory at a time."""


@dataclass(frozen=True)
class Reason:
    """Holds what each word added to the logit of one code."""

    code: str
    score: float
    lexical: tuple[float, ...]
    """Exact, per word; empty without a lexicon."""
    encoder: tuple[float, ...]
    """To first order, per word."""


@dataclass(frozen=True)
class Explanation:
    """Holds the words of a narrative, as places in its characters, and what they added to some codes."""

    words: tuple[tuple[int, int], ...]
    reasons: tuple[Reason, ...]
    read: int
    """Characters that the encoder read; a longer narrative is cut."""


def explain(coder: Coder, text: str, codes: Sequence[str]) -> Explanation:
    """Explains some codes of one narrative.

    Raises:
        InputError: the narrative is blank, or the model has no such code; quotes neither.
    """
    released = coder.model
    places: list[int] = []
    for number, code in enumerate(codes):
        if code not in released.codes:
            raise InputError(f"codes.{number}: the model has no such code. Take them from /codes.")
        places.append(released.codes.index(code))
    text = text[:MOST_CHARACTERS]
    if not text.strip():
        raise InputError("narrative: it is blank. Send one with words.")
    words = tuple(match.span() for match in _WORD.finditer(text))
    starts = [start for start, _ in words]
    tokens: Any = released.tokenizer(
        text, truncation=True, max_length=released.max_length, return_offsets_mapping=True, return_tensors="pt"
    )
    offsets: list[tuple[int, int]] = tokens["offset_mapping"][0].tolist()
    model = released.model
    lexicon = model.lexicon if isinstance(model, MeanPooled) else None
    logits, embedded = _forward(model, tokens, None if lexicon is None else lexicon.words([text]))

    shares = torch.zeros(len(codes), len(words))
    for row, at in enumerate(places):
        (slope,) = torch.autograd.grad(logits[at] - logits.mean(), embedded, retain_graph=True)
        for (start, end), share in zip(offsets, (slope * embedded).sum(-1)[0].tolist(), strict=True):
            if end > start and words:
                start += len(text[start:end]) - len(text[start:end].lstrip())
                shares[row, max(bisect_right(starts, start) - 1, 0)] += share
    exact: Sequence[Sequence[float]] = [()] * len(codes)
    if lexicon is not None:
        exact = _exact(cast(MeanPooled, model), lexicon, text, starts, places)
    reasons = []
    scores = (logits.detach() / coder.temperature).softmax(-1)
    for at, (code, place) in enumerate(zip(codes, places, strict=True)):
        reasons.append(Reason(code, float(scores[place]), tuple(exact[at]), tuple(shares[at].tolist())))
    return Explanation(words, tuple(reasons), max((end for _, end in offsets), default=0))


def read_sensitive(path: Path, coder: Coder) -> tuple[str, ...]:
    """Reads an operator's public list of codes that a review shows first.

    Raises:
        InputError: the file cannot be read, or names a code that the bundle lacks.
    """
    option = "--sensitive"
    columns, rows = read_small(path.expanduser(), ("code",), option=option)
    codes = [row[columns.index("code")].strip() for row in rows]
    for number, code in enumerate(codes, start=1):
        if code not in coder.model.codes:
            raise InputError(f"{option}: {path}: row {number}: the bundle has no such code. Correct the row.")
    return tuple(codes)


def _forward(model: nn.Module, tokens: Any, words: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the logits [codes] and the embeddings of the tokens [1, tokens, width] that they depend on."""
    encoder: Any = model.encoder if isinstance(model, MeanPooled) else model
    embedded: list[Tensor] = []

    def watch(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    handle = encoder.get_input_embeddings().register_forward_hook(watch)
    try:
        with torch.enable_grad():
            block = {} if words is None else {"words": words}
            answer = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], **block)
    finally:
        handle.remove()
    return (answer if isinstance(answer, Tensor) else answer.logits)[0].float(), embedded[0]


def _exact(
    model: MeanPooled, lexicon: Lexicon, text: str, starts: Sequence[int], places: Sequence[int]
) -> list[list[float]]:
    """Returns feature times weight of each word and code; a feature of several words is shared out by occurrence."""
    chosen = _weights(model, lexicon, places)
    lower, home = _lower(text)
    pieces = [(home[match.start()], match.group()) for match in _LEXICAL_WORD.finditer(lower)]
    batches = [pieces[at : at + _AT_ONCE] for at in range(0, len(pieces), _AT_ONCE)]
    total = torch.zeros(lexicon.columns)
    for batch in batches:
        total += lexicon.words([word for _, word in batch]).sum(0)
    share = torch.where(total == 0, 0.0, lexicon.words([text])[0] / torch.where(total == 0, 1.0, total))
    out = torch.zeros(len(places), len(starts))
    for batch in batches:
        added = (lexicon.words([word for _, word in batch]) * share) @ chosen.T
        columns = torch.tensor([bisect_right(starts, start) - 1 for start, _ in batch])
        out.index_add_(1, columns, added.T)
    return out.tolist()


def _weights(model: MeanPooled, lexicon: Lexicon, places: Sequence[int]) -> Tensor:
    """Returns the weight of each word, relative to the mean of all codes, float32 [codes, columns]."""
    weights = model.head.weight.detach()[:, width(model) :] * lexicon.word_scale
    return torch.stack([weights[at] - weights.mean(0) for at in places])


def _lower(text: str) -> tuple[str, Sequence[int]]:
    """Returns the text in lower case, and from where in the text each of its characters comes."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower, range(len(text))
    return lower, [at for at, letter in enumerate(text) for _ in letter.lower()]
