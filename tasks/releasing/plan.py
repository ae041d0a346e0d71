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

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from mechanisms.errors import MechanismError
from mechanisms.model.config import NO_ENCODER, Precision
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import Claim, Event, decode
from storage.artifacts import MANIFEST, ArtifactRef, Store, digest, file_digest
from storage.datasets import load_spaces
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig
from storage.ledger import BudgetRefused, Ledger, ReleasePlan, Row
from tasks.bundle import licence
from tasks.bundle.texts import encoder_digest, own_texts
from tasks.fitting.candidate import Candidate
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing.claims import (
    FLOATING_POINT,
    MATCHED,
    RANDOMNESS,
    TRUST_MODEL,
    claim,
    key_of,
    privacy_unit,
    public_inputs,
    release_method,
    swag_event,
    unprotected_inputs,
)
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
"""Forms of identifiers and digests that the caller supplies; none is free text."""


def field_names(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of several fields, from the figures of an ingest; empty for a single field."""
    return tuple(field["name"] for field in facts.get("fields", ()))


class Output(BaseModel):
    """Holds the settings of the released files other than the model; signed with the plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        if encoder == NO_ENCODER:
            return self
        spaces = load_spaces(store.open(candidate.dataset))
        texts = own_texts(spaces, store.figures(candidate.dataset), encoder)
        return self.model_copy(update={"encoder": encoder_digest(encoder), "texts": texts})

    @property
    def texts_digest(self) -> str:
        """Returns the first 16 digits of a digest of the texts: it states that somebody read them."""
        return digest(list(self.texts))[:16]

    def apply_to(self, settings: BundleParameters) -> BundleParameters:
        """Applies the planned output to the settings of the releasing run.

        Raises:
            InputError: they ask for another output than was signed.
        """
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


class PlannedRelease(BaseModel):
    """Holds a plan with the candidate that it releases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    plan: ReleasePlan
    candidate: Candidate
    output: Output = Output()
    fields: tuple[str, ...] = ()
    """That the one model codes at once, for the one epsilon of the claim; none where there is a single field."""
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
        store = context.store
        facts, moments, figures = store.figures(dataset), store.figures(posterior), store.figures(measured)
        last = parameters.rounds[-1]
        bounded = parameters.bounded(last)
        event = swag_event(parameters, last, snapshots=moments["snapshots"], rank=moments["rank"], figures=figures)
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
            floating_point_caveat=FLOATING_POINT,
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
        return PlannedRelease(plan=plan, candidate=candidate, output=output, fields=field_names(facts), method=method)

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of everything that an approval covers, in canonical form (RFC 8785)."""
        return digest(self.model_dump(mode="json", exclude=_NOT_APPROVED))

    def has_bundle(self, store: Store) -> bool:
        """Checks whether a bundle can hold this model: not one on a table or images, nor of every mechanism."""
        made = self.candidate
        return made.model.encoder != NO_ENCODER and store.figures(made.fitted).get("releasable", True)

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
        fitted = store.open(made.fitted)
        if not self.has_bundle(store):
            raise MechanismError(
                f"release plan: this model (event `{plan.event.mechanism}`) has no bundle, so it cannot be released. "
                "Compare it and audit it"
            )
        if MATCHED in plan.claim.unprotected_inputs:
            raise MechanismError(
                "release plan: its target epsilon was taken from the records (`match`), which serves studies only. "
                "Compare with --target-epsilon and a number"
            )
        wrong = [
            *self._wrong_statements(store),
            *self._wrong_records(store),
            *self._wrong_candidate(store),
            *self._wrong_method(store),
        ]
        if made.measured is None:
            as_run = decode(json.loads((fitted / "event.json").read_text())) == plan.event
        else:
            moments = store.figures(made.fitted)
            as_run = self._as_measured(store, made.measured) and all(
                getattr(plan.event, name, None) == moments[name] for name in ("snapshots", "rank")
            )
        wrong += [] if as_run else ["event"]
        if self.output.with_contents(context, made) != self.output:
            wrong.append("output: the encoder or the texts of the bundle")
        if wrong:
            raise MechanismError(f"release plan: {', '.join(wrong)}: not what ran and was measured. Plan again")
        again = claim_of(
            plan.event,
            delta=plan.claim.delta,
            privacy_unit=plan.claim.privacy_unit,
            max_records_per_unit=plan.claim.max_records_per_unit,
            unprotected_inputs=plan.claim.unprotected_inputs,
            public_inputs=public_inputs(made.model, store.figures(made.dataset)),
        )
        # more than the event costs may be claimed: a comparison states no epsilon below 1e-4
        less = any(_number(again, name) > _number(plan.claim, name) for name in _AMOUNTS)
        if less or _terms(again) != _terms(plan.claim):
            raise MechanismError("release plan: its event does not support its claim. Plan again")

    def _wrong_statements(self, store: Store) -> list[str]:
        """Returns the fields whose fixed text or form is wrong."""
        plan, facts = self.plan, store.figures(self.candidate.dataset)
        key = {"data": plan.data_fingerprint, "method": plan.parameters_digest, "label": plan.release_label}
        fixed = {
            "idempotency_key": (plan.idempotency_key, digest(key)),
            "parameters_digest": (plan.parameters_digest, digest(self.method)),
            "trust_model": (plan.trust_model, TRUST_MODEL),
            "randomness_source": (
                plan.randomness_source, NOISE_OF_THE_FIT if self.candidate.measured is None else RANDOMNESS
            ),
            "floating_point_caveat": (plan.floating_point_caveat, FLOATING_POINT),
        }  # fmt: skip
        # guard: a plan's words are the pipeline's
        wrong = [name for name, (stated, actual) in fixed.items() if stated != actual]
        forms = {name: getattr(plan, name) for name in _FORMS}
        # guard: names and digests have a form
        wrong += [n for n, value in forms.items() if value is not None and not re.fullmatch(_FORMS[n], value)]
        inputs = unprotected_inputs(facts, weights=plan.event.risk_weights, model=self.candidate.model)
        stated_inputs = plan.claim.unprotected_inputs
        if stated_inputs[: len(inputs)] != inputs:
            wrong.append("unprotected_inputs")
        return list(dict.fromkeys(wrong))

    def _wrong_records(self, store: Store) -> list[str]:
        """Returns the fields that differ from the data set's."""
        facts, ingest = store.figures(self.candidate.dataset), store.recipe(self.candidate.dataset)["config"]["ingest"]
        unit, most = privacy_unit(IngestConfig.model_validate(ingest))
        claim = self.plan.claim
        fields = {
            "cohorts": (self.plan.cohorts, tuple(facts["cohorts"])),
            "fields": (self.fields, field_names(facts)),
            "data_fingerprint": (self.plan.data_fingerprint, facts["fingerprint"]),
            "records": (self.plan.records_rounded, facts["records"]),
            "privacy_unit": (claim.privacy_unit, unit),
            "max_records_per_unit": (claim.max_records_per_unit, most),
        }
        return [name for name, (stated, actual) in fields.items() if stated != actual]

    def _wrong_candidate(self, store: Store) -> list[str]:
        """Returns the fields that differ from those of the stage that measured the posterior or made the fit."""
        made = self.candidate
        recipe = store.recipe(made.fitted if made.measured is None else made.measured)
        config, inputs = recipe["config"], recipe["inputs"]
        fields = {
            "model": (made.model.model_dump(mode="json"), config["model"]),
            "seed": (made.seed, config["seed"]),
            "dataset": (made.dataset.sha256, inputs["dataset"]),
            "prepared": (made.prepared.sha256, inputs["prepared"]),
        }
        if made.measured is not None:
            fields["std_scale"] = (made.std_scale, config["std_scale"])
            fields["posterior"] = (made.fitted.sha256, inputs["posterior"])
        return [name for name, (stated, actual) in fields.items() if stated != actual]

    def _wrong_method(self, store: Store) -> list[str]:
        """Returns the settings of the method that differ from the recipes of data set, fit and noise."""
        made = self.candidate
        settings = section(self.method, "parameters") or self.method
        data, fit = section(settings, "data"), section(settings, "fit")
        ingest = store.recipe(made.dataset)["config"]["ingest"]
        fields = {
            "method.data.population": (data.get("population"), self.plan.population),
            "method.data.ingest": (_without_lists(section(data, "ingest")), _without_lists(ingest)),
            "method.fit.seed": (fit.get("seed"), made.seed),
        }
        if made.measured is not None:
            config = store.recipe(made.measured)["config"]
            fields |= {
                "method.model": (settings.get("model"), config["model"]),
                "method.fit.swag.std_scale": (section(fit, "swag").get("std_scale"), config["std_scale"]),
            }
        else:
            inputs = store.recipe(made.fitted)["inputs"]
            task = section(section(_recipe_by_digest(store, "plan", inputs["plan"]), "config"), "task")
            formal = section(settings, "formal")
            target = formal["target_epsilon"] if formal else self.method.get("epsilon")
            aimed = task.get("target_epsilon")
            if aimed is not None:  # a mechanism without a target has none in its recipe, whatever a comparison asked
                fields["method.target_epsilon"] = (target, aimed)
        return [name for name, (stated, actual) in fields.items() if stated != actual]

    def _as_measured(self, store: Store, measured: ArtifactRef) -> bool:
        """Checks that the event has the measured sensitivity and draws and, where their stage is available, the
        weights.
        """
        figures, weights = store.figures(measured), store.recipe(measured)["inputs"].get("weights")
        made_by = [kind for kind in ("risk-weights", "reweight") if _recipe_by_digest(store, kind, weights)]
        event, reweighted = self.plan.event, made_by[0] == "reweight" if made_by else None
        return event.is_measured(
            sensitivity=figures["sensitivity"], draws=figures["draws"], bound=self.candidate.bound
        ) and event.is_weighted(weights=weights is not None, reweighted=reweighted)

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
        """Loads the plan that a release was reserved for.

        Raises:
            InputError, StorageError: it is missing, or was changed.
        """
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
        """Reads a plan.

        Raises:
            InputError: the file is missing or not a plan.
        """
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
    """Decodes an event of any registered mechanism from JSON.

    Raises:
        ValueError: no event has this tag.
    """
    if isinstance(value, dict) and value.get("mechanism") not in Event.by_tag:
        from mechanisms.mechanism import kinds

        kinds()  # whose files declare events of their own
    return decode(value)


def _recipe_by_digest(store: Store, kind: str, sha256: str | None) -> dict[str, Any]:
    """Returns the recipe of the stage whose manifest has this digest; empty where this workspace has none."""
    for manifest in (store.private / "stages" / kind).glob(f"*/{MANIFEST}"):
        if file_digest(manifest) == sha256:
            return json.loads(manifest.read_bytes())["recipe"]
    return {}


def _without_lists(ingest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of an ingest without the code lists: a path in one place, a digest in the other."""
    fields = {
        name: {key: value for key, value in field.items() if key != "codelist"}
        for name, field in section(ingest, "fields").items()
    }
    return {**ingest, "fields": fields}


_AMOUNTS = ("epsilon", "epsilon_add_remove", "epsilon_replaced")


def _terms(claim: Claim) -> dict[str, Any]:
    return claim.model_dump(exclude=set(_AMOUNTS))


def _number(claim: Claim, name: str) -> float:
    value: float | None = getattr(claim, name)
    return value or 0.0


def section(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a mapping inside a mapping; empty where it is absent or not a mapping."""
    value = content.get(name)
    return value if isinstance(value, dict) else {}
