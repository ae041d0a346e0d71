"""Groups the codes of a hierarchical classification by their digits: OIICS 2.01's 1522 belongs to 152, 15 and 1.

A model that confuses 1521 and 1522 may be sure of group 152: a group's score is the sum of its codes' scores, since
codes exclude each other. A group must save work: "traumatic injuries and disorders" (1) narrows nothing. The coarsest
useful level is the first with as many groups as the square root of the codes, so that a reviewer chooses twice among
about as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from storage.errors import InputError

_SIGNS = ".-/ "
_BY_DIGITS = ("OIICS",)
"""Classifications with hierarchical codes. In other lists 23 is unrelated to 2."""


@dataclass(frozen=True)
class Groups:
    """Holds the useful groups of a model's codes, the most detailed first."""

    names: tuple[str, ...]
    members: Tensor
    """float32 [codes, groups]: 1 if a code belongs to a group."""

    def most_detailed(self, scores: Tensor, *, threshold: float) -> list[tuple[str, float] | None]:
        """Returns, per row of scores [n, codes], the most detailed group that reaches the threshold, and its score.

        Among groups of one level the highest score wins. None if no group reaches the threshold.
        """
        sums = scores @ self.members
        levels = torch.tensor([len(name) for name in self.names], dtype=sums.dtype)
        # Level first, score second: scores are at most 1, levels whole numbers.
        rank = torch.where(sums >= threshold, 2 * levels + sums, -1.0)
        best = rank.argmax(-1)
        return [
            None if rank[row, at] < 0 else (self.names[at], min(1.0, float(sums[row, at])))
            for row, at in enumerate(best.tolist())
        ]


def groups_of(codes: Sequence[str], *, classification: str, by_digits: bool | None = None) -> Groups | None:
    """Returns the groups of a model's codes, or None without any.

    Args:
        classification: its name. Only those in `_BY_DIGITS` have groups by default.
        by_digits: True takes the digits of any classification as levels, False disables groups.

    Raises:
        InputError: groups were asked for, and the codes give none.
    """
    hierarchical = classification.upper().startswith(_BY_DIGITS)
    if by_digits is False or (by_digits is None and not hierarchical):
        return None
    coarsest = _coarsest(codes)
    # a code's own points and hyphens belong to the level above: 62.01 is under 62.0 and 62
    prefixes = {
        code[:end].rstrip(_SIGNS) for code in codes for end in range(coarsest, len(code)) if code[end - 1] not in _SIGNS
    }
    # a group of most codes narrows nothing
    apart = {name for name in prefixes if 2 * sum(code.startswith(name) for code in codes) <= len(codes)}
    names = sorted(apart, key=lambda name: (-len(name), name))
    if not names:
        if by_digits:
            raise InputError(
                "--groups digits: the codes give no groups that save work: no beginning is shared by some of them "
                "alone. Leave it out"
            )
        return None
    members = torch.tensor([[float(code.startswith(name)) for name in names] for code in codes])
    return Groups(names=tuple(names), members=members)


def _coarsest(codes: Sequence[str]) -> int:
    longest = max(map(len, codes))
    ends = (end for end in range(1, longest) if len({code[:end].rstrip(_SIGNS) for code in codes}) ** 2 >= len(codes))
    return next(ends, longest)
