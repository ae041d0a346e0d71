"""The planned release: what would leave, on what claim, and from what it is made. The file that an officer approves.

It lies in the private workspace, since it holds the references of private artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from mechanisms.errors import MechanismError
from mechanisms.model import encoders
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import BoundedSwagEvent, Claim, SwagPpmEvent, decode
from storage.artifacts import ArtifactRef, Store, digest
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig
from storage.ledger import ReleasePlan
from tasks.fitting.candidate import Candidate
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import (
    MATCHED,
    artifact_digests,
    privacy_unit,
    public_inputs,
    release_plan,
    unprotected_inputs,
)
from tasks.running.stage import Context

_NOT_APPROVED: Any = {"plan": {"prefect_run_id": True}}
"""What may differ between two runs of the same plan."""


class PlannedRelease(BaseModel):
    """A plan with the candidate it releases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    plan: ReleasePlan
    candidate: Candidate

    @field_validator("plan", mode="before")
    @classmethod
    def _typed_event(cls, plan: Any) -> Any:
        return {**plan, "event": decode(plan.get("event"))} if isinstance(plan, dict) else plan

    @staticmethod
    def of_posterior(
        context: Context,
        parameters: RetrainParameters,
        *,
        dataset: ArtifactRef,
        prepared: ArtifactRef,
        posterior: ArtifactRef,
        measured: ArtifactRef,
        prefect_run_id: str | None,
    ) -> PlannedRelease:
        """Plan one draw of a SWAG posterior."""
        plan = release_plan(
            parameters,
            context.store,
            dataset=dataset,
            posterior=posterior,
            measured=measured,
            prefect_run_id=prefect_run_id,
        )
        bounded = parameters.bounded(parameters.rounds[-1])
        candidate = Candidate(
            dataset=dataset,
            prepared=prepared,
            fitted=posterior,
            measured=measured,
            model=parameters.model,
            seed=parameters.fit.seed,
            std_scale=parameters.fit.swag.std_scale,
            bound=None if bounded is None else bounded.bound,
        )
        return PlannedRelease(plan=plan, candidate=candidate)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that an approval covers, in canonical form (RFC 8785)."""
        return digest(self.model_dump(mode="json", exclude=_NOT_APPROVED))

    def has_bundle(self, store: Store) -> bool:
        """Whether a bundle can hold this model: there is none yet on a table or images, nor of every mechanism."""
        made = self.candidate
        return made.model.encoder != encoders.NONE and store.figures(made.fitted).get("releasable", True)

    def check(self, context: Context) -> None:
        """Refuse a plan that says other than what its artifacts and its event bear out, as one edited by hand would.

        Taken at the plan's word: population, label, requester, commit; the officer's signature is over them.

        Raises:
            StorageError: an artifact is not the one named, or was changed.
            MechanismError: records, model, event or claim are not what ran and was measured.
        """
        plan, made, store = self.plan, self.candidate, context.store
        named = artifact_digests(dataset=made.dataset, fitted=made.fitted, measured=made.measured)
        if named != plan.artifact_digests:
            raise StorageError("release plan: its artifacts are not those that it is made from; plan again")
        fitted = store.open(made.fitted)
        for other in (made.dataset, made.prepared, *(() if made.measured is None else (made.measured,))):
            store.open(other)
        if not self.has_bundle(store):
            raise MechanismError(
                f"release plan: a model of `{plan.event.mechanism}` has no bundle; it can be compared and audited, and "
                "not released"
            )
        if MATCHED in plan.claim.unprotected_inputs:
            raise MechanismError(
                "release plan: its target epsilon was taken from the records (`match`), which is for study; compare "
                "with --target-epsilon and a number that somebody answers for"
            )
        wrong = [*self._wrong_records(store), *self._wrong_candidate(store)]
        if made.measured is None:
            as_run = decode(json.loads((fitted / "event.json").read_text())) == plan.event
        else:
            as_run = self._as_measured(store.figures(made.measured))
        wrong += [] if as_run else ["event"]
        if wrong:
            raise MechanismError(f"release plan: {', '.join(wrong)}: not what ran and was measured; plan again")
        again = claim_of(
            plan.event,
            delta=plan.claim.delta,
            privacy_unit=plan.claim.privacy_unit,
            max_records_per_unit=plan.claim.max_records_per_unit,
            unprotected_inputs=plan.claim.unprotected_inputs,
            public_inputs=public_inputs(made.model),
        )
        # more than the event costs may be claimed: a comparison states no epsilon below 1e-4
        if (again.epsilon or 0) > (plan.claim.epsilon or 0) or _terms(again) != _terms(plan.claim):
            raise MechanismError("release plan: its event supports no such claim; plan again")

    def _wrong_records(self, store: Store) -> list[str]:
        """Fields that differ from what the data set says of itself."""
        facts, ingest = store.figures(self.candidate.dataset), store.recipe(self.candidate.dataset)["config"]["ingest"]
        unit, most = privacy_unit(IngestConfig.model_validate(ingest))
        claim, weights = self.plan.claim, self.plan.event.risk_weights
        told = {
            "cohorts": (self.plan.cohorts, tuple(facts["cohorts"])),
            "data_fingerprint": (self.plan.data_fingerprint, facts["fingerprint"]),
            "records": (self.plan.records_rounded, facts["records"]),
            "privacy_unit": (claim.privacy_unit, unit),
            "max_records_per_unit": (claim.max_records_per_unit, most),
        }
        wrong = [name for name, (said, true) in told.items() if said != true]
        missing = set(unprotected_inputs(facts, weights=weights)) - set(claim.unprotected_inputs)
        return [*wrong, *(["unprotected_inputs"] if missing else [])]

    def _wrong_candidate(self, store: Store) -> list[str]:
        """Fields that differ from those of the stage that measured the posterior, or made the fit."""
        made = self.candidate
        recipe = store.recipe(made.fitted if made.measured is None else made.measured)
        config, inputs = recipe["config"], recipe["inputs"]
        told = {
            "model": (made.model.model_dump(mode="json"), config["model"]),
            "seed": (made.seed, config["seed"]),
            "dataset": (made.dataset.sha256, inputs["dataset"]),
            "prepared": (made.prepared.sha256, inputs["prepared"]),
        }
        if made.measured is not None:
            told["std_scale"] = (made.std_scale, config["std_scale"])
            told["posterior"] = (made.fitted.sha256, inputs["posterior"])
        return [name for name, (said, true) in told.items() if said != true]

    def _as_measured(self, figures: Mapping[str, Any]) -> bool:
        """Whether a posterior's event is that of its sensitivity's draws."""
        at_least, bound = figures["sensitivity"], self.candidate.bound
        match self.plan.event:
            case SwagPpmEvent(sensitivity=stated, sensitivity_draws=draws):
                return bound is None and stated >= at_least and draws == figures["draws"]
            case BoundedSwagEvent(bound=stated):
                return bound == stated and stated >= at_least
            case _:
                return False

    def save(self, context: Context) -> Path:
        """Write the plan into the private workspace; return the file."""
        folder = context.workspace.private / "plans"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.plan.idempotency_key[:16]}.json"
        content = json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False)
        write_atomically(file, content.encode() + b"\n")
        return file

    @staticmethod
    def load(file: Path) -> PlannedRelease:
        """Read a plan.

        Raises:
            InputError: there is no such file, or it is no plan.
        """
        try:
            return PlannedRelease.model_validate_json(file.read_bytes())
        except OSError as error:
            raise InputError(f"plan {file}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "file"
            raise InputError(f"plan {file} is no release plan: {field}: {first['msg']}") from None


def _terms(claim: Claim) -> dict[str, Any]:
    return claim.model_dump(exclude={"epsilon", "epsilon_add_remove", "accountant"})
