"""What a run is said to take, before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import tiny_jobs

from mechanisms.model.config import ModelConfig
from tasks.branches.branch import CompareParameters, choose
from tasks.comparing.run import estimate_seconds
from tasks.releasing.preflight import Estimate


def estimate(tiny_roberta: Path, tmp_path: Path, *, rows: int, sampled: Mapping[str, int] | None = None) -> Estimate:
    chosen = tiny_jobs.retrain(tiny_jobs.demo(tmp_path / "data", population="demo"), tiny_roberta)
    return Estimate.of(chosen, device="cpu", timed={}, rows=rows, sampled=sampled)


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
    plain = estimate(tiny_roberta, tmp_path, rows=10_000).with_fits({"dp-sgd": 3})
    told = plain.with_trials(names, trials=64, draws=50)
    assert told.of_kind("audit trials (dp-sgd)") == 64 * plain.of_kind("dp-sgd")
    one = plain.stages["fine-tune"] + plain.stages["SWAG"] + 50 * plain.stages["draw"]
    assert told.of_kind("audit trials (swag-ppm)") == 64 * plain.counts["fine-tune"] * one
    beside = plain.with_trials(names, trials=64, draws=50, batched=["swag-ppm"])
    assert beside.of_kind("audit trials (swag-ppm)") < told.of_kind("audit trials (swag-ppm)") / 3
    assert beside.of_kind("audit trials (dp-sgd)") == told.of_kind("audit trials (dp-sgd)")


def test_a_fit_of_the_encoder_is_not_one_of_a_head(tiny_roberta: Path, tmp_path: Path) -> None:
    """A rival that trains on tokens takes what an epoch of the chain's takes; it was told as a head's."""
    chosen = tiny_jobs.retrain(tiny_jobs.demo(tmp_path / "data", population="demo"), tiny_roberta)
    chosen = chosen.model_copy(update={"model": chosen.model.model_copy(update={"trainable": "lora"})})
    told = Estimate.of(chosen, rows=10_000, device="cpu", timed={}).with_fits({"dp-sgd": 3})
    assert told.of_kind("dp-sgd") == pytest.approx(3 / chosen.fit.adamw.epochs * told.stages["fine-tune"])


def test_a_comparison_of_single_fits_encodes_too(tiny_roberta: Path, tmp_path: Path) -> None:
    """Without a chain among the branches records are encoded once; `about 0 s` was told for a quarter of an hour."""
    names = ["non-private", "dp-sgd"]
    told = estimate(tiny_roberta, tmp_path, rows=10_000).with_fits(dict.fromkeys(names, 3))
    chosen = choose(",".join(names), model=ModelConfig(encoder="packaged-minilm", trainable="head", pooling="mean"))
    settings = CompareParameters(target_epsilon=6, delta=1e-5, seeds=2, epochs=3)
    assert estimate_seconds(told, settings, chosen) == pytest.approx(
        told.stages["features"] + 4 * told.stages["dp-sgd"]
    )
