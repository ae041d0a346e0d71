"""Says of a run's code lists, before a release exists, whether their entries are published or will be texts to sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from storage.artifacts import ArtifactRef
from storage.codelist import Code, read_codelist
from storage.datasets import load_spaces
from storage.egress.public_lists import advice, published_name
from tasks.bundle.texts import code_texts
from tasks.fitting.ingest import ingest_records
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context

Verdict = Literal["published", "numbers", "to be signed"]


@dataclass(frozen=True)
class CodeListVerdict:
    """Holds the verdict on the code list of one field."""

    field: str
    """Its name; "" of the only one."""
    published_name: str | None
    """The published list that it is, or some entries of."""
    verdict: Verdict
    texts: int = 0
    """Entries that the plan's page lists."""
    advice: str = ""
    """What to do so that nobody has to read them."""

    @property
    def description(self) -> str:
        """Describes the verdict, with what to do where anything is to be done."""
        return {
            "published": f"published as {self.published_name}",
            "numbers": "the list has numbers and no titles",
            "to be signed": f"not a published list: the plan lists its {self.texts} entries, and whoever approves the "
            f"plan signs them. {self.advice}",
        }[self.verdict]

    @property
    def warning(self) -> str | None:
        """Returns a warning where something is to be done, None otherwise."""
        if self.verdict != "to be signed":
            return None
        return f"code list{f' of {self.field}' if self.field else ''}: {self.description}"


def assess_parameters(context: Context, parameters: RetrainParameters) -> tuple[CodeListVerdict, ...]:
    """Assesses a retrain's lists: those of its records where an earlier run ingested them, otherwise the files.

    Before there are records, none of codes without a list.
    """
    given = parameters.data
    dataset = ingest_records(given).find(context.store)
    if dataset is not None:
        return assess_dataset(context, dataset)
    return _verdicts(
        {
            name: read_codelist(file, option=_option(name), columns=given.ingest.codelist_columns)
            for name, file in given.codelists.items()
            if file is not None
        }
    )


def assess_dataset(context: Context, dataset: ArtifactRef) -> tuple[CodeListVerdict, ...]:
    """Assesses the lists of ingested records."""
    return _verdicts(load_spaces(context.store.open(dataset)))


def _option(field: str) -> str:
    return f"data.ingest.fields.{field}.codelist" if field else "--codelist (data.codelist)"


def _verdicts(spaces: Mapping[str, Sequence[Code]]) -> tuple[CodeListVerdict, ...]:
    return tuple(_verdict(name, codes) for name, codes in spaces.items())


def _verdict(field: str, codes: Sequence[Code]) -> CodeListVerdict:
    known = published_name(codes)
    if known is not None:
        return CodeListVerdict(field, known, "published")
    texts = len(code_texts(field, codes))
    if not texts:
        return CodeListVerdict(field, None, "numbers")
    return CodeListVerdict(field, None, "to be signed", texts=texts, advice=advice(codes))
