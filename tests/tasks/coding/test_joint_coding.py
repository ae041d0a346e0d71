"""Coding in several fields: columns, blanks, thresholds, rules, and what QA and drift make of such a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from csv_files import rows_of, write_csv
from pydantic import ValidationError
from sealed_bundle import Sealed

from mechanisms.model.conformal import Sets
from storage.errors import InputError
from storage.ingest.config import IngestConfig
from storage.rules import Rules
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.bundle.thresholds import thresholds_on_table
from tasks.coding import drift, quality
from tasks.coding.coder import Coder
from tasks.coding.columns import AnswerColumns, JointAnswerColumns, answer_columns
from tasks.coding.job import CodingJob, run
from tasks.coding.joint import JointCoder, open_bundle

TEXTS = ["The employee fell from a ladder and broke his arm.", " ", "A saw cut two fingers of the employee."]


@pytest.fixture(scope="module")
def coder(joint: Sealed) -> JointCoder:
    """The bundle of two fields, loaded."""
    made = open_bundle(joint.folder)
    assert isinstance(made, JointCoder)
    return made


NO_RULES = Rules((), {})


def texts_of(rows: int) -> list[tuple[int, str]]:
    return [(number, TEXTS[number % 3] + ("" if number % 3 == 1 else f" {number}")) for number in range(rows)]


def table_of(folder: Path, rows: int = 60) -> Path:
    return write_csv(folder / "new.csv", ["id", "text"], texts_of(rows))


def job_of(coder: JointCoder | Coder, data: Path, out: Path, *, append: bool = False, **how: Any) -> CodingJob:
    options: dict[str, Any] = {"top_k": 1, "threshold": None} | how
    answers = answer_columns(coder, **options)
    return CodingJob(survey(data, text_columns=("text",)), out, Narratives(("text",)), answers, append=append)


def coded(coder: JointCoder | Coder, data: Path, out: Path, **how: Any) -> list[dict[str, str]]:
    run(coder, job_of(coder, data, out, **how))
    return rows_of(out)


def test_every_field_is_coded_by_its_own_model(coder: JointCoder) -> None:
    """One pass of the encoder gives what each field's own model gives; a blank narrative gets no code in any."""
    cases = coder.code(TEXTS, top_k=3)
    assert [len(case.codings["event"].answers) for case in cases] == [3, 0, 3]
    for name, own in coder.fields.items():
        for case, alone in zip(cases, own.code(TEXTS, top_k=3), strict=True):
            assert [a.code for a in case.codings[name].answers] == [a.code for a in alone.answers]
            for one, other in zip(case.codings[name].answers, alone.answers, strict=True):
                assert one.score == pytest.approx(other.score, abs=1e-5)
    scores = coder.scores(TEXTS)
    for span in coder.model.spans.values():
        assert torch.allclose(scores[:, span].sum(1), torch.ones(3), atol=1e-5)


def test_columns_are_named_after_the_fields(coder: JointCoder, tmp_path: Path) -> None:
    """As those of one field, with the field's name before them; where codes come from stands behind."""
    rows = coded(coder, table_of(tmp_path), tmp_path / "out.csv", top_k=2)
    assert list(rows[0]) == [
        *("id", "text"),
        *("nature", "nature_title", "nature_score", "nature_2", "nature_title_2", "nature_score_2"),
        *("event", "event_title", "event_score", "event_2", "event_title_2", "event_score_2"),
        *("model", "classification", "classification_version", "bundle_digest", "score_temperature", "coded_fields"),
    ]
    assert rows[0]["coded_fields"] == "nature event"
    assert rows[1]["nature"] == rows[1]["event"] == ""
    (case,) = coder.code([rows[0]["text"]])
    assert rows[0]["event"] == case.codings["event"].answers[0].code


def test_every_field_has_its_set(coder: JointCoder, tmp_path: Path) -> None:
    """With the field's name before the columns; none for a blank narrative. Another limit is another job."""
    given = {name: Sets(0.9, limit, 100, {}) for name, limit in zip(coder.fields, (0.0, 1.0), strict=True)}
    with_sets = replace(coder, fields={name: replace(one, sets=given[name]) for name, one in coder.fields.items()})
    filled, blank, *_ = coded(with_sets, table_of(tmp_path, 4), tmp_path / "sets.csv")
    assert int(filled["nature_set_size"]) == len(coder.fields["nature"].model.codes), "a limit of 0 holds every code"
    assert (filled["event_set"], filled["event_set_size"]) == (filled["event"], "1")
    assert (blank["nature_set"], blank["nature_set_size"]) == ("", "0")
    keys = [answer_columns(one, top_k=1, threshold=None).key for one in (coder, with_sets)]
    assert keys[0] != keys[1]


def columns_of(*fields: str) -> list[str]:
    """All that coding in these fields can add."""
    return (
        JointAnswerColumns(tuple(AnswerColumns(3, 0.5, grouped=True, field=name) for name in fields), NO_RULES)
        .schema()
        .names
    )


def test_no_field_can_be_called_what_a_column_is(coder: JointCoder) -> None:
    """Ingest refuses every name that coding gives a column of its own; it lists them apart, being below coding."""
    own = {*columns_of(*coder.fields), *coder.origin} - {*coder.fields}
    assert {"nature_group_code", "event_score_3", "needs_review", "conflicts", "coded_fields"} <= own
    for name in own:
        fields = {one: {"label_column": one.title()} for one in (*coder.fields, name)}
        with pytest.raises(ValidationError, match="of another meaning"):
            IngestConfig.model_validate({"fields": fields, "sampling": "per-record"})


def test_fields_that_ingest_takes_have_columns_of_their_own(coder: JointCoder) -> None:
    """Attack: a field is called what a column of another begins with, so that its own columns are called as others."""
    names = {*columns_of(*coder.fields), *coder.origin} - {*coder.fields}
    parts = {"_".join(name.split("_")[:most]) for name in names for most in range(1, name.count("_") + 2)}
    taken = []
    for name in sorted(parts - {*coder.fields}):
        fields = {one: {"label_column": one.title()} for one in (*coder.fields, name)}
        try:
            IngestConfig.model_validate({"fields": fields, "sampling": "per-record"})
        except ValidationError:
            continue
        taken.append(name)
        columns = [*columns_of(*fields), *coder.origin]
        assert len(set(columns)) == len(columns), name
    assert {"event_needs"} <= {*taken}
    assert "nature_group" not in taken, "its title would be called as the title of nature's group"


def test_json_is_nested(coder: JointCoder) -> None:
    """A field's answers under its name."""
    (case,) = coder.code(TEXTS[:1], threshold=0.999)
    told = case.as_dict()
    assert set(told) == {"fields", "needs_review"}
    assert set(told["fields"]) == {"nature", "event"}
    assert set(told["fields"]["event"]) == {"codes", "needs_review", "group"}
    assert "conflicts" not in told


def test_one_threshold_or_one_a_field(coder: JointCoder, tmp_path: Path) -> None:
    """A case wants a look where any of its fields does; each field says its own."""
    rows = coded(coder, table_of(tmp_path), tmp_path / "out.csv", threshold={"nature": 0.0, "event": 1.0})
    assert {row["nature_needs_review"] for row in rows if row["nature"]} == {"false"}
    assert {row["event_needs_review"] for row in rows} == {"true"}
    assert {row["needs_review"] for row in rows} == {"true"}
    low = coded(coder, table_of(tmp_path), tmp_path / "low.csv", threshold=0.0)
    assert [row["needs_review"] for row in low[:3]] == ["false", "true", "false"]


def test_codes_that_never_occur_together_want_a_look(joint: Sealed, coder: JointCoder, tmp_path: Path) -> None:
    """Flagged with the rule in words; codes stay as they are, and a case that breaks nothing is not flagged."""
    (case,) = coder.code(TEXTS[:1])
    best = {name: coding.answers[0].code for name, coding in case.codings.items()}
    rules = tmp_path / "rules.csv"
    rules.write_text(
        f"field,code,other_field,other_code,why\nnature,{best['nature']},event,{best['event']},never seen\n"
    )
    strict = open_bundle(joint.folder, rules=rules)
    assert isinstance(strict, JointCoder)
    rows = coded(strict, table_of(tmp_path), tmp_path / "out.csv")
    broken = [row for row in rows if (row["nature"], row["event"]) == (best["nature"], best["event"])]
    assert broken
    assert all(row["needs_review"] == "true" for row in broken)
    said = f"nature {best['nature']} with event {best['event']}: never seen"
    assert {row["conflicts"] for row in broken} == {said}
    others = [row for row in rows if row not in broken]
    assert {(row["needs_review"], row["conflicts"]) for row in others} <= {("false", "")}
    (told,) = strict.code(TEXTS[:1])
    assert told.as_dict()["conflicts"][0]["why"] == "never seen"
    plain = coded(coder, table_of(tmp_path), tmp_path / "plain.csv")
    assert [row["nature"] for row in plain] == [row["nature"] for row in rows]


def test_the_rules_are_part_of_a_job(joint: Sealed, coder: JointCoder, tmp_path: Path) -> None:
    """Pieces coded under other rules are not taken for this job's."""
    rules = tmp_path / "rules.csv"
    codes = {name: own.model.codes[0] for name, own in coder.fields.items()}
    rules.write_text(f"field,code,other_field,other_code\nnature,{codes['nature']},event,{codes['event']}\n")
    data, both = table_of(tmp_path), (coder, open_bundle(joint.folder, rules=rules))
    assert len({job_of(one, data, tmp_path / "out.csv", threshold=0.5).key(one) for one in both}) == 2


def test_what_is_of_one_field_is_refused(joint: Sealed, coder: JointCoder, tiny_bundle: Path, tmp_path: Path) -> None:
    """Another field's thresholds, two of one, and rules for one field."""
    model = coder.fields["event"].model
    data = write_csv(
        tmp_path / "mine.csv", ["text", "Event"], [[f"{TEXTS[0]} {n}", model.codes[n % 2]] for n in range(150)]
    )
    made = {}
    for field in ("event", ""):
        texts = Narratives(("text",)).texts
        fitted = thresholds_on_table(model, data, columns=("text",), join=texts, label="Event", name="own", field=field)
        made[field] = tmp_path / f"{field or 'one'}.json"
        made[field].write_text(json.dumps(fitted))
    opened = open_bundle(joint.folder, thresholds=[made["event"]])
    assert opened.fields["event"].thresholds is not None
    assert opened.fields["event"].thresholds["fitted_on"] == "own"
    with pytest.raises(InputError, match=r"belongs to a single field\. This bundle codes nature, event"):
        open_bundle(joint.folder, thresholds=[made[""]])
    with pytest.raises(InputError, match="another file belongs to event too"):
        open_bundle(joint.folder, thresholds=[made["event"], made["event"]])
    with pytest.raises(InputError, match="belongs to event, not to the field of this bundle"):
        open_bundle(tiny_bundle, thresholds=[made["event"]])
    with pytest.raises(InputError, match="--rules applies to bundles of several fields"):
        open_bundle(tiny_bundle, rules=tmp_path / "rules.csv")
    with pytest.raises(InputError, match=r"^(nature|event): --accuracy"):
        coder.threshold_for(0.8)


def test_a_table_with_a_fields_column_is_refused(coder: JointCoder, tmp_path: Path) -> None:
    """Before anything is coded."""
    data = tmp_path / "new.csv"
    data.write_text("text,event\nfell,42\n")
    with pytest.raises(InputError, match="has a column 'event', which the answers would overwrite"):
        coded(coder, data, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_a_sample_is_coded_again_in_every_field(coder: JointCoder, tmp_path: Path) -> None:
    """One sample, a column of the human's codes a field; agreement is told field by field."""
    rows = coded(coder, table_of(tmp_path), tmp_path / "out.csv")
    sensitive = f"event={rows[0]['event']}"
    policy = quality.Policy(share=0.5, sensitive_codes=(sensitive,))
    drawn = quality.draw(tmp_path / "out.csv", tmp_path / "sample.csv", columns=["text"], policy=policy, seed=1)
    assert drawn.sensitive == sum(row["event"] == rows[0]["event"] for row in rows)
    sample = rows_of(tmp_path / "sample.csv")
    assert list(sample[0]) == ["qa_row", "text", "qa_weight", "human_nature", "human_event"]
    for row in sample:
        row["human_nature"] = rows[int(row["qa_row"]) - 1]["nature"]
        row["human_event"] = "none of them"
    write_csv(tmp_path / "sample.csv", list(sample[0]), [list(row.values()) for row in sample])
    found = quality.agreements(tmp_path / "out.csv", tmp_path / "sample.csv")
    assert found["nature"].share == 1
    assert found["event"].share == 0
    policy = quality.Policy(sensitive_codes=("1311",))
    with pytest.raises(InputError, match=r"'1311' is not a field and code of this table\. Write nature=CODE"):
        quality.draw(tmp_path / "out.csv", tmp_path / "other.csv", columns=["text"], policy=policy, seed=1)


def test_periods_are_compared_field_by_field(joint: Sealed, coder: JointCoder, tmp_path: Path) -> None:
    """The same period drifts in no field; a bundle's golden narratives are a reference for each."""
    coded(coder, table_of(tmp_path, 90), tmp_path / "out.csv")
    assert drift.fields_in(tmp_path / "out.csv") == ("nature", "event")
    periods = {field: drift.read_period(tmp_path / "out.csv", "CODED", field=field) for field in coder.fields}
    assert [drift.compare(one, one).verdict for one in periods.values()] == ["stable", "stable"]
    golden = drift.golden_periods(joint.folder, like=periods)
    assert golden.keys() == periods.keys() == {"nature", "event"}
    hotter = {field: replace(one, temperature=f"{4 * float(one.temperature):g}") for field, one in periods.items()}
    flatter = drift.golden_periods(joint.folder, like=hotter)
    for field, one in golden.items():
        assert one.temperature == periods[field].temperature == f"{coder.fields[field].temperature:g}"
        assert (one.codes == flatter[field].codes).all()
        assert one.scores.mean() > flatter[field].scores.mean(), "coded at the temperature of what it is compared with"


def test_a_column_that_lies_about_the_fields_is_refused(coder: JointCoder, tmp_path: Path) -> None:
    """A field that the table has no columns of."""
    rows = coded(coder, table_of(tmp_path), tmp_path / "out.csv")
    text = (tmp_path / "out.csv").read_text().replace("nature event", "nature part")
    (tmp_path / "lies.csv").write_text(text)
    assert rows
    with pytest.raises(InputError, match="names fields without columns"):
        drift.fields_in(tmp_path / "lies.csv")


def events_given(coder: JointCoder) -> list[str]:
    """Codes that the texts get; which ones differs from run to run, since the fixture's tokenizer does."""
    cases = coder.code([text for _, text in texts_of(60) if text.strip()])
    return sorted({case.codings["event"].answers[0].code for case in cases})
