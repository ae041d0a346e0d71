"""What an officer reads before signing: each answer's verdict, from ledger and plan."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from flows.commands.plan import lines_of
from flows.commands.profiles import parameters
from mechanisms.formal_head import FormalHeadEvent
from mechanisms.model.classifier import ModelConfig
from mechanisms.privacy.events import Claim, DpSgdEvent, GaussianReleaseEvent, NoiseSegment, SwagPpmEvent
from storage.artifacts import ArtifactRef
from storage.ledger import BudgetRefused, Evaluation, Ledger, Policy, ReleasePlan
from storage.ledger.records import RecordSet
from tasks.branches.origin import Origin
from tasks.fitting.candidate import Candidate
from tasks.releasing import allowed_delta, approval, formal_offer, gate, plan_page
from tasks.releasing.at_hand import AtHand
from tasks.releasing.code_lists import Word
from tasks.releasing.plan import PlannedRelease

LOCAL = Claim(
    guarantee_kind="asymptotic-local",
    epsilon=4.123456789012,
    delta_text="O(n^-1/2), not quantified",
    sensitivity=2.061728394506,
    epsilon_add_remove=2.061728394506,
    neighbouring_relation="add-remove",
    accountant="test",
)
FORMAL = Claim(
    guarantee_kind="formal",
    epsilon=4.987654321098,
    delta=1e-5,
    neighbouring_relation="add-remove",
    accountant="test",
)
DRAW = SwagPpmEvent(reweighted=False, snapshots=20, rank=20, sensitivity_draws=500, sensitivity=2.061728394506)
DESCENT = DpSgdEvent(sampling_prob=1.0, segments=(NoiseSegment(steps=10, noise_multiplier=5.0, l2_clip_norm=1.0),))
CAPS: dict[str, Any] = {"formal": {"epsilon": 8, "delta": "0.00001"}, "asymptotic-local": {"epsilon": 6}}


def _ref(letter: str) -> ArtifactRef:
    return ArtifactRef(uri=f"file:///nowhere/{letter}", sha256=letter * 64, kind="test")


def planned(claim: Claim = LOCAL, **changes: Any) -> PlannedRelease:
    """A plan of SWAG-PPM, or of what the claim is of."""
    fields: dict[str, Any] = {"idempotency_key": "k", "release_label": "first", "population": "injuries"}
    fields |= {"cohorts": ("2015",), "data_fingerprint": "f", "records_rounded": 1234, "requester": "operator"}
    fields |= {"event": DRAW if claim is LOCAL else DESCENT, "claim": claim, "parameters_digest": "p"}
    candidate = Candidate(
        dataset=_ref("a"),
        prepared=_ref("b"),
        fitted=_ref("c"),
        measured=_ref("d") if claim is LOCAL else None,
        model=ModelConfig(trainable="head"),
        seed=1,
    )
    return PlannedRelease(plan=ReleasePlan.model_validate(fields | changes), candidate=candidate)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Under a policy of both kinds that asks for no approval."""
    policy = Policy.parse({"name": "test", "default": CAPS})
    return Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", policy=policy)


def audit(ledger: Ledger, plan: PlannedRelease, bound: float) -> None:
    """An audit of a plan's candidate that could have shown 9."""
    details: dict[str, Any] = {
        "epsilon_lower_bound": bound,
        "reach": 9.0,
        "looks": {"natural": 1},
        "confidence": 0.95,
        "auc": 0.878,
        "tpr_at_fpr_0.001": 0.17,
    }
    ledger.record(
        Evaluation(
            kind="audit",
            label="audit",
            population="injuries",
            data_fingerprint="f",
            event=plan.plan.event,
            requester="auditor",
            artifact_digests={gate.AUDITED: plan.candidate.fitted.sha256},
            details=details | {"trials": 32},
        )
    )


def compared(ledger: Ledger, branch: str, f1: float, *, claim: Claim | None = None, fit: str = "x") -> None:
    """A row of a comparison on the same records."""
    ledger.record(
        Evaluation(
            label=f"compare: {branch}, seed 1",
            population="injuries",
            data_fingerprint="f",
            event=None if claim is None else DESCENT,
            claim=claim,
            requester="operator",
            parameters_digest="study",
            artifact_digests={"fit": fit * 64},
            details={"weighted_f1": f1, "macro_f1": f1 / 2},
            idempotency_key=f"compare-{branch}",
        )
    )


def page(ledger: Ledger, plan: PlannedRelease, **options: Any) -> plan_page.PlanPage:
    """The page of a plan that nobody signed, whose records lie elsewhere or are as the options say."""
    stands = approval.weigh(ledger.policy(), plan, [])
    return plan_page.page_of(plan, ledger, stands, file="plans/k.json", found=AtHand(**options))


def answer(found: plan_page.PlanPage, key: str) -> plan_page.Answer:
    """One of its answers."""
    return next(one for one in found.answers if one.key == key)


@pytest.mark.parametrize(("claim", "verdict"), [(LOCAL, "warning"), (FORMAL, "look")])
def test_not_audited_stands_first(ledger: Ledger, claim: Claim, verdict: str) -> None:
    """Before the claim; a formal one holds without a measurement, an estimate does not."""
    found = page(ledger, planned(claim))
    assert found.answers[0].key == "leakage"
    assert found.answers[0].text.startswith("Not audited")
    assert found.answers[0].verdict == verdict
    assert plan_page.markdown(found).index("Not audited") < plan_page.markdown(found).index("What is promised")


def test_a_contradiction_is_a_warning_and_says_by_how_much(ledger: Ledger) -> None:
    """The gate's own line, in every form of the page; a bound below the claim is none."""
    plan = planned()
    audit(ledger, plan, 1.0)
    assert answer(page(ledger, plan), "leakage").verdict == "fine"
    audit(ledger, plan, 3.5)
    found = page(ledger, plan)
    assert answer(found, "leakage").verdict == "warning"
    assert found.verdict == "warning"
    for text in (plan_page.html(found), plan_page.markdown(found)):
        assert "measured at least ε 3.5" in text


def test_what_the_gate_will_say_of_the_code_lists(ledger: Ledger) -> None:
    """Each field by its name; one that is refused speaks against the release. Not at hand is said, not asked is not."""
    known = Word("nature", "a-list", "known")
    refused = Word("event", None, "refused", fault="event/codelist.csv holds a part of a private narrative; do so")
    fine = answer(page(ledger, planned(), lists=[known]), "lists")
    assert (fine.verdict, fine.text) == ("fine", "nature: known as a-list.")
    found = page(ledger, planned(), lists=[known, refused])
    assert answer(found, "lists").verdict == "warning"
    for text in (plan_page.html(found), plan_page.markdown(found)):
        assert "event: refused by the gate at the release: event/codelist.csv holds" in text
    away = answer(page(ledger, planned(), lists=[]), "lists")
    assert (away.verdict, away.text.split(",")[0]) == ("look", "Not looked at")
    assert "lists" not in {one.key for one in page(ledger, planned(), lists=None).answers}


@pytest.mark.parametrize("claim", [LOCAL, FORMAL])
def test_no_figure_has_twelve_decimals(ledger: Ledger, claim: Claim) -> None:
    """Spent is rounded up and what remains down, to four."""
    ledger.reserve(planned(claim, idempotency_key="before", cohorts=("2015",)).plan.model_copy(
        update={"claim": claim.model_copy(update={"epsilon": 1.000000000001, "delta": claim.delta and claim.delta / 2})}
    ))  # fmt: skip
    found = page(ledger, planned(claim.model_copy(update={"epsilon": 2.123456789012, "delta": claim.delta and 5e-6})))
    texts = [plan_page.html(found), plan_page.markdown(found), *(one.text for one in found.answers)]
    for text in texts:
        assert not re.search(r"\d\.\d{5,}(?!e)", re.sub(r"0\.0+\d{1,2}\b", "", text)), text
    table = answer(found, "cost").table
    assert table is not None
    cap = 6 if claim is LOCAL else 8
    assert table[1][0][:6] == ["2015", "1.0001", "2.1235", "3.1235", str(cap), f"{cap - 3.1235 + 0.0000:.4f}"]


def test_what_does_not_fit_is_a_warning(ledger: Ledger) -> None:
    """With the ledger's arithmetic."""
    found = page(ledger, planned(LOCAL.model_copy(update={"epsilon": 7.0})))
    assert answer(found, "cost").verdict == "warning"
    assert "over the cap" in answer(found, "cost").text


def test_the_formal_branch_is_named_with_what_it_costs_and_loses(ledger: Ledger) -> None:
    """From rows of a comparison on the same records; without any, the command that makes one."""
    plan = planned()
    none = answer(page(ledger, plan), "formal")
    assert "no formal branch was compared" in none.text
    assert "--profile osha-formal" in none.text
    assert "--target-epsilon 5" in none.text
    compared(ledger, "non-private", 0.8)
    compared(ledger, "prior-descent", 0.76, claim=FORMAL, fit="e")
    compared(ledger, "swag-ppm", 0.78, fit="c")
    found = page(ledger, plan)
    told = answer(found, "formal").text
    assert "prior-descent would cost formal, ε 4.988, δ 1e-05, add-remove (not audited)" in told
    assert "0.040 (5.0%) below non-private (0.800); 0.020 below this release" in told
    assert (answer(found, "alone").verdict, answer(found, "alone").text.split(":")[0]) == ("look", "Not measured")
    accuracy = answer(found, "accuracy")
    assert "Weighted F1 0.780, macro F1 0.390" in accuracy.text
    assert "0.020 (2.5 %) below a fit without privacy" in accuracy.text
    assert "formal" not in {one.key for one in page(ledger, planned(FORMAL)).answers}


def test_thresholds_that_nobody_will_have_are_told_before_the_release(ledger: Ledger) -> None:
    """What held-out records say of each target, and where `code --accuracy` will fail; fine where all are there."""
    alone = {"alone_at_80": 0.43, "alone_at_90": 0.0, "alone_at_95": 0.0, "surest_accuracy": 0.87, "surest_share": 0.12}
    scored(ledger, {f"weighted_{name}": value for name, value in alone.items()})
    found = answer(page(ledger, planned()), "alone")
    assert found.verdict == "look"
    assert "80 % right: 43 % of the held-out records" in found.text
    assert "95 % right: no score reaches it" in found.text
    assert "87.0 % right, of the surest 12 %. Expect `autocoder code --accuracy` to fail at 90 and 95 %" in found.text
    scored(ledger, {f"weighted_alone_at_{at}": 0.5 for at in (80, 90, 95)})
    assert answer(page(ledger, planned()), "alone").verdict == "fine"


def scored(ledger: Ledger, more: dict[str, float]) -> None:
    """A retrain's own figures on the test half."""
    ledger.record(
        Evaluation(
            label="internal evaluation on the test half",
            population="injuries",
            data_fingerprint="f",
            requester="operator",
            parameters_digest="p",
            details={"weighted_weighted_f1": 0.6, "weighted_macro_f1": 0.3} | more,
        )
    )


def test_the_same_records_under_another_name_are_warned_of(ledger: Ledger) -> None:
    """Of a release of another kind too; where the records are not at hand that is said."""
    records = RecordSet.of([(None, b"a narrative")], key=b"k" * 32)
    small = FORMAL.model_copy(update={"epsilon": 2.0, "delta": 1e-6})
    other = planned(small, idempotency_key="o", population="accidents", data_fingerprint="g", cohorts=("1999",))
    ledger.reserve(other.plan, records=records)
    found = page(ledger, planned(), records=records)
    assert answer(found, "siblings").verdict == "warning"
    assert "under another population name (accidents)" in answer(found, "siblings").text
    cost = answer(page(ledger, planned(small, data_fingerprint="h"), records=records), "cost").table
    assert cost is not None
    rows = [tuple(map(float, row[1:4])) for row in cost[1]]
    assert rows == [(2, 2, 4), (2, 2, 4)], "what an account takes over is no cost of this release"
    assert answer(page(ledger, planned()), "siblings").verdict == "fine"
    assert "records are not at hand" in answer(page(ledger, planned()), "siblings").text


def test_diagnostics_are_those_of_the_same_method_on_the_same_records(ledger: Ledger) -> None:
    """Their questions by name; those of another method are not taken."""
    for method, verdicts in (("p", {"running": "look", "fit-gap": "warning"}), ("q", {"running": "fine"})):
        ledger.record(
            Evaluation(
                label="diagnostics of a retrain",
                population="injuries",
                data_fingerprint="f",
                requester="operator",
                parameters_digest=method,
                details={"verdicts": verdicts},
            )
        )
    told = answer(page(ledger, planned()), "diagnostics")
    assert told.verdict == "warning"
    assert "warnings at: Has the model learned its records by heart?" in told.text
    assert "to be looked at: Would more draws have given a larger ε?" in told.text


def test_diagnostics_are_not_advised_where_they_would_refuse(tmp_path: Path, ledger: Ledger) -> None:
    """Of a branch of a comparison `diagnose` looks at nothing: said in place of the command."""
    plan = beside(tmp_path, {"source": "x.csv"}, population="injuries")
    assert "autocoder diagnose" in answer(page(ledger, plan), "diagnostics").text
    file = tmp_path / "home" / "private" / "plans" / "0123456789abcdef.settings"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"branch": "censored-swag"}))
    told = answer(page(ledger, plan), "diagnostics")
    assert (told.verdict, "Nobody can look: it is of branch censored-swag" in told.text) == ("look", True)


def test_invented_narratives_are_offered_their_own_profile(tmp_path: Path) -> None:
    """Which has no sentence of OSHA's, nor its days."""
    plan = beside(tmp_path, {"source": "x.csv", "codelist": "c.csv"}, population="demo")
    words = shlex.split(formal_offer.command(plan, 2.5))
    assert words[words.index("--profile") + 1] == "demo-formal"
    said = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    assert parameters("demo-formal", [*said, "data.source=x.csv"]).data.population == "demo"


def test_the_page_stands_alone_and_escapes_what_it_is_given(ledger: Ledger) -> None:
    """Nothing from another address; a name that is markup stays a name."""
    found = page(ledger, planned(requester="<script>alert(1)</script>"))
    text = plan_page.html(found)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"(?:src|href)=['\"](?!data:|#)", text)
    assert "<script>" not in plan_page.markdown(found)
    assert "<code>autocoder diagnose " in text


def test_the_gate_offers_the_formal_branch_before_an_override(ledger: Ledger) -> None:
    """With the command and what the budget has for it; of a formal claim that is refuted it says what that is."""
    plan = planned()
    audit(ledger, plan, 3.5)
    with pytest.raises(BudgetRefused, match="contradicts") as refused:
        gate.check(ledger, plan)
    text = str(refused.value)
    command = (
        "autocoder retrain --profile osha-formal --data RECORDS --codelist CODELIST --set data.population=injuries"
    )
    assert f"`{command} --target-epsilon 5`" in text
    assert text.index(command) < text.index("`autocoder override`")
    formal = planned(FORMAL)
    audit(ledger, formal, 6.0)
    with pytest.raises(BudgetRefused, match="a fault of the program") as refused:
        gate.check(ledger, formal)
    assert "osha-formal" not in str(refused.value)


def test_the_command_names_files_and_columns_where_the_plans_settings_lie_beside_it(tmp_path: Path) -> None:
    """As a shell takes it, and as `retrain` takes it; what the profile has already is left out."""
    private = tmp_path / "home" / "private"
    dataset = ArtifactRef(uri=f"file://{private}/stages/ingest/a", sha256="a" * 64, kind="ingest")
    own = planned(idempotency_key="0123456789abcdef01")
    plan = own.model_copy(update={"candidate": own.candidate.model_copy(update={"dataset": dataset})})
    (private / "plans").mkdir(parents=True)
    ingest = {"text_columns": ["Job title", "Task"], "label_column": "Nature", "date_column": "EventDate"}
    data = {"source": "/data/my records.csv", "codelist": "/data/soc.csv", "classification": "SOC", "ingest": ingest}
    settings = {"parameters": {"data": data | {"population": "injuries", "classification_version": "2.01"}}}
    (private / "plans" / "0123456789abcdef.settings").write_text(json.dumps(settings))
    words = shlex.split(formal_offer.command(plan, 2.5))
    assert words[:4] == ["autocoder", "retrain", "--profile", "osha-formal"]
    assert words[4:8] == ["--data", "/data/my records.csv", "--codelist", "/data/soc.csv"]
    assert words[-2:] == ["--target-epsilon", "2.5"]
    said = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    made = parameters("osha-formal", [*said, "data.source=x.csv"])
    assert (made.data.population, made.data.classification) == ("injuries", "SOC")
    assert made.data.ingest.text_columns == ("Job title", "Task")
    assert made.data.classification_version == "2.01"  # other columns do not borrow the profile's
    assert not any("label_column" in one for one in said)


def beside(tmp_path: Path, data: dict[str, Any], **changes: Any) -> PlannedRelease:
    """A plan of this data section, which lies beside it in a workspace."""
    private = tmp_path / "home" / "private"
    dataset = ArtifactRef(uri=f"file://{private}/stages/ingest/a", sha256="a" * 64, kind="ingest")
    own = planned(idempotency_key="0123456789abcdef01", **changes)
    (private / "plans").mkdir(parents=True)
    run = parameters("demo", [f"data.{key}={json.dumps(value)}" for key, value in data.items()])
    Origin(parameters=run).save(private / "plans" / "0123456789abcdef.json")
    return own.model_copy(update={"candidate": own.candidate.model_copy(update={"dataset": dataset})})


JOBS = {"text_columns": ["Job title"], "label_column": "Code", "date_column": None}


@pytest.mark.parametrize(
    "data",
    [
        {"population": "jobs", "classification": "SOC", "classification_version": "2010", "ingest": JOBS},
        {"population": "jobs", "classification": "", "classification_version": "", "ingest": JOBS},
        {
            "population": "other",
            "classification": "OIICS",
            "ingest": JOBS | {"date_column": "Day", "max_per_unit": 2, "unit_column": "Who"},
        },
        {"population": "osha-severe-injuries"},
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_the_command_that_is_offered_can_be_given_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], listed: bool
) -> None:
    """From any folder, into the same workspace, of the same columns and names, without what is OSHA's alone."""
    monkeypatch.chdir(tmp_path)
    files = {"source": "my records.csv"} | ({"codelist": "codes.csv"} if listed else {})
    plan = beside(tmp_path, data | files, population=data["population"])
    words = shlex.split(formal_offer.command(plan, 2.5))
    assert words[words.index("--home") + 1] == str(tmp_path / "home")
    assert words[words.index("--data") + 1] == str(tmp_path / "my records.csv")
    said = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    lists = Path(words[words.index("--codelist") + 1]) if "--codelist" in words else None
    made = parameters("osha-formal", said, data=Path(words[words.index("--data") + 1]), codelist=lists)
    origin = json.loads((tmp_path / "home/private/plans/0123456789abcdef.settings").read_text())["parameters"]["data"]
    for key in ("population", "classification", "classification_version", "codelist", "public"):
        assert getattr(made.data, key) == origin[key], key
    for key in ("text_columns", "label_column", "date_column", "unit_column", "max_per_unit"):
        told = getattr(made.data.ingest, key)
        assert (list(told) if isinstance(told, tuple) else told) == origin["ingest"][key], key
    assert made.model.prior == ("titles" if listed else "none")
    assert made.data.ingest.train_before is None  # of the cohort 2015 every record is before the profile's day
    if listed and data.get("classification") in ("SOC", ""):
        assert made.model.prior_sentence == ""


def test_what_is_offered_fits_the_budget(tmp_path: Path) -> None:
    """In epsilon, in delta, and in the relation that the account is kept in: not what the policy would refuse."""
    caps = {"formal": {"epsilon": 8, "delta": "0.00002"}, "asymptotic-local": {"epsilon": 6}}
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'a.db'}", policy=Policy.parse({"name": "test", "default": caps}))
    assert formal_offer.remaining(ledger, planned()) == 8
    for key, left in (("one", "5"), ("two", None)):
        spent = FORMAL.model_copy(update={"epsilon": 3.0})
        ledger.reserve(planned(spent, idempotency_key=key, release_label=key).plan)
        assert formal_offer.remaining(ledger, planned()) == (left and Decimal(left)), key
    assert "the formal budget of these records is spent" in formal_offer.offer(ledger, planned()).lower()
    caps["formal"] = {"epsilon": 8, "delta": "0.01", "neighbouring_relation": "replace-one"}
    policy = Policy.parse({"name": "test", "default": caps})
    replaced = Ledger.open(f"sqlite:///{tmp_path / 'b.db'}", policy=policy)
    assert formal_offer.remaining(replaced, planned()) == 4
    assert "--target-epsilon 4`" in formal_offer.offer(replaced, planned())


def test_a_delta_that_is_used_up_is_said(ledger: Ledger) -> None:
    """Epsilon that remains buys nothing then."""
    told = answer(page(ledger, planned(FORMAL)), "cost")
    assert told.verdict == "look"
    assert "nothing formal can follow there" in told.text
    half = FORMAL.model_copy(update={"delta": 5e-6})
    assert answer(page(ledger, planned(half)), "cost").verdict == "fine"


def test_a_loss_is_told_against_the_retrains_own_fit_without_privacy(ledger: Ledger) -> None:
    """Of the same retrain; a comparison's better fit takes its place."""
    scores = {"base_weighted_f1": 0.7, "base_macro_f1": 0.5, "weighted_weighted_f1": 0.6, "weighted_macro_f1": 0.4}
    ledger.record(
        Evaluation(
            label="internal evaluation on the test half",
            population="injuries",
            data_fingerprint="f",
            requester="operator",
            parameters_digest="p",
            details=scores,
        )
    )
    told = answer(page(ledger, planned()), "accuracy")
    assert "0.100 (14.3 %) below a fit without privacy, 0.700" in told.text
    assert told.verdict == "look"
    other = answer(page(ledger, planned(FORMAL, parameters_digest="q", data_fingerprint="g")), "accuracy")
    assert (other.verdict, "Nobody has scored it" in other.text) == ("look", True)
    compared(ledger, "non-private", 0.8)
    assert "below a fit without privacy, 0.800" in answer(page(ledger, planned()), "accuracy").text


def test_a_score_beside_nothing_is_not_fine(ledger: Ledger) -> None:
    """It may be next to none, and nobody knows what was lost."""
    plan = planned(FORMAL)
    compared(ledger, "prior-descent", 0.013, claim=FORMAL, fit="c")
    told = answer(page(ledger, plan), "accuracy")
    assert (told.verdict, "0.013" in told.text) == ("look", True)
    compared(ledger, "non-private", 0.0131)
    assert answer(page(ledger, plan), "accuracy").verdict == "fine"


def test_a_command_stays_on_one_line_of_a_terminal() -> None:
    """Broken within quotes it would be another one when it is copied."""
    offered = 'autocoder retrain --set \'data.ingest.text_columns=["Job title", "Task"]\' --target-epsilon 5'
    lines = lines_of(f"Not known: nobody compared one on these records. Release it: `{offered}`.", 40)
    assert f"`{offered}`." in lines
    assert len(lines) > 2


def test_a_plan_is_read_by_a_process_that_ran_no_mechanism(tmp_path: Path) -> None:
    """As `approve` and `plan show` read it: an event of a mechanism's own is known all the same."""
    counts = GaussianReleaseEvent(what="counts", noise_multiplier=3.0, l2_sensitivity=1.0)
    file = tmp_path / "plan.json"
    file.write_text(planned(FORMAL, event=FormalHeadEvent(events=(counts, DESCENT))).model_dump_json())
    read = "import sys; from pathlib import Path; from tasks.releasing.plan import PlannedRelease as P; "
    read += "print(P.load(Path(sys.argv[1])).plan.event.mechanism)"
    done = subprocess.run([sys.executable, "-c", read, str(file)], capture_output=True, text=True, timeout=300)
    assert done.stdout == "formal-head\n", done.stderr


@pytest.mark.parametrize(
    ("caps", "expected"),
    [
        (CAPS, 1e-5),
        ({"formal": {"epsilon": 8, "delta": "0.001"}}, 1e-5),
        ({"formal": {"epsilon": 8, "delta": "0.000001"}}, 1e-6),
        (CAPS | {"cohorts": {"2015": {"formal": {"epsilon": 1, "delta": "0.0000001"}}}}, 1e-7),
        ({"asymptotic-local": {"epsilon": 6}}, 1e-5),
    ],
)
def test_delta_is_what_the_policy_allows(caps: dict[str, Any], expected: float) -> None:
    """The usual one, or the smallest cap of any cohort; of this population alone."""
    policy = Policy.parse(
        {"name": "test", "populations": {"injuries": caps, "other": {"formal": {"epsilon": 1, "delta": "1e-9"}}}}
    )
    assert allowed_delta.of_policy(policy, "injuries") == expected
