"""Coding in several fields: columns, blanks, thresholds, rules, and what QA and drift make of such a table."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError
from sealed_bundle import Sealed

from storage.errors import InputError
from storage.ingest.config import IngestConfig
from storage.rules import Rules
from storage.tables.narratives import Narratives
from storage.tables.reading import survey
from tasks.bundle.thresholds import thresholds_on_table
from tasks.coding import drift, quality
from tasks.coding.coder import Coder
from tasks.coding.columns import Added, JointAdded, added_of
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


def table_of(folder: Path, rows: int = 60) -> Path:
    file = folder / "new.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(["id", "text"])
        lines.writerows(
            [number, TEXTS[number % 3] + ("" if number % 3 == 1 else f" {number}")] for number in range(rows)
        )
    return file


def coded(coder: JointCoder | Coder, data: Path, out: Path, **how: Any) -> list[dict[str, str]]:
    table = survey(data, text_columns=("text",))
    run(coder, CodingJob(table, out, Narratives(("text",)), added_of(coder, **{"top_k": 1, "threshold": None} | how)))
    with out.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


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
        *("nature", "nature_title", "nature_score", "nature_2", "nature_score_2"),
        *("event", "event_title", "event_score", "event_2", "event_score_2"),
        *("model", "classification", "classification_version", "bundle_digest", "coded_fields"),
    ]
    assert rows[0]["coded_fields"] == "nature event"
    assert rows[1]["nature"] == rows[1]["event"] == ""
    (case,) = coder.code([rows[0]["text"]])
    assert rows[0]["event"] == case.codings["event"].answers[0].code


def test_no_field_can_be_called_what_a_column_is(coder: JointCoder) -> None:
    """Ingest refuses every name that coding gives a column of its own; it lists them apart, being below coding."""
    columns = JointAdded(
        tuple(Added(3, 0.5, None, grouped=True, field=name) for name in coder.fields), NO_RULES
    ).schema()
    own = {*columns.names, *coder.origin} - {*coder.fields}
    assert {"nature_group_code", "event_score_3", "needs_review", "conflicts", "coded_fields"} <= own
    for name in own:
        fields = {one: {"label_column": one.title()} for one in (*coder.fields, name)}
        with pytest.raises(ValidationError, match="of another meaning; call the field otherwise"):
            IngestConfig.model_validate({"fields": fields, "sampling": "per-record"})


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
    table = survey(table_of(tmp_path), text_columns=("text",))
    keys = set()
    for one in (coder, open_bundle(joint.folder, rules=rules)):
        added = added_of(one, top_k=1, threshold=0.5)
        assert isinstance(added, JointAdded)
        keys.add(CodingJob(table, tmp_path / "out.csv", Narratives(("text",)), added).key(one))
    assert len(keys) == 2


def test_what_is_of_one_field_is_refused(joint: Sealed, coder: JointCoder, tiny_bundle: Path, tmp_path: Path) -> None:
    """Another field's thresholds, two of one, rules for one field; and a bundle of several is no coder of one."""
    data = tmp_path / "mine.csv"
    with data.open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(["text", "Event"])
        lines.writerows([f"{TEXTS[0]} {n}", coder.fields["event"].model.codes[n % 2]] for n in range(150))
    made = {}
    for field in ("event", ""):
        fitted = thresholds_on_table(
            coder.fields["event"].model,
            data,
            columns=("text",),
            join=Narratives(("text",)).texts,
            label="Event",
            name="own",
            field=field,
        )
        made[field] = tmp_path / f"{field or 'one'}.json"
        made[field].write_text(json.dumps(fitted))
    opened = open_bundle(joint.folder, thresholds=[made["event"]])
    assert opened.fields["event"].thresholds is not None
    assert opened.fields["event"].thresholds["fitted_on"] == "own"
    with pytest.raises(InputError, match="is of a single field; this bundle codes nature, event"):
        open_bundle(joint.folder, thresholds=[made[""]])
    with pytest.raises(InputError, match="another file is of event too"):
        open_bundle(joint.folder, thresholds=[made["event"], made["event"]])
    with pytest.raises(InputError, match="it is of event, not of the one that this bundle codes"):
        open_bundle(tiny_bundle, thresholds=[made["event"]])
    with pytest.raises(InputError, match="--rules: they are of two fields"):
        open_bundle(tiny_bundle, rules=tmp_path / "rules.csv")
    with pytest.raises(InputError, match=r"codes several fields at once \(nature, event\)"):
        Coder.open(joint.folder)
    with pytest.raises(InputError, match=r"^(nature|event): --accuracy"):
        coder.threshold_for(0.8)
    with pytest.raises(InputError, match="--crosswalk: it is of one field"):
        added_of(coder, top_k=1, threshold=None, crosswalk=object())  # pyright: ignore[reportArgumentType]


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
    with (tmp_path / "sample.csv").open(newline="", encoding="utf-8") as file:
        sample = list(csv.DictReader(file))
    assert list(sample[0]) == ["qa_row", "text", "qa_weight", "human_nature", "human_event"]
    for row in sample:
        row["human_nature"] = rows[int(row["qa_row"]) - 1]["nature"]
        row["human_event"] = "none of them"
    with (tmp_path / "sample.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, list(sample[0]))
        lines.writeheader()
        lines.writerows(sample)
    found = quality.agreements(tmp_path / "out.csv", tmp_path / "sample.csv")
    assert found["nature"].share == 1
    assert found["event"].share == 0
    with pytest.raises(InputError, match="'1311' is no field and code of this table, such as nature=CODE"):
        quality.draw(
            tmp_path / "out.csv",
            tmp_path / "other.csv",
            columns=["text"],
            policy=quality.Policy(sensitive_codes=("1311",)),
            seed=1,
        )


def test_periods_are_compared_field_by_field(joint: Sealed, coder: JointCoder, tmp_path: Path) -> None:
    """The same period drifts in no field; a bundle's golden narratives are a reference for each."""
    coded(coder, table_of(tmp_path, 90), tmp_path / "out.csv")
    assert drift.fields_in(tmp_path / "out.csv", "CODED") == ("nature", "event")
    for field in ("nature", "event"):
        period = drift.read_period(tmp_path / "out.csv", "CODED", field=field)
        assert drift.compare(period, period).verdict == "stable"
    assert set(drift.golden_periods(joint.folder, "--bundle")) == {"nature", "event"}


def test_a_column_that_lies_about_the_fields_is_refused(coder: JointCoder, tmp_path: Path) -> None:
    """A field that the table has no columns of."""
    rows = coded(coder, table_of(tmp_path), tmp_path / "out.csv")
    text = (tmp_path / "out.csv").read_text().replace("nature event", "nature part")
    (tmp_path / "lies.csv").write_text(text)
    assert rows
    with pytest.raises(InputError, match="names fields that it has no columns of"):
        drift.fields_in(tmp_path / "lies.csv", "CODED")


def test_no_two_columns_have_one_name(coder: JointCoder) -> None:
    """Whatever is added."""
    for threshold in (None, 0.5):
        names = added_of(coder, top_k=3, threshold=threshold).schema().names
        assert len(set(names)) == len(names)
        assert pa.schema([(name, pa.string()) for name in names])
