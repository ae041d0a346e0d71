"""What the gate will say of a run's code lists, before there is anything to release: by the gate's own function.

A list that is known as published may leave with its titles. Any other is read like every text, and the release is
refused where records say what it says: that is known once they are ingested, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from mechanisms.model import encoders
from storage.artifacts import ArtifactRef
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code, read_codelist
from storage.datasets import load_spaces
from storage.egress import leaks
from storage.egress.gate import cells_of, faults_of_lists
from storage.egress.published import advice, known_as
from storage.egress.sequences import SequenceFilter
from storage.errors import InputError
from tasks.bundle import fill, golden, licence
from tasks.fitting import data
from tasks.parameters import RetrainParameters
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

Verdict = Literal["known", "no titles", "harmless", "not read", "refused"]


@dataclass(frozen=True)
class Word:
    """The gate's word on the code list of one field."""

    field: str
    """Its name; "" of the only one."""
    known_as: str | None
    """The published list that it is, or some entries of."""
    verdict: Verdict
    fault: str = ""
    """What the gate refuses, with what to do."""
    advice: str = ""
    """What to do so that the gate need not read it."""

    @property
    def said(self) -> str:
        """In words, with what to do where something is to be done."""
        unknown = "not known to the gate, which reads its titles like any text"
        return {
            "known": f"known as {self.known_as}",
            "no titles": "there are no titles, so that there is nothing for the gate to know",
            "harmless": f"{unknown}; no record says what they say, so that they may leave",
            "not read": f"{unknown}: where a record says what a title says, the release is refused, which a retrain "
            f"tells once the records are ingested, before it trains. To be sure beforehand: {self.advice}",
            "refused": f"refused by the gate at the release: {self.fault}",
        }[self.verdict]

    @property
    def warning(self) -> str | None:
        """For whoever goes on all the same; None where nothing is to be done."""
        if self.verdict not in ("not read", "refused"):
            return None
        return f"code list{f' of {self.field}' if self.field else ''}: {self.said}"


def of_parameters(context: Context, parameters: RetrainParameters) -> tuple[Word, ...]:
    """Of a retrain's lists: read against its records where an earlier one has ingested them, else by themselves.

    None of data that no bundle is made for, nor, before there are records, of codes without a list.

    Raises:
        InputError: a code list cannot be read; names the option, file and row.
    """
    given = parameters.data
    if given.ingest.kind != "text":
        return ()
    dataset = data.ingest(given).find(context.store)
    if dataset is not None:
        return of_dataset(context, dataset, parameters)
    spaces = {
        name: read_codelist(file, option=_option(name)) for name, file in given.codelists.items() if file is not None
    }
    # which entries of a list are in the bundle is not known yet where those alone are that records have
    sure = {name: own for name, own in spaces.items() if name in given.whole_codelists}
    named = (given.classification, given.classification_version)
    faults = _faults(context, sure, named, encoder=parameters.model.encoder, narratives=None)
    return _words(spaces, faults, read=False)


def of_dataset(context: Context, dataset: ArtifactRef, parameters: RetrainParameters) -> tuple[Word, ...]:
    """Of records that are ingested, as the release of a retrain of them would have it. Makes the gate's filter of them,
    where there is none yet, and nothing else.
    """
    licence_id = _licence_id(parameters.release.licence)
    return _of_dataset(context.home, dataset, licence_id=licence_id, encoder=parameters.model.encoder)


def of_plan(context: Context, planned: PlannedRelease) -> tuple[Word, ...] | None:
    """Of a planned release whose records are at hand; None where no bundle can hold its model."""
    if not planned.has_bundle(context.store):
        return None
    made = planned.candidate
    licence_id = _licence_id(planned.output.licence)
    return _of_dataset(context.home, made.dataset, licence_id=licence_id, encoder=made.model.encoder)


def require(parameters: RetrainParameters, words: Sequence[Word]) -> None:
    """Refuse a retrain that goes on to its release, and would be refused there.

    Raises:
        InputError: names the option and the file, and says what to do.
    """
    for word in words:
        if word.verdict == "refused":
            file = parameters.data.codelists[word.field]
            raise InputError(
                f"{_option(word.field)}{'' if file is None else f' {file}'}: the gate would refuse the release: "
                f"{word.fault}. Or stop at a plan, to audit and compare: --plan-only (release.enabled)"
            )


def _licence_id(name: str | None) -> str | None:
    """Of a licence by name, whose text is public; None of one that the operator gave."""
    name = licence.OURS if name is None else name
    return name if name in licence.SPDX else None


def _option(field: str) -> str:
    return f"data.ingest.fields.{field}.codelist" if field else "--codelist (data.codelist)"


@lru_cache(maxsize=8)  # a retrain asks at its start, after ingest and for its plan; reading a list takes seconds
def _of_dataset(home: str, dataset: ArtifactRef, *, licence_id: str | None, encoder: str) -> tuple[Word, ...]:
    context = Context(home=home)
    spaces = load_spaces(context.store.open(dataset))
    facts = context.store.figures(dataset)
    named = (facts.get("classification", ""), facts.get("classification_version", ""))
    # the release's own filter: what it leaves out as public, and which windows it keeps, decides as much as the lists
    narratives = fill.narratives_of(context, dataset, spaces, licence_id)
    return _words(spaces, _faults(context, spaces, named, encoder=encoder, narratives=narratives), read=True)


def _faults(
    context: Context,
    spaces: Mapping[str, Sequence[Code]],
    named: tuple[str, str],
    *,
    encoder: str,
    narratives: SequenceFilter | None,
) -> dict[str, UnsoundBundle]:
    """What the gate says first of each list that it refuses, by its field."""
    found = Path(encoders.resolve(encoder))
    own_words = fill.own_words(spaces, {})
    identities = leaks.identities(context.workspace.home, *((found,) if found.is_dir() else ()))
    faults: dict[str, UnsoundBundle] = {}
    for fault in faults_of_lists(
        {name: cells_of(codes, *named) for name, codes in spaces.items()},
        {name: golden.texts(codes) for name, codes in spaces.items()},
        identities=tuple(name for name in identities if name.casefold() not in own_words),
        narratives=narratives,
    ):
        field = fault.file.rpartition("/")[0]
        if field not in spaces:  # of all lists together
            field = next((name for name, codes in spaces.items() if known_as(codes) is None), next(iter(spaces)))
        faults.setdefault(field, fault)
    return faults


def _words(
    spaces: Mapping[str, Sequence[Code]], faults: Mapping[str, UnsoundBundle], *, read: bool
) -> tuple[Word, ...]:
    return tuple(_word(name, codes, faults.get(name), read=read) for name, codes in spaces.items())


def _word(field: str, codes: Sequence[Code], fault: UnsoundBundle | None, *, read: bool) -> Word:
    known = known_as(codes)
    if fault is not None:
        return Word(field, known, "refused", fault=f"{fault.file} {fault.problem}")
    if known is not None:
        return Word(field, known, "known")
    if not any(entry.title for entry in codes):
        return Word(field, known, "no titles")
    return Word(field, known, "harmless" if read else "not read", advice=advice(codes))
