"""A bundle whose model reads columns of public values: what the gate compares, and that others read it alike."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sealed_bundle import VALUES, Sealed, scores_by_the_card

from mechanisms.model import export
from mechanisms.model.valued_text import ValuedText
from storage.bundle.check import check
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.egress import public_lists
from storage.egress.allow_list import allowed_files, check_layers, read_fields, read_files
from storage.egress.gate import inspect
from tasks.bundle import golden
from tasks.bundle.texts import own_texts
from tasks.coding.explain import explain
from tasks.coding.joint import open_bundle
from tasks.coding.records import declared_columns

CASES = [
    {"State": "TEXAS", "Hospitalized": "1"},
    {"State": "OREGON", "Hospitalized": "0"},
    {"State": "", "Hospitalized": "1"},
    {"State": "", "Hospitalized": ""},
]
TEXTS = ["He fractured his wrist.", "She was burned.", "He fell.", "They were cut."]


def test_a_partner_finds_it_sound(valued: Sealed) -> None:
    """The model gives the golden answers; the coder names its columns without loading it, and codes by their values."""
    contents = check(valued.folder, valued.trust).contents
    golden.check(export.load(valued.folder), contents["golden.jsonl"])
    coder = open_bundle(valued.folder).fields[""]
    assert declared_columns(valued.folder) == tuple(VALUES) == tuple(coder.model.value_columns)
    assert {name: list(own) for name, own in coder.model.value_columns.items()} == VALUES
    one, other, none = coder.scores(
        [ValuedText("He fell.", {"State": name}) for name in ("OHIO", "TEXAS")] + ["He fell."]
    )
    assert not torch.allclose(one, other)
    assert not torch.allclose(one, none)
    assert coder.thresholds is None, "generated narratives have no values, so that no threshold is fitted on them"


@pytest.mark.filterwarnings("ignore")
def test_published_libraries_read_it(valued: Sealed, joint_valued: Sealed) -> None:
    """The card's program, of at most 20 lines, gives the scores of the model with listed, other and blank values."""
    records = [
        ValuedText(text, {name: cell for name, cell in case.items() if cell})
        for text, case in zip(TEXTS, CASES, strict=True)
    ]
    for sealed, field in ((valued, ""), (joint_valued, "nature")):
        expected = export.load(sealed.folder).fields[field].logits(records)
        np.testing.assert_allclose(scores_by_the_card(sealed.folder, TEXTS, CASES), expected.numpy(), atol=2e-3)


def test_the_gate_makes_the_lists_again(valued: Sealed, tmp_path: Path) -> None:
    """A value more or another in the place of one, another weight, and a list that is missing do not leave."""
    (tmp_path / "again").mkdir()
    expected = valued.refill(tmp_path / "again")  # which passes
    folder = valued.copy(tmp_path, seal=False)
    content = json.loads((folder / "lexicon.json").read_text())
    other = [content["value_columns"][0] | {"values": ["SMITH", "TEXAS", "FLORIDA"]}, content["value_columns"][1]]
    for change in ({"value_columns": other}, {"value_weight": content["value_weight"] * 2}):
        (folder / "lexicon.json").write_text(json.dumps(content | change))
        with pytest.raises(UnsoundBundle) as refused:
            inspect(folder, expected)
        assert refused.value.file == "lexicon.json"
        assert "SMITH" not in str(refused.value)
    (folder / "lexicon.json").unlink()
    with pytest.raises(UnsoundBundle):
        inspect(folder, expected)


def test_a_layer_of_another_width_is_found(valued: Sealed, tmp_path: Path) -> None:
    """A partner's check counts words and values; the schema lets no further key in."""
    allowed = allowed_files(read_fields(valued.folder))
    folder = tmp_path / "other"
    shutil.copytree(valued.folder, folder)
    content = json.loads((folder / "lexicon.json").read_text())
    shorter = {"value_columns": content["value_columns"][:1], "columns": content["columns"] - 3}
    (folder / "lexicon.json").write_text(json.dumps(content | shorter))
    with pytest.raises(UnsoundBundle, match="does not map"):
        check_layers(read_files(folder, allowed=allowed))
    if content["kind"] != "hashed":
        (folder / "lexicon.json").write_text(json.dumps(content | {"columns": content["columns"] + 1}))
        with pytest.raises(UnsoundBundle, match="another number of stems and values"):
            check_layers(read_files(folder, allowed=allowed))
    first = content["value_columns"][0] | {"records": ["He fell."]}
    (folder / "lexicon.json").write_text(json.dumps(content | {"value_columns": [first]}))
    with pytest.raises(UnsoundBundle, match="not on the list of fields"):
        read_files(folder, allowed=allowed)


def test_values_are_read_and_signed_as_titles_are(
    valued: Sealed, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value of a list that is not published, and an unusual name; numbers and published lists are none."""
    facts = valued.context.store.figures(valued.candidate.dataset)
    listed = own_texts({}, facts, str(tiny_bert))
    assert [text for text in listed if text.startswith("value")] == [
        f"value of State: {one}" for one in VALUES["State"]
    ]
    named = own_texts({}, {"value_columns": {"Industry of the employer": ["11"]}}, str(tiny_bert))
    assert "column: Industry of the employer" in named
    (tmp_path / "unsigned").mkdir()
    unsigned = replace(valued.refill(tmp_path / "unsigned"), unsigned_texts=listed)
    with pytest.raises(UnsoundBundle, match="texts that neither the plan lists"):
        inspect(valued.folder, unsigned)
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "states.txt").write_text("".join(public_lists.entry_digest(Code(one)) + "\n" for one in VALUES["State"]))
    monkeypatch.setattr(public_lists, "LISTS", lists)
    public_lists._places.cache_clear()
    try:
        assert not [text for text in own_texts({}, facts, str(tiny_bert)) if text.startswith("value")]
    finally:
        public_lists._places.cache_clear()


def test_the_share_of_a_value_is_exact(valued: Sealed) -> None:
    """A reason's columns are what the value adds to the logit, over no value."""
    coder = open_bundle(valued.folder).fields[""]
    case = {"State": "OHIO", "Hospitalized": "1"}
    code = coder.model.codes[0]
    with_value, without = (coder.model.logits([text])[0] for text in (ValuedText("He fell.", case), "He fell."))
    (reason,) = explain(coder, ValuedText("He fell.", case), [("", code)]).reasons
    moved = (with_value - without) - (with_value - without).mean()
    assert sum(reason.columns.values()) == pytest.approx(float(moved[0]), abs=1e-4)
    assert set(reason.columns) == set(VALUES)
    assert reason.score == pytest.approx(float(coder.scores([ValuedText("He fell.", case)])[0, 0]), abs=1e-5)
