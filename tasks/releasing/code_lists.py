"""Reports, before a release exists, whether the entries of its code lists are
published or have to be signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from storage.artifacts import ArtifactRef
from storage.codelist import Code
from storage.datasets import load_codes
from storage.egress.public_lists import DEMONSTRATION, advice, published_name
from storage.ingest import read_codes
from tasks.bundle.texts import code_texts
from tasks.fitting.ingest import ingest_records
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context

Verdict = Literal["published", "numbers", "to be signed"]


_DEMONSTRATION = (
    "not public: it is the program's demonstration list. The release check accepts it because it "
    "comes with the program, so none of its entries reveals a record"
)


@dataclass(frozen=True)
class CodeListVerdict:
    """The verdict on a code list."""

    published_name: str | None
    """The published list that contains all of its entries, if there is one."""
    verdict: Verdict
    texts: int = 0
    """Number of entries that the plan's page lists."""
    advice: str = ""
    """How to make reading them unnecessary."""

    @property
    def is_demonstration(self) -> bool:
        """Whether it is the program's own list, which nobody published."""
        return self.published_name == DEMONSTRATION

    @property
    def description(self) -> str:
        """Describes the verdict, with the advice if there is any."""
        if self.is_demonstration:
            return _DEMONSTRATION
        return {
            "published": f"recognised as published ({self.published_name})",
            "numbers": "the list has numbers and no titles",
            "to be signed": f"not a published list: the plan lists its {self.texts} entries, and "
            f"whoever approves the plan signs them. {self.advice}",
        }[self.verdict]

    @property
    def warning(self) -> str | None:
        """A warning if something has to be done, else None."""
        if self.verdict != "to be signed":
            return None
        return f"code list: {self.description}"


def assess_parameters(context: Context, parameters: RetrainParameters) -> CodeListVerdict | None:
    """Assesses the code list of a run: the list of its records if an earlier run ingested them,
    otherwise the file.

    Returns None for observed codes if there are no records yet.
    """
    data = parameters.data
    dataset = ingest_records(data).find(context.store)
    if dataset is not None:
        return assess_dataset(context, dataset)
    file = data.codelist_path
    if file is None:
        return None
    return assess(read_codes(file, data.ingest).codes)


def assess_dataset(context: Context, dataset: ArtifactRef) -> CodeListVerdict:
    return assess(load_codes(context.store.open(dataset)))


def assess(codes: Sequence[Code]) -> CodeListVerdict:
    name = published_name(codes)
    if name is not None:
        return CodeListVerdict(name, "published")
    texts = len(code_texts(codes))
    if not texts:
        return CodeListVerdict(None, "numbers")
    return CodeListVerdict(None, "to be signed", texts=texts, advice=advice(codes))
