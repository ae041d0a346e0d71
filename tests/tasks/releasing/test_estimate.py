"""What a run is said to take, before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_jobs

from tasks.releasing.estimate import Estimate


def estimate(tiny_roberta: Path, tmp_path: Path, **given: object) -> Estimate:
    chosen = tiny_jobs.retrain(tiny_jobs.demo(tmp_path / "data", population="demo"), tiny_roberta)
    return Estimate.of(chosen, features=None, device="cpu", timed={}, **given)  # type: ignore[arg-type]


def test_rows_once_read_are_no_guess(tiny_roberta: Path, tmp_path: Path) -> None:
    """A cap leaves fewer than a file has rows; what was sampled is known after reading, and time follows it."""
    guess = estimate(tiny_roberta, tmp_path, rows=10_000)
    read = estimate(tiny_roberta, tmp_path, rows=10_000, sampled={"train": 500, "test": 400, "holdout": 100})
    assert (read.records, read.train) == (900, 500), "the holdout is not encoded"
    assert read.stages["SWAG"] / guess.stages["SWAG"] == pytest.approx(500 / guess.train, rel=0.02), "whole batches"
    assert read.disk_bytes < guess.disk_bytes


def test_a_rerun_of_one_fit_is_no_rerun_of_a_chain(tiny_roberta: Path, tmp_path: Path) -> None:
    """Sixty-four reruns of a DP-SGD fit were once told as those of a whole SWAG chain: a day for an hour's work."""
    names = {"audit trials (dp-sgd)": "dp-sgd", "audit trials (swag-ppm)": "swag-ppm"}
    plain = estimate(tiny_roberta, tmp_path, rows=10_000).with_fits(["dp-sgd"], epochs=3)
    told = plain.with_trials(names, trials=64, draws=50)
    assert told.of_kind("audit trials (dp-sgd)") == 64 * plain.of_kind("dp-sgd")
    one = plain.stages["fine-tune"] + plain.stages["SWAG"] + 50 * plain.stages["draw"]
    assert told.of_kind("audit trials (swag-ppm)") == 64 * plain.counts["fine-tune"] * one
