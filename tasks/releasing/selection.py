"""How a fit was chosen among others on the same records, according to the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from storage.ledger import ComparisonFit, Evaluated, SearchFit
from storage.ledger.records import same_records
from tasks.catalogue import branch_bodies
from tasks.fitting.candidate import Candidate
from tasks.method import RELEASE_BRANCH, settings_of
from tasks.releasing.claims import CHOSEN, COMPARED, SEARCHED
from tasks.releasing.ledger_records import sample_of
from tasks.running.stage import Context


class Selection(BaseModel, frozen=True, extra="forbid"):
    """How a fit was chosen, according to the ledger. `lines` describes it among the inputs that are
    not protected.

    A fit may have been chosen from several on the same records by seed, sample, settings or
    mechanism. The ledger contains every fit with scores that were shown. Records count as the same
    if they have the same fingerprint, or if their samples of marks overlap: another seed,
    another population name or an added record does not make them different.
    """

    fits: int = 1
    """Number of fits on these records in the ledger, including this one."""
    searched: bool = False
    """Whether settings were searched for a target epsilon on these records."""
    tuned: tuple[str, ...] = ()
    """Shipped branches with the fit's settings, if these were found on other records."""
    compared: bool = False
    """Whether several mechanisms were compared on these records."""

    @property
    def lines(self) -> tuple[str, ...]:
        return (
            *([SEARCHED] if self.searched else []),
            *dict.fromkeys(line for name in self.tuned for line in _lines_of(name)),
            *([COMPARED] if self.compared else []),
            CHOSEN,
        )

    def since(self, earlier: Selection) -> str:
        """Describes how the records were used since an earlier selection was stated."""
        fits = f" (the ledger has {self.fits} training runs on them, the plan {earlier.fits})"
        also = [
            *(["settings were searched on them"] if self.searched and not earlier.searched else []),
            *(
                ["mechanisms were compared on them"]
                if self.compared and not earlier.compared
                else []
            ),
        ]
        return "; ".join(
            ["the same records were used again since" + fits * (self.fits != earlier.fits), *also]
        )

    @staticmethod
    def of(
        measurements: Sequence[Evaluated],
        context: Context,
        planned: Candidate,
        *,
        fingerprint: str,
        weighted: bool,
    ) -> Selection:
        """Returns how a candidate was chosen, from the ledger's rows on its records.

        Args:
            measurements: the ledger's measurements.
            fingerprint: fingerprint of the records.
            weighted: whether the candidate is a posterior with risk weights.
        """
        for ref in (planned.dataset, planned.fitted):
            context.store.open(ref)
        sample = sample_of(context, planned.dataset)
        same: list[Evaluated] = []
        for row in measurements:
            measured = row.evaluation
            if measured.kind != "evaluation":
                continue
            # guard: test_the_scores_of_another_sample_of_the_same_records
            if measured.data_fingerprint == fingerprint or same_records(measured.sample, sample):
                same.append(row)
        fit = planned.fitted.sha256
        branches = {_branch(row) for row in same if fit in row.evaluation.artifact_digests.values()}
        settings = context.store.recipe(planned.fitted)["config"].get("mechanism", {})
        return Selection(
            fits=len(
                {planned.fitted.sha256, *(_fit(row) for row in same if row.event is not None)}
            ),
            searched=weighted
            and any(isinstance(row.evaluation.subject, SearchFit) for row in same),
            tuned=tuple(
                name
                for name, body in branch_bodies().items()
                if body.get("unprotected") and (name in branches or _has_settings(settings, body))
            ),
            compared=len(
                {_branch(row) for row in same if isinstance(row.evaluation.subject, ComparisonFit)}
            )
            > 1,
        )


def _lines_of(branch: str) -> list[str]:
    return branch_bodies().get(branch, {}).get("unprotected", [])


def _fit(row: Evaluated) -> str:
    artifacts = row.evaluation.artifact_digests
    return (
        artifacts.get("fit")
        or artifacts.get("posterior")
        or str(row.evaluation.idempotency_key or row.sequence)
    )


def _branch(row: Evaluated) -> str:
    subject = row.evaluation.subject
    return subject.branch if isinstance(subject, ComparisonFit) else RELEASE_BRANCH


def _has_settings(fitted: Any, branch: Mapping[str, Any]) -> bool:
    """True if the fit has a branch's settings, on features or on tokens, under any name."""
    mechanism = settings_of(branch)
    return any(
        _holds(way, fitted) for way in (mechanism, mechanism | branch.get("token_settings", {}))
    )


def _holds(settings: Any, configuration: Any) -> bool:
    if isinstance(settings, Mapping):
        return isinstance(configuration, Mapping) and all(
            n in configuration and (v is None or _holds(v, configuration[n]))
            for n, v in settings.items()
        )
    return bool(settings == configuration)
