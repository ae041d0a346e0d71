"""Coding in several fields at once: one pass of the encoder, an answer a field, and what does not go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import export
from mechanisms.model.precision import Choice
from storage.artifacts import digest as digest_of
from storage.bundle.folder import bundle_digest
from storage.errors import InputError
from storage.rules import Rule, Rules, read_rules
from tasks.bundle.thresholds import read_thresholds
from tasks.coding.coder import Coder, Coding, loaded
from tasks.coding.names import FIELDS, TEMPERATURE

Threshold = float | Mapping[str, float]
"""Score below which a person must look: of all fields, or of each."""


@dataclass(frozen=True)
class Case:
    """What the model makes of one narrative in each field."""

    codings: Mapping[str, Coding]
    needs_review: bool | None = None
    """Whether any field's answer wants a look, or two contradict each other; None without threshold and rules."""
    conflicts: tuple[Rule, ...] | None = None
    """Rules that the best codes break; None without rules."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told: dict[str, Any] = {"fields": {name: coding.as_dict() for name, coding in self.codings.items()}}
        if self.needs_review is not None:
            told["needs_review"] = self.needs_review
        if self.conflicts is not None:
            told["conflicts"] = [rule.told for rule in self.conflicts]
        return told


@dataclass(frozen=True)
class JointCoder:
    """A released model of several fields: a coder of each, and the one encoder that they share."""

    release: str
    digest: str
    model: export.Released
    fields: Mapping[str, Coder]
    rules: Rules | None = None

    @property
    def classification(self) -> str:
        """That all code lists are of."""
        return " and ".join(dict.fromkeys(coder.classification for coder in self.fields.values()))

    @property
    def version(self) -> str:
        """Of the lists together."""
        versions = list(dict.fromkeys(coder.version for coder in self.fields.values()))
        return versions[0] if len(versions) == 1 else f"lists-{digest_of(versions)[:12]}"

    @property
    def origin(self) -> dict[str, str]:
        """What stands in every row: the model, the classification, and the fields that were coded."""
        return {
            "model": self.release,
            "classification": self.classification,
            "classification_version": self.version,
            "bundle_digest": self.digest,
            TEMPERATURE: " ".join(f"{name} {coder.temperature:g}" for name, coder in self.fields.items()),
            FIELDS: " ".join(self.fields),
        }

    def scores(self, texts: Sequence[str]) -> Tensor:
        """Probability of every code within its field, float32 [n, codes of all fields], calibrated where known."""
        logits = self.model.logits(texts)
        spans = self.model.spans.items()
        return torch.cat([(logits[:, span] / self.fields[name].temperature).softmax(-1) for name, span in spans], 1)

    def code(self, texts: Sequence[str], *, top_k: int = 1, threshold: Threshold | None = None) -> list[Case]:
        """Code narratives. A blank one gets no code."""
        said = [at for at, text in enumerate(texts) if text.strip()]
        cases = [self.blank(threshold)] * len(texts)
        scores = self.scores([texts[at] for at in said])
        for at, case in zip(said, self.from_scores(scores, top_k=top_k, threshold=threshold), strict=True):
            cases[at] = case
        return cases

    def blank(self, threshold: Threshold | None) -> Case:
        """Of a narrative in which nothing was said."""
        codings = {name: coder.blank(of_field(threshold, name)) for name, coder in self.fields.items()}
        return self._case(codings)

    def from_scores(self, scores: Tensor, *, top_k: int = 1, threshold: Threshold | None = None) -> list[Case]:
        """What scores [n, codes of all fields] of narratives amount to."""
        each = [
            coder.from_scores(scores[:, self.model.spans[name]], top_k=top_k, threshold=of_field(threshold, name))
            for name, coder in self.fields.items()
        ]
        return [self._case(dict(zip(self.fields, row, strict=True))) for row in zip(*each, strict=True)]

    def _case(self, codings: Mapping[str, Coding]) -> Case:
        looks = [coding.needs_review for coding in codings.values() if coding.needs_review is not None]
        if self.rules is None:
            return Case(codings, any(looks) if looks else None)
        best = {name: coding.answers[0].code for name, coding in codings.items() if coding.answers}
        broken = self.rules.broken_by(best)
        return Case(codings, any(looks) or bool(broken), broken)

    def threshold_for(self, accuracy: float) -> dict[str, float]:
        """The score of each field above which the stated share of its answers was right.

        Raises:
            InputError: a field has none; names it.
        """
        found = {}
        for name, coder in self.fields.items():
            try:
                found[name] = coder.threshold_for(accuracy)
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
        return found


def of_field(threshold: Threshold | None, name: str) -> float | None:
    """The threshold of one field."""
    return threshold[name] if isinstance(threshold, Mapping) else threshold


def open_bundle(
    folder: Path,
    *,
    thresholds: Sequence[Path] = (),
    by_digits: bool | None = None,
    precision: Choice = "float32",
    rules: Path | None = None,
) -> Coder | JointCoder:
    """Load a bundle, of one field or several.

    Args:
        thresholds: files fitted on records of one's own, in place of the bundle's: one, or one a field.
        by_digits, precision: as `Coder.open` has them.
        rules: what never occurs together in two of the fields (`storage.rules`).

    Raises:
        InputError: the folder is no bundle, or a file is none of its fields'.
    """
    release, model = loaded(folder, precision=precision)
    digest = bundle_digest(folder)
    if not model.spans:
        if rules is not None:
            raise InputError("--rules: they are of two fields, and this bundle codes one")
        if len(thresholds) > 1:
            raise InputError("--thresholds: this bundle codes one field; give one file")
        own = thresholds[0] if thresholds else None
        return Coder.of(folder, release, digest, model, thresholds=own, by_digits=by_digits)
    chosen = _by_field(thresholds, tuple(model.spans))
    fields = {
        name: Coder.of(folder, release, digest, own, field=name, thresholds=chosen.get(name), by_digits=by_digits)
        for name, own in model.fields.items()
    }
    known = None if rules is None else read_rules(rules, {name: coder.model.codes for name, coder in fields.items()})
    return JointCoder(release, digest, model, fields, known)


def _by_field(files: Sequence[Path], fields: Sequence[str]) -> dict[str, Path]:
    """Thresholds by the field that each file names."""
    chosen: dict[str, Path] = {}
    for file in files:
        try:
            name = str(read_thresholds(file).get("field", ""))
        except MechanismError as error:
            raise InputError(f"--thresholds: {error}") from None
        if name not in fields:
            raise InputError(
                f"--thresholds: {file} is of {name or 'a single field'}; this bundle codes {', '.join(fields)} (fit it "
                "with `autocoder calibrate --field NAME`)"
            )
        if name in chosen:
            raise InputError(f"--thresholds: {file}: another file is of {name} too; give one a field")
        chosen[name] = file
    return chosen
