"""Codes, groups, thresholds: what a coder answers follows from its scores."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from csv_files import write_csv
from refusals import of_kind

from mechanisms.model.scorer import softmax
from storage.codelist import read_parents
from storage.errors import InputError
from storage.tables.narratives import Narratives
from tasks.coding.coder import Coder, open_bundle
from tasks.coding.groups import groups_of
from tests.support.thresholds import thresholds_file

CODES = ("111", "132", "1520", "1521", "1522", "1972")


def test_a_group_s_score_is_the_sum_over_its_codes() -> None:
    """The most detailed group that is sure answers, of two of one level the likelier; where none
    is, none.
    """
    groups = groups_of(CODES, classification="OIICS")
    assert groups is not None
    assert set(groups.names) == {"11", "13", "15", "152", "19", "197"}, (
        "1 holds all codes and says nothing"
    )
    scores = np.array(
        [
            [0.1, 0.0, 0.4, 0.3, 0.1, 0.1],  # 152: 0.8
            [0.5, 0.1, 0.2, 0.1, 0.1, 0.0],  # 11: 0.5, 152: 0.4
            [0.3, 0.3, 0.1, 0.0, 0.1, 0.2],
            [0.0, 0.0, 0.2, 0.2, 0.1, 0.5],  # 152 and 197: both 0.5; 197 comes from one code
        ]
    )
    found = groups.most_detailed(scores, threshold=0.5)
    assert [entry and entry[0] for entry in found] == ["152", "11", None, found[3] and found[3][0]]
    assert found[0] is not None
    assert found[0][1] == pytest.approx(0.8)
    assert found[3] is not None
    assert found[3][0] in {"152", "197"}


def test_no_group_holds_what_everybody_knows_already() -> None:
    """Of the published list only levels that split it: no `1`, which holds nearly all injuries, but
    11, 13, 152.
    """
    lines = Path(__file__).with_name("oiics_codes.txt").read_text().split()
    groups = groups_of(lines, classification="OIICS")
    assert groups is not None
    assert min(map(len, groups.names)) == 2
    assert {"11", "13", "152"} <= set(groups.names)
    assert float(groups.members.sum(0).max()) <= len(lines) / 4
    scores = np.zeros((1, len(lines)), np.float32)
    scores[0, [at for at, code in enumerate(lines) if code.startswith("1") and len(code) == 3]] = (
        1.0
    )
    assert groups.most_detailed(scores / scores.sum(), threshold=0.9) == [None], (
        "sure of 1 alone is sure of nothing"
    )


@pytest.mark.parametrize(
    ("codes", "classification", "levels", "groups"),
    [
        (CODES, "OIICS", "none", None),
        (("1", "2", "10", "23"), "diagnoses", "auto", None),
        (("1", "2"), "OIICS", "auto", None),
        (("111", "112", "121", "211"), "OIICS", "auto", {"11", "12", "2", "21"}),
        (("62.01", "62.02", "63.1", "63.2"), "NACE", "digits", {"62", "62.0", "63"}),
        (("a", "b", "c", "d"), "own", Path("list.csv"), {"X", "Y"}),
    ],
)
def test_levels_are_oiics_s_digits_or_those_that_are_named(
    codes: tuple[str, ...],
    classification: str,
    levels: Literal["auto", "digits", "none"] | Path,
    groups: set[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plain list's 23 has nothing to do with its 2. Points belong to the level above; a list
    gives its parents.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.csv").write_text(
        "code,title,parent\na,,X\nb,,X\nc,,Y\nd,,Y\nX,,all\nY,,all\n"
    )
    named = read_parents(levels, option="--groups") if isinstance(levels, Path) else levels
    found = groups_of(codes, classification=classification, levels=named)
    assert (None if found is None else set(found.names)) == groups


def test_levels_that_narrow_nothing_are_refused() -> None:
    """Where they were asked for."""
    with pytest.raises(InputError, check=of_kind("no-groups")):
        groups_of(("A", "B", "C"), classification="own", levels="digits")


def test_a_set_s_level_is_the_deepest_of_all_its_codes() -> None:
    """Of one code alone it is that code."""
    groups = groups_of(("111", "112", "121", "211"), classification="OIICS")
    assert groups is not None
    assert [
        groups.shared(codes) for codes in (["111"], ["111", "112"], ["112", "121"], ["111", "211"])
    ] == [*("111", "11", "1", "")]


def test_answers_follow_the_scores(coder: Coder, narratives: Callable[..., list[str]]) -> None:
    """Best first; below the threshold for review, with a group whose codes' scores add up; blank
    ones uncoded.
    """
    coder = replace(
        coder, thresholds=thresholds_file(temperature=20.0)
    )  # without it one code has all, and no group is surer
    texts = [*narratives(40), " \n"]
    scores = coder.scores(texts)
    threshold = float(np.median(scores.max(-1)))
    codings = coder.code(texts, top_k=3, threshold=threshold)
    assert len({coding.needs_review for coding in codings[:-1]}) == 2, (
        "the test tells both cases apart"
    )
    assert any(coding.group is not None for coding in codings)
    for coding, row in zip(codings[:-1], scores, strict=False):
        best = np.argsort(-row)[:3].tolist()
        assert [answer.code for answer in coding.answers] == [coder.model.codes[at] for at in best]
        assert coding.needs_review == (
            round(coding.answers[0].score, 6) < threshold
        )  # as it is written
        if coding.group is not None:
            inside = [
                float(s)
                for code, s in zip(CODES, row, strict=True)
                if code.startswith(coding.group.code)
            ]
            assert coding.needs_review
            assert sum(inside) == pytest.approx(coding.group.score, abs=1e-5)
            assert coding.group.score >= threshold
    assert (codings[-1].answers, codings[-1].needs_review, codings[-1].group) == ((), True, None)
    assert coder.code(["fell"])[0].needs_review is None, (
        "without a threshold nothing is said about review"
    )


def test_a_score_equal_to_the_threshold_needs_no_review(coder: Coder) -> None:
    """The score as it is written, six decimals: at the threshold it is accepted,
    below it is not.
    """
    coder = replace(coder, thresholds=thresholds_file(temperature=20.0))
    written = round(coder.code(["fell from a ladder"])[0].answers[0].score, 6)
    for threshold, review in ((written, False), (written + 1e-6, True), (written - 1e-6, False)):
        (coding,) = coder.code(["fell from a ladder"], threshold=threshold)
        assert coding.needs_review is review


def test_one_text_alone_has_the_scores_it_has_among_others(
    coder: Coder, narratives: Callable[..., list[str]]
) -> None:
    """Batching, sorting and padding change nothing beyond rounding; 100 MB are cut,
    not tokenised.
    """
    texts = [*narratives(30), "fell " * 20_000_000, "a\0b", "x"]
    together = coder.scores(texts)
    for at in (0, 7, 29, 30, 31, 32):
        np.testing.assert_allclose(coder.scores([texts[at]])[0], together[at], rtol=1e-4, atol=1e-5)


def test_a_temperature_divides_the_logits(coder: Coder, tiny_bundle: Path, tmp_path: Path) -> None:
    """Softer scores, the same order; the file's threshold for an accuracy is found or refused by
    name.
    """
    told = {
        "schema": 1,
        "temperature": 4.0,
        "fitted_on": "coded-records",
        "records": 100,
        "confidence": 0.95,
    }
    entries = [
        {"target_accuracy": 0.8, "threshold": 0.7},
        {"target_accuracy": 0.9, "threshold": None},
    ]
    (tmp_path / "t.json").write_text(json.dumps(told | {"thresholds": entries}))
    soft = open_bundle(tiny_bundle, thresholds=tmp_path / "t.json")
    text = ["Employee fell from a ladder"]
    expected = softmax(np.log(coder.scores(text)) / 4)
    np.testing.assert_allclose(soft.scores(text), expected, rtol=1e-3, atol=1e-5)
    assert soft.threshold_for(0.8) == 0.7
    for accuracy, refusal in (
        (0.9, of_kind("accuracy-not-reached", saying=("0.9", "your own coded records", "(0.8)"))),
        (0.5, of_kind("unknown-accuracy", saying="0.8, 0.9")),
    ):
        with pytest.raises(InputError, check=refusal):
            soft.threshold_for(accuracy)
    with pytest.raises(InputError, check=of_kind("no-thresholds", saying="autocoder adopt BUNDLE")):
        coder.threshold_for(0.8)
    best = {"accuracy": 0.83, "threshold": 0.61, "coverage": 0.12, "accuracy_of_all": 0.55}
    (tmp_path / "t.json").write_text(
        json.dumps(told | {"thresholds": entries[1:], "reached": best})
    )
    refusal = of_kind("accuracy-not-reached", saying=("12%", "0.61", "83.0%", "55.0%"))
    with pytest.raises(InputError, check=refusal):
        open_bundle(tiny_bundle, thresholds=tmp_path / "t.json").threshold_for(0.9)
    with pytest.raises(
        InputError, check=of_kind("no-thresholds", saying="table of the held-out records")
    ):
        replace(coder, classification="SOC").threshold_for(0.9)


def test_a_list_without_a_version_is_named_by_its_content(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    """Two lists that differ in one title are two versions."""
    versions = []
    for change in ("", "x"):
        folder = tmp_path / f"bundle{change}"
        shutil.copytree(tiny_bundle, folder)
        write_csv(folder / "codelist.csv", ["code", "title"], [[code, change] for code in CODES])
        versions.append(open_bundle(folder).version)
    assert versions[0] != versions[1]
    assert versions[0].startswith("list-")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("codelist.csv", "damaged-bundle"),
        ("privacy_statement.json", "damaged-bundle"),
        ("labels.json", "unloadable-bundle"),
        ("model.onnx", "unloadable-bundle"),
        ("2_Dense/model.safetensors", "unloadable-bundle"),
    ],
)
def test_a_damaged_bundle_is_refused(
    tiny_bundle: Path, tmp_path: Path, damage: str, kind: str
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, folder)
    (folder / damage).write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, check=of_kind(kind, saying="--bundle")):
        open_bundle(folder)


def test_what_is_at_fault_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    """A thresholds file by its own option; a model that the libraries choke on by the type of what
    they raised.
    """
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(InputError, check=of_kind("not-thresholds", option="--thresholds")):
        open_bundle(tiny_bundle, thresholds=tmp_path / "t.json")
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, folder)
    (folder / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, check=of_kind("unloadable-bundle", saying="InvalidProtobuf")):
        open_bundle(folder)


def test_narratives_are_joined_as_in_training() -> None:
    """By the template, or with a bar; all blank is blank, whatever the template says."""
    rows = [("Cook", "burned hand"), ("", "fell"), ("", "  ")]
    assert Narratives(("Job", "Text"), "{Job}: {Text}").texts(rows) == [
        "Cook: burned hand",
        ": fell",
        "",
    ]
    assert Narratives(("Job", "Text")).texts(rows) == ["Cook | burned hand", "fell", ""]
    for columns, template in (
        (("Job",), "{Text}"),
        (("Job", "Text"), "{Job}"),
        (("Job", "Job"), None),
    ):
        with pytest.raises(InputError, check=of_kind("text-template")):
            Narratives(columns, template)
