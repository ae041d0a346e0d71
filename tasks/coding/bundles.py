"""Codes with several bundles at once. A text is encoded once for all bundles that
share an encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mechanisms.model.scorer import Scores
from storage.tables.reader import Row
from tasks.coding.coder import Coder
from tasks.coding.columns import AnswerColumns


@dataclass(frozen=True)
class Bundles:
    """The coders of a job by the prefix of their columns; the prefix is "" for a single bundle."""

    coders: Mapping[str, Coder]

    @classmethod
    def of(cls, coder: Coder) -> Bundles:
        return cls({"": coder})

    @property
    def origin(self) -> dict[str, str]:
        return {
            f"{prefix}{name}": cell
            for prefix, coder in self.coders.items()
            for name, cell in coder.origin.items()
        }

    @property
    def precision(self) -> str:
        """The precision of the encoders, which is the same for all bundles of a job."""
        return next(iter(self.coders.values())).model.precision

    @property
    def key(self) -> list[Any]:
        return [
            [prefix, coder.digest, coder.temperature, coder.model.precision, coder.model.near_tie]
            + ([] if coder.groups is None else [coder.groups.key])
            for prefix, coder in self.coders.items()
        ]

    @cached_property
    def _encoders(self) -> list[dict[str, Coder]]:
        from tasks.bundle.public_features import encoder_digest

        groups: dict[tuple[Any, ...], dict[str, Coder]] = {}
        for prefix, coder in self.coders.items():
            shared = encoder_digest(coder.released)
            groups.setdefault((shared or prefix, coder.released.max_length), {})[prefix] = coder
        return list(groups.values())

    def scores(self, texts: Sequence[str]) -> dict[str, Scores]:
        """Returns the calibrated probability of every code by prefix, float32 [n, codes]."""
        if len(self.coders) == 1:
            return {prefix: coder.scores(texts) for prefix, coder in self.coders.items()}
        from tasks.bundle.public_features import compute, logits_from

        scores: dict[str, Scores] = {}
        for group in self._encoders:
            if len(group) == 1:
                scores |= {prefix: coder.scores(texts) for prefix, coder in group.items()}
                continue
            features = compute(next(iter(group.values())).released, texts)
            for prefix, coder in group.items():
                scores[prefix] = coder.calibrated(logits_from(coder.released, features, texts))
        return {prefix: scores[prefix] for prefix in self.coders}

    def rows(self, texts: Sequence[str], answers: Sequence[AnswerColumns]) -> list[Row]:
        """Returns the cells of all bundles' columns for each narrative. A blank
        narrative gets no code.
        """
        scores = self.scores([text for text in texts if text.strip()])
        rows: list[Row] = [()] * len(texts)
        for columns in answers:
            how: Any = {"top_k": columns.top_k, "threshold": columns.threshold}
            codings = self.coders[columns.prefix].from_scores(texts, scores[columns.prefix], **how)
            rows = [row + columns.row(coding) for row, coding in zip(rows, codings, strict=True)]
        return rows
