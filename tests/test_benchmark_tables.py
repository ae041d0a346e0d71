"""Tables that benchmarks print, and the tiny encoder that they measure with."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs

from mechanisms.model import encoder_files
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import ComparisonSettings

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_of(name: str, seconds: float, stages: dict[str, float | None]) -> dict[str, Any]:
    listed = [{"stage": stage, "seconds": took} for stage, took in stages.items()]
    return {"command": name, "seconds": seconds, "stages": listed}


def test_one_process_against_several(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A row for each stage from the records to their codes, with the ratio; a stage that took no
    time has none.
    """
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    engine = importlib.import_module("engine")
    seconds = {"read": 3.0, "encode": 38.0, "plan": 0.0, "train": 5.0, "predict": 1.0, "score": 1.0}
    measured = {
        1: [run_of("retrain", 60.0, {**seconds, "code list": 0.0}), run_of("code", 36.0, {})],
        2: [
            run_of("retrain", 40.0, {**seconds, "encode": 20.0, "train": None}),
            run_of("code", 20.0, {}),
        ],
    }

    def measure(records: int, folder: Path, settings: Any, *, processes: int) -> dict[str, Any]:
        return {"runs": measured[processes]}

    monkeypatch.setattr(engine.scale, "measure", measure)
    lines = engine.table(2000, tmp_path, 2, tiny=False).splitlines()
    assert lines[0] == "| 2,000 records | one process | 2 processes | times as fast |"
    assert lines[2:] == [
        "| ingest | 3.0 s | 3.0 s | 1.00 |",
        "| encode | 38.0 s | 20.0 s | 1.90 |",
        "| fit | 5.0 s | 0.0 s | – |",
        "| evaluate | 2.0 s | 2.0 s | 1.00 |",
        "| code | 36.0 s | 20.0 s | 1.80 |",
    ]


def test_the_tiny_encoder_is_written_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of 64 tokens and about ten thousand parameters; a second call leaves its files."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    workload = importlib.import_module("workload")
    folder = workload.tiny_encoder(tmp_path / "tiny")
    assert encoder_files.longest(str(folder)) == 64
    parameters, width = encoder_files.shape(str(folder))
    assert (5_000 < parameters < 20_000, width) == (True, 16)
    before = encoder_files.digest_parts(str(folder)), (folder / "config.json").stat().st_mtime_ns
    workload.tiny_encoder(folder)
    assert before == (
        encoder_files.digest_parts(str(folder)),
        (folder / "config.json").stat().st_mtime_ns,
    )


@pytest.mark.parametrize(("name", "guarantee"), [("swag", "asymptotic-local"), ("sgd", "formal")])
def test_a_mechanism_is_attacked_and_compared_with_its_claim(
    name: str,
    guarantee: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny_roberta: Path,
) -> None:
    """Posterior draws claim twice of the paper's sensitivity; a formal claim has one figure, and
    its noisy sums are checked. No bound is above what perfect guesses could show.
    """
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    leakage = importlib.import_module("leakage")
    parameters = tiny_jobs.retrain(tiny_jobs.demo(tmp_path), tiny_roberta)
    descent = {"name": "sgd", "kind": "dp-sgd", "epochs": 2, "sampling_prob": 1.0}
    terms = ComparisonSettings(
        target_epsilon=leakage.EPSILON, delta=1e-4, branches=(leakage.SWAG, descent)
    )
    row = leakage.measure(
        tiny_jobs.workspace(tmp_path / "home"),
        parameters,
        terms,
        AuditParameters(trials=16, trial_draws=5, canaries=4, gradient_canaries=4),
        terms.all_branches[name],
        seeds=2,
    )
    assert row["guarantee"] == guarantee
    assert 0 <= row["measured"] <= row["reach"]
    assert len(row["verdicts"]) == 2
    assert 0 < row["macro_f1"] <= 1
    if guarantee == "formal":
        assert row["claimed"] == pytest.approx(leakage.EPSILON, rel=1e-3)
        assert row["claimed_of_paper"] is None
        assert row["checks"]
    else:
        assert row["claimed_of_paper"] == pytest.approx(2 * row["claimed"], abs=2e-4)
        assert not row["checks"]
