"""Temperature and thresholds keep what they promise on records like those they were fitted on."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from refusals import of_kind
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import metrics
from mechanisms.model.calibration import autocoded_shares, fit_temperature, thresholds_for
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.stated_accuracy import Interval, StatedAccuracy
from mechanisms.thresholds_file import (
    FITTED_ON,
    Reached,
    SetLimit,
    Threshold,
    Thresholds,
    fitted_on,
)
from storage.codelist import Code
from tasks.bundle.thresholds import (
    best_accuracy,
    describe_target,
    read_thresholds,
    thresholds_of,
    thresholds_on_generated,
    warnings,
)
from tests.support.thresholds import thresholds_file


def coded(
    n: int, *, temperature: float = 1.0, seed: int = 0, codes: int = 6
) -> tuple[Tensor, Tensor]:
    """Logits and labels of a model whose scores are right at the given temperature."""
    g = torch.Generator().manual_seed(seed)
    true = 2.0 * torch.randn(n, codes, generator=g)
    labels = torch.multinomial(true.softmax(-1), 1, generator=g)[:, 0]
    return true * temperature, labels


def binary(right: np.ndarray, score: np.ndarray) -> tuple[Tensor, Tensor]:
    """Logits of two codes whose top score is `score`, and labels that are right where `right` says
    so.
    """
    logits = torch.zeros(len(score), 2)
    logits[:, 0] = torch.from_numpy(np.log(score / (1 - score)))
    return logits, torch.from_numpy(np.where(right, 0, 1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_found(temperature: float) -> None:
    """Scores spoilt by a known temperature; a tenth of it is five standard errors at 20,000
    records.
    """
    assert fit_temperature(
        *map(np.asarray, coded(20_000, temperature=temperature))
    ) == pytest.approx(temperature, rel=0.1)


def test_a_code_that_the_model_lacks_is_no_evidence_for_a_temperature_but_counts_as_wrong() -> None:
    """A third of the labels is unknown: the temperature stays, no threshold promises 90 %."""
    logits, labels = coded(6000)
    some = labels.clone()
    some[torch.arange(6000) % 6 < 2] = -1
    spoilt = thresholds_for(logits, some, fitted_on="coded-records")
    assert spoilt["temperature"] == pytest.approx(
        thresholds_for(logits, labels, fitted_on="coded-records")["temperature"], 0.1
    )
    assert [
        entry["threshold"] for entry in spoilt["thresholds"] if entry["target_accuracy"] >= 0.9
    ] == [None, None]


def test_thresholds_hold_on_new_records() -> None:
    """Above each threshold the accuracy on 50,000 new records is the target's or better; coverage
    as told.
    """
    told = thresholds_for(*coded(20_000, temperature=2.0), fitted_on="coded-records")
    logits, labels = coded(50_000, temperature=2.0, seed=1)
    best = (logits / told["temperature"]).softmax(-1).max(-1)
    for entry in told["thresholds"]:
        assert entry["threshold"] is not None
        kept = best.values >= entry["threshold"]
        accuracy = float((best.indices == labels)[kept].float().mean())
        assert entry["target_accuracy"] <= accuracy <= entry["target_accuracy"] + 0.05
        assert float(kept.float().mean()) == pytest.approx(entry["coverage"], abs=0.03)


def test_an_accuracy_that_is_not_there_is_rarely_promised() -> None:
    """True accuracy just below the target at every score: a threshold comes out in at most 5 % of
    the fits.

    400 fits of 600 records; 40 or more happen with probability 2e-5 at the promised rate of 5 %.
    The naive choice, the lowest score with the target's accuracy among these records, promises it
    nearly always, and would fail.
    """
    rng = np.random.default_rng(0)
    promised = naive = 0
    for _ in range(400):
        score, right = rng.uniform(0.6, 0.99, 600), rng.random(600) < 0.8999
        told = thresholds_for(*binary(right, score), fitted_on="coded-records", targets=(0.9,))
        promised += told["thresholds"][0]["threshold"] is not None
        order = np.argsort(-score)
        naive += bool((np.cumsum(right[order]) / np.arange(1, 601) >= 0.9)[10:].any())
    assert promised < 40
    assert naive > 300, "the test has no power"


def test_equal_scores_stand_on_one_side() -> None:
    """A threshold never splits records of one score: coverage counts them all."""
    right = np.arange(4000) % 25 > 0
    told = thresholds_for(
        *binary(right, np.full(4000, 0.9)), fitted_on="coded-records", targets=(0.9,)
    )
    assert told["thresholds"][0]["coverage"] == 1.0


@pytest.mark.parametrize(
    ("logits", "labels", "refusal"),
    [
        (torch.zeros(200, 3), torch.zeros(100, dtype=torch.int64), of_kind("shapes-differ")),
        (
            torch.zeros(60, 3),
            torch.zeros(60, dtype=torch.int64),
            of_kind("too-few-calibration-records", saying="100"),
        ),
        (
            torch.full((200, 3), float("nan")),
            torch.zeros(200, dtype=torch.int64),
            of_kind("score-not-a-number"),
        ),
        (torch.zeros(200, 3), torch.full((200,), -1), of_kind("no-known-codes")),
    ],
    ids=["shapes", "few", "nan", "unknown codes"],
)
def test_what_cannot_be_calibrated_is_refused(
    logits: Tensor, labels: Tensor, refusal: of_kind
) -> None:
    """In one sentence."""
    with pytest.raises(MechanismError, check=refusal):
        thresholds_for(logits, labels, fitted_on="coded-records")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"schema": 2}, "thresholds-schema"),
        ({"temperature": 0}, "temperature-out-of-range"),
        ({"temperature": "x"}, "not-thresholds"),
        ({"thresholds": [{"target_accuracy": 0.9}]}, "not-thresholds"),
        ({"thresholds": 1}, "not-thresholds"),
        ({"fitted_on": "generated by someone"}, "not-thresholds"),
        ({"fitted_on": ["generated"]}, "not-thresholds"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, object], kind: str) -> None:
    """A file comes from elsewhere; whole, it is read."""
    path = tmp_path / "thresholds.json"
    told = thresholds_for(*coded(400), fitted_on="coded-records")
    path.write_text(json.dumps(told))
    assert read_thresholds(path) == told
    path.write_text(json.dumps(told | change))
    with pytest.raises(MechanismError, check=of_kind(kind, saying="thresholds.json")):
        read_thresholds(path)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("released-table", "released-table"),
        ("800 generated narratives of injuries; no agency's records", "generated"),
        ("own coded records", "coded-records"),
    ],
)
def test_the_records_of_an_earlier_file_are_known_by_type(
    tmp_path: Path, written: str, read: str
) -> None:
    """Version 0.3 wrote a sentence."""
    path = tmp_path / "thresholds.json"
    told = thresholds_for(*coded(400), fitted_on="coded-records")
    path.write_text(json.dumps({**told, "fitted_on": written}))
    assert read_thresholds(path)["fitted_on"] == read


def test_the_schema_of_bundles_has_the_types_of_the_program() -> None:
    """A bundle's thresholds are never fitted on a partner's records."""
    schema = json.loads((files("storage") / "schemas" / "bundle.schema.json").read_text("utf-8"))
    listed = schema["$defs"]["thresholds"]["properties"]["fitted_on"]["enum"]
    assert {fitted_on(value) for value in listed} == set(FITTED_ON) - {"coded-records"}


def test_a_file_of_brackets_is_refused(tmp_path: Path) -> None:
    """Nested deeper than a reader can follow."""
    (tmp_path / "thresholds.json").write_text("[" * 100_000)
    with pytest.raises(MechanismError, check=of_kind("not-thresholds")):
        read_thresholds(tmp_path / "thresholds.json")


def test_where_no_score_reaches_a_target_it_is_said_what_was_reached() -> None:
    """Answers right three times in four at whatever score: no threshold, and the best of ranks as
    it can be counted.
    """
    rng = np.random.default_rng(0)
    score, right = rng.uniform(0.6, 0.99, 2000), rng.random(2000) < 0.75
    told = thresholds_for(*binary(right, score), fitted_on="coded-records")
    assert [entry["threshold"] for entry in told["thresholds"]] == [None, None, None]
    best = told["reached"]
    assert best["accuracy_of_all"] == pytest.approx(right[np.arange(2000) % 4 > 0].mean(), abs=1e-4)
    assert best["accuracy_of_all"] <= best["accuracy"] < 1
    assert best["coverage"] >= 50 / 1500
    assert best["coverage"] == round(best["coverage"], 4)
    (said,) = warnings(told)
    for part in (
        "the bundle has no threshold for 80%, 90% or 95% accuracy: no score achieved it with",
        f"{best['accuracy']:.1%} were right",
        "your own coded records",
        "autocoder adopt --data",
    ):
        assert part in said
    two: list[Threshold] = [{**one, "threshold": 0.9} for one in told["thresholds"][:2]]
    some: Thresholds = {**told, "thresholds": [*two, told["thresholds"][2]]}
    (said,) = warnings(some)
    assert (
        "thresholds for 80% and 90% accuracy, but none for 95%: no score achieved it with" in said
    )
    better: Thresholds = {**some, "reached": {**best, "accuracy": 0.978}}
    (said,) = warnings(better)
    assert "but none for 95%: too few records to be sure" in said
    assert best_accuracy(thresholds_file()) == "", "a file of before says nothing"
    assert warnings(thresholds_file([(0.8, 0.5)])) == []


def test_what_can_be_coded_alone_are_the_thresholds_shares() -> None:
    """None at a target that is not reached; nothing at all of too few records, or of scores that
    are no numbers.
    """
    logits, labels = coded(4000)
    scores = FeatureInputs(logits)
    figures = autocoded_shares(scores, labels)
    assert figures["coverage_at_80"] > figures["coverage_at_90"] > 0
    assert figures["best_accuracy"] > 0.9
    wrong = autocoded_shares(scores, torch.zeros(4000, dtype=torch.int64))
    assert (wrong["coverage_at_80"], wrong["coverage_at_95"]) == (0, 0)
    assert autocoded_shares(FeatureInputs(logits[:99]), labels[:99]) == {}
    assert autocoded_shares(FeatureInputs(torch.full_like(logits, torch.nan)), labels) == {}


def test_scores_in_blocks_give_the_same_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of blocks of 7 records as of one block, and of the records in one shuffled array."""
    logits, labels = coded(4000)
    whole = autocoded_shares(FeatureInputs(logits), labels)
    order = torch.randperm(4000, generator=torch.Generator().manual_seed(0))
    shuffled = thresholds_for(
        logits[order].clamp(-1e4, 1e4), labels[order], fitted_on="coded-records"
    )
    assert whole["best_accuracy"] == shuffled["reached"]["accuracy"]
    assert [whole[f"coverage_at_{at}"] for at in (80, 90, 95)] == [
        one["coverage"] or 0.0 for one in shuffled["thresholds"]
    ]
    monkeypatch.setattr(metrics, "CELLS", 7 * 6)
    assert autocoded_shares(FeatureInputs(logits), labels) == whole


def test_thresholds_of_generated_narratives_are_the_demos_alone() -> None:
    """An agency's list gets none, whatever its classification, and the operator is informed."""
    untouched: Any = None
    listed = [Code("11-1011", "Chief executives"), Code("11-1021", "Managers")]
    assert thresholds_on_generated(untouched, listed) is None
    (said,) = warnings(None)
    assert "has no thresholds" in said
    assert "autocoder adopt --data" in said


def test_thresholds_of_a_noisy_table_are_those_that_it_states() -> None:
    """Its scores are calibrated already, so the temperature of the file is 1."""
    limit: SetLimit = {"coverage": 0.9, "limit": 0.2, "records": 812, "codes": {}}
    reached = {"accuracy": 0.9, "threshold": 0.5, "coverage": 0.4, "accuracy_of_all": 0.7}
    threshold = {"target_accuracy": 0.8, "threshold": 0.4, "coverage": 0.6, "accuracy": 0.85}
    share = Interval(0.7, 0.6, 0.8)
    stated = StatedAccuracy(
        temperature=2.5,
        records=812.4,
        right=share,
        among_best=share,
        groups=(),
        thresholds=(cast("Threshold", threshold),),
        bins=(),
        reached=cast("Reached", reached),
        sets=(limit,),
    )
    content = thresholds_of(stated)
    assert (content["temperature"], content["records"]) == (1.0, 812)
    assert (content["thresholds"], content["reached"]) == ([threshold], reached)
    assert content["sets"] == {"records": 812, "coverages": [limit]}
    assert "sets" not in thresholds_of(replace(stated, sets=()))


@pytest.mark.parametrize(
    ("score", "coverage", "said"),
    [
        (0.0, 0.9997, "target 80%: all answers pass, because 82.5% of all are right"),
        (0.031, 1.0, "target 80%: nearly all answers pass, because 82.5% of all are right"),
        (0.412, 0.6, "target 80%: answers with a score of 0.412 or more pass; 82.5% of those"),
    ],
)
def test_a_target_that_lets_everything_pass_is_told(
    score: float, coverage: float, said: str
) -> None:
    """Only then is a higher accuracy recommended; a file without the stated accuracy has the rest
    of the sentence.
    """
    entry: Any = {
        "target_accuracy": 0.8,
        "threshold": score,
        "coverage": coverage,
        "accuracy": 0.825,
    }
    thresholds: Any = {"thresholds": [entry]}
    told = describe_target(thresholds, 0.8)
    assert told.startswith(said)
    assert ("ask for a higher accuracy" in told) == (coverage > 0.9)
    del entry["accuracy"]
    assert describe_target(thresholds, 0.8).startswith(said[:25])
