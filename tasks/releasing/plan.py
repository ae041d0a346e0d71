"""Defines the planned release, the file that an officer approves: what leaves, on what claim, made from which
artifacts.

It lies in the private workspace, since it holds the references of private artifacts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from mechanisms.errors import MechanismError
from mechanisms.model.config import Precision
from mechanisms.privacy.events import Claim, Event, decode, is_exact
from storage.artifacts import ArtifactRef, Store, digest
from storage.datasets import load_codes
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Ledger, ReleasePlan, Row
from tasks.bundle import licence
from tasks.bundle.texts import encoder_digest, own_texts
from tasks.fitting.candidate import Candidate
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing.claims import (
    EXACT_ARITHMETIC,
    FLOATING_POINT,
    RANDOMNESS,
    TRUST_MODEL,
    claim,
    claim_like,
    key_of,
    public_inputs,
    release_method,
    swag_event,
)
from tasks.releasing.plan_artifacts import NOISE_OF_THE_FIT, section, wrong_fields
from tasks.running.provenance import provenance
from tasks.running.stage import Context

_NOT_APPROVED: Any = {"plan": {"prefect_run_id": True}}
"""What may differ between two runs of the same plan."""

SELECTION_DISCLOSURE = re.compile(r"the choice of this fit among ([1-9][0-9]*) on these records .*")


def describe_selection(fits: int) -> str:
    """Returns the line that states how many fits on these records the ledger has, the planned one included."""
    return (
        f"the choice of this fit among {fits} on these records whose figures the ledger has: seed, sample, settings or "
        "mechanism, as far as somebody chose by them"
    )


CHOSEN_AFTER_COMPARISON = "the choice of this mechanism, after a comparison on held-out records of the same kind"


class Output(BaseModel, frozen=True, extra="forbid"):
    """Holds the settings of the released files other than the model; signed with the plan."""

    precision: Precision = "float32"
    onnx: bool = False
    licence: str = Field(default=licence.OURS, pattern=r"^[A-Za-z0-9.+-]{1,64}$")
    """An SPDX name."""
    encoder: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Digest of the encoder that leaves in the model."""
    texts: tuple[str, ...] = ()
    """Every text of the bundle that no published list has and that is no name or number in a narrow form."""

    @staticmethod
    def from_settings(settings: BundleParameters) -> Output:
        """Takes the output settings from those of the planning run."""
        return Output(precision=settings.precision, onnx=settings.onnx, licence=licence.resolve(settings.licence))

    def with_contents(self, context: Context, candidate: Candidate) -> Output:
        """Returns the settings with the encoder and the texts that a bundle of this candidate contains."""
        encoder, store = candidate.model.encoder, context.store
        codes = load_codes(store.open(candidate.dataset))
        texts = own_texts(codes, store.figures(candidate.dataset), encoder)
        return self.model_copy(update={"encoder": encoder_digest(encoder), "texts": texts})

    @property
    def texts_digest(self) -> str:
        """Returns the first 16 digits of a digest of the texts: it states that somebody read them."""
        return digest(list(self.texts))[:16]

    def apply_to(self, settings: BundleParameters) -> BundleParameters:
        """Applies the planned output to the settings of the releasing run; refuses settings that ask for another."""
        if settings.precision not in ("float32", self.precision):
            raise InputError(f"precision: the approved plan has {self.precision}. Plan again to change it")
        if settings.onnx and not self.onnx:
            raise InputError("onnx: the approved plan has none. Plan again with release.onnx=true")
        # guard: the licence released is the one signed
        if settings.licence is not None and licence.resolve(settings.licence) != self.licence:
            raise InputError(
                f"licence: the approved plan has {self.licence}. Plan again with release.licence={settings.licence}"
            )
        return settings.model_copy(update={"precision": self.precision, "onnx": self.onnx, "licence": self.licence})


class PlannedRelease(BaseModel, frozen=True, extra="forbid"):
    """Holds a plan with the candidate that it releases."""

    schema_version: Literal[1] = 1
    plan: ReleasePlan
    candidate: Candidate
    output: Output = Output()
    method: dict[str, Any] = {}
    """The settings that the key names by their digest."""

    @field_validator("plan", mode="before")
    @classmethod
    def _typed_event(cls, plan: Any) -> Any:
        return {**plan, "event": decode_event(plan.get("event"))} if isinstance(plan, dict) else plan

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
        """Plans one draw of a SWAG posterior."""
        store, last = context.store, parameters.rounds[-1]
        facts = store.figures(dataset)
        event = swag_event(parameters, last, store.figures(posterior), store.figures(measured))
        candidate = Candidate(
            dataset=dataset,
            prepared=prepared,
            fitted=posterior,
            measured=measured,
            model=parameters.model,
            seed=parameters.fit.seed,
            std_scale=parameters.fit.swag.std_scale,
        )
        return PlannedRelease.of_candidate(
            context,
            candidate,
            parameters,
            facts,
            event=event,
            claim=claim(parameters, event, facts),
            method=release_method(parameters),
            prefect_run_id=prefect_run_id,
        )

    @staticmethod
    def of_candidate(
        context: Context,
        candidate: Candidate,
        parameters: RetrainParameters,
        facts: Mapping[str, Any],
        *,
        event: Event,
        claim: Claim,
        method: dict[str, Any],
        prefect_run_id: str | None,
    ) -> PlannedRelease:
        """Plans the release of a candidate.

        The same records, method and label always give the same key, so that running again, also after a change of code
        that gave another fit, never releases and spends twice unless the operator asks by another label.

        Args:
            facts: figures of the ingest.
            method: the settings, whose digest is part of the key under which the release is found.
        """
        source, settings = provenance(), parameters.release
        plan = ReleasePlan(
            idempotency_key=key_of(method, facts["fingerprint"], settings.label),
            release_label=settings.label,
            population=parameters.data.population,
            cohorts=tuple(facts["cohorts"]),
            data_fingerprint=facts["fingerprint"],
            records_rounded=facts["records"],
            event=event,
            claim=claim,
            trust_model=TRUST_MODEL,
            randomness_source=NOISE_OF_THE_FIT if candidate.measured is None else RANDOMNESS,
            floating_point_caveat=EXACT_ARITHMETIC if is_exact(event) else FLOATING_POINT,
            code_commit=source.code_commit,
            code_dirty=source.code_dirty,
            lock_digest=source.lock_digest,
            parameters_digest=digest(method),
            artifact_digests=candidate.artifact_digests,
            requester=settings.requester,
            supersedes=settings.supersedes,
            prefect_run_id=prefect_run_id,
        )
        output = Output.from_settings(settings).with_contents(context, candidate)
        return PlannedRelease(plan=plan, candidate=candidate, output=output, method=method)

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of everything that an approval covers, in canonical form (RFC 8785)."""
        return digest(self.model_dump(mode="json", exclude=_NOT_APPROVED))

    def has_bundle(self, store: Store) -> bool:
        """Checks whether a bundle can hold this model: not every mechanism has one."""
        return bool(store.figures(self.candidate.fitted).get("releasable", True))

    def bind(self, ledger: Ledger, context: Context) -> PlannedRelease:
        """Binds the plan to this ledger at its newest row; an equal saved plan stays, with its approvals."""
        try:
            saved = PlannedRelease.load(self.file(context))
            unmarked = saved.model_copy(update={"plan": saved.plan.model_copy(update={"ledger": None})})
            if unmarked.digest == self.digest:
                ledger.require_here(saved.plan)
                return saved
        except (InputError, BudgetRefused):
            pass  # no saved plan, or one that no longer counts
        mark = ledger.ensure_genesis_row(requester=self.plan.requester)
        return self.model_copy(update={"plan": self.plan.model_copy(update={"ledger": mark})})

    def check(self, context: Context) -> None:
        """Refuses a plan that its artifacts or its event do not support, such as one edited by hand.

        Taken at the plan's word: population, label, requester, commit, each in its form; the officer's signature is
        over them. Its key follows from records, method and label, every other word from the artifacts. What it says of
        its choice is the ledger's matter (`tasks.releasing.selection`).

        Raises:
            StorageError: an artifact is not the one named, or was changed.
            MechanismError: records, model, event or claim are not what ran and was measured.
        """
        plan, made, store = self.plan, self.candidate, context.store
        if made.artifact_digests != plan.artifact_digests:
            raise StorageError("release plan: its artifacts are not those of its candidate. Plan again")
        for ref in (made.fitted, made.dataset, made.prepared, *(() if made.measured is None else (made.measured,))):
            # guard: an artifact of another workspace is none of this one's
            if not ref.path.resolve().is_relative_to(store.private):
                if store.shared is None:
                    raise StorageError(
                        f"release plan: its artifact {ref.kind} is in another workspace than {context.home}. "
                        "Release it there, where the ledger charges its records"
                    )
                store.adopt(ref)
            store.open(ref)
        if not self.has_bundle(store):
            raise MechanismError(
                f"release plan: this model (event `{plan.event.mechanism}`) has no bundle, so it cannot be released. "
                "Compare it and audit it"
            )
        wrong = wrong_fields(self, store)
        if self.output.with_contents(context, made) != self.output:
            wrong.append("output: the encoder or the texts of the bundle")
        if wrong:
            raise MechanismError(f"release plan: {', '.join(wrong)}: not what ran and was measured. Plan again")
        public = public_inputs(made.model)
        again = claim_like(plan.claim, plan.event, public_inputs=public)
        # more than the event costs may be claimed: a comparison states no epsilon below 1e-4
        less = any(_number(again, name) > _number(plan.claim, name) for name in _AMOUNTS)
        if less or _terms(again) != _terms(plan.claim):
            raise MechanismError("release plan: its event does not support its claim. Plan again")

    @property
    def private_folder(self) -> Path:
        """Returns the private folder of the workspace that made the plan."""
        return Path(self.candidate.dataset.path).parent.parent.parent

    def settings_from_file(self) -> dict[str, Any]:
        """Reads what `tasks.branches.plan` saved: `parameters`, `branch` and `terms`; empty without that file.

        Nobody signs that file, and it may be of another version: only people may rely on what it holds.
        """
        try:
            file = self.private_folder / "plans" / f"{self.plan.idempotency_key[:16]}.settings"
            settings = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return settings if isinstance(settings, dict) and section(section(settings, "parameters"), "data") else {}

    def file(self, context: Context) -> Path:
        """Returns the plan's path in the private workspace."""
        return context.workspace.private / "plans" / f"{self.plan.idempotency_key[:16]}.json"

    def save(self, context: Context) -> Path:
        """Writes the plan into the private workspace; returns the file."""
        file = self.file(context)
        file.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False)
        write_atomically(file, content.encode() + b"\n")
        return file

    def keep(self, context: Context) -> None:
        """Keeps the plan by its digest, for the reservation that is about to be made of it."""
        file = _reserved_file(context, self.digest)
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, self.model_dump_json().encode())

    @staticmethod
    def reserved(context: Context, row: Row) -> PlannedRelease:
        """Loads the plan that a release was reserved for; refuses one that was changed."""
        sha256 = str(row.details.get("plan_digest"))
        file = _reserved_file(context, sha256)
        planned = PlannedRelease.load(file)
        if planned.digest != sha256:
            raise StorageError(
                f"plan {file} is not the one that release {row.release_id} was reserved for. Restore it from a copy"
            )
        return planned

    @staticmethod
    def load(file: Path) -> PlannedRelease:
        """Reads a plan."""
        try:
            return PlannedRelease.model_validate_json(file.read_bytes())
        except OSError as error:
            raise InputError(f"plan {file}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "file"
            raise InputError(f"plan {file} is not a release plan: {field}: {first['msg']}") from None


def _reserved_file(context: Context, sha256: str) -> Path:
    return context.workspace.private / "plans" / "reserved" / f"{sha256}.json"


def decode_event(value: Any) -> Any:
    """Decodes an event of any registered mechanism from JSON."""
    if isinstance(value, dict) and value.get("mechanism") not in Event.by_tag:
        from mechanisms.mechanism import kinds

        kinds()  # whose files declare events of their own
    return decode(value)


_AMOUNTS = ("epsilon", "epsilon_add_remove", "epsilon_replaced")


def _terms(claim: Claim) -> dict[str, Any]:
    return claim.model_dump(exclude=set(_AMOUNTS))


def _number(claim: Claim, name: str) -> float:
    value: float | None = getattr(claim, name)
    return value or 0.0
