"""What an officer reads before signing: each answer's verdict, from ledger and plan."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from refusals import of_kind
from releases import make_audit, make_planned, make_ref, release_key
from review_browser import CHROMIUM, check_accessible_file

from flows.commands.layout import Console
from flows.commands.plan import print_wide_table, wrap_lines
from mechanisms.model.config import ModelConfig
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.accuracy_table import events_of
from mechanisms.privacy.events import (
    Claim,
    DpSgdEvent,
    NoiseSegment,
    ParallelEvent,
    SwagPpmEvent,
)
from storage.ledger import (
    BudgetRefused,
    ComparisonFit,
    Evaluation,
    Ledger,
    Policy,
    Sensitivity,
    Subject,
)
from storage.ledger.keys import public_pem
from storage.ledger.records import RecordSet
from tasks.pages import render
from tasks.releasing import gate, ledger_access, plan_page
from tasks.releasing.case import ReleaseCase
from tasks.releasing.code_lists import CodeListVerdict
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.promise import promise_of
from tasks.releasing.surroundings import Surroundings

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
DRAW = SwagPpmEvent(
    reweighted=False, snapshots=20, rank=20, sensitivity_draws=500, sensitivity=2.061728394506
)
DESCENT = DpSgdEvent(
    sampling_prob=1.0, segments=(NoiseSegment(steps=10, noise_multiplier=5.0, l2_clip_norm=1.0),)
)
CAPS: dict[str, Any] = {
    "formal": {"epsilon": 8, "delta": "0.00001"},
    "asymptotic-local": {"epsilon": 6},
}


def planned(claim: Claim = LOCAL, **changes: Any) -> PlannedRelease:
    """A plan of SWAG-PPM, or of what the claim is of."""
    fields: dict[str, Any] = {
        "release_label": "first",
        "cohorts": ("2015",),
        "data_fingerprint": "f",
    }
    fields |= {
        "event": DRAW if claim is LOCAL else DESCENT,
        "claim": claim,
        "parameters_digest": "p",
    }
    candidate = {} if claim is LOCAL else {"is_sampled": False}
    return make_planned(candidate=candidate, **(fields | changes))


def opened(file: Path, caps: dict[str, Any]) -> Ledger:
    """A ledger of its own, under these caps."""
    policy = Policy.parse({"name": "test", "default": caps})
    return Ledger.open(f"sqlite:///{file}", policy=policy, key=release_key())


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Under a policy of both kinds that asks for no approval."""
    return opened(tmp_path / "ledger.db", CAPS)


def audit(ledger: Ledger, plan: PlannedRelease, bound: float) -> None:
    ledger.record(make_audit(plan, bound))


def evaluated(
    ledger: Ledger, subject: Subject, details: dict[str, Any], *, method: str = "p"
) -> None:
    """A row of a training run by this method, of the plan's fit on its records."""
    ledger.record(
        Evaluation(
            subject=subject,
            population="injuries",
            data_fingerprint="f",
            requester="operator",
            parameters_digest=method,
            artifact_digests={"fit": "c" * 64},
            details=details,
        )
    )


def compared(
    ledger: Ledger, branch: str, f1: float, *, claim: Claim | None = None, fit: str = "x"
) -> None:
    """A row of a comparison on the same records."""
    ledger.record(
        Evaluation(
            subject=ComparisonFit(branch=branch, seed=1),
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
    """The page of a plan that no one signed, whose records lie elsewhere or are as
    the options say.
    """
    case = ReleaseCase.of(plan, ledger, file=Path("plans/k.json"))
    return plan_page.page_of(case, Surroundings(**options))


def answer(found: plan_page.PlanPage, key: str) -> plan_page.Answer:
    """One of its answers."""
    return next(one for one in found.answers if one.key == key)


@pytest.mark.parametrize(("claim", "verdict"), [(LOCAL, "warning"), (FORMAL, "note")])
def test_the_promise_stands_first(ledger: Ledger, claim: Claim, verdict: str) -> None:
    """Before accuracy, cost and attacks, and once on the page. A formal claim holds without a
    measurement; an estimate does not.
    """
    found = page(ledger, planned(claim))
    assert found.answers[0].key == "promise"
    assert answer(found, "leakage").verdict == verdict
    text = plan_page.markdown(found)
    assert text.index("What is promised") < text.index("was not audited")
    sentence = promise_of(claim, DRAW if claim is LOCAL else DESCENT)[1]
    drawn = unescape(plan_page.html(found))
    for whole in (text, drawn):
        assert whole.count(sentence) == 1
    assert "`" not in drawn, "a command is marked as code, not by backticks"


def test_an_officer_signs_unit_factor_delta_and_what_is_left_out() -> None:
    """And that a record is no person; the factor and epsilon are rounded up, never down."""
    claim = FORMAL.model_copy(
        update={
            "epsilon": 4.99999,
            "epsilon_add_remove": 4.99999,
            "delta": 1e-5,
            "epsilon_replaced": 11.5211,
            "unprotected_inputs": ("n", "settings"),
        }
    )
    who, how_much, content, person, left_out = promise_of(claim, DESCENT)
    assert "Each record among the training records is protected" in who
    assert "at most a factor of 149 (ε = 5), plus δ = 1e-5" in how_much
    assert "101,000 (ε = 11.5211)" in content
    assert person.startswith("One record, not one person, is protected, on the assumptions")
    assert "the 2 items" in left_out
    units = claim.model_copy(update={"privacy_unit": "person", "max_records_per_unit": 3})
    of_units = promise_of(units, DESCENT)
    assert "Each person with at most 3 records" in of_units[0]
    assert "All used records of one person are protected together" in of_units[3]
    assert "No formal guarantee" in promise_of(LOCAL, DRAW)[0]


def test_an_officer_signs_that_both_halves_are_protected_where_accuracy_is_stated() -> None:
    event = ParallelEvent(training=DESCENT, evaluation=events_of(0.5), split="record")
    who, *_, left_out = promise_of(FORMAL, event)
    assert "among the training records and the held-out records" in who
    assert "held-out records" not in left_out
    assert "the held-out records" in promise_of(FORMAL, DESCENT)[-1]


def test_what_decides_is_at_the_top_and_the_commands_at_the_end(ledger: Ledger) -> None:
    """Claim, accuracy and budget before the first question, with the plot of the budget up to its
    cap.
    """
    found = page(ledger, planned(FORMAL))
    text = plan_page.html(found)
    top = text[: text.index("<h2>What does the promise rest on")]
    assert "<b>ε 4.9877</b>δ 1e-5, formal" in top
    assert f"<b>ε {answer(found, 'cost').figures['left']} left</b>of 8" in top
    assert "Budget over releases like this one" in top
    budget: Any = answer(found, "cost").figures["budget"]
    spent = [epsilon for _, epsilon in budget]
    assert len(spent) > 2
    assert sorted(spent) == spent
    assert spent[-1] <= 8
    end = text[text.index("<h2>Decide") :]
    assert "autocoder release plans/k.json" in end


def test_only_a_policy_with_approvals_asks_the_reader_to_sign(tmp_path: Path) -> None:
    """Otherwise the page neither heads nor ends with what `approve` would refuse."""
    key = ec.generate_private_key(ec.SECP256R1())
    approvals = {"minimum": 1, "approvers": {"B. Officer": public_pem(key.public_key()).decode()}}
    for rule in (approvals, {"minimum": 0}):
        policy = Policy.parse({"name": "test", "default": CAPS, "approvals": rule})
        ledger = Ledger.open(f"sqlite:///{tmp_path / str(rule['minimum'])}.db", policy=policy)
        text = plan_page.html(page(ledger, planned()))
        end = text[text.index("<h2>Decide") :]
        asks = bool(rule["minimum"])
        assert ("asked to sign" in text, "autocoder approve" in end) == (asks, asks)


def test_a_contradiction_is_a_warning_and_says_by_how_much(ledger: Ledger) -> None:
    """The gate's own line, in every form of the page; a bound below the claim is none."""
    plan = planned()
    unmeasured = "although no attack measured this release"
    assert unmeasured in plan_page.markdown(page(ledger, plan))
    audit(ledger, plan, 1.0)
    assert answer(page(ledger, plan), "leakage").verdict == "fine"
    assert unmeasured not in plan_page.markdown(page(ledger, plan))
    audit(ledger, plan, 3.5)
    found = page(ledger, plan)
    assert answer(found, "leakage").verdict == "warning"
    assert found.verdict == "warning"
    for text in (plan_page.html(found), plan_page.markdown(found)):
        assert "measured at least ε 3.5" in text


def test_what_the_gate_will_say_of_the_code_lists(ledger: Ledger) -> None:
    """One to be signed needs review. Not at hand is said, not asked is not."""
    known = CodeListVerdict("a-list", "published")
    own = CodeListVerdict(None, "to be signed", texts=7, advice="Register it")
    fine = answer(page(ledger, planned(), lists=[known]), "lists")
    assert (fine.verdict, fine.text) == ("fine", "Recognised as published (a-list).")
    found = page(ledger, planned(), lists=[known, own])
    assert answer(found, "lists").verdict == "investigate"
    for text in (plan_page.html(found), plan_page.markdown(found)):
        assert "Not a published list: the plan lists its 7 entries" in text
    away = answer(page(ledger, planned(), lists=[]), "lists")
    assert (away.verdict, away.text.split(":")[0]) == ("note", "Not checked")
    assert "lists" not in {one.key for one in page(ledger, planned(), lists=None).answers}


@pytest.mark.parametrize("claim", [LOCAL, FORMAL])
def test_no_figure_has_twelve_decimals(ledger: Ledger, claim: Claim) -> None:
    """Spent is rounded up and what remains down, to four."""
    ledger.reserve(
        planned(claim, idempotency_key="before", cohorts=("2015",)).plan.model_copy(
            update={
                "claim": claim.model_copy(
                    update={"epsilon": 1.000000000001, "delta": claim.delta and claim.delta / 2}
                )
            }
        )
    )
    found = page(
        ledger,
        planned(
            claim.model_copy(update={"epsilon": 2.123456789012, "delta": claim.delta and 5e-6})
        ),
    )
    texts = [plan_page.html(found), plan_page.markdown(found), *(one.text for one in found.answers)]
    for text in texts:
        assert not re.search(r"\d\.\d{5,}(?!e)", re.sub(r"0\.0+\d{1,2}\b", "", text)), text
    table = answer(found, "cost").table
    assert table is not None
    row = table[1][0]
    if claim is LOCAL:
        assert row[:6] == ["2015", "1.0001", "2.1235", "3.1235", "6", "2.8765"]
    else:  # exact composition: less than the sum of the claims
        before, this, after, cap, left = map(float, row[1:6])
        assert before + this == pytest.approx(after, abs=2e-4)
        assert (after < before + 2.1234, cap) == (True, 8)
        assert after + left == pytest.approx(8, abs=2e-4)


@pytest.mark.parametrize(
    ("cap", "said", "unsaid"),
    [
        ("0.001", "stated at a smaller δ, where the same release has a larger ε", "same δ"),
        ("0.00001", "because it keeps 1% of δ in reserve", "smaller δ"),
    ],
)
def test_the_delta_of_the_claim_is_told_beside_the_budgets(
    tmp_path: Path, cap: str, said: str, unsaid: str
) -> None:
    """By the figures of both: a claim at the budget's own δ is not called one at a smaller."""
    epsilon = gaussian_cost.epsilon_of_event(DESCENT, delta=1e-5)
    claim = FORMAL.model_copy(update={"epsilon": epsilon})
    books = opened(tmp_path / "other.db", {"formal": {"epsilon": 8, "delta": cap}})
    found = answer(page(books, planned(claim)), "cost")
    assert said in found.text
    assert unsaid not in found.text
    assert (found.figures["claim_delta"] == "smaller") == (
        float(str(found.figures["alone"])) < epsilon
    )


def test_the_page_of_a_pure_claim_speaks_of_no_delta(tmp_path: Path) -> None:
    """Its delta is 0 by proof, which an amount that was merely left out is not."""
    claim = FORMAL.model_copy(update={"delta": 0.0, "delta_text": "0: bounded everywhere"})
    books = opened(tmp_path / "other.db", CAPS)
    found = page(books, planned(claim))
    assert "δ" not in answer(found, "promise").text
    assert answer(found, "cost").text.startswith("It fits under policy test.")


def test_a_claim_of_another_relation_is_not_compared_with_the_budget(tmp_path: Path) -> None:
    """Its ε differs for two reasons, of which δ is one."""
    rules = {"epsilon": 8, "delta": "0.001", "neighbouring_relation": "replace-one"}
    books = opened(tmp_path / "other.db", {"formal": rules})
    found = answer(page(books, planned(FORMAL)), "cost")
    assert "The budget is kept at δ 0.001" in found.text
    assert found.figures["claim_delta"] is None


def test_the_demonstrations_list_is_not_called_published(ledger: Ledger) -> None:
    """Its titles owe nothing to a record, but nobody published them: a note, not fine."""
    demonstration = CodeListVerdict("demo-data", "published")
    assert demonstration.warning is None
    found = answer(page(ledger, planned(), lists=[demonstration]), "lists")
    assert found.verdict == "note"
    assert found.text.startswith("Not public: it is the program's demonstration list.")


def test_what_does_not_fit_is_a_warning(ledger: Ledger) -> None:
    """With the ledger's amounts, spent and over rounded up, of every cohort it is charged to."""
    spent = LOCAL.model_copy(update={"epsilon": 3.621496532196})
    ledger.reserve(planned(spent, idempotency_key="before").plan)
    cohorts = ("2015", "2016", "2017")
    found = page(ledger, planned(LOCAL.model_copy(update={"epsilon": 7.0}), cohorts=cohorts))
    cost = answer(found, "cost")
    assert cost.verdict == "warning"
    assert str(cost.figures["refusal"]) in cost.text
    for part in ("injuries, 2015 (policy test)", "ε 3.63 ", "ε 10.63", "ε 4.63 "):
        assert part in cost.text
    assert "injuries, 2016 and 2017 (policy test)" in cost.text
    assert not re.search(r"\d\.\d{3}", cost.text)
    assert "needed. Only names" in cost.text


def test_thresholds_that_nobody_will_have_are_told_before_the_release(ledger: Ledger) -> None:
    """What held-out records say of each target, and where `code --accuracy` will fail; fine where
    all are there.
    """
    alone = {
        "coverage_at_80": 0.43,
        "coverage_at_90": 0.0,
        "coverage_at_95": 0.0,
        "best_accuracy": 0.87,
        "best_coverage": 0.12,
    }
    own, seed = {"weighted_f1": 0.6, "macro_f1": 0.3}, ComparisonFit(branch="swag-ppm", seed=1)
    evaluated(ledger, seed, own | alone)
    found = answer(page(ledger, planned()), "alone")
    assert found.verdict == "note"
    assert "80% right: the 43% of the held-out records with the highest scores" in found.text
    assert "95% right: no threshold achieves it" in found.text
    assert "highest accuracy measured was 87.0%, among the 12% of records" in found.text
    assert "to fail at 90% and 95%" in found.text
    with_table = plan_page._autocoded(own | alone, table=True).text
    assert "95% right: no threshold achieves it" in with_table
    assert "These are exact counts. The bundle's thresholds come from the noisy table" in with_table
    assert "to fail" not in with_table
    again = seed.model_copy(update={"seed": 2})
    evaluated(ledger, again, own | {f"coverage_at_{at}": 0.5 for at in (80, 90, 95)})
    assert answer(page(ledger, planned()), "alone").verdict == "fine"


def test_a_table_that_would_break_words_is_told_row_by_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head, rows = ["release", "guarantee"], [["6338b5b138ee4fe7", "asymptotic-local"]]
    print_wide_table(Console(width=80), head, rows)
    assert "│ 6338b5b138ee4fe7 │ asymptotic-local │" in capsys.readouterr().out
    print_wide_table(Console(width=38), head, rows)
    assert capsys.readouterr().out == (
        "  - release 6338b5b138ee4fe7;\n    guarantee asymptotic-local\n"
    )


def test_the_picture_of_the_page_has_its_charts(ledger: Ledger) -> None:
    """Of a formal plan before its release, without a comparison, as the tutorial makes it."""
    scores = {"weighted_f1": 0.75, "macro_f1": 0.6}
    scores |= {f"coverage_at_{at}": 0.4 for at in (80, 90, 95)}
    evaluated(ledger, ComparisonFit(branch="prior-descent", seed=1), scores)
    text = plan_page.html(page(ledger, planned(FORMAL)))
    pictures = Path(__file__).resolve().parents[3] / "docs" / "pictures"
    shown = json.loads((pictures / "shown.json").read_text(encoding="utf-8"))
    assert re.findall("<figcaption>(.*?)</figcaption>", text) == shown["plan-page.png"]["charts"]


def test_the_same_records_under_another_name_are_warned_of(ledger: Ledger) -> None:
    """Of a release of another kind too; where the records are not at hand that is said."""
    records = RecordSet.of([b"a narrative"], key=b"k" * 32)
    small = FORMAL.model_copy(update={"epsilon": 2.0, "delta": 1e-6})
    other = planned(
        small, idempotency_key="o", population="accidents", data_fingerprint="g", cohorts=("1999",)
    )
    ledger.reserve(other.plan, records=records)
    found = page(ledger, planned(), records=records)
    assert answer(found, "related").verdict == "warning"
    assert "under another population name (accidents)" in answer(found, "related").text
    cost = answer(page(ledger, planned(small, data_fingerprint="h"), records=records), "cost").table
    assert cost is not None
    rows = [tuple(map(float, row[1:4])) for row in cost[1]]
    assert rows[0] == rows[1], "what an account takes over is no cost of this release"
    before, this, after = rows[0]
    assert 0 < this < before, "two equal Gaussian releases cost less than twice one"
    assert before + this == pytest.approx(after, abs=2e-4)
    assert answer(page(ledger, planned()), "related").verdict == "fine"
    assert "records are not available" in answer(page(ledger, planned()), "related").text


def test_a_released_plan_says_so_first(ledger: Ledger) -> None:
    """With its id and day, in every form of the page; nothing is left to decide, whatever the
    answers are.
    """
    plan = planned()
    assert page(ledger, plan).verdict == "warning"
    row = ledger.reserve(plan.plan)
    found = page(ledger, plan)
    assert (found.title, found.verdict) == ("Release", "fine")
    first = (
        f"released already ({row.release_id}, reserved {row.recorded_at[:10]}); nothing has "
        "to be decided"
    )
    assert found.summary == first
    for text in (plan_page.html(found), plan_page.markdown(found)):
        assert "Planned release" not in text
        assert text.index(first) < text.index(found.answers[1].question)
    assert answer(found, "cost").text.startswith(
        f"This plan is release {row.release_id} already (reserved): ε 4.1235"
    )


def test_a_fit_that_was_released_under_another_plan_is_warned_of(ledger: Ledger) -> None:
    """It would be charged again and give partners nothing new; a second draw of a posterior is
    another one.
    """
    earlier = planned(FORMAL.model_copy(update={"epsilon": 2.0, "delta": 1e-6}))
    digests = {"dataset": "a" * 64, "fit": "c" * 64}
    row = ledger.reserve(earlier.plan.model_copy(update={"artifact_digests": digests}))
    again = planned(earlier.plan.claim, idempotency_key="other", artifact_digests=digests)
    told = answer(page(ledger, again), "cost")
    assert told.verdict == "warning"
    assert told.text.startswith(f"This trained model is release {row.release_id} already")
    assert answer(page(ledger, planned(idempotency_key="draw")), "cost").verdict == "fine"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Run `autocoder audit a|b`, <then> wait.", "Run `autocoder audit a\\|b`, &lt;then> wait."),
        ("one ` alone | [x](y)", "one \\` alone \\| \\[x\\](y)"),
        ("an empty `` pair", "an empty \\`\\` pair"),
        ("a\r\r# Approved\r- by `B\r\n\n# C`\u2028# D", "a  # Approved - by `B   # C` # D"),
        ("~~not~~ audited", "\\~\\~not\\~\\~ audited"),
    ],
    ids=["paired", "unpaired", "empty", "line breaks", "struck out"],
)
def test_commands_are_code_in_a_cell_and_nothing_else_is(text: str, shown: str) -> None:
    """Between backticks alone; no text becomes markup, a cell or a line of its own."""
    assert (
        render._environment().from_string("{{ text | text_and_code }}").render(text=text) == shown
    )


@pytest.mark.servers
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_is_accessible(ledger: Ledger, tmp_path: Path) -> None:
    """By axe, of a plan with warnings, tables, long names and texts; a page that is
    not is found.
    """
    plan = planned(
        LOCAL.model_copy(
            update={"epsilon": 7.0, "unprotected_inputs": ("`min_per_code`", "x" * 90)}
        )
    )
    compared(ledger, "non-private", 0.8)
    compared(ledger, "prior-descent", 0.7, claim=FORMAL)
    audit(ledger, plan, 8.0)
    text = plan_page.html(
        page(ledger, plan, lists=[CodeListVerdict(None, "to be signed", texts=7)])
    )
    (tmp_path / "plan.html").write_text(text)
    check_accessible_file(tmp_path / "plan.html")
    (tmp_path / "poor.html").write_text(text + "<p style='color:#999;background:#ccc'>grey")
    with pytest.raises(AssertionError, match="color-contrast"):
        check_accessible_file(tmp_path / "poor.html")


def test_the_page_stands_alone_and_escapes_what_it_is_given(ledger: Ledger) -> None:
    """Nothing from another address; a name that is markup stays a name."""
    found = page(ledger, planned(requester="<script>alert(1)</script>"))
    text = plan_page.html(found)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"(?:src|href)=['\"](?!data:|#)", text)
    assert "<script>" not in plan_page.markdown(found)


def test_the_gate_offers_the_formal_branch_before_an_override(ledger: Ledger) -> None:
    """Of a formal claim that is contradicted it says what that is."""
    plan = planned()
    audit(ledger, plan, 3.5)
    with pytest.raises(BudgetRefused, check=of_kind("blocked")) as refused:
        gate.check(ReleaseCase.of(plan, ledger))
    text = str(refused.value)
    assert text.index("`autocoder train --profile formal`") < text.index(
        "`autocoder approve --despite-audit`"
    )
    formal = planned(FORMAL)
    audit(ledger, formal, 6.0)
    with pytest.raises(
        BudgetRefused, check=of_kind("blocked", saying="fault of the program")
    ) as refused:
        gate.check(ReleaseCase.of(formal, ledger))
    assert "retrain" not in str(refused.value)


def test_a_delta_that_is_used_up_is_said(tmp_path: Path) -> None:
    """Epsilon that remains buys nothing then, where deltas are added."""
    caps = CAPS | {"formal": CAPS["formal"] | {"composition": "basic"}}
    ledger = opened(tmp_path / "a.db", caps)
    told = answer(page(ledger, planned(FORMAL)), "cost")
    assert told.verdict == "investigate"
    assert "nothing formal can follow there" in told.text
    half = FORMAL.model_copy(update={"delta": 5e-6})
    assert answer(page(ledger, planned(half)), "cost").verdict == "fine"


def test_a_loss_is_told_against_the_retrains_own_fit_without_privacy(ledger: Ledger) -> None:
    """Of the same retrain; a comparison's better fit takes its place."""
    evaluated(ledger, Sensitivity(round="base"), {"weighted_f1": 0.7, "macro_f1": 0.5})
    evaluated(
        ledger, ComparisonFit(branch="swag-ppm", seed=1), {"weighted_f1": 0.6, "macro_f1": 0.4}
    )
    told = answer(page(ledger, planned()), "accuracy")
    below = "0.100 (14.3%) below the best model without privacy that was measured on these records"
    assert f"{below}, 0.700" in told.text
    assert told.verdict == "investigate"
    elsewhere = planned(FORMAL, parameters_digest="q", data_fingerprint="g")
    fit = elsewhere.candidate.model_copy(update={"fitted": make_ref("e")})
    other = answer(page(ledger, elsewhere.model_copy(update={"candidate": fit})), "accuracy")
    assert (other.verdict, "has no scores" in other.text) == ("note", True)
    compared(ledger, "non-private", 0.8)
    assert (
        "below the best model without privacy that was measured on these records, 0.800"
        in answer(page(ledger, planned()), "accuracy").text
    )


def test_a_score_beside_nothing_is_not_fine(ledger: Ledger) -> None:
    """It may be next to none, and no one knows what was lost."""
    plan = planned(FORMAL)
    compared(ledger, "prior-descent", 0.013, claim=FORMAL, fit="c")
    told = answer(page(ledger, plan), "accuracy")
    assert (told.verdict, "0.013" in told.text) == ("note", True)
    compared(ledger, "non-private", 0.0131)
    assert answer(page(ledger, plan), "accuracy").verdict == "fine"


def test_a_command_stays_on_one_line_of_a_terminal() -> None:
    """Broken within quotes it would be another one when it is copied."""
    offered = 'autocoder train --set \'data.ingest.text_columns=["Job title", "Task"]\' --epsilon 5'
    lines = wrap_lines(
        f"Not known: nobody compared one on these records. Release it: `{offered}`.", 40
    )
    assert f"`{offered}`." in lines
    assert len(lines) > 2


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
    """The usual one, or the smallest cap of any cohort; of this population."""
    policy = Policy.parse(
        {
            "name": "test",
            "populations": {"injuries": caps, "other": {"formal": {"epsilon": 1, "delta": "1e-9"}}},
        }
    )
    assert ledger_access.allowed_delta(policy, "injuries") == expected


@pytest.mark.parametrize(
    ("records", "delta"),
    [(1, 1e-5), (10_000, 1e-5), (10_001, 1e-6), (100_000, 1e-6), (300_000, 1e-7), (10**6, 1e-7)],
)
def test_delta_follows_the_number_of_records(records: int, delta: float) -> None:
    """A tenth over their number, rounded down to a power of ten: records x delta never exceeds a
    tenth.
    """
    assert ledger_access.delta_for(records) == delta
    assert records * delta <= 0.1
    assert not ledger_access.describe_large_delta(records, delta)
    assert (
        ledger_access.allowed_delta(
            Policy.parse({"name": "test", "default": CAPS}), "x", records=records
        )
        == delta
    )


def test_a_delta_that_is_large_for_the_records_is_warned_of() -> None:
    """At 300,000 records a delta of 1e-5 allows that three of them in the mean are revealed; the
    page says so.
    """
    large = ledger_access.describe_large_delta(300_000, 1e-5)
    assert "would still allow a mechanism that reveals 3 of them, on average" in large
    assert "1e-7 or less" in large
    assert not ledger_access.describe_large_delta(15_000, 1e-5)
    assert not ledger_access.describe_large_delta(300_000, None)


@pytest.mark.parametrize(
    ("delta", "verdict"), [("0.001", "investigate"), ("0.0001", "fine"), ("0.00001", "fine")]
)
def test_what_fits_under_a_delta_that_is_large_for_the_records_is_for_the_reader_to_judge(
    tmp_path: Path, delta: str, verdict: str
) -> None:
    """With the δ that the policy allows, and the rounded number of records."""
    caps = {"formal": {"epsilon": 8, "delta": delta}}
    few = FORMAL.model_copy(update={"epsilon": 1.0, "delta": 1e-6})
    plan = planned(few, records_rounded=1_800)
    cost = answer(page(opened(tmp_path / "ledger.db", caps), plan), "cost")
    assert cost.verdict == verdict
    assert ("1 in 1,800 records" in cost.text) == (verdict != "fine")
    assert (f"δ {float(delta):g}, which" in cost.text) == (verdict != "fine")


def test_texts_that_leave_are_on_the_plans_own_page(ledger: Ledger) -> None:
    """Whole and in their order, with their digest; nothing of them acts in HTML. Prefect stores the
    Markdown page, and an entry of a list may be a narrative: it has their number and digest alone.
    """
    texts = ("code list: 1 A | matter of *our* own", "cohort: <b>2015</b>")
    plan = planned()
    plan = plan.model_copy(update={"output": plan.output.model_copy(update={"texts": texts})})
    shown = page(ledger, plan)
    stored = plan_page.markdown(shown)
    assert plan.output.texts_digest in stored
    assert "The bundle contains 2." in stored
    assert not [one for one in ("matter", "2015</b>") if one in stored]
    whole = plan_page.html(shown)
    assert "<li>code list: 1 A | matter of *our* own</li>" in whole
    assert "<li>cohort: &lt;b&gt;2015&lt;/b&gt;</li>" in whole
    assert "encoder" in dict(plan_page.facts(shown))


@pytest.mark.parametrize(
    ("model", "encoder", "stems"),
    [
        (
            {"encoder": "packaged-minilm", "lexical": "hashed", "lexical_language": "french"},
            "English",
            "french",
        ),
        ({"encoder": "own-folder"}, "not known: it is your own", "none: it reads no stems"),
    ],
)
def test_the_page_states_the_languages(
    ledger: Ledger, model: dict[str, str], encoder: str, stems: str
) -> None:
    """As the plan's model has them, which is compared whole with what was fitted."""
    plan = planned()
    settings = ModelConfig(trainable="head", pooling="mean", **model)  # pyrefly: ignore[bad-argument-type]
    plan = plan.model_copy(
        update={"candidate": plan.candidate.model_copy(update={"model": settings})}
    )
    shown = page(ledger, plan)
    said = dict(plan_page.facts(shown))
    assert (said["language of the encoder"], said["language of the stems"]) == (encoder, stems)
    assert stems in plan_page.html(shown)
    assert stems in plan_page.markdown(shown)
