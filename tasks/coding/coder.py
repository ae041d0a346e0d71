"""Codes texts with a released bundle. Narratives are never logged."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Decimal
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from mechanisms.errors import MechanismError
from mechanisms.model.conformal import Sets
from mechanisms.model.devices import has_cuda
from mechanisms.model.scorer import GRAPH, INT8, MOST_CHARACTERS, Graph, Scorer, Scores, softmax
from mechanisms.thresholds_file import FITTED_ON, Thresholds
from storage.artifacts import file_digest
from storage.bundle.folder import (
    CODELIST,
    MATERIALS,
    PROOF,
    STATEMENT,
    THRESHOLDS,
    bundle_digest,
)
from storage.egress.allow_list import LEXICON
from storage.errors import (
    Contradiction,
    InputError,
    Missing,
    OutOfRange,
    StorageError,
    Unknown,
    Unreadable,
)
from storage.narrative_look import NarrativeLook, language_note, long_note
from storage.paths import Workspace
from storage.tables.formulas import unquote
from storage.tables.reader import read_small
from tasks.bundle.thresholds import (
    WITHOUT_TABLE,
    best_accuracy,
    read_thresholds,
)
from tasks.coding.groups import Groups, Levels, groups_of
from tasks.coding.rounding import near_tie

if TYPE_CHECKING:
    from mechanisms.model.config import ModelConfig
    from mechanisms.model.export import Released
    from storage.json_values import Json
    from storage.ledger import Ledger

T = TypeVar("T")
Precision = Literal["auto", "float32", "int8"]
ModelKind = Literal["released", "untrained"]
"""Whether the model was trained on records (a release), or only uses the titles of a code list."""
UNTRAINED: Literal["untrained"] = "untrained"


@dataclass(frozen=True)
class Answer:
    """A code or a group of codes for one narrative, with the probability that the
    model assigns to it.
    """

    code: str
    title: str
    score: float

    def as_dict(self) -> dict[str, Json]:
        return asdict(self) | {"score": round(self.score, 6)}


@dataclass(frozen=True)
class Coding:
    """The model's answers for one narrative."""

    answers: tuple[Answer, ...]
    """The best codes, best first. Empty for a blank narrative."""
    needs_review: bool | None = None
    """True if the best score is below the threshold or the narrative is blank. None
    if there is no threshold.
    """
    group: Answer | None = None
    """If the best code is below the threshold: the most detailed group with scores
    that reach it.
    """
    members: tuple[str, ...] | None = None
    """The codes of the conformal set, best first. None if no coverage was requested."""
    subtree: str | None = None
    """The most detailed group that contains the whole set, if the classification
    has levels; "" if there is none.
    """

    def as_dict(self) -> dict[str, Json]:
        content: dict[str, Json] = {"codes": [answer.as_dict() for answer in self.answers]}
        if self.needs_review is not None:
            content["needs_review"] = self.needs_review
            content["group"] = None if self.group is None else self.group.as_dict()
        if self.members is not None:
            content["set"] = list(self.members)
            content |= {} if self.subtree is None else {"group_set": self.subtree or None}
        return content


_ENGLISH = "all-MiniLM"
"""Prefix of the names of encoders that only read English."""


@dataclass(frozen=True)
class Reads:
    """Limits of a released model on narratives. None if its files do not specify them."""

    tokens: int | None
    encoder: str | None
    """Language of the encoder, by Snowball's names."""
    stems: str | None
    """Language of the word stems that the model uses in addition to the encoder."""

    @classmethod
    def of(cls, folder: Path) -> Reads:
        tokens = next(iter(folder.glob("**/tokenizer_config.json")), None)
        longest = _field(tokens, "model_max_length") or _field(tokens, "max_length")
        bom = folder / MATERIALS
        is_english = bom.is_file() and _ENGLISH in bom.read_text(encoding="utf-8")
        return cls(
            tokens=longest if isinstance(longest, int) and longest < MOST_CHARACTERS else None,
            encoder="english" if is_english else None,
            stems=_field(folder / LEXICON, "language"),
        )

    @classmethod
    def of_config(cls, model: ModelConfig) -> Reads:
        language = model.encoder_language
        return cls(model.max_length, language and language.lower(), model.stems_language)

    @property
    def characters(self) -> int | None:
        """Number of characters that are read for word features; None if the model has none."""
        return None if self.stems is None else MOST_CHARACTERS

    def cut(self, look: NarrativeLook) -> int:
        """Returns the number of narratives that are longer than the model's input."""
        return 0 if self.tokens is None else look.longer_than(self.tokens)

    def notes(self, look: NarrativeLook) -> list[str]:
        """Returns sentences on narratives that the model cannot read in full."""
        return [
            note
            for note in (
                long_note(look, self.tokens, characters=self.characters),
                language_note(look, self.encoder, self.stems),
            )
            if note
        ]


def _field(file: Path | None, name: str) -> Any:
    try:
        return None if file is None else json.loads(file.read_text(encoding="utf-8")).get(name)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Coder:
    """A model with its classification and thresholds.

    `autocoder.open_bundle` opens one.

        coder = open_bundle("coder")
        (coding,) = coder.code(["Fell from a ladder."], top_k=3, threshold=0.8)
        coding.answers[0].code, coding.answers[0].score, coding.needs_review
    """

    kind: ClassVar[ModelKind] = "released"
    release: str
    digest: str
    classification: str
    version: str
    folder: Path
    model: Scorer
    titles: dict[str, str]
    groups: Groups | None
    thresholds: Thresholds | None
    """Content of a thresholds file. Its temperature divides the logits."""
    sets: Sets | None = None
    """Limits of the conformal sets that answers include, if any."""

    @property
    def origin(self) -> dict[str, str]:
        """The columns of every row that identify the model and its classification."""
        return {
            "model": self.release,
            "model_kind": self.kind,
            "classification": self.classification,
            "classification_version": self.version,
            "bundle_digest": self.digest,
            "score_temperature": f"{self.temperature:g}",
        }

    @property
    def temperature(self) -> float:
        """Divisor of the logits; 1 if there are no thresholds."""
        return float(self.thresholds["temperature"]) if self.thresholds else 1.0

    @cached_property
    def released(self) -> Released:
        """The torch model, which is needed to explain a code and to encode once for
        several bundles.
        """
        from mechanisms.model import export

        if isinstance(self.model, export.Released) and self.model.device == export.CPU:
            return self.model
        return _opened(self.folder, export.load)

    @property
    def label(self) -> str:
        """Name of the model on a page."""
        return f"release {self.release}"

    @property
    def description(self) -> str:
        """Describes the model in one line."""
        return describe_release(self.folder)

    @cached_property
    def reads(self) -> Reads:
        """Limits of the model on narratives, from the files of its bundle."""
        return Reads.of(self.folder)

    def scores(self, texts: Sequence[str]) -> Scores:
        """Returns the probability of every code, float32 [n, codes], calibrated if
        there is a temperature.
        """
        return self.calibrated(self.model.logits(texts))

    def calibrated(self, logits: Any) -> Scores:
        """Returns the calibrated probabilities for these logits."""
        return softmax(np.asarray(logits) / np.float32(self.temperature))

    def code(
        self, texts: Sequence[str], *, top_k: int = 1, threshold: float | None = None
    ) -> list[Coding]:
        """Codes narratives.

        Args:
            texts: the narratives. A blank narrative gets no code.
            top_k: number of codes per narrative, best first.
            threshold: score below which `needs_review` is set and a group is returned.
        """
        scores = self.scores([text for text in texts if text.strip()])
        return self.from_scores(texts, scores, top_k=top_k, threshold=threshold)

    def from_scores(
        self,
        texts: Sequence[str],
        scores: Scores,
        *,
        top_k: int = 1,
        threshold: float | None = None,
    ) -> list[Coding]:
        """Returns the codings of narratives from the scores [n, codes] of the n
        narratives that are not blank.
        """
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        best_scores = np.take_along_axis(scores, best, 1)
        groups: list[tuple[str, float] | None] = [None] * len(scores)
        if threshold is not None and self.groups is not None:
            groups = self.groups.most_detailed(scores, threshold=threshold)
        codings: list[Coding] = []
        for places, values, group in zip(best.tolist(), best_scores.tolist(), groups, strict=True):
            codes = [self.model.codes[place] for place in places]
            answers = tuple(map(self._answer, codes, values))
            codings.append(self._coding(answers, group, threshold))
        if self.sets is not None:
            members = self.sets.members(scores, self.model.codes)
            codings = list(map(self._with_set, codings, members))
        remaining = iter(codings)
        blank = self._blank_coding(threshold)
        return [next(remaining) if text.strip() else blank for text in texts]

    def _coding(
        self,
        answers: tuple[Answer, ...],
        group: tuple[str, float] | None,
        threshold: float | None,
    ) -> Coding:
        if threshold is None:
            return Coding(answers)
        # rounded as in the output: the last digits may differ on another machine
        unsure = round(answers[0].score, 6) < threshold
        return Coding(answers, unsure, self._answer(*group) if unsure and group else None)

    def _blank_coding(self, threshold: float | None) -> Coding:
        needs_review = None if threshold is None else True
        members = None if self.sets is None else ()
        return Coding((), needs_review, members=members)

    def _with_set(self, coding: Coding, inside: Sequence[int]) -> Coding:
        members = tuple(self.model.codes[place] for place in inside)
        return replace(
            coding, members=members, subtree=self.groups.shared(members) if self.groups else None
        )

    def with_sets(self, coverage: float) -> Coder:
        """Returns this coder with sets that contain the right code with this probability.

        Raises:
            InputError: the thresholds have no sets, or none with this coverage.
        """
        limits = None if self.thresholds is None else self.thresholds.get("sets")
        entries = [] if limits is None else limits["coverages"]
        fitted = {sets.coverage: sets for sets in map(Sets.of, entries)}
        if not fitted:
            raise Missing(
                "--coverage: the thresholds contain no limits for sets. Either "
                "no table of the held-out records was released, or its noise hides "
                "them, or your own were fitted without. Fit them with `autocoder "
                "adopt --data FILE --sets`.",
                kind="no-limits-of-sets",
            )
        if coverage not in fitted:
            raise Unknown(
                f"--coverage: no sets for {coverage:g}. Choose from "
                f"{', '.join(f'{accuracy:g}' for accuracy in fitted)}.",
                kind="unknown-coverage",
            )
        return replace(self, sets=fitted[coverage])

    def threshold_for(self, accuracy: float) -> float:
        """Returns the score above which this share of answers was correct on the records of the
        thresholds file.

        Raises:
            InputError: the file is missing, lacks this accuracy, or no score achieved it.
        """
        if self.thresholds is None:
            why = WITHOUT_TABLE.partition(". ")[0]
            raise Missing(
                f"--accuracy: this bundle has no {THRESHOLDS}. {why}. {_OTHERWISE}",
                kind="no-thresholds",
            )
        scores = {
            entry["target_accuracy"]: entry["threshold"] for entry in self.thresholds["thresholds"]
        }
        reachable = ", ".join(
            f"{target:g}" for target, score in sorted(scores.items()) if score is not None
        )
        advice = (
            f"Choose an accuracy with a threshold ({reachable}). Or: {_OTHERWISE}"
            if reachable
            else _OTHERWISE
        )
        if accuracy not in scores:
            targets = ", ".join(f"{target:g}" for target in sorted(scores)) or "none"
            raise Unknown(
                f"--accuracy: no threshold for {accuracy:g}. The file has {targets}. {advice}",
                kind="unknown-accuracy",
            )
        score = scores[accuracy]
        if score is None:
            best = best_accuracy(self.thresholds)
            raise OutOfRange(
                f"--accuracy: no score achieves {accuracy:g} with confidence on "
                f"{FITTED_ON[self.thresholds['fitted_on']]}. "
                f"{best}{' ' if best else ''}{advice}",
                kind="accuracy-not-reached",
            )
        return float(score)

    def _answer(self, code: str, score: float) -> Answer:
        return Answer(code, self.titles.get(code, ""), score)


_OTHERWISE = (
    "Fit thresholds on a few hundred records coded manually (`autocoder adopt BUNDLE --key KEY "
    "--out FOLDER "
    "--data CODED.csv --label COLUMN`, with --accuracy for another accuracy), or choose a score "
    "with --threshold."
)
"""Advice for a bundle that has no threshold for an accuracy."""

CLOSED = "AUTOCODER_NO_LEDGER"
"""Environment variable of processes that must not read the ledger although they
have its address.
"""


def open_bundle(
    folder: Path,
    *,
    thresholds: Path | None = None,
    levels: Levels = "auto",
    precision: Precision = "float32",
    coverage: float | None = None,
) -> Coder:
    """Loads a bundle, onto a GPU if there is one.

    Args:
        thresholds: a local file to use instead of the bundle's.
        levels: as in `groups_of`.
        precision: precision of the encoder. A GPU computes in float32. On a CPU, `auto` uses eight
            bits if the bundle has such a graph and the test vectors get the same codes as in
            float32.
        coverage: adds conformal sets with this coverage, from the thresholds.
    """
    release, model = _load(folder, precision)
    digest = bundle_digest(folder)
    try:
        with (folder / CODELIST).open(newline="", encoding="utf-8") as file:
            listed = [
                {name: unquote(cell) for name, cell in row.items()} for row in csv.DictReader(file)
            ]
        titles = {row["code"]: row["title"] for row in listed}
        first = listed[0]
    except (OSError, ValueError, KeyError, IndexError, TypeError, csv.Error, RecursionError):
        raise _damaged(folder, Path(CODELIST)) from None
    # A list without a name or version is identified by its content.
    name = first.get("classification") or "unnamed"
    version = first.get("version") or f"list-{file_digest(folder / CODELIST)[:12]}"
    packaged = folder / THRESHOLDS
    try:
        fitted = (
            read_thresholds(thresholds or packaged) if thresholds or packaged.is_file() else None
        )
    except MechanismError as error:
        option = "--thresholds" if thresholds else "--bundle"
        raise InputError(f"{option}: {error}", kind=error.kind, option=option) from None
    # guard: test_thresholds_of_this_years_with_next_years
    if thresholds and fitted is not None and fitted.get("bundle_digest", digest) != digest:
        raise Contradiction(
            f"{thresholds} was fitted on another bundle (release "
            f"{fitted.get('release', 'unknown')}, "
            f"not {release}). Adopt this one again.",
            kind="thresholds-of-another-bundle",
        )
    coder = Coder(
        release=release,
        digest=digest,
        classification=name,
        version=version,
        folder=folder,
        model=model,
        titles=titles,
        groups=groups_of(model.codes, classification=name, levels=levels),
        thresholds=fitted,
    )
    return coder if coverage is None else coder.with_sets(coverage)


def _load(folder: Path, precision: Precision) -> tuple[str, Scorer]:
    """Returns the release id and the model of a bundle: its graph, or the torch model if there is
    no graph or if there is a GPU.
    """
    if not (folder / STATEMENT).is_file():
        raise Unreadable(
            f"--bundle: {folder} is not a bundle: it has no {STATEMENT}.", kind="not-a-bundle"
        )
    try:
        release = str(json.loads((folder / STATEMENT).read_text(encoding="utf-8"))["release_id"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(folder, Path(STATEMENT)) from None
    if precision != "int8" and has_cuda():
        import torch

        from mechanisms.model import export

        return release, _opened(folder, partial(export.load, device=torch.device("cuda")))
    if precision != "float32" and (folder / INT8).is_file():
        quick = _opened(folder, partial(Graph.load, int8=True))
        band = near_tie(quick, folder)
        if band is not None:
            return release, replace(quick, near_tie=band)
    if precision == "int8":
        raise Missing(
            f"--precision: {folder} has no {INT8} with the same codes. Leave it out.",
            kind="no-int8-file",
        )
    if (folder / GRAPH).is_file():
        return release, _opened(folder, Graph.load)
    from mechanisms.model import export

    return release, _opened(folder, export.load)


def _opened(folder: Path, load: Callable[[Path], T]) -> T:
    try:
        return load(folder)
    except MechanismError as error:
        raise InputError(f"--bundle: {error}", kind=error.kind) from None
    except Exception as error:  # on a damaged model libraries may raise any exception
        what = type(error).__name__
        raise Unreadable(
            f"--bundle: {folder} is damaged: its model cannot be loaded ({what}).",
            kind="unloadable-bundle",
        ) from None


def _damaged(folder: Path, file: Path) -> InputError:
    return Unreadable(
        f"--bundle: {folder} is damaged: {file} cannot be read.", kind="damaged-bundle"
    )


def require_not_revoked(coder: Coder, home: Path) -> None:
    """Refuses a bundle that was revoked, by the machine's ledger or the workspace's.

    If no ledger is readable, the roots that `revoke` writes next to the bundles decide. A partner
    has neither and gets the roots from the agency (`autocoder verify --roots`).
    """
    workspace = Workspace(home)
    try:
        ledger = _readable_ledger(workspace)
        if ledger is not None:
            from storage.bundle import registry

            registry.require_not_revoked(ledger, coder.release, coder.digest)
        elif workspace.roots.exists():  # signed or not: it is as safe as the bundles there
            from storage.bundle.trust import read_roots

            read_roots(workspace.roots)[-1].check(coder.release, coder.digest, None)
    except StorageError as error:
        raise StorageError(f"--bundle: {error}. Use a newer one.", kind=error.kind) from None


def newest_bundle(home: Path) -> Path:
    """Returns the bundle in a workspace that was committed last and is not revoked, by the ledger.

    If all are revoked, it returns the newest of them, which `require_not_revoked` refuses. If no
    ledger is readable, the row numbers in the bundles' proofs and the revocations in the roots
    decide. File times are never used, so that a copy of the workspace gives the same answer.
    """
    workspace = Workspace(home)
    folders = _bundle_folders(workspace)
    ledger = _readable_ledger(workspace) if folders else None
    if ledger is not None:
        rows = ledger.releases()
        sequences = {row.release_id: row.sequence for row in rows if row.state == "committed"}
        revoked = set(ledger.revoked())
    else:
        sequences = _sequences_of_proofs(folders)
        revoked = _revoked_by_roots(workspace)
    committed = folders.keys() & sequences.keys()
    if not committed:
        raise StorageError(
            f"no committed bundle in {workspace.bundles}. Make a plan with "
            "`autocoder train` and a bundle with `autocoder release PLAN`, or "
            "specify a bundle with --bundle.",
            kind="no-committed-bundle",
        )
    newest = max(committed, key=lambda name: (name not in revoked, sequences[name]))
    return folders[newest]


def _bundle_folders(workspace: Workspace) -> dict[str, Path]:
    found = workspace.bundles.glob("*")
    return {path.name: path for path in found if path.is_dir() and not path.name.startswith(".")}


def _sequences_of_proofs(folders: Mapping[str, Path]) -> dict[str, int]:
    sequences: dict[str, int] = {}
    for name, folder in folders.items():
        sequence = _proof_row(folder).get("sequence")
        if isinstance(sequence, int):
            sequences[name] = sequence
    return sequences


def _revoked_by_roots(workspace: Workspace) -> set[str]:
    from storage.bundle.trust import read_roots

    if not workspace.roots.exists():
        return set()
    return {entry.release_id for entry in read_roots(workspace.roots)[-1].revoked}


def read_sensitive(path: Path, coder: Coder) -> tuple[str, ...]:
    """Reads an operator's public list of codes that a review shows first."""
    option = "--sensitive"
    columns, rows = read_small(path.expanduser(), ("code",), option=option)
    codes = [row[columns.index("code")].strip() for row in rows]
    for number, code in enumerate(codes, start=1):
        if code not in coder.model.codes:
            raise Unknown(
                f"{option}: {path}: row {number}: unknown code. Correct the row.",
                kind="unknown-sensitive-code",
                row=number,
            )
    return tuple(codes)


def describe_release(folder: Path) -> str:
    """Describes a bundle in one line: release id, population, guarantee, ε (rounded
    up) and date.
    """
    statement, row = _json(folder / STATEMENT), _proof_row(folder)
    guarantee = statement.get("guarantee_kind")
    if statement.get("epsilon") is not None:
        try:
            rounded = Decimal(str(statement["epsilon"])).quantize(
                Decimal("0.01"), rounding=ROUND_CEILING
            )
        except ArithmeticError:
            raise _damaged(folder, Path(STATEMENT)) from None
        guarantee = f"{guarantee} ε {float(rounded):g}"
    date = f"made {row['committed_on']}" if "committed_on" in row else None
    parts = [
        " ".join(str(part).split())
        for part in (statement.get("population"), guarantee, date)
        if part
    ]
    return f"model {statement.get('release_id')}" + (f" ({', '.join(parts)})" if parts else "")


def _readable_ledger(workspace: Workspace) -> Ledger | None:
    url = os.environ.get("AUTOCODER_LEDGER_URL")
    # partners have no ledger and need not wait for its libraries
    if CLOSED in os.environ or not (url or workspace.ledger.is_file()):
        return None
    from storage.ledger import Ledger

    return Ledger.require_existing(url) if url else Ledger.open_existing(workspace.ledger_url)


def _proof_row(folder: Path) -> dict[str, Any]:
    row = _json(folder / PROOF).get("row")
    return row if isinstance(row, dict) else {}


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        raise _damaged(file.parent, Path(file.name)) from None
