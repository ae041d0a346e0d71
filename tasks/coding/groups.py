"""Groups the codes of a hierarchical classification: OIICS 2.01's 1522 belongs to 152, 15 and 1.

A model that confuses 1521 and 1522 may be sure of group 152. A group's score is the sum of its
codes' scores, because codes exclude each other. A group must save work: "traumatic injuries and
disorders" (1) narrows nothing. The coarsest useful level is the first with at least as many groups
as the square root of the number of codes, so that a reviewer chooses twice from about as many
options.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage.artifacts import digest
from storage.errors import Missing

_SIGNS = ".-/ "
_BY_DIGITS = ("OIICS",)
"""Classifications with hierarchical codes. In other lists, 23 is unrelated to 2."""


@dataclass(frozen=True)
class Groups:
    names: tuple[str, ...]
    members: NDArray[np.float32]
    """float32 [codes, groups]: 1 if a code belongs to a group."""
    depths: NDArray[np.float32]
    """float32 [groups]: level of each group, where the top level is 1."""
    above: Mapping[str, Sequence[str]]
    """The levels above each code, the coarsest first."""

    @property
    def key(self) -> str:
        """A digest of the levels, because the answers depend on them."""
        return digest({code: list(levels) for code, levels in self.above.items()})

    def most_detailed(
        self, scores: NDArray[np.float32], *, threshold: float
    ) -> list[tuple[str, float] | None]:
        """Returns, per row of scores [n, codes], the most detailed group that reaches the
        threshold, and its score.

        Among groups of one level, the one with the highest score is chosen. None if no group
        reaches the threshold.
        """
        sums = scores @ self.members
        # Level first, score second: levels are integers, and scores are at most 1.
        rank = np.where(sums >= threshold, 2 * self.depths + sums, -1.0)
        return [
            None if rank[row, group] < 0 else (self.names[group], min(1.0, float(sums[row, group])))
            for row, group in enumerate(rank.argmax(-1).tolist())
        ]

    def shared(self, codes: Sequence[str]) -> str:
        """Returns the most detailed level that contains all these codes; "" if there is none."""
        chains = [[*self.above[code], code] for code in codes]
        levels = [names[0] for names in zip(*chains, strict=False) if len(set(names)) == 1]
        return levels[-1] if levels else ""


Levels = Literal["auto", "digits", "none"] | Mapping[str, str]
"""Source of the levels: a rule, or a mapping from each code to the code above."""


def groups_of(
    codes: Sequence[str], *, classification: str, levels: Levels = "auto"
) -> Groups | None:
    """Returns the groups of a model's codes, or None if there are none.

    Args:
        classification: its name. Only those in `_BY_DIGITS` have groups by default.
        levels: `digits` treats the leading characters of any classification's codes as levels, and
            `none` disables groups. A mapping gives the code above each code.
    """
    if levels == "none" or (levels == "auto" and not classification.upper().startswith(_BY_DIGITS)):
        return None
    above = _codes_above(codes, levels)
    depths = _depths(above)
    names = _useful_names(above, depths, codes=len(codes))
    if not names:
        if levels != "auto":
            raise Missing(
                "--groups: the codes form no groups that save work, because no "
                "group contains only some of them. Leave it out, or specify a "
                "list with the columns code and parent",
                kind="no-groups",
            )
        return None
    members = np.array([[name in above[code] for name in names] for code in codes], np.float32)
    depths_of_names = np.array([depths[name] for name in names], np.float32)
    return Groups(tuple(names), members, depths_of_names, above)


def _codes_above(codes: Sequence[str], levels: Levels) -> dict[str, tuple[str, ...]]:
    if isinstance(levels, str):
        return {code: _by_signs(code) for code in codes}
    return {code: _by_parents(code, levels) for code in codes}


def _depths(above: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    depths: dict[str, int] = {}
    for names in above.values():
        for depth, name in enumerate(names, start=1):
            depths[name] = depth
    return depths


def _useful_names(
    above: Mapping[str, tuple[str, ...]], depths: Mapping[str, int], *, codes: int
) -> list[str]:
    """Returns the groups that save work, the most detailed first."""
    sizes = Counter(chain.from_iterable(above.values()))
    groups_at_depth = Counter(depths.values())
    useful = [depth for depth, number in groups_at_depth.items() if number**2 >= codes]
    if not useful:
        return []
    first = min(useful)
    # a group with most of the codes narrows nothing
    names = [name for name in sizes if depths[name] >= first and 2 * sizes[name] <= codes]
    return sorted(names, key=lambda name: (-depths[name], name))


def _by_signs(code: str) -> tuple[str, ...]:
    beginnings = (code[:end].rstrip(_SIGNS) for end in range(1, len(code)))
    return tuple(dict.fromkeys(name for name in beginnings if name and name != code.rstrip(_SIGNS)))


def _by_parents(code: str, parents: Mapping[str, str]) -> tuple[str, ...]:
    chain = [code]
    while (above := parents.get(chain[-1], "")) and above not in chain:
        chain.append(above)
    return tuple(reversed(chain[1:]))
