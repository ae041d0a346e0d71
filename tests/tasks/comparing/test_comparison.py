"""Aggregates of a comparison, and the paper's numbers that stand beside them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import UndefinedError
from pydantic import ValidationError

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Task
from mechanisms.model.config import ModelConfig
from mechanisms.privacy.events import Claim, NonPrivateEvent
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from storage.ingest import IngestConfig
from tasks.branches.branch import CompareParameters, Terms, choose, standard_branches
from tasks.branches.experiment import Outcome
from tasks.comparing import figures, protocols, published, results, tables
from tasks.comparing.assessment import BranchAssessment
from tasks.comparing.decision import Decision, reference_fault
from tasks.comparing.summary import BranchSummary, round_up_target, summarise
from tasks.pages.render import notes_beside, render
from tasks.parameters import DataParameters, RetrainParameters
from tasks.releasing.claims import method_digest
from tasks.releasing.recommendation import Figures, recommend
from tasks.running.provenance import provenance

PARAMETERS = RetrainParameters(data=DataParameters(source="nowhere.csv", ingest=IngestConfig()))


def outcome(seed: int, **figures: Any) -> Outcome:
    """A non-private outcome with these figures."""
    ref = ArtifactRef.model_construct(name="x", key="x", sha256="0" * 64, folder=str(Path("x")))
    claim = Claim(guarantee_kind="none", neighbouring_relation="add-remove", accountant="none")
    branch = standard_branches()["non-private"]
    return Outcome(
        branch=branch,
        seed=seed,
        mechanism=branch.mechanism,
        event=NonPrivateEvent(epochs=1),
        claim=claim,
        fitted=ref,
        measured=ref,
        figures=figures,
        losses=[],
        cost={},
    )


def test_mean_and_spread_over_seeds() -> None:
    """By hand: 0.2, 0.4, 0.6 have mean 0.4 and sample standard deviation 0.2; a zero that JSON made an int counts."""
    rows = [outcome(s, weighted_f1=f, bottom=b, gap=g) for s, f, b, g in ((1, 0.2, 0, 0.1), (2, 0.4, 0.3, None))]
    (over,) = summarise([*rows, outcome(3, weighted_f1=0.6, bottom=0.3, gap=0.2)])
    assert over.mean["weighted_f1"] == pytest.approx(0.4)
    assert over.spread["weighted_f1"] == pytest.approx(0.2)
    assert over.mean["bottom"] == pytest.approx(0.2)
    assert "gap" not in over.mean
    assert over.seeds == 3


def test_the_target_is_rounded_up_from_the_largest() -> None:
    """No formal rival gets less than SWAG-PPM came out with at any seed."""
    assert round_up_target([4.35, 4.6, 4.1]) == 5
    assert round_up_target([4.0]) == 4


def data(**changes: Any) -> DataParameters:
    """The records that Chew et al. report on, but for these changes."""
    own = {"population": "osha-severe-injuries", "classification": "OIICS", "classification_version": "2.01"}
    return DataParameters.model_validate({"source": "records.csv", "ingest": {}} | own | changes)


def summary(branch: str, f1: float, spread: float = 0.0, *, title: str = "", kind: str = "none", **other: Any) -> Any:
    """A branch over three seeds, as far as tables need it."""
    fields: dict[str, Any] = {"branch": branch, "title": title or branch, "guarantee_kind": kind, "seeds": 3}
    fields |= {"epsilon": None, "epsilon_spread": 0.0, "delta": None, "delta_text": "", "cost": {}, "unprotected": ()}
    scores = {"mean": {"weighted_f1": f1, "macro_f1": f1 / 2}, "spread": {"weighted_f1": spread, "macro_f1": 0.0}}
    return BranchSummary.model_validate(fields | scores | other)


def results_page(summaries: list[BranchSummary], records: DataParameters) -> str:
    """The page of results on these records."""
    parameters = RetrainParameters(data=records, model=ModelConfig(trainable="head", pooling="mean"))
    options: Any = {"settings": CompareParameters(), "target": 5.0, "delta": 1e-4, "pictures": {}}
    options |= {"notes": "By hand.\n"}
    return results.page(summaries, parameters=parameters, **options)


def test_codes_are_told_with_their_titles() -> None:
    """Where a list names them; a column of blanks is none."""
    rows = [{"code": "111", "size": 5, "f1": 0.5}, {"code": "10", "size": 9, "f1": 0.25}]
    head, cells = tables.code_table({"SWAG-PPM": rows}, (), titles={"111": "Fractures"})
    assert head == ["code", "title", "size", "SWAG-PPM"]
    assert cells == [["10", "", "9", "0.25"], ["111", "Fractures", "5", "0.50"]]
    head, cells = tables.code_table({"SWAG-PPM": rows}, (), titles={"111": ""})
    assert (head, cells[0]) == (["code", "size", "SWAG-PPM"], ["10", "9", "0.25"])


def test_the_papers_table_3_gives_its_table_1() -> None:
    """153 codes; averages of the rounded F1 agree with the aggregates that the paper prints, to its two decimals."""
    (chew,) = [source for source in published.publications_for(data()) if source.by_code]
    rows = chew.codes()
    assert len(rows) == 153
    total = sum(row["size"] for row in rows.values())
    assert chew.columns == ["size", "non-private", "swag-ppm", "dp-sgd"]
    for branch in chew.columns[1:]:
        weighted = sum(row["size"] * row[branch] for row in rows.values()) / total
        macro = sum(row[branch] for row in rows.values()) / len(rows)
        reported = chew.branches[branch]
        assert (weighted, macro) == pytest.approx((reported.weighted_f1, reported.macro_f1), abs=0.011)


@pytest.mark.parametrize(
    "changes",
    [
        {"population": "demo"},
        {"classification": ""},
        {"classification_version": "3"},
        {"ingest": {"sampling": "per-record"}},
        {"ingest": {"cap_per_code": 100}},
    ],
)
def test_figures_stand_beside_their_own_records_alone(changes: dict[str, Any]) -> None:
    """Another population, classification or sampling: no column of the paper's, in any table or page."""
    rows = [summary("swag-ppm", 0.6, kind="asymptotic-local"), summary("non-private", 0.6)]
    theirs, ours = results_page(rows, data()), results_page(rows, data(**changes))
    assert "| paper: ε | paper: F1 w / m |" in theirs
    assert "| 4.35 | 0.75 / 0.44 |" in theirs
    assert "swag-ppm, paper" in theirs
    assert "paper: " not in ours
    assert "swag-ppm, paper" not in ours
    assert "OSHA" not in ours


def test_public_is_what_the_operator_declares() -> None:
    """Not a word of it otherwise, and the page says that it is computed from records without protection."""
    rows = [summary("non-private", 0.6)]
    assert "records.csv (public), " in results_page(rows, data(public=True))
    assert "(public)" not in results_page(rows, data())
    assert "not declared public" in results_page(rows, data())
    assert method_digest(RetrainParameters(data=data())) == method_digest(RetrainParameters(data=data(public=True)))


def test_orderings_are_answered_from_the_figures() -> None:
    """Above by more than the spreads allow, within them, below; branches that did not run have no line."""
    rows = [summary("sad", 0.6, 0.01), summary("auto-s", 0.5, 0.01), summary("dp-sgd-tuned", 0.6, 0.01)]
    rows += [summary("dp-sgd", 0.4, 0.01), summary("swag-ppm", 0.3)]
    _, lines = tables.orderings_table(rows, published.publications_for(data(population="demo")))
    found = {line[0]: line[2:] for line in lines}
    assert len(lines) == 4
    assert found["sad above auto-s"] == ["0.600", "0.500", "seeds 0.014", "holds"]
    assert found["sad above dp-sgd-tuned"][-1] == "within the error"
    assert sum(line[-1] == "**does not hold**" for line in lines) == 1


def test_no_ordering_holds_below_the_error_over_test_records() -> None:
    """0.02 apart with no spread over seeds: it holds at a paired error of 0.005, and not at one of 0.011."""
    for error, verdict in ((0.005, "holds"), (0.011, "within the error")):
        errors: Any = {"paired_errors": {"weighted_f1": {"auto-s": error}, "macro_f1": {"auto-s": error}}}
        rows = [summary("sad", 0.62, record_errors={"weighted_f1": 0.008, "macro_f1": 0.012}, **errors)]
        rows += [summary("auto-s", 0.6)]
        _, (line,) = tables.orderings_table(rows, published.publications_for(data(population="demo")))
        assert line[2:] == ["0.620", "0.600", f"test records {error:.3f}, seeds 0.000", verdict]


def test_a_column_compares_claims_for_one_relation() -> None:
    """A draw's ε 5 is for one record replaced, 2.5 for one more or less; noise at ε 5 costs 11.52; δ 0 stays 0."""
    rows = [
        summary(
            "bounded-posterior",
            0.6,
            kind="formal",
            epsilon=5.0,
            epsilon_replaced=5.0,
            delta=0.0,
            relation="replace-one",
        ),
        summary("prior-descent", 0.6, kind="formal", epsilon=5.0, epsilon_replaced=11.5211, delta=1e-5),
        summary("non-private", 0.7),
    ]
    head, cells = tables.claims_table(rows, [])
    at = [head.index(name) for name in ("neighbours", "ε claimed", "ε, one replaced", "δ")]
    assert [[row[place] for place in at] for row in cells] == [
        ["replace-one", "5.00 ± 0.00", "5.00", "0"],
        ["add-remove", "5.00 ± 0.00", "11.52", "1e-05"],
        ["–", "–", "–", "–"],
    ]


def test_a_rival_starts_where_the_recommended_branch_starts() -> None:
    """At the titles, with settings searched there; the page says how many were tried for either."""
    branches = standard_branches()
    rival, tuned, ours = (branches[name] for name in ("dp-sgd-titles", "dp-sgd-tuned", "prior-descent"))
    assert rival.prior == ours.prior
    assert type(rival.mechanism) is type(tuned.mechanism)
    assert rival.mechanism != tuned.mechanism
    assert rival.needs_titles
    rows = [
        summary(one.name, 0.6, title=one.title, settings_tried=one.settings_tried, from_titles=one.prior == "titles")
        for one in (rival, ours, branches["non-private"])
    ]
    assert "| DP-SGD (tuned), from titles | 30 | titles |" in results_page(rows, data())
    assert "| Prior descent | 50 | titles |" in results_page(rows, data())
    assert "| Non-private | – | the run's |" in results_page(rows, data())


def test_every_publication_keeps_figures_to_a_population() -> None:
    """All files are read; figures of no population are refused."""
    assert {file.stem for file in published.PUBLISHED.glob("*.yaml")} == {"chew", "huang-xie", "questions"}
    assert len(published.publications_for(data())) == 3
    figures = {"swag-ppm": {"weighted_f1": 0.5, "macro_f1": 0.5}}
    with pytest.raises(ValidationError, match="need a population"):
        published.Publication.model_validate({"label": "x", "source": "y", "branches": figures})


def test_the_table_over_delta_goes_by_the_claims_own() -> None:
    """Whatever a branch is called; and what others report beside such, where it may stand."""
    rows = [summary("a", 0.6, delta=1e-4), summary("b", 0.5, delta=0.1), summary("swag-ppm", 0.5)]
    _, ours = tables.delta_table(rows, [], delta=1e-4)
    _, beside = tables.delta_table(rows, published.publications_for(data()), delta=1e-4)
    assert [row[0] for row in ours] == ["b"]
    assert [row[0] for row in beside] == ["b", "swag-ppm"]


def test_a_page_escapes_what_it_is_given() -> None:
    """A name that is markup stays a name; a value that a template lacks is an error, not a gap."""
    content = {"Table": (["branch"], [["<script>alert(1)</script>"]])}
    facts = {"train": 1, "test": 1, "codes_observed": 1, "label_space": 1}
    section: Any = {"title": "t", "prefix": "", "facts": facts, "target": None, "delta": 1e-5, "rows": ()}
    section |= {"refused": {}}
    section |= {"recommendation": recommend([]), "tables": content, "pictures": {}}
    values: Any = {"notice": "n", "kinds": "k", "terms": Terms(), "seeds": (1,), "encoder": "e", "source": provenance()}
    values |= {"parameters": RetrainParameters(data=data()), "sections": [section], "plans": []}
    page = render("comparison.html", unprotected=["a & b"], **values)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<li>a &amp; b</li>" in page
    with pytest.raises(UndefinedError):
        render("comparison.html", **values)


def test_what_a_person_adds_is_a_file_of_its_own(tmp_path: Path) -> None:
    """The notes beside a generated page, word for word; of another page nothing."""
    notes = "## Notes on this run, by hand\n\nTwo <b>facts</b>.\n"
    (tmp_path / "results.notes.md").write_text(notes)
    assert notes_beside(tmp_path / "results.md") == notes
    assert notes_beside(tmp_path / "other.md") == ""


def test_a_protocol_changes_what_is_taken_and_nothing_else() -> None:
    """Both ways from either profile; a date that a run trains before stays with all records alone."""
    own = RetrainParameters(data=data(ingest={"sampling": "per-record", "train_before": "2016-05-01"}))
    assert protocols.protocol_of(own.data.ingest) == "all-records"
    paper, back = protocols.apply_protocol(own, "paper"), protocols.apply_protocol(own, "all-records")
    assert back == own
    assert protocols.protocol_of(paper.data.ingest) == "paper"
    assert (paper.data.ingest.cap_per_code, paper.data.ingest.train_before) == (200, None)
    assert "2016-05-01" in protocols.protocol_title(own)
    assert protocols.protocol_of(data(ingest={"cap_per_code": 7}).ingest) is None
    changed = {"sampling", "cap_per_code", "min_per_code", "train_before"}
    before, after = own.data.ingest.model_dump(), paper.data.ingest.model_dump()
    assert {name for name in after if after.get(name) != before.get(name)} <= changed


def test_the_paper_setting_is_the_papers() -> None:
    """Batch 512, rate 1e-3, clip 1, 30 epochs, AdamW, Mironov's conversion (section 3.2)."""
    task = Task(records=5346, classes=153, target_epsilon=4)
    config = standard_branches()["dp-sgd"].mechanism_for(PARAMETERS, Terms()).plan(task).mechanism
    assert isinstance(config, DpSgd)
    assert (config.batch_size, config.learning_rate, config.l2_clip_norm, config.epochs) == (512, 1e-3, 1.0, 30)
    assert (config.optimiser, config.calibrate_by, config.delta) == ("adamw", "rdp-mironov", 1e-4)
    swept = standard_branches()["dp-sgd-delta-0.99"]
    assert (swept.mechanism, swept.delta) == (standard_branches()["dp-sgd"].mechanism, 0.99)


def test_branches_are_chosen_by_name() -> None:
    """Each once, in the order asked for; unknown ones and those without a mechanism are refused."""
    head = ModelConfig(trainable="head", pooling="mean")
    assert [b.name for b in choose("prior-descent, dp-sgd,prior-descent", model=head)] == ["prior-descent", "dp-sgd"]
    assert len(choose("all", model=head)) == sum(branch.in_all for branch in standard_branches().values())
    unlisted = DataParameters.model_validate({"source": "x.csv", "population": "p", "ingest": {}})
    without = {branch.name for branch in choose("all", model=head, data=unlisted)}
    assert {b.name for b in choose("all", model=head)} - without == {
        "non-private-titles",
        "dp-sgd-titles",
    }
    with pytest.raises(InputError, match=r"dp-sgd-titles starts at the titles of codes\. Give --codelist"):
        choose("dp-sgd-titles", model=head, data=unlisted)
    with pytest.raises(InputError, match="branch nothing does not exist"):
        choose("nothing", model=head)
    with pytest.raises(InputError, match="at least one"):
        choose(" , ", model=head)
    lora = ModelConfig(trainable="lora")
    assert "prior-descent" not in [b.name for b in choose("all", model=lora)]
    with pytest.raises(InputError, match="prior-descent needs"):
        choose("prior-descent", model=lora)


def judged_reference(losses: list[float], *, private: float) -> str:
    """Returns the doubt about a fit without privacy of F1 0.5 with these losses, next to a private one's F1."""
    reference = Figures(name="non-private", title="Non-private", kind="none", weighted_f1=0.5)
    formal = Figures(name="formal", title="Formal", kind="formal", weighted_f1=private, epsilon=4.0, delta=1e-5)
    row = replace(outcome(1), losses=losses)
    compared: Any = SimpleNamespace(outcomes=[row])
    return reference_fault(Decision.of(compared, [BranchAssessment(reference), BranchAssessment(formal)]))


def test_a_reference_that_is_not_trained_out_is_named() -> None:
    """A private fit clearly above it, or a loss that goes on falling, is doubt; a converged one is not."""
    converged = [2 * math.exp(-epoch / 3) + 0.3 for epoch in range(30)]
    linear = [4 - 0.02 * epoch for epoch in range(30)]
    assert judged_reference(converged, private=0.48) == ""
    assert judged_reference(converged, private=0.502) == "", "within what chance does"
    assert "Formal, ε 4 exceeds it" in judged_reference(converged, private=0.6)
    assert "its loss still falls at the end" in judged_reference(linear, private=0.48)
    assert "exceeds it and its loss still falls" in judged_reference(linear, private=0.6)


def test_no_axis_shows_the_seventh_digit_of_an_epsilon() -> None:
    """Two methods that aim at ε 5 stand at 5, on an axis that begins at 0."""
    one = Figures("one", "One", "formal", 0.8, epsilon=4.99999925, delta=1e-5)
    drawn = figures.losses([one, replace(one, title="Other", epsilon=4.9999996)], None)
    assert {"0", "5"} <= set(re.findall("<!-- (.*?) -->", drawn))
    assert "1e" not in drawn.partition("<!-- ε (")[0]
