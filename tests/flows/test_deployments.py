"""deployments/: every entrypoint loads, the forms fit their flows, their values are the profiles'."""

from __future__ import annotations

import asyncio
import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.schema_tools import validate
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from flows.commands.profiles import available, load_profile, parameters
from flows.housekeeping import RESUMED
from flows.server import automations, form
from flows.server.form import RetrainForm
from storage.errors import InputError

FOLDER = Path(__file__).resolve().parents[2] / "deployments"
CONTENT = yaml.safe_load((FOLDER / "prefect.yaml").read_text())
DEPLOYMENTS = {entry["name"]: entry for entry in CONTENT["deployments"]}
GIVEN: dict[str, dict[str, Any]] = {
    "release": {"plan": "PLAN.json"},
    "audit": {"plan": "PLAN.json"},
    "diagnose": {"plan": "PLAN.json"},
    "code-batch": {"data": "in.csv", "out": "out.csv"},
    "code-shard": {
        "shard": {
            **{"data": "/n/in.csv", "out": "/n/out.csv", "columns": ["Text"], "template": None, "bundle": "/b/1"},
            **{"thresholds": [], "rules": None, "by_digits": None, "top_k": 1, "threshold": None, "crosswalk": None},
            **{"append": False, "first": 0, "end": 2, "job": "0" * 64, "key": "0" * 32},
        }
    },
    "trials-shard": {
        "shard": {
            "trials": {"model": {}, "seed": 1, "delta": 1e-5, "unit": ["record", 1], "first": 0, "end": 8},
            "inputs": {"pool": {"kind": "audit-pool", "uri": "file:///w/stages/audit-pool/k", "sha256": "0" * 64}},
            "key": "0" * 32,
        }
    },
    "branch-shard": {
        "shard": {
            "at": {"seed": 1, "target": 4.0},
            "inputs": {"dataset": {"kind": "ingest", "uri": "file:///w/stages/ingest/k", "sha256": "0" * 64}},
            "key": "0" * 32,
        }
    },
    "risk-shard": {
        "shard": {
            "draws": {"model": {}, "seed": 1, "std_scale": 1.0, "purpose": "risk", "first": 0, "end": 10},
            "inputs": {"dataset": {"kind": "ingest", "uri": "file:///w/stages/ingest/k", "sha256": "0" * 64}},
            "key": "0" * 32,
        }
    },
}
"""What a form asks for beyond its defaults."""


def flow_of(name: str) -> Flow[Any, Any]:
    return load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"])


def filled(name: str) -> dict[str, Any]:
    """The form as it is sent when nobody changes it, but for what must be given."""
    return copy.deepcopy(DEPLOYMENTS[name].get("parameters", {})) | GIVEN.get(name, {})


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_entrypoints_load_and_the_values_fit(name: str) -> None:
    """A dotted name that leads to a flow; the server's schema and the flow itself take the values."""
    assert re.fullmatch(r"flows\.\w+\.\w+", DEPLOYMENTS[name]["entrypoint"])
    flow = flow_of(name)
    assert DEPLOYMENTS[name]["enforce_parameter_schema"] is True
    assert validate(filled(name), flow.parameters.model_dump()) == []
    assert flow.validate_parameters(filled(name))


@pytest.mark.parametrize("crosswalk", ["/n/walk.csv", {"nature": "/n/nature=1.csv", "event": "/n/event.csv"}])
def test_a_shard_takes_a_crosswalk_of_each_field(crosswalk: object) -> None:
    """A file of the only field, or one a field; no list, which would not say whose they are."""
    flow = flow_of("code-shard")
    values = {"shard": GIVEN["code-shard"]["shard"] | {"crosswalk": crosswalk}}
    assert validate(values, flow.parameters.model_dump()) == []
    assert flow.validate_parameters(values)["shard"].crosswalk == crosswalk
    values["shard"]["crosswalk"] = ["/n/walk.csv"]
    assert validate(values, flow.parameters.model_dump()) != []


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_every_field_of_a_form_says_what_it_is_for(name: str) -> None:
    """A title that is no raw name and a help text, or a section that has them; a number has a lower limit."""
    for field, entry in flow_of(name).parameters.properties.items():
        assert entry.get("title"), f"{name}.{field} has no title"
        assert entry["title"] != field, f"{name}.{field} is shown by its raw name"
        assert entry.get("description") or "$ref" in entry or "allOf" in entry, f"{name}.{field} has no help"
    for section, schema in (flow_of(name).parameters.definitions or {}).items():
        for field, entry in schema.get("properties", {}).items():
            told = entry.get("description") or "$ref" in entry or "const" in entry
            assert told, f"{name}: {section}.{field} has no help"
            for kind in (entry, *entry.get("anyOf", ())):
                if kind.get("type") in {"integer", "number"}:
                    assert {"minimum", "exclusiveMinimum"} & set(kind), f"{name}: {section}.{field} has no lower limit"


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("demo", "parameters.advanced.fit.adamw.epochs", 0),
        ("demo", "parameters.advanced.fit.adamw.epocs", 3),
        ("demo", "parameters.advanced.pseudo_posterior.k", 1.5),
        ("demo", "parameters.advanced.model.trainable", "everything"),
        ("demo", "parameters.mechanism", "none"),
        ("osha-formal", "parameters.target_epsilon", 0),
        ("paper", "parameters.advanced.release.deployment", "release"),
        ("audit", "settings.trials", -1),
        ("release", "plan", None),
        ("osha-head", "fan_out", {"shards": 0}),
        ("risk-shard", "shard.draws.purpose", "release"),
        ("risk-shard", "shard.key", "../elsewhere"),
        ("code-shard", "shard.end", 0),
        ("trials-shard", "shard.trials.end", 0),
        ("branch-shard", "shard.at.seed", -1),
        ("audit", "fan_out", {"shards": 0}),
        ("code-batch", "fan_out", {"shards": 0}),
        ("demo", "device", "tpu9"),
        ("release", "wait_days", -1),
        ("release", "device", "gpu"),
        ("compare", "settings.target_epsilon", -1),
        ("compare", "settings.target_epsilon", "mtach"),
        ("housekeeping", "attempts", 0),
        ("housekeeping", "low_share", 20),
        ("code-batch", "top_k", 51),
        ("code-batch", "threshold", 1.5),
    ],
)
def test_wrong_values_are_refused_by_the_form(name: str, path: str, value: Any) -> None:
    """By the schema that the server checks when the form is sent: no process starts."""
    content = filled(name)
    section = content
    *parents, last = path.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    assert validate(content, flow_of(name).parameters.model_dump()) != []


INGESTED = {name: load_profile(name)["data"]["ingest"] for name in available()}
RETRAINED = [name for name, own in INGESTED.items() if own.get("kind", "text") == "text" and not own.get("fields")]
"""Models on tables and images, and of several fields, have no bundle, so that nothing retrains them."""


@pytest.mark.parametrize("profile", RETRAINED)
def test_each_profile_is_a_deployment_with_its_values(profile: str) -> None:
    """The form of `retrain/<profile>` starts from the profile; files and release are the deployment's own."""
    values = filled(profile)["parameters"]
    del values["advanced"]["release"], values["source"], values["codelist"]
    assert values == RetrainForm.values(load_profile(profile))


@pytest.mark.parametrize("profile", RETRAINED)
def test_the_form_becomes_the_parameters_that_the_command_has(profile: str) -> None:
    """And so their digests, by which a release is found; a command's own parameters survive the form."""
    options = ["formal.target_epsilon=3"] if "formal" in profile else []
    named = parameters(
        profile, [*options, "release.deployment=release/release"], data=Path("r.csv"), codelist=Path("c.csv")
    )
    values = filled(profile)["parameters"] | {"source": "r.csv", "codelist": "c.csv"}
    values |= {"target_epsilon": 3} if named.formal else {}
    assert RetrainForm.model_validate(values).parameters() == named
    assert RetrainForm.of(named).parameters() == named


def test_the_form_begins_with_the_records_and_ends_with_what_a_profile_settles() -> None:
    """Every field of every section has its place; the page shows fields without one in any order."""
    schema = flow_of("demo").parameters.model_dump()
    for name, section in schema["definitions"].items():
        fields = section.get("properties", {})
        if name not in ("FanOut", "Spread", "FieldColumns"):
            assert [entry["position"] for entry in fields.values()] == list(range(len(fields))), name
    first = list(schema["definitions"]["RetrainForm"]["properties"])
    assert first[:6] == ["source", "codelist", "text_columns", "label_column", "date_column", "population"]
    assert first[-4:] == ["mechanism", "target_epsilon", "release", "advanced"]


def test_a_deployment_lends_its_population_to_no_other_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As no profile does; with names of their own they pass."""
    own = filled("osha-head")["parameters"]
    monkeypatch.setattr(form, "deployment", SimpleNamespace(id="x", parameters={"parameters": own}))
    form.refuse_borrowed_names(RetrainForm.model_validate(own).parameters())
    other = own | {"text_columns": ["title"], "label_column": "code"}
    for names in ({}, {"population": "jobs"}, {"classification": "SOC"}):
        with pytest.raises(InputError, match=r"population|classification"):
            form.refuse_borrowed_names(RetrainForm.model_validate(other | names).parameters())
    named = other | {"population": "jobs", "classification": "SOC"}
    form.refuse_borrowed_names(RetrainForm.model_validate(named).parameters())


def test_dead_runs_of_every_flow_are_found() -> None:
    """The rule that declares silent runs crashed leaves out none but those that have a reason to be silent or short."""
    rules = yaml.safe_load((FOLDER / "automations.yaml").read_text(encoding="utf-8"))
    (zombies,) = [rule["trigger"] for rule in rules if rule["name"] == "zombies"]
    runs = {d["entrypoint"].rsplit(".", 1)[1].replace("_", "-") for d in DEPLOYMENTS.values()}
    assert runs - set(zombies["match_related"]["prefect.resource.name"]) == {"release", "housekeeping", "ledger-verify"}


def test_a_release_runs_alone_and_new_ones_are_cancelled() -> None:
    """One draw at a time, from a queue that a worker with the signing key can serve alone."""
    release = DEPLOYMENTS["release"]
    assert release["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert release["work_pool"] == {"name": "cpu", "work_queue_name": "release"}
    assert [name for name, d in DEPLOYMENTS.items() if d["work_pool"].get("work_queue_name") == "release"] == [
        "release"
    ]


def test_every_retrain_asks_the_release_deployment() -> None:
    """Train and release are two: none releases by itself, and but for the demo none asks for it before an audit."""
    retrains = [d for d in DEPLOYMENTS.values() if d["entrypoint"] == "flows.retrain.retrain"]
    assert len(retrains) == len(RETRAINED)
    asked = {d["name"]: d["parameters"]["parameters"] for d in retrains}
    assert all(p["advanced"]["release"] == {"deployment": "release/release"} for p in asked.values())
    assert [name for name, p in asked.items() if p.get("release")] == ["demo"]


def test_automations_are_what_prefect_takes() -> None:
    """Each rule, with our two words in place; those that run something name a deployment that is there."""
    for rule in yaml.safe_load((FOLDER / "automations.yaml").read_text()):
        if rule["name"] == "resume":
            resumed = rule["trigger"]["match_related"]["prefect.resource.name"]
            assert tuple(resumed) == RESUMED, "housekeeping that crashes must not start itself"
        for action in rule["actions"]:
            if "run" in action:
                assert action["run"].split("/")[1] in DEPLOYMENTS
        rule["actions"] = [{"type": "do-nothing"}]
        AutomationCore.model_validate(rule)


def test_a_run_sets_neither_its_environment_nor_its_command() -> None:
    """Records, ledger and keys are where the worker's environment says; what a run asks for in its job is not heard.

    By the worker's own reading of it, which adds a run's variables to those of the pool.
    """
    own, prefects = automations._job_template(), ProcessWorker.get_default_base_job_template()
    asked = {"env": {"AUTOCODER_LEDGER_URL": "sqlite:///x"}, "command": "sh", "working_dir": "/x", "name": "n"}
    dotted = {"env.AUTOCODER_LEDGER_URL": "sqlite:///x"}

    def heard(template: dict[str, Any], values: dict[str, Any]) -> ProcessJobConfiguration:
        read = ProcessJobConfiguration.from_template_and_values
        return asyncio.run(read(copy.deepcopy(template), copy.deepcopy(values), client=AsyncMock()))

    for values in (asked, dotted):
        made = heard(own, values)
        assert (made.env, made.command, made.working_dir) == ({}, None, None)
        assert heard(prefects, values).env == {"AUTOCODER_LEDGER_URL": "sqlite:///x"}, "Prefect's own hears it"
    template = own
    assert not set(automations.OF_THE_WORKER) & set(template["variables"]["properties"])
