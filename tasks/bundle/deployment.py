"""Writes the record of a release for a public registry of deployments, and answers to NIST SP
800-226's questions.

The record has the fields of OpenDP's registry (opendp/deployments-registry-data, schema of commit
3e9c812, July 2026). The registry has no field for utility, so that is in the notes. Facts that the
ledger does not contain come from the agency's statement under `registry` in its policy. Both
documents have the same figures as the certificate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from storage.errors import InputError, Missing
from storage.json_values import Json
from storage.ledger.amounts import short
from storage.ledger.budget import Charge
from storage.ledger.entries import PolicySet, ReleaseRow, Row
from storage.ledger.policy import RegistryStatement
from storage.ledger.reader import LedgerReader
from storage.ledger.report import markdown
from tasks.pages.render import render


class _Words(TypedDict):
    record: dict[str, Json]
    """For the registry."""
    answers: list[tuple[str, str]]
    """Questions with their answers."""


@dataclass(frozen=True)
class Deployment:
    """A drawn release, the charges to its accounts, and the agency's statement about it."""

    row: ReleaseRow
    charges: Sequence[Charge]
    stated: RegistryStatement | None
    """The policy's statement for a registry. If it is None, there is no record, and the answers say
    so.
    """
    repeated: bool
    """Whether the population was released before."""

    @staticmethod
    def of(
        ledger: LedgerReader, release_id: str, *, later: RegistryStatement | None = None
    ) -> Deployment:
        """Returns the deployment as it was drawn, with the statement recorded at reservation, or
        else `later`.
        """
        state = ledger.state()
        release = state.release(release_id)
        drawn = release.drawn
        if drawn is None:
            raise InputError(
                f"release {release_id} is {release.row.state}. Only a sampled release has a "
                "record.",
                kind="never-sampled",
            )
        statement = later
        for row in state.rows:
            if row.sequence < release.sequence and isinstance(row, Row):
                policy = row.entry.policy if isinstance(row.entry, PolicySet) else None
                statement = statement if policy is None else policy.registry or later
        charges = {charge.account: charge for charge in release.charges}
        earlier = [
            other_release
            for other_release in state.releases.values()
            if other_release.sequence < release.sequence
        ]
        repeated = any(
            other_release.plan.population == release.plan.population for other_release in earlier
        )
        return Deployment(drawn, tuple(charges.values()), statement, repeated)

    def _words(self, utility: Sequence[str]) -> _Words:
        # only the caps of accounts are public: sums depend on which records other releases share
        row, most = self.row, self.row.claim.max_records_per_unit
        caps = [
            f"{charge.account}: at most ε {short(charge.epsilon_cap)}"
            + (
                f" at δ {short(charge.after.delta_cap)}"
                if charge.after.delta_cap is not None
                else ""
            )
            for charge in self.charges
            if charge.own and self.stated is not None
        ]
        words = render(
            "deployment.json",
            row=row,
            plan=row.plan,
            claim=row.claim,
            amounts=row.exact,
            stated=self.stated or _NOTHING,
            utility=utility,
            repeated=self.repeated,
            unstated=_UNSTATED,
            unit=row.claim.privacy_unit + (f" of at most {most} records" if most > 1 else ""),
            budget=(
                "Releases that the ledger recognises as of the same records are charged to the "
                "same accounts, which never reset. "
            )
            + ("; ".join(caps) or "Ask the agency for their caps."),
            reserve=_RESERVE if row.guarantee_kind == "formal" else "",
            slug=re.sub(r"[^a-z0-9]+", "-", row.plan.population.lower()).strip("-") or "release",
            paragraph=_paragraph,
        )
        return json.loads(words)

    def registry_record(self, utility: Sequence[str] = ()) -> dict[str, Json]:
        """Returns the record for the registry.

        Args:
            utility: sentences on the model's accuracy. If empty, the record refers to the bundle's
                card.
        """
        if self.stated is None:
            raise Missing(
                "no policy contains a statement for a registry, so there is no record",
                kind="no-registry-statement",
            )
        return self._words(utility)["record"]

    def answers(self, utility: Sequence[str] = ()) -> str:
        """Returns a Markdown page with the questions of NIST SP 800-226 (2025) and answers for this
        release.

        Args:
            utility: as for the record.
        """
        title = f"NIST SP 800-226: release {self.row.release_id}"
        return markdown(title, {"Questions and answers": self._words(utility)["answers"]})


def stated_deployment(ledger: LedgerReader, release_id: str) -> Deployment:
    """Returns a committed release's deployment. If no policy had a statement at reservation, the
    current policy's statement is used.
    """
    row, in_force = ledger.release(release_id), ledger.policy()
    if row.state != "committed":
        raise InputError(
            f"release {release_id} is {row.state}. Only a committed release has a record.",
            kind="uncommitted-deployment",
        )
    deployment = Deployment.of(ledger, release_id, later=in_force.registry)
    if deployment.stated is None:
        raise Missing(
            f"policy {in_force.name} contains no statement for a registry. Add "
            "`registry` to it, and record it with `autocoder ledger "
            "change-policy`.",
            kind="policy-without-registry",
        )
    return deployment


_RESERVE = (
    "An account may count slightly more than the ε of the release, because it keeps 1% of its δ in "
    "reserve"
)


_UNSTATED = "The agency has not answered this. Ask the agency."
_NOTHING = RegistryStatement(
    curators=(_UNSTATED,),
    region=_UNSTATED,
    domain=_UNSTATED,
    actors="The agency has not named the operator.",
    refreshment=_UNSTATED,
    justification=_UNSTATED,
    authors=(_UNSTATED,),
)


def _paragraph(*sentences: str) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:].rstrip('. ')}." for text in sentences if text)
