"""Computes which words of a narrative contributed to a code of a released model. Nothing is logged.

The logit of a code is taken relative to the mean over all codes, which changes no probability.

- **Word features**: the head is linear in them, so a word's contribution is exactly feature times
  weight.
- **Encoder**: gradient times input at the embeddings of the tokens, e_t . d logit / d e_t, a
  first-order share (Shrikumar et al. 2017, "Learning Important Features Through Propagating
  Activation Differences", section 1).
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.model.classifier import MeanPooled
from mechanisms.model.lexicon import MOST_CHARACTERS, Lexicon
from storage.errors import Missing, Unknown
from tasks.coding.coder import Coder

_WORD = re.compile(r"\w+|[^\w\s]")
_AT_ONCE = 256
"""Number of words with columns in memory at a time."""


@dataclass(frozen=True)
class Reason:
    """The contribution of each word to the logit of one code."""

    code: str
    score: float
    lexical: tuple[float, ...]
    """Exact, per word; empty if the model has no lexicon."""
    encoder: tuple[float, ...]
    """To first order, per word."""


@dataclass(frozen=True)
class Explanation:
    """The words of a narrative, as character ranges, and their contributions to some codes."""

    words: tuple[tuple[int, int], ...]
    reasons: tuple[Reason, ...]
    read: int
    """Number of characters that the encoder read; a longer narrative is truncated."""


def explain(coder: Coder, text: str, codes: Sequence[str]) -> Explanation:
    released = coder.released
    for number, code in enumerate(codes):
        if code not in released.codes:
            raise Unknown(
                f"codes.{number}: unknown code. The codes of the model are at /codes.",
                kind="unknown-explained-code",
            )
    text = text[:MOST_CHARACTERS]
    if not text.strip():
        raise Missing("narrative: it is blank. Send one with words.", kind="blank-narrative")
    words = tuple(match.span() for match in _WORD.finditer(text))
    starts = [start for start, _ in words]
    tokens: Any = released.tokenizer(
        text,
        truncation=True,
        max_length=released.max_length,
        return_offsets_mapping=True,
        return_tensors="pt",
    )
    offsets: list[tuple[int, int]] = tokens["offset_mapping"][0].tolist()
    lexicon = released.model.lexicon if isinstance(released.model, MeanPooled) else None
    block = None if lexicon is None else lexicon.words([text])
    logits, embedded = _forward(released.model, tokens, block)
    reasons = []
    scores = (logits.detach() / coder.temperature).softmax(-1)
    for code in codes:
        place = released.codes.index(code)
        inputs = [embedded] if block is None else [embedded, block]
        slopes = torch.autograd.grad(logits[place] - logits.mean(), inputs, retain_graph=True)
        shares = torch.zeros(len(words))
        for (start, end), share in zip(
            offsets, (slopes[0] * embedded).sum(-1)[0].tolist(), strict=True
        ):
            if end > start and words:
                start += len(text[start:end]) - len(text[start:end].lstrip())
                shares[max(bisect_right(starts, start) - 1, 0)] += share
        exact: list[float] = []
        if lexicon is not None and block is not None:
            exact = _by_word(lexicon, [text[slice(*word)] for word in words], slopes[1] * block)
        reasons.append(Reason(code, float(scores[place]), tuple(exact), tuple(shares.tolist())))
    return Explanation(words, tuple(reasons), max((end for _, end in offsets), default=0))


def _by_word(lexicon: Lexicon, words: Sequence[str], added: Tensor) -> list[float]:
    batches = [words[start : start + _AT_ONCE] for start in range(0, len(words), _AT_ONCE)]
    total = sum((lexicon.words(batch).sum(0) for batch in batches), torch.zeros(lexicon.columns))
    shares = torch.where(total == 0, 0.0, added[0].detach() / torch.where(total == 0, 1.0, total))
    return [share for batch in batches for share in (lexicon.words(batch) @ shares).tolist()]


def _forward(model: nn.Module, tokens: Any, words: Tensor | None) -> tuple[Tensor, Tensor]:
    encoder: Any = model.encoder if isinstance(model, MeanPooled) else model
    embedded: list[Tensor] = []

    def watch(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    handle = encoder.get_input_embeddings().register_forward_hook(watch)
    try:
        with torch.enable_grad():
            block = {} if words is None else {"words": words.requires_grad_()}
            answer = model(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], **block
            )
    finally:
        handle.remove()
    return (answer if isinstance(answer, Tensor) else answer.logits)[0].float(), embedded[0]
