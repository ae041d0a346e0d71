"""Codes several fields at once: one pass of the encoder, an answer per field, and conflicts between answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import export
from mechanisms.model.config import Choice
from storage.artifacts import digest as digest_of
from storage.bundle.folder import bundle_digest
from storage.errors import InputError
from storage.rules import Rule, Rules, read_rules
from tasks.bundle.thresholds import read_thresholds
from tasks.coding.coded_table import FIELDS, TEMPERATURE
from tasks.coding.coder import Coder, Coding, load_model

Threshold = float | Mapping[str, float]
"""Score below which a case needs review: for all fields, or per field."""


@dataclass(frozen=True)
class Case:
    """Holds the model's answers for one narrative in each field."""

    codings: Mapping[str, Coding]
    needs_review: bool | None = None
    """True if a field needs review or answers conflict. None without threshold and rules."""
    conflicts: tuple[Rule, ...] | None = None
    """Rules that the best codes break. None without rules."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the content for JSON."""
        content: dict[str, Any] = {"fields": {name: coding.as_dict() for name, coding in self.codings.items()}}
        if self.needs_review is not None:
            content["needs_review"] = self.needs_review
        if self.conflicts is not None:
            content["conflicts"] = [rule.as_json() for rule in self.conflicts]
        return content


@dataclass(frozen=True)
class JointCoder:
    """Holds a released model of several fields: a coder per field and their shared encoder."""

    release: str
    digest: str
    model: export.Released
    fields: Mapping[str, Coder]
    rules: Rules | None = None

    @property
    def classification(self) -> str:
        """Returns the classifications of all code lists."""
        return " and ".join(dict.fromkeys(coder.classification for coder in self.fields.values()))

    @property
    def version(self) -> str:
        """Returns the version of the lists together."""
        versions = list(dict.fromkeys(coder.version for coder in self.fields.values()))
        return versions[0] if len(versions) == 1 else f"lists-{digest_of(versions)[:12]}"

    @property
    def origin(self) -> dict[str, str]:
        """Returns the columns of every row that name the model, its classification and the coded fields."""
        return {
            "model": self.release,
            "classification": self.classification,
            "classification_version": self.version,
            "bundle_digest": self.digest,
            TEMPERATURE: " ".join(f"{name} {coder.temperature:g}" for name, coder in self.fields.items()),
            FIELDS: " ".join(self.fields),
        }

    def scores(self, texts: Sequence[str]) -> Tensor:
        """Returns the probability of every code within its field, float32 [n, codes of all fields], calibrated."""
        logits = self.model.logits(texts)
        spans = self.model.spans.items()
        return torch.cat([(logits[:, span] / self.fields[name].temperature).softmax(-1) for name, span in spans], 1)

    def code(self, texts: Sequence[str], *, top_k: int = 1, threshold: Threshold | None = None) -> list[Case]:
        """Codes narratives. A blank one gets no code."""
        filled = [at for at, text in enumerate(texts) if text.strip()]
        cases = [self.blank(threshold)] * len(texts)
        scores = self.scores([texts[at] for at in filled])
        for at, case in zip(filled, self.from_scores(scores, top_k=top_k, threshold=threshold), strict=True):
            cases[at] = case
        return cases

    def blank(self, threshold: Threshold | None) -> Case:
        """Returns the case of a blank narrative."""
        codings = {name: coder.blank(of_field(threshold, name)) for name, coder in self.fields.items()}
        return self._case(codings)

    def from_scores(self, scores: Tensor, *, top_k: int = 1, threshold: Threshold | None = None) -> list[Case]:
        """Returns the cases for scores [n, codes of all fields]."""
        each = [
            coder.from_scores(scores[:, self.model.spans[name]], top_k=top_k, threshold=of_field(threshold, name))
            for name, coder in self.fields.items()
        ]
        return [self._case(dict(zip(self.fields, row, strict=True))) for row in zip(*each, strict=True)]

    def _case(self, codings: Mapping[str, Coding]) -> Case:
        reviews = [coding.needs_review for coding in codings.values() if coding.needs_review is not None]
        if self.rules is None:
            return Case(codings, any(reviews) if reviews else None)
        best = {name: coding.answers[0].code for name, coding in codings.items() if coding.answers}
        broken = self.rules.broken_by(best)
        return Case(codings, any(reviews) or bool(broken), broken)

    def threshold_for(self, accuracy: float) -> dict[str, float]:
        """Returns the score of each field above which this share of its answers was correct; names one without."""
        scores = {}
        for name, coder in self.fields.items():
            try:
                scores[name] = coder.threshold_for(accuracy)
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
        return scores


def of_field(threshold: Threshold | None, name: str) -> float | None:
    """Returns the threshold of one field."""
    return threshold[name] if isinstance(threshold, Mapping) else threshold


def open_bundle(
    folder: Path,
    *,
    thresholds: Sequence[Path] = (),
    by_digits: bool | None = None,
    precision: Choice = "float32",
    rules: Path | None = None,
    coverage: float | None = None,
) -> Coder | JointCoder:
    """Loads a bundle of one field or several.

    Args:
        thresholds: local files in place of the bundle's: one, or one per field.
        by_digits: as in `groups_of`.
        precision: of the encoder. `auto` takes bfloat16 if the processor has instructions for it and the golden
            narratives get the same codes as in float32.
        rules: codes of two fields that never occur together (`storage.rules`).
        coverage: adds conformal sets of this coverage, from the thresholds of each field.

    Raises:
        InputError: the folder is not a bundle, or a file belongs to none of its fields.
    """
    release, model = load_model(folder, precision=precision)
    digest = bundle_digest(folder)
    if not model.spans:
        if rules is not None:
            raise InputError("--rules applies to bundles of several fields. This bundle codes one.")
        if len(thresholds) > 1:
            raise InputError("--thresholds: this bundle codes one field. Give one file.")
        file = thresholds[0] if thresholds else None
        coder = Coder.of(folder, release, digest, model, thresholds=file, by_digits=by_digits)
        return coder if coverage is None else coder.with_sets(coverage)
    chosen = _by_field(thresholds, tuple(model.spans))
    fields = {
        name: Coder.of(
            folder, release, digest, field_model, field=name, thresholds=chosen.get(name), by_digits=by_digits
        )
        for name, field_model in model.fields.items()
    }
    if coverage is not None:
        fields = {name: coder.with_sets(coverage) for name, coder in fields.items()}
    checks = None if rules is None else read_rules(rules, {name: coder.model.codes for name, coder in fields.items()})
    return JointCoder(release, digest, model, fields, checks)


def _by_field(files: Sequence[Path], fields: Sequence[str]) -> dict[str, Path]:
    """Returns the thresholds files by the field that each names."""
    chosen: dict[str, Path] = {}
    for file in files:
        try:
            name = str(read_thresholds(file).get("field", ""))
        except MechanismError as error:
            raise InputError(f"--thresholds: {error}") from None
        if name not in fields:
            raise InputError(
                f"--thresholds: {file} belongs to {name or 'a single field'}. This bundle codes {', '.join(fields)}. "
                "Fit it with `autocoder calibrate --field NAME`."
            )
        if name in chosen:
            raise InputError(f"--thresholds: {file}: another file belongs to {name} too. Give one per field.")
        chosen[name] = file
    return chosen
