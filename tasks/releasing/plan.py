"""The planned release: what would leave, on what claim, and from what it is made. The file that an officer approves.

It lies in the private workspace, since it holds the references of private artifacts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from mechanisms.errors import MechanismError
from mechanisms.mechanism import kinds
from mechanisms.model import encoders
from mechanisms.model.export import Precision
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import Claim, decode
from storage.artifacts import MANIFEST, ArtifactRef, Store, digest, file_digest
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig
from storage.ledger import BudgetRefused, Ledger, ReleasePlan
from tasks.bundle import licence
from tasks.fitting.candidate import Candidate
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing.claims import (
    FLOATING_POINT,
    MATCHED,
    RANDOMNESS,
    TRUST_MODEL,
    artifact_digests,
    privacy_unit,
    public_inputs,
    release_plan,
    unprotected_inputs,
)
from tasks.running.stage import Context

_NOT_APPROVED: Any = {"plan": {"prefect_run_id": True}}
"""What may differ between two runs of the same plan."""

LOOKED = re.compile(r"the choice of this fit among [1-9][0-9]* on these records .*")


def looked(fits: int) -> str:
    """The line that says how many fits on these records the ledger knows, the planned one among them."""
    return (
        f"the choice of this fit among {fits} on these records whose figures the ledger has: seed, sample, settings or "
        "mechanism, as far as somebody chose by them"
    )


CHOSEN_AFTER_COMPARISON = "the choice of this mechanism, after a comparison on held-out records of the same kind"
NOISE_OF_THE_FIT = (
    "drawn once while training, from a secret AES-256 stream keyed by operating system entropy (os.urandom); the key "
    "is kept with the checkpoints alone and goes with them when the fit ends"
)

_DIGEST = "[0-9a-f]{64}"
_FORMS: dict[str, str] = {
    "idempotency_key": _DIGEST,
    "release_label": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "population": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "parameters_digest": _DIGEST,
    "lock_digest": _DIGEST,
    "code_commit": r"[0-9a-f]{40}|unknown",
    "supersedes": r"[0-9a-f]{16}",
    "prefect_run_id": r"[0-9a-f-]{36}",
}
"""Of what no artifact knows, and what is no word of anybody's: names and digests."""


def fields_of(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of several fields, from the figures of an ingest; none where there is one."""
    return tuple(field["name"] for field in facts.get("fields", ()))


class Output(BaseModel):
    """What decides the released files beside the model; signed with the plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: Precision = "float32"
    licence: str = Field(default=licence.OURS, pattern=r"^([A-Za-z0-9.+-]{1,64}|sha256:[0-9a-f]{64})$")
    """An SPDX name, or the digest of a text that is kept in the workspace."""

    @staticmethod
    def of(context: Context, settings: BundleParameters) -> Output:
        """As the settings of the run that plans ask for it."""
        return Output(precision=settings.precision, licence=licence.chosen(context.workspace.private, settings.licence))

    def settled(self, context: Context, settings: BundleParameters) -> BundleParameters:
        """The settings of the run that releases, with what the plan says of the output.

        Raises:
            InputError: they ask for another output than was signed.
        """
        if settings.precision not in ("float32", self.precision):
            raise InputError(f"precision: the plan says {self.precision}, which was approved; plan again for another")
        asked = settings.licence
        if asked is not None and licence.chosen(context.workspace.private, asked) != self.licence:
            raise InputError(
                f"licence: the plan says {self.licence}, which was approved; plan again with release.licence={asked}"
            )
        return settings.model_copy(update={"precision": self.precision, "licence": self.licence})


class PlannedRelease(BaseModel):
    """A plan with the candidate it releases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    plan: ReleasePlan
    candidate: Candidate
    output: Output = Output()
    fields: tuple[str, ...] = ()
    """That the one model codes at once, for the one epsilon of the claim; none where there is a single field."""

    @model_serializer(mode="wrap")
    def _without_fields_where_there_is_one(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans of one field keep their digests, and with them their approvals."""
        return {name: value for name, value in serialise(self).items() if name != "fields" or value}

    @field_validator("plan", mode="before")
    @classmethod
    def _typed_event(cls, plan: Any) -> Any:
        return {**plan, "event": event_of(plan.get("event"))} if isinstance(plan, dict) else plan

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
        return PlannedRelease(
            plan=plan,
            candidate=candidate,
            output=Output.of(context, parameters.release),
            fields=fields_of(context.store.figures(dataset)),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of everything that an approval covers, in canonical form (RFC 8785)."""
        return digest(self.model_dump(mode="json", exclude=_NOT_APPROVED))

    def has_bundle(self, store: Store) -> bool:
        """Whether a bundle can hold this model: there is none yet on a table or images, nor of every mechanism."""
        made = self.candidate
        return made.model.encoder != encoders.NONE and store.figures(made.fitted).get("releasable", True)

    def under(self, ledger: Ledger, context: Context) -> PlannedRelease:
        """The plan as one of this ledger, at its newest row; one planned before stays, and with it its approvals."""
        try:
            standing = PlannedRelease.load(self.file(context))
            unmarked = standing.model_copy(update={"plan": standing.plan.model_copy(update={"ledger": None})})
            if unmarked.digest == self.digest:
                ledger.require_here(standing.plan)
                return standing
        except (InputError, BudgetRefused):
            pass  # there is none, or it counts no more
        mark = ledger.begun(requester=self.plan.requester)
        return self.model_copy(update={"plan": self.plan.model_copy(update={"ledger": mark})})

    def check(self, context: Context) -> None:
        """Refuse a plan that says other than what its artifacts and its event bear out, as one edited by hand would.

        Taken at the plan's word: population, label, requester, commit, each in its form; the officer's signature is
        over them. Its key follows from records, method and label, every other word from the artifacts. What it says of
        its choice is the ledger's matter (`tasks.releasing.selection`).

        Raises:
            StorageError: an artifact is not the one named, or was changed.
            MechanismError: records, model, event or claim are not what ran and was measured.
        """
        plan, made, store = self.plan, self.candidate, context.store
        named = artifact_digests(dataset=made.dataset, fitted=made.fitted, measured=made.measured)
        if named != plan.artifact_digests:
            raise StorageError("release plan: its artifacts are not those that it is made from; plan again")
        for ref in (made.fitted, made.dataset, made.prepared, *(() if made.measured is None else (made.measured,))):
            if not ref.path.resolve().is_relative_to(store.private):
                if store.shared is None:
                    raise StorageError(
                        f"release plan: its artifact {ref.kind} lies in another workspace than {context.home}, whose "
                        "ledger counts what its records spent; release it there"
                    )
                store.adopt(ref)
            store.open(ref)
        fitted = store.open(made.fitted)
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
        wrong = [*self._wrong_words(store), *self._wrong_records(store), *self._wrong_candidate(store)]
        if made.measured is None:
            as_run = decode(json.loads((fitted / "event.json").read_text())) == plan.event
        else:
            moments = store.figures(made.fitted)
            as_run = self._as_measured(store, made.measured) and all(
                getattr(plan.event, name, None) == moments[name] for name in ("snapshots", "rank")
            )
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
        less = any(_number(again, name) > _number(plan.claim, name) for name in ("epsilon", "epsilon_add_remove"))
        if less or _terms(again) != _terms(plan.claim):
            raise MechanismError("release plan: its event supports no such claim; plan again")

    def _wrong_words(self, store: Store) -> list[str]:
        """Fields whose words are the pipeline's own, or have a form, and are others."""
        plan, facts = self.plan, store.figures(self.candidate.dataset)
        key = {"data": plan.data_fingerprint, "method": plan.parameters_digest, "label": plan.release_label}
        told = {
            "idempotency_key": (plan.idempotency_key, digest(key)),
            "trust_model": (plan.trust_model, TRUST_MODEL),
            "randomness_source": (
                plan.randomness_source, NOISE_OF_THE_FIT if self.candidate.measured is None else RANDOMNESS
            ),
            "floating_point_caveat": (plan.floating_point_caveat, FLOATING_POINT),
        }  # fmt: skip
        wrong = [name for name, (said, true) in told.items() if said != true]
        forms = {name: getattr(plan, name) for name in _FORMS}
        wrong += [n for n, said in forms.items() if said is not None and not re.fullmatch(_FORMS[n], said)]
        own = unprotected_inputs(facts, weights=plan.event.risk_weights)
        said = plan.claim.unprotected_inputs
        if said[: len(own)] != own:
            wrong.append("unprotected_inputs")
        return list(dict.fromkeys(wrong))

    def _wrong_records(self, store: Store) -> list[str]:
        """Fields that differ from what the data set says of itself."""
        facts, ingest = store.figures(self.candidate.dataset), store.recipe(self.candidate.dataset)["config"]["ingest"]
        unit, most = privacy_unit(IngestConfig.model_validate(ingest))
        claim = self.plan.claim
        told = {
            "cohorts": (self.plan.cohorts, tuple(facts["cohorts"])),
            "fields": (self.fields, fields_of(facts)),
            "data_fingerprint": (self.plan.data_fingerprint, facts["fingerprint"]),
            "records": (self.plan.records_rounded, facts["records"]),
            "privacy_unit": (claim.privacy_unit, unit),
            "max_records_per_unit": (claim.max_records_per_unit, most),
        }
        return [name for name, (said, true) in told.items() if said != true]

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

    def _as_measured(self, store: Store, measured: ArtifactRef) -> bool:
        """Whether the event is that of its sensitivity's draws and, as far as their stage lies here, of its weights."""
        figures, weights = store.figures(measured), store.recipe(measured)["inputs"].get("weights")
        made_by = [
            kind
            for kind in ("risk-weights", "reweight")
            for manifest in (store.private / "stages" / kind).glob(f"*/{MANIFEST}")
            if file_digest(manifest) == weights
        ]
        event, reweighted = self.plan.event, made_by[0] == "reweight" if made_by else None
        return event.is_measured(
            sensitivity=figures["sensitivity"], draws=figures["draws"], bound=self.candidate.bound
        ) and event.is_weighted(weights=weights is not None, reweighted=reweighted)

    def file(self, context: Context) -> Path:
        """Where the plan lies in the private workspace."""
        return context.workspace.private / "plans" / f"{self.plan.idempotency_key[:16]}.json"

    def save(self, context: Context) -> Path:
        """Write the plan into the private workspace; return the file."""
        file = self.file(context)
        file.parent.mkdir(parents=True, exist_ok=True)
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


def event_of(value: Any) -> Any:
    """An event from its JSON, whichever mechanism's it is: those have events of their own, known once imported.

    Raises:
        ValueError: there is no event of this tag.
    """
    kinds()
    return decode(value)


def _terms(claim: Claim) -> dict[str, Any]:
    return claim.model_dump(exclude={"epsilon", "epsilon_add_remove"})


def _number(claim: Claim, name: str) -> float:
    value: float | None = getattr(claim, name)
    return value or 0.0
