"""Profiles and --set: what ships is valid, and what is wrong is refused by the option's name before
any work.
"""

from pathlib import Path

import pytest
from parameter_tables import parameter_tables
from refusals import of_kind
from run_options import parameters

from flows.commands.options import RunOptions
from flows.commands.profiles import (
    OPTIONS,
    apply_settings,
    load_profile,
    profile_names,
)
from mechanisms.dp_sgd import DpSgd
from mechanisms.model.config import OptimiserPhase
from mechanisms.non_private import NonPrivate
from mechanisms.swag_ppm import SwagPpm
from storage.errors import InputError
from tasks.branches.branch import (
    CompareParameters,
    ComparisonSettings,
    choose,
    mechanism_for,
    model_for,
    workloads,
)
from tasks.branches.released import released_branch
from tasks.parameters import RetrainParameters

DATA = Path("injuries.csv")


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_that_ships_is_valid(name: str) -> None:
    """And names no file of its own: the operator gives the data."""
    assert parameters(name, [], data=DATA).data.source == ("injuries.csv",)


def test_the_paper_profile_has_the_papers_settings() -> None:
    """Chew et al., section 3.2."""
    p = parameters("paper", [], data=DATA)
    swag = p.method.mechanism
    assert isinstance(swag, SwagPpm)
    (tune, collect), (_, config) = swag.phases, swag.settings
    assert (p.model.encoder, p.model.trainable) == ("distilroberta-base", "full")
    assert (tune.learning_rate, tune.batch_size, tune.epochs) == (5e-5, 8, 10)
    assert (collect.learning_rate, collect.epochs, collect.schedule) == (0.01, 20, "constant")
    assert (config.risk_draws, config.sensitivity_draws) == (500, 500)
    assert (config.c, config.g, config.k) == (1.0, 0.0, 0.95)
    assert (p.data.ingest.cap_per_code, p.data.ingest.min_per_code, p.data.ingest.test_share) == (
        200,
        2,
        0.5,
    )


def test_a_head_alone_has_its_rate_by_default(tmp_path: Path) -> None:
    """A profile that says `head` and no rate trains at 0.003, not at that of a whole encoder; a
    given rate stays.
    """
    profile = tmp_path / "own.yaml"
    profile.write_text(
        "data: {ingest: {}}\nmodel: {trainable: head, pooling: mean}\nmethod: {name: swag-ppm}\n"
    )

    def rate(*settings: str) -> float:
        return fine_tuned(parameters(str(profile), settings, data=DATA)).learning_rate

    assert rate() == 0.003
    assert rate("method.fine_tune.epochs=3") == 0.003
    assert rate("method.fine_tune.learning_rate=5e-5") == 5e-5
    assert rate("model.trainable=full") == 5e-5


def fine_tuned(chosen: RetrainParameters) -> OptimiserPhase:
    mechanism = mechanism_for(chosen.method, chosen, ComparisonSettings())
    assert isinstance(mechanism, SwagPpm)
    return mechanism.phases[0]


def test_set_overrides_any_depth() -> None:
    """Values are read as YAML; a new section is made where there was none, and no other one is
    touched.
    """
    p = parameters("demo", ["method.fine_tune.epochs=3", "method.round=weighted"], data=DATA)
    swag = p.method.mechanism
    assert isinstance(swag, SwagPpm)
    assert (swag.phases[0].epochs, swag.round) == (3, "weighted")
    assert apply_settings({"a": {"b": 1}}, ["a.c=2", "d.e=null"]) == {
        "a": {"b": 1, "c": 2},
        "d": {"e": None},
    }


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("method.moments.rank=21", "exceeds the snapshots"),
        (
            "method.pseudo_posterior.sensitivity_draws=0",
            "method.pseudo_posterior.sensitivity_draws",
        ),
        ("method.pseudo_posterior.k=1", "method.pseudo_posterior.k"),
        ("method.collect.learning_rate=-0.1", "method.collect.learning_rate"),
        ("method.collect.learning_rate=.nan", "method.collect.learning_rate"),
        (
            "method.fine_tune.epocs=3",
            "method.fine_tune.epocs: unknown parameter. Did you mean method.fine_tune.epochs?",
        ),
        (
            "label_column=Code",
            "label_column: unknown parameter. Did you mean data.ingest.label_column?",
        ),
        ("zzz=3", "zzz: unknown parameter (see docs/reference/parameters.md)"),
        ("method.collect.schedule=linear", "constant"),
        ("model.trainable=all", "model.trainable"),
        ("data.ingest.test_share=1.5", "data.ingest.test_share"),
        ("method.fine_tune.epochs", "key=value"),
        ("model.encoder.name=x", "is not a section"),
    ],
)
def test_wrong_settings_are_refused_by_name(setting: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parameters("demo", [setting], data=DATA)
    assert said in str(caught.value)


def test_missing_data_and_unknown_profile_are_told() -> None:
    """With what to do about it."""
    with pytest.raises(InputError, check=of_kind("no-data")):
        parameters("demo", [])
    known = "demo, demo-formal, formal, osha-formal, osha-formal-lora, osha-head, paper"
    with pytest.raises(InputError, check=of_kind("unknown-profile", saying=known)):
        parameters("dmeo", [], data=DATA)


@pytest.mark.parametrize("name", ["dp-sgd", "dp-sgd-tuned"])
def test_what_a_formal_release_is_told_holds_for_an_encoder_too(name: str) -> None:
    """A branch has settings of its own where it trains on tokens; those that the release names came
    second to them.
    """
    chosen = ["method.target_epsilon=5", f"method.name={name}", "method.momentum=0.0"]
    told = parameters("osha-formal-lora", chosen, data=DATA, codelist=DATA)
    branch, settings = released_branch(told)
    fitted = mechanism_for(branch, told, settings)
    assert isinstance(fitted, DpSgd)
    assert (fitted.epochs, fitted.sampling_prob, fitted.optimiser, fitted.learning_rate) == (
        4,
        0.1,
        "adamw",
        0.01,
    )
    assert (model_for(branch, told).trainable, model_for(branch, told).prior) == ("lora", "titles")
    assert workloads(branch, told, settings)[name].epochs == 4


def test_a_fit_without_privacy_costs_the_epochs_of_its_own_phase() -> None:
    """Of the profile's other methods: the estimate once took the comparison's own number."""
    told = parameters("osha-formal-lora", [], data=DATA, codelist=DATA)
    terms = ComparisonSettings(epochs=7)
    (branch,) = choose("non-private", told, CompareParameters().all_branches)
    fitted = mechanism_for(branch, told, terms)
    assert isinstance(fitted, NonPrivate)
    assert fitted.phase is not None
    assert fitted.phase.epochs == 30
    assert workloads(branch, told, terms)["non-private"].epochs == 30


def test_the_tables_of_parameters_have_every_option() -> None:
    tables = parameter_tables()
    assert [option for option in OPTIONS.values() if f"`{option}`" not in tables] == []
    assert "`data.ingest.unit_column`" in tables


def test_a_text_stays_the_text_that_was_typed() -> None:
    """A version is no number, one column is a list of one; in a profile a number in place of a text
    is reported.
    """
    p = parameters(
        "demo",
        ["data.classification_version=2.010", "data.ingest.text_columns=Job title"],
        data=DATA,
        named={"population": "p", "classification": "SOC"},
    )
    assert (p.data.classification_version, p.data.ingest.text_columns) == ("2.010", ("Job title",))
    p = parameters(
        "demo",
        ["data.source=a: b.csv", "data.ingest.cap_per_code=null", "release.label=007"],
    )
    assert (p.data.source, p.data.ingest.cap_per_code, p.release.label) == (
        ("a: b.csv",),
        None,
        "007",
    )


JOBS = {"text": ["title"], "label": "code", "population": "jobs", "classification": "SOC"}


def test_no_profile_lends_its_names_to_other_columns() -> None:
    """Population and classification become mandatory; version, `public` and a release at once do
    not come along.
    """
    for lacking in ("population", "classification"):
        with pytest.raises(
            InputError, check=of_kind("columns-of-another-profile", saying=f"--{lacking}")
        ):
            parameters(
                "osha-head", [], data=DATA, named={n: v for n, v in JOBS.items() if n != lacking}
            )
    with pytest.raises(
        InputError,
        check=of_kind(
            "columns-of-another-profile",
            option="--label",
            saying=("--population", "--classification"),
        ),
    ):
        parameters("demo", ["data.ingest.label_column=code"], data=DATA)
    p = parameters("osha-head", [], data=DATA, named=JOBS)
    assert (p.data.population, p.data.classification, p.data.classification_version) == (
        "jobs",
        "SOC",
        "",
    )
    assert not p.data.public
    assert not parameters("demo", [], data=DATA, named=JOBS).release.enabled
    assert not parameters("demo", [], data=DATA, named={"population": "jobs"}).release.enabled
    assert parameters("demo", [], data=DATA).release.enabled, "the demo alone releases at once"
    assert not any(
        parameters(n, [], data=DATA).release.enabled for n in profile_names() if n != "demo"
    )
    assert load_profile("osha-head")["data"]["population"] == "osha-severe-injuries"


def test_errors_name_the_option() -> None:
    """By which a value was given, beside the parameter; one value is given once. Names take letters
    of any language.
    """
    for name in ("a/b", "_x", " x", "x" * 65, "a\nb"):
        with pytest.raises(
            InputError,
            check=of_kind("invalid-settings", saying=("--population (data.population)", "64")),
        ):
            parameters("demo", [], data=DATA, named={"population": name})
    with pytest.raises(
        InputError,
        check=of_kind("invalid-settings", saying=("--classification", "80")),
    ):
        parameters("demo", [], data=DATA, named={"classification": "Nomenclature française"})
    spelt = [
        parameters("demo", [], data=DATA, named={"population": f"d{e}clarations 2024"})
        for e in ("é", "e\u0301")
    ]
    assert [each.data.population for each in spelt] == ["déclarations 2024"] * 2, (
        "one name, one budget"
    )
    with pytest.raises(InputError, check=of_kind("set-twice", option="data.ingest.label_column")):
        parameters("demo", ["data.ingest.label_column=x"], data=DATA, named={"label": "y"})
    read = ["data.ingest.read.separator=;"]
    with pytest.raises(InputError, check=of_kind("set-twice", saying="--read separator")):
        RunOptions(
            profile="demo", data=[Path(__file__)], settings=read, read=["separator=,"]
        ).parameters()
    assert parameters("demo", [], data=DATA, named={"date": ""}).data.ingest.date_column is None


def test_the_formal_profile_follows_the_code_list() -> None:
    """With one it starts at the titles and reads their words; without one neither, unless a setting
    says so.
    """
    listed = parameters("formal", [], data=DATA, codelist=Path("codes.csv"), named=JOBS)
    assert (listed.model.prior, listed.model.lexical) == ("titles", "titles")
    assert (listed.data.ingest.date_column, listed.data.ingest.sampling) == (None, "per-record")
    assert listed.data.population == "jobs"
    assert listed.method.guarantee_kind == "formal"
    without = parameters("formal", [], data=DATA, named=JOBS)
    assert (without.model.prior, without.model.lexical) == ("none", "hashed")
    named = parameters("formal", ["data.ingest.codes_are_names=true"], data=DATA, named=JOBS)
    assert (named.model.prior, named.model.lexical) == ("titles", "titles")
    chosen = parameters("formal", ["model.lexical=none"], data=DATA, named=JOBS)
    assert (chosen.model.prior, chosen.model.lexical) == ("none", "none")
    dated = parameters("formal", [], data=DATA, named=JOBS | {"date": "Day"})
    assert dated.data.ingest.date_column == "Day"


def test_no_profile_lends_its_day_or_sentence_to_other_records() -> None:
    """Of other columns or another population; what is set stays."""
    moved = parameters("osha-formal", [], data=DATA, named=JOBS)
    assert (moved.data.ingest.train_before, moved.model.prior_sentence) == (None, "")
    assert (
        parameters(
            "osha-formal", [], data=DATA, named={"population": "jobs"}
        ).data.ingest.train_before
        is None
    )
    chosen = parameters(
        "osha-formal",
        ["data.ingest.train_before=2020-01-01"],
        data=DATA,
        named=JOBS | {"date": "Day"},
    )
    assert str(chosen.data.ingest.train_before) == "2020-01-01"
    assert str(parameters("osha-formal", [], data=DATA).data.ingest.train_before) == "2016-05-01"
