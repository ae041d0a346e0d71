"""Coding with a released bundle: texts in, codes with scores out. Narratives are never logged."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import export
from mechanisms.model.precision import Choice, resolved
from storage.artifacts import file_digest
from storage.bundle.folder import CODELIST, STATEMENT, bundle_digest
from storage.errors import InputError, StorageError
from storage.paths import Workspace
from storage.tables.formulas import unquoted
from tasks.bundle.thresholds import NONE_FOR_OTHERS, THRESHOLDS, are_generated_for, reached, read_thresholds
from tasks.coding.agreement import near_tie
from tasks.coding.groups import Groups, groups_of
from tasks.coding.names import TEMPERATURE


@dataclass(frozen=True)
class Answer:
    """A code, or a group of codes, for one narrative; the score is the model's probability."""

    code: str
    title: str
    score: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"score": round(self.score, 6)}


@dataclass(frozen=True)
class Coding:
    """What the model makes of one narrative."""

    answers: tuple[Answer, ...]
    """The best codes, best first; none for a blank narrative."""
    needs_review: bool | None = None
    """Whether the best score lies below the threshold, or nothing was said; None without a threshold."""
    group: Answer | None = None
    """Where the best code is unsure: the most detailed group of codes whose scores add up to the threshold."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told: dict[str, Any] = {"codes": [answer.as_dict() for answer in self.answers]}
        if self.needs_review is not None:
            told["needs_review"] = self.needs_review
            told["group"] = self.group and self.group.as_dict()
        return told


@dataclass(frozen=True)
class Coder:
    """A released model with its classification and what is known of its scores."""

    release: str
    digest: str
    classification: str
    version: str
    model: export.Released
    titles: dict[str, str]
    groups: Groups | None
    thresholds: dict[str, Any] | None
    """Content of a thresholds file: its temperature divides the logits."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        thresholds: Path | None = None,
        by_digits: bool | None = None,
        precision: Choice = "float32",
    ) -> Coder:
        """Load a bundle of one field.

        Args:
            thresholds: a file fitted on records of one's own, in place of the bundle's.
            by_digits: as `groups_of` has it.
            precision: of the encoder. `auto` takes bfloat16 where the processor has instructions for it, if the golden
                narratives get the codes of float32 so.

        Raises:
            InputError: the folder is no bundle, or one of several fields.
        """
        release, model = loaded(folder, precision=precision)
        if model.spans:
            raise InputError(f"--bundle: {folder} codes several fields at once ({', '.join(model.spans)}), not one")
        return cls.of(folder, release, bundle_digest(folder), model, thresholds=thresholds, by_digits=by_digits)

    @classmethod
    def of(
        cls,
        folder: Path,
        release: str,
        digest: str,
        model: export.Released,
        *,
        field: str = "",
        thresholds: Path | None = None,
        by_digits: bool | None = None,
    ) -> Coder:
        """The coder of one field: of the only one, or of one of several by its name.

        Args:
            folder: of the bundle.
            model: of the field alone.
            thresholds: a file in place of the bundle's.

        Raises:
            InputError: its code list or thresholds cannot be read, or are of another field or model.
        """
        place = folder / field
        try:
            with (place / CODELIST).open(newline="", encoding="utf-8") as file:
                listed = [{name: unquoted(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
            titles = {row["code"]: row["title"] for row in listed}
            first = listed[0]
        except (OSError, ValueError, KeyError, IndexError, TypeError, csv.Error, RecursionError):
            raise _damaged(folder, (place / CODELIST).relative_to(folder)) from None
        if field and tuple(titles) != model.codes:
            raise InputError(f"--bundle: {folder} is damaged: {field}/{CODELIST} is not the list of {field}'s codes")
        # A list without a name or a version is told from others by its content.
        name = first.get("classification") or "unnamed"
        version = first.get("version") or f"list-{file_digest(place / CODELIST)[:12]}"
        own = place / THRESHOLDS
        try:
            known = read_thresholds(thresholds or own) if thresholds or own.is_file() else None
        except MechanismError as error:
            raise InputError(f"{'--thresholds' if thresholds else '--bundle'}: {error}") from None
        if known is not None and known.get("field", "") != field:
            which = known.get("field") or "a single field"
            raise InputError(
                f"{'--thresholds' if thresholds else '--bundle'}: {thresholds or own}: it is of {which}, not of "
                f"{field or 'the one that this bundle codes'}"
            )
        if thresholds and known is not None and known.get("bundle_digest", digest) != digest:
            raise InputError(
                f"--thresholds: {thresholds}: it was fitted on the scores of another bundle (release "
                f"{known.get('release', 'unknown')}, not {release}), which say nothing of this one's: fit it anew "
                "(`autocoder calibrate`)"
            )
        return cls(
            release=release,
            digest=digest,
            classification=name,
            version=version,
            model=model,
            titles=titles,
            groups=groups_of(model.codes, classification=name, wanted=by_digits),
            thresholds=known,
        )

    @property
    def fields(self) -> Mapping[str, Coder]:
        """The one, by the name ""."""
        return {"": self}

    @property
    def origin(self) -> dict[str, str]:
        """What stands in every row: the model and the classification that its codes come from."""
        return {
            "model": self.release,
            "classification": self.classification,
            "classification_version": self.version,
            "bundle_digest": self.digest,
            TEMPERATURE: f"{self.temperature:g}",
        }

    @property
    def temperature(self) -> float:
        """What logits are divided by before they are probabilities; 1 where nothing was fitted."""
        return float(self.thresholds["temperature"]) if self.thresholds else 1.0

    def at(self, temperature: float) -> Coder:
        """The same coder with this temperature; its thresholds would be of other scores, and are left out."""
        return replace(self, thresholds={"temperature": temperature})

    def scores(self, texts: Sequence[str]) -> Tensor:
        """Probability of every code, float32 [n, codes], calibrated where a temperature is known."""
        return (self.model.logits(texts) / self.temperature).softmax(-1)

    def code(self, texts: Sequence[str], *, top_k: int = 1, threshold: float | None = None) -> list[Coding]:
        """Code narratives. A blank one gets no code."""
        said = [at for at, text in enumerate(texts) if text.strip()]
        scores = self.scores([texts[at] for at in said])
        codings = [self.blank(threshold)] * len(texts)
        for at, coding in zip(said, self.from_scores(scores, top_k=top_k, threshold=threshold), strict=True):
            codings[at] = coding
        return codings

    def blank(self, threshold: float | None) -> Coding:
        """Of a narrative in which nothing was said."""
        return Coding((), None if threshold is None else True)

    def from_scores(self, scores: Tensor, *, top_k: int = 1, threshold: float | None = None) -> list[Coding]:
        """What scores [n, codes] of narratives amount to."""
        codings = []
        best = scores.topk(min(top_k, scores.shape[1]), dim=-1)
        groups: list[tuple[str, float] | None] = [None] * len(scores)
        if threshold is not None and self.groups is not None:
            groups = self.groups.broadest_sure(scores, threshold=threshold)
        for row, values, group in zip(best.indices.tolist(), best.values.tolist(), groups, strict=True):
            answers = tuple(self._answer(self.model.codes[i], score) for i, score in zip(row, values, strict=True))
            unsure = None if threshold is None else answers[0].score < threshold
            codings.append(Coding(answers, unsure, self._answer(*group) if unsure and group else None))
        return codings

    def threshold_for(self, accuracy: float) -> float:
        """The score above which the stated share of answers was right, on the records that the file was fitted on.

        Raises:
            InputError: no thresholds are known, none for this accuracy, or no score reaches it.
        """
        if self.thresholds is None:
            why = "" if are_generated_for(self.classification) else f" ({NONE_FOR_OTHERS.partition(';')[0]})"
            raise InputError(f"--accuracy: this bundle has no {THRESHOLDS}{why}; {_OTHERWISE}")
        known = {entry["target_accuracy"]: entry["threshold"] for entry in self.thresholds["thresholds"]}
        there = ", ".join(f"{target:g}" for target, score in sorted(known.items()) if score is not None)
        lower = f"take one that has a threshold ({there}); or " if there else ""
        if accuracy not in known:
            listed = ", ".join(f"{target:g}" for target in sorted(known)) or "none"
            raise InputError(
                f"--accuracy: no threshold is known for {accuracy:g}; there are {listed}: {lower}{_OTHERWISE}"
            )
        if known[accuracy] is None:
            best = reached(self.thresholds)
            seen = f"; {best}" if best else ""
            raise InputError(
                f"--accuracy: no score reached {accuracy:g} with confidence on {self.thresholds['fitted_on']}{seen}. "
                f"{(lower + _OTHERWISE)[0].upper()}{(lower + _OTHERWISE)[1:]}"
            )
        return float(known[accuracy])

    def _answer(self, code: str, score: float) -> Answer:
        return Answer(code, self.titles.get(code, ""), score)


_OTHERWISE = (
    "fit thresholds on a few hundred records that you have coded by hand (`autocoder calibrate --bundle BUNDLE "
    "--data CODED.csv --label-column COLUMN --out thresholds.json`, for another accuracy with --accuracy) and give "
    "them by --thresholds; or choose a score with --threshold"
)
"""What to do where a bundle has no threshold for an accuracy."""

CLOSED = "AUTOCODER_LEDGER_CLOSED"
"""Set where a process has the ledger's address alone: it may not read there."""


def loaded(folder: Path, *, precision: Choice) -> tuple[str, export.Released]:
    """Release id and model of a bundle, of one field or several.

    Raises:
        InputError: the folder is no bundle, or damaged.
    """
    if not (folder / STATEMENT).is_file():
        raise InputError(f"--bundle: {folder} is no bundle (it has no {STATEMENT})")
    try:
        statement = json.loads((folder / STATEMENT).read_text(encoding="utf-8"))
        release, fields = str(statement["release_id"]), [str(name) for name in statement.get("fields", ())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(folder, Path(STATEMENT)) from None
    try:
        model = export.load(folder)
    except MechanismError as error:
        raise InputError(f"--bundle: {error}") from None
    except Exception as error:  # the libraries below raise whatever a damaged model meets
        what = type(error).__name__
        raise InputError(f"--bundle: {folder} is damaged: its model cannot be loaded ({what})") from None
    if list(model.spans) != fields:
        raise InputError(f"--bundle: {folder} is damaged: its model codes other fields than {STATEMENT} names")
    quick = replace(model, precision=resolved(precision, "cpu"))
    if quick.precision == "bfloat16":
        bands = [near_tie(own, folder / name) for name, own in quick.fields.items()]
        if precision == "auto" and None in bands:
            return release, model
        quick = replace(quick, near_tie=max(band or export.NEAR_TIE for band in bands))
    return release, quick


def _damaged(folder: Path, file: Path) -> InputError:
    return InputError(f"--bundle: {folder} is damaged: {file} cannot be read")


class AnyCoder(Protocol):
    """What a coder of one field and one of several have in common, for whoever reports what coded."""

    @property
    def release(self) -> str:
        """Id."""
        ...

    @property
    def digest(self) -> str:
        """Of the bundle."""
        ...


def require_standing(coder: AnyCoder, home: Path, *, otherwise: str) -> None:
    """Refuse a bundle that was revoked in the house that uses it: by the machine's ledger, or by the workspace's.

    Who has none, or may not read it, is told by the list that `revoke` keeps beside the house's bundles. A partner has
    neither, and asks the agency's list (`autocoder verify --revocations`).

    Args:
        otherwise: what else can be done, for the message.

    Raises:
        StorageError: it was revoked, or the ledger or list that would know cannot be read.
    """
    from storage.bundle.revocations import Revocations

    workspace = Workspace(home)
    url = os.environ.get("AUTOCODER_LEDGER_URL")
    own = Path(workspace.ledger_url.removeprefix("sqlite:///")).is_file()
    try:
        if (url or own) and CLOSED not in os.environ:
            from storage.bundle import registry
            from storage.ledger import Ledger

            registry.require_standing(Ledger.existing(url or workspace.ledger_url), coder.release, coder.digest)
        elif workspace.revocations.exists():
            Revocations.read(workspace.revocations).check(coder.release, coder.digest)
    except StorageError as error:
        raise StorageError(f"--bundle: {error}; {otherwise}") from None


def newest_bundle(home: Path) -> Path:
    """The bundle committed last in a workspace.

    Raises:
        StorageError: there is none.
    """
    folders = [p for p in (home / "bundles").glob("*") if p.is_dir() and not p.name.startswith(".")]
    if not folders:
        raise StorageError(
            f"no bundle in {home / 'bundles'}; `autocoder retrain` makes a plan and `autocoder release PLAN` a bundle "
            "of it, or name one with --bundle"
        )
    return max(folders, key=lambda p: p.stat().st_mtime)
