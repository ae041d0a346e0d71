"""Groups of a classification whose codes are built digit by digit: OIICS 2.01's 1522 lies in 152, in 15, in 1.

Where a model cannot tell 1521 from 1522, it may well know that the case is one of 152's: the score of a group is the
sum of the scores of the codes in it, since the codes exclude each other.

A group has to spare work. That a case is one of 1's, "traumatic injuries and disorders", is known before anybody reads
it: the coarsest level that counts is the first that has as many groups as the square root of the codes, so that who
reviews chooses twice among about as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BY_DIGITS = ("OIICS",)
"""Classifications known to be built so. Digits alone prove nothing: in a plain list 23 has nothing to do with 2."""


@dataclass(frozen=True)
class Groups:
    """The groups that hold codes of the model's and spare work, the most detailed first."""

    names: tuple[str, ...]
    members: Tensor
    """float32 [codes, groups], 1 where a code lies in a group."""

    def broadest_sure(self, scores: Tensor, *, threshold: float) -> list[tuple[str, float] | None]:
        """For each row of scores [n, codes] the most detailed group that reaches the threshold, and its score.

        Of several groups of the same level the one with the highest score; None where no group reaches it.
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


def groups_of(codes: Sequence[str], *, classification: str, wanted: bool | None = None) -> Groups | None:
    """The groups of a model's codes; None where the classification has none.

    Args:
        classification: its name; only those known to be built by digits have groups, unless `wanted` says so.
        wanted: True takes the digits of any classification for levels, False leaves groups out.
    """
    known = classification.upper().startswith(_BY_DIGITS)
    if wanted is False or (wanted is None and not known) or not all(code.isalnum() for code in codes):
        return None
    prefixes = {code[:end] for code in codes for end in range(_coarsest(codes), len(code))}
    # a group of most codes would say next to nothing
    apart = {name for name in prefixes if 2 * sum(code.startswith(name) for code in codes) <= len(codes)}
    names = sorted(apart, key=lambda name: (-len(name), name))
    if not names:
        return None
    members = torch.tensor([[float(code.startswith(name)) for name in names] for code in codes])
    return Groups(names=tuple(names), members=members)


def _coarsest(codes: Sequence[str]) -> int:
    """How many leading digits the coarsest level that splits the work has."""
    longest = max(map(len, codes))
    return next((end for end in range(1, longest) if len({c[:end] for c in codes}) ** 2 >= len(codes)), longest)
