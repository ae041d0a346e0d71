"""deployments/: every entrypoint loads, the forms fit their flows, their values are
the profiles'.
"""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flow_engine import run_flow
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect.utilities.schema_tools import validate
from pydantic import ValidationError
from refusals import of_kind
from run_options import parameters

from flows.commands.deploy import _train_in, _without_unset
from flows.commands.profiles import profile_names
from flows.deployed import estimated, formal
from flows.server.client import REFUSED
from flows.server.dead_runs import RESUMED
from flows.server.form import FormalForm, RecordsForm, WorkerSettings, form_of, parameters_of_run
from flows.server.prefect_run import PrefectRun
from storage.errors import InputError
from tasks.parameters import RetrainParameters

FOLDER = Path(__file__).resolve().parents[2] / "deployments"
CONTENT = yaml.safe_load((FOLDER / "prefect.yaml").read_text())
DEPLOYMENTS = {entry["name"]: entry for entry in CONTENT["deployments"]}
GIVEN: dict[str, dict[str, Any]] = {
    "release": {"plan": "/w/PLAN.json"},
    "audit": {"plan": "/w/PLAN.json"},
    "handover": {"release": "3f2a9c41d07b65e8", "partner": "Statistics Office"},
    "revoke": {"release": "3f2a9c41d07b65e8", "reason": "an error"},
    "code-batch": {"data": "in.csv", "out": "out.csv"},
    "formal": {
        "parameters": {
            **{
                "source": "r.csv",
                "codelist": "none",
                "text_columns": ["Job title"],
                "label_column": "Code",
            },
            **{"population": "jobs", "target_epsilon": 5},
        }
    },
}
"""What a form asks for beyond its defaults."""


def flow_of(name: str) -> Flow[Any, Any]:
    return load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"])


def given(name: str) -> dict[str, Any]:
    values = copy.deepcopy(DEPLOYMENTS[name].get("parameters", {})) | GIVEN.get(name, {})
    if DEPLOYMENTS[name]["entrypoint"] == "flows.deployed.formal":
        values["parameters"] = {"target_epsilon": 3} | values["parameters"]
    return values


def filled(name: str) -> dict[str, Any]:
    """Returns the form as Prefect's page sends it when no one changes it, except for what must be
    given. The page puts the schema's default into every field that the deployment leaves out, in
    sections too.
    """
    schema = flow_of(name).parameters.model_dump()
    return with_defaults(given(name), schema, schema["definitions"])


def with_defaults(
    values: dict[str, Any], schema: dict[str, Any], definitions: dict[str, Any]
) -> dict[str, Any]:
    result = dict(values)
    for name, entry in schema.get("properties", {}).items():
        section = definitions.get(entry.get("$ref", "").rpartition("/")[2])
        value = result.get(name, entry.get("default"))
        if section is not None and "properties" in section:
            result[name] = with_defaults(value or {}, section, definitions)
        elif name in result or "default" in entry:
            result[name] = copy.deepcopy(value)
    return result


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_entrypoints_load_and_the_values_fit(name: str) -> None:
    """A dotted name that leads to a flow; the server's schema and the flow itself
    take the values.
    """
    assert re.fullmatch(r"flows\.\w+\.\w+", DEPLOYMENTS[name]["entrypoint"])
    flow = flow_of(name)
    assert DEPLOYMENTS[name]["enforce_parameter_schema"] is True
    assert validate(filled(name), flow.parameters.model_dump()) == []
    assert flow.validate_parameters(filled(name))


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_every_field_of_a_form_says_what_it_is_for(name: str) -> None:
    """A title that is no raw name and a help text, or a section that has them; a number has a lower
    limit.
    """
    for field, entry in flow_of(name).parameters.properties.items():
        assert entry.get("title"), f"{name}.{field} has no title"
        assert entry["title"] != field, f"{name}.{field} is shown by its raw name"
        assert entry.get("description") or "$ref" in entry or "allOf" in entry, (
            f"{name}.{field} has no help"
        )
    for section, schema in (flow_of(name).parameters.definitions or {}).items():
        for field, entry in schema.get("properties", {}).items():
            told = entry.get("description") or "$ref" in entry or "const" in entry
            assert told, f"{name}: {section}.{field} has no help"
            for kind in (entry, *entry.get("anyOf", ())):
                if kind.get("type") in {"integer", "number"}:
                    assert {"minimum", "exclusiveMinimum"} & set(kind), (
                        f"{name}: {section}.{field} has no lower limit"
                    )


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("demo", "parameters.advanced", {"method": {"fine_tune": {"epochs": 3}}}),
        ("demo", "parameters.mechanism", "none"),
        ("demo", "parameters.label_column", ""),
        ("osha-formal", "parameters.target_epsilon", 0),
        ("osha-formal", "parameters.target_epsilon", None),
        ("formal", "parameters.target_epsilon", None),
        ("formal", "parameters.source", ""),
        ("formal", "parameters.population", "no commas, please"),
        ("formal", "parameters.text_columns", []),
        ("audit", "settings.trials", -1),
        ("release", "plan", None),
        ("release", "plan", "private/plans/PLAN.json"),
        ("release", "wait_days", -1),
        ("handover", "release", "../keys"),
        ("handover", "folder", "outbox"),
        ("revoke", "reason", ""),
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


RETRAINED = [name for name in profile_names() if name != "formal"]  # of nobody's records
FILES = {"source": "r.csv", "codelist": "c.csv"}


def form_with(name: str, **changed: Any) -> RecordsForm:
    """Returns a deployment's form with files, with an epsilon where it asks for one, and with
    further changes.
    """
    kind = FormalForm if "formal" in DEPLOYMENTS[name]["entrypoint"] else RecordsForm
    return kind.model_validate(filled(name)["parameters"] | FILES | changed)


@pytest.mark.parametrize("profile", RETRAINED)
def test_the_form_becomes_the_parameters_that_the_command_has(profile: str) -> None:
    """And so their digests, by which a release is found; a command's own parameters survive the
    form.
    """
    aim = {"target_epsilon": 3.0} if "formal" in profile else {}
    named = parameters(
        profile,
        [
            *(f"method.{name}={value}" for name, value in aim.items()),
            "release.deployment=release/release",
        ],
        data=Path("r.csv"),
        codelist=Path("c.csv"),
    )
    assert form_with(profile, **aim).parameters() == named
    worker = WorkerSettings(home="/w", device="cuda", engine="3")
    again = form_of(named, worker)
    assert (again.parameters(), again.run()) == (named, worker)


def test_several_files_of_records_fit_no_form() -> None:
    """None of them is left out without a word."""
    named = parameters("demo", [], data=[Path("r.csv"), Path("s.csv")], codelist=Path("c.csv"))
    assert named.data.source == ("r.csv", "s.csv")
    with pytest.raises(InputError, check=of_kind("one-file")):
        form_of(named, WorkerSettings(home="/w"))


def test_only_the_paper_asks_for_a_graphics_card() -> None:
    """Its form says so in the text; the others take what the worker has."""
    assert {name: form_with(name).run().device for name in RETRAINED} == {
        name: "cuda" if name == "paper" else "auto" for name in RETRAINED
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "{profile: demo, method: {fine_tune: {epochs: 0}}}",
            "method.fine_tune.epochs: must be at least 1",
        ),
        (
            "{profile: demo, method: {fine_tune: {epocs: 3}}}",
            "Did you mean method.fine_tune.epochs",
        ),
        ("{profile: demo, model: {trainable: everything}}", "model.trainable"),
        ("{profile: demo, release: {deployment: release}}", "release.deployment"),
        ("{profile: demo, run: {device: tpu9}}", "run: device"),
        ("{profile: demo, run: {engine: 3}}", "run: engine"),
        ("profile: dmeo", "unknown profile 'dmeo'"),
        ("profile: /etc/passwd.yaml", "unknown profile"),
        ("data: {population: others}", "data.population has its own field"),
        ("[1, 2]", "must be a mapping"),
        ("a: {b", "is not YAML"),
    ],
)
def test_wrong_settings_in_the_text_are_named(text: str, words: str) -> None:
    """In the first second of the run, in one sentence."""
    with pytest.raises(ValidationError, match=re.escape(words)) as refused:
        form_with("demo", advanced=text)
    assert "input_value" not in str(refused.value), "the text may name a ledger with its password"


def test_a_day_in_the_text_needs_no_quotes() -> None:
    """YAML reads it as a date."""
    made = form_with(
        "demo-formal", advanced="{profile: demo-formal, data: {ingest: {train_before: 2022-07-01}}}"
    )
    assert str(made.parameters().data.ingest.train_before) == "2022-07-01"


def test_deployments_are_applied_without_the_paths_that_nobody_named() -> None:
    """The form asks for them then; what is beside them stays, whatever the form of the file."""
    own = {"deployments": [{"parameters": {"source": "{{ $AUTOCODER_DATA }}", "population": "p"}}]}
    assert _without_unset(own, {}) == {"deployments": [{"parameters": {"population": "p"}}]}
    assert _without_unset(own, {"AUTOCODER_DATA": "/d.csv"}) == own


@pytest.mark.parametrize("name", ["formal", "osha-head", "compare"])
def test_a_form_begins_with_the_records_and_ends_with_the_text(name: str) -> None:
    """Every field has its place; the page shows fields without one in any order."""
    schema = flow_of(name).parameters.model_dump()
    (form,) = (
        entry
        for title, entry in schema["definitions"].items()
        if title in ("FormalForm", "RecordsForm")
    )
    places = {field: entry["position"] for field, entry in form["properties"].items()}
    order = sorted(places, key=lambda field: places[field])
    required = ["source", "codelist", "text_columns", "label_column", "population"]
    required += ["target_epsilon"] if name == "formal" else []
    assert order == [*required, "advanced"]
    assert form["required"] == required
    assert not any("default" in form["properties"][field] for field in required)


def run_of(
    url: str, theirs: dict[str, Any], values: dict[str, Any], *, flow: Flow[Any, Any] | None = None
) -> Any:
    """Runs a flow as a run of a deployment, which the server holds with its own values."""
    run_flow_of = flow or parameters_of_the_run
    settings: dict[Any, Any] = {PREFECT_API_URL: url, PREFECT_LOGGING_TO_API_ENABLED: False}
    with temporary_settings(settings), get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            client.create_flow(run_flow_of), name="own", parameters={"parameters": theirs}
        )
        run = client.create_flow_run_from_deployment(deployment, parameters={"parameters": values})
        return run_flow(run_flow_of, flow_run=run)


@flow(name="parameters-of-the-run")
def parameters_of_the_run(parameters: FormalForm) -> RetrainParameters:
    return parameters_of_run(parameters, PrefectRun())


def test_a_deployment_lends_its_population_to_no_other_columns() -> None:
    """Neither population nor classification of a profile stand for other columns, anyone who sends
    the form.
    """
    other = {"text_columns": ["title"], "label_column": "code"}
    for names, lacking in (
        ({}, "data.population"),
        ({"population": "jobs"}, "data.classification"),
        ({"advanced": "{profile: osha-head, data: {classification: SOC}}"}, "data.population"),
    ):
        with pytest.raises(ValidationError, match=lacking):
            form_with("osha-head", **other, **names)


def test_other_records_get_nothing_that_the_profile_says_of_its_own() -> None:
    """With names of their own they pass: not public, split by share, with the plain sentence, and
    nothing at once.
    """
    same = form_with("osha-formal").parameters()
    assert (same.data.public, str(same.data.ingest.train_before)) == (True, "2016-05-01")
    columns = {"text_columns": ["title"], "label_column": "code"}
    columns["advanced"] = "{profile: osha-formal, data: {classification: SOC}}"
    for names in ({"population": "jobs"}, {"population": "jobs"} | columns):
        made = form_with("osha-formal", **names).parameters()
        assert (made.data.public, made.data.ingest.train_before, made.model.prior_sentence) == (
            False,
            None,
            "",
        )
    assert form_with("demo").parameters().release.enabled
    assert not form_with("demo", population="jobs").parameters().release.enabled


@pytest.mark.servers
def test_a_deployment_of_its_own_settings_serves_its_own_records_alone(server: str) -> None:
    """At a real server: what an operator registered is compared with what a run sends, and not with
    itself.
    """
    named = parameters(
        "osha-formal", ["method.target_epsilon=3"], data=Path("r.csv"), codelist=Path("c.csv")
    )
    own = form_of(named, WorkerSettings()).model_dump(mode="json")
    assert run_of(server, own, own) == named
    assert run_of(server, own, own | {"source": "next.csv"}).data.source == ("next.csv",)
    columns = {"text_columns": ["title"], "label_column": "code"}
    edited = {"advanced": own["advanced"] + "# edited"}
    for other in ({"population": "jobs"}, {"population": "jobs"} | columns | edited):
        with pytest.raises(InputError, check=of_kind("fixed-setting")):
            run_of(server, own, own | other)
    delivered = form_with("osha-formal").model_dump(mode="json")
    # a text that no longer names the profile, or all settings, makes no difference
    for theirs, text in ((own, ""), (own, own["advanced"]), (delivered, "profile: formal")):
        with pytest.raises(InputError, check=of_kind("other-columns")):
            run_of(server, theirs, theirs | columns | {"advanced": text})


@pytest.mark.servers
def test_the_flow_of_a_form_reads_it_within_its_run(server: str, tmp_path: Path) -> None:
    """A file that does not exist ends the run, which bears the name of its population, as refused,
    in the program's words alone. Values that do not fit the form do as well, by the titles of its
    fields.
    """
    home = f"{{profile: demo, run: {{home: '{tmp_path}'}}}}"
    own = form_with("demo", source=str(tmp_path / "missing.csv"), codelist="none", advanced=home)
    with pytest.raises(InputError, check=of_kind("no-data-file", saying="missing.csv")):
        run_of(server, own.model_dump(mode="json"), own.model_dump(mode="json"), flow=estimated)
    wrong = own.model_dump(mode="json") | {"text_columns": [], "target_epsilon": 0.0}
    with pytest.raises(InputError, check=of_kind("form-values")):
        run_of(server, wrong, wrong, flow=formal)
    with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=["retrain"])),
            sort=FlowRunSort.START_TIME_DESC,
        )
    refused = {run.name: run.state for run in runs if run.state_name == REFUSED}
    state = refused["demo, SWAG-PPM"]
    assert state is not None
    assert state.is_failed()
    assert str(state.message).startswith("data: ")
    assert "missing.csv" in str(state.message)
    state = refused["demo, formal ε 0"]
    assert state is not None
    assert state.message == (
        "Text columns has too few entries: at least 1. Target epsilon must be greater than 0."
    )
    named = {name: flow_of(name).flow_run_name for name in DEPLOYMENTS}
    assert {name for name, flow in named.items() if flow is None} == {
        *("code-batch", "ledger-verify", "housekeeping")
    }


def test_dead_runs_of_every_flow_are_found() -> None:
    """Except for those of housekeeping, which comes again by itself."""
    assert {flow_of(name).name for name in DEPLOYMENTS} - set(RESUMED) == {"housekeeping"}


def test_trainings_alone_move_to_another_pool() -> None:
    """What signs, codes or keeps house stays where its worker is, and the GPU's pool is another."""
    content = copy.deepcopy(CONTENT)
    _train_in(content, "training")
    moved = {
        entry["name"]
        for entry, before in zip(content["deployments"], CONTENT["deployments"], strict=True)
        if entry["work_pool"]["name"] != before["work_pool"]["name"]
    }
    queued = {
        name for name, e in DEPLOYMENTS.items() if e["work_pool"]["work_queue_name"] == "default"
    }
    assert moved == queued - {"paper"}
    assert {"release", "handover", "revoke", "code-batch", "ledger-verify"} & moved == set()


def test_a_release_runs_alone_and_new_ones_are_cancelled() -> None:
    """One draw at a time, from a queue that a worker with the signing key can serve alone."""
    release = DEPLOYMENTS["release"]
    assert release["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    pool = release["work_pool"]
    assert (pool["name"], pool["work_queue_name"]) == ("cpu", "release")
    in_queue = [
        name
        for name, d in DEPLOYMENTS.items()
        if d["work_pool"].get("work_queue_name") == "release"
    ]
    assert in_queue == ["release", "handover", "revoke"], "all that is signed"


def test_every_retrain_asks_the_release_deployment() -> None:
    """Train and release are two: none releases by itself, and except for the demo none asks for it
    before an audit.
    """
    retrains = [name for name, d in DEPLOYMENTS.items() if "retrain" in d["tags"]]
    assert sorted(retrains) == sorted([*RETRAINED, "formal"])
    asked = {name: form_with(name).parameters().release for name in RETRAINED}
    assert {release.deployment for release in asked.values()} == {"release/release"}
    assert [name for name, release in asked.items() if release.enabled] == ["demo"]


def test_the_form_for_your_own_records_lends_nothing() -> None:
    """No value of anyone's is filled in."""
    assert "parameters" not in DEPLOYMENTS["formal"]


def test_the_form_for_your_own_records_becomes_the_profile() -> None:
    """As the command would have it, with and without a list; the rest comes from YAML."""
    values = GIVEN["formal"]["parameters"]
    named = {"text": ["Job title"], "label": "Code", "population": "jobs"}
    settings = ["release.deployment=release/release", "method.target_epsilon=5.0"]
    plain = FormalForm.model_validate(values)
    assert plain.parameters() == parameters("formal", settings, data=Path("r.csv"), named=named)
    assert plain.parameters().model.prior == "none"
    yaml_text = (
        "data: {classification: SOC, classification_version: '2.010', ingest: {date_column: Day}}"
    )
    extra = {"codelist": "c.csv", "advanced": yaml_text}
    more = FormalForm.model_validate(values | extra).parameters()
    named |= {"classification": "SOC", "classification-version": "2.010", "date": "Day"}
    assert more == parameters(
        "formal", settings, data=Path("r.csv"), codelist=Path("c.csv"), named=named
    )
    assert more.model.prior == "titles"


@pytest.mark.servers
def test_a_server_refuses_a_form_without_records(server: str) -> None:
    """At once, when the form is sent: no run comes of it."""
    own = flow_of("formal")
    with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            client.create_flow(own),
            name="own-formal",
            parameter_openapi_schema=own.parameters.model_dump(),
            enforce_parameter_schema=True,
        )
        given_values = GIVEN["formal"]["parameters"]
        for name in given_values:
            lacking = {key: value for key, value in given_values.items() if key != name}
            with pytest.raises(PrefectHTTPStatusError, match="409"):
                client.create_flow_run_from_deployment(
                    deployment, parameters={"parameters": lacking}
                )
        run = client.create_flow_run_from_deployment(
            deployment, parameters={"parameters": given_values}
        )
        client.delete_flow_run(run.id)


def test_what_runs_by_the_calendar_makes_formal_claims() -> None:
    """The quarterly training run has the values of its form and an epsilon, since no one is there
    to give one. It is an example and paused.
    """
    (example,) = DEPLOYMENTS["osha-formal"]["schedules"]
    assert example["active"] is False
    planned = {
        name: schedule["parameters"]["parameters"]
        for name, entry in DEPLOYMENTS.items()
        for schedule in entry.get("schedules", ())
        if entry["entrypoint"].endswith(".formal")
    }
    assert sorted(planned) == ["osha-formal"]
    assert planned["osha-formal"] == given("osha-formal")["parameters"] | {"target_epsilon": 5}, (
        "except for the epsilon"
    )
    form = FormalForm.model_validate(planned["osha-formal"] | FILES)
    assert form.parameters().method.guarantee_kind == "formal"


def test_automations_are_what_prefect_takes() -> None:
    """Each rule, with our word in place; they notify, and change no run."""
    for rule in yaml.safe_load((FOLDER / "automations.yaml").read_text()):
        assert all(set(action) == {"notify"} for action in rule["actions"])
        rule["actions"] = [{"type": "do-nothing"}]
        AutomationCore.model_validate(rule)
