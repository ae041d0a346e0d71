"""What a run is said to take, before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import tiny_jobs
from refusals import of_kind

from mechanisms.mechanism import Workload
from storage.codelist import read_codelist
from storage.errors import InputError
from tasks.comparing.run import estimate_seconds
from tasks.fitting.prior import INDEX_HEAD, INDEX_TEXTS
from tasks.parameters import RetrainParameters
from tasks.releasing import preflight
from tasks.releasing.preflight import Estimate
from tasks.running.run import Run
from tasks.running.stage import Context

FITS = {
    "swag-ppm: base": Workload(4, draws=500, vectors=5),
    "swag-ppm": Workload(4, draws=40, vectors=5),
    "dp-sgd": Workload(3),
}


def estimate(
    tiny_roberta: Path, tmp_path: Path, *, rows: int, sampled: Mapping[str, int] | None = None
) -> Estimate:
    chosen = tiny_jobs.retrain(tiny_jobs.demo(tmp_path / "data", population="demo"), tiny_roberta)
    return Estimate.of(chosen, device="cpu", fits=FITS, timed={}, rows=rows, sampled=sampled)


def test_rows_once_read_are_no_guess(tiny_roberta: Path, tmp_path: Path) -> None:
    """A cap leaves fewer than a file has rows; what was sampled is known after reading, and time
    follows it.
    """
    guess = estimate(tiny_roberta, tmp_path, rows=10_000)
    read = estimate(
        tiny_roberta, tmp_path, rows=10_000, sampled={"train": 500, "test": 400, "holdout": 100}
    )
    assert (read.records, read.train) == (900, 500), "the holdout is not encoded"
    for name in FITS:
        assert read.stages[name] / guess.stages[name] == pytest.approx(500 / guess.train)
    assert read.disk_bytes < guess.disk_bytes


def test_a_rerun_of_one_fit_is_no_rerun_of_a_chain(tiny_roberta: Path, tmp_path: Path) -> None:
    """Sixty-four reruns of a DP-SGD fit were once told as those of a whole SWAG chain: a day for an
    hour's work.
    """
    names = {"audit trials (dp-sgd)": "dp-sgd", "audit trials (swag-ppm)": "swag-ppm"}
    plain = estimate(tiny_roberta, tmp_path, rows=10_000)
    told = plain.with_trials(names, trials=64, draws=50)
    assert told.of_kind("audit trials (dp-sgd)") == 64 * plain.of_kind("dp-sgd")
    epoch, draw = plain.stages["epoch"], plain.stages["draw"]
    one = 2 * 4 * epoch + (50 + 40) * draw
    assert told.of_kind("audit trials (swag-ppm)") == pytest.approx(64 * one)
    beside = plain.with_trials(names, trials=64, draws=50, batched=["swag-ppm"])
    assert beside.of_kind("audit trials (swag-ppm)") < told.of_kind("audit trials (swag-ppm)") / 3
    assert beside.of_kind("audit trials (dp-sgd)") == told.of_kind("audit trials (dp-sgd)")


def test_a_fit_of_the_encoder_is_not_one_of_a_head(tiny_roberta: Path, tmp_path: Path) -> None:
    """A rival that trains on tokens takes what an epoch of the chain's takes; it was reported as a
    head's.
    """
    chosen = tiny_jobs.retrain(tiny_jobs.demo(tmp_path / "data", population="demo"), tiny_roberta)
    chosen = chosen.model_copy(
        update={"model": chosen.model.model_copy(update={"trainable": "lora"})}
    )
    told = Estimate.of(chosen, rows=10_000, device="cpu", fits=FITS, timed={})
    head = estimate(tiny_roberta, tmp_path, rows=10_000)
    assert told.of_kind("dp-sgd") == 3 * told.stages["epoch"] != 3 * head.stages["epoch"]


def test_a_comparison_of_single_fits_encodes_too(tiny_roberta: Path, tmp_path: Path) -> None:
    """Records are encoded once, whatever the number of fits."""
    told = estimate(tiny_roberta, tmp_path, rows=10_000)
    fits = sum(told.stages[name] for name in FITS)
    assert estimate_seconds(told, seeds=2) == pytest.approx(told.stages["features"] + 2 * fits)


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> RetrainParameters:
    """A job of seconds on the tiny encoder."""
    return tiny_jobs.retrain(
        tiny_jobs.demo(tmp_path_factory.mktemp("data"), records=160), tiny_roberta
    )


def test_a_deployment_that_trains_releases_nothing(
    parameters: RetrainParameters, tmp_path: Path
) -> None:
    """Emptying `Release deployment` in the form gets round neither the approvals nor the worker
    with the key.
    """
    by_hand, deployed = Context(home=str(tmp_path)), Run()
    deployed.deployment = "of-a-deployment"
    context = by_hand.model_copy(update={"run": deployed})
    at_once = parameters.release.model_copy(update={"enabled": True})
    parameters = parameters.model_copy(update={"release": at_once})
    preflight.check(by_hand, parameters, {}, to_release=True)
    with pytest.raises(InputError, check=of_kind("deployment-signs-nothing")):
        preflight.check(context, parameters, {}, to_release=True)
    for release in ({"deployment": "release/release"}, {"enabled": False}):
        changed = parameters.model_copy(update={"release": at_once.model_copy(update=release)})
        preflight.check(context, changed, {}, to_release=True)


@pytest.mark.parametrize(
    ("release", "refusal"),
    [
        ({"licence": "/gone"}, of_kind("unknown-licence")),
        (
            {"signing_key": "/gone"},
            of_kind("unreadable-file", saying="/gone"),
        ),
        ({"supersedes": "x"}, of_kind("nothing-to-supersede")),
    ],
)
def test_what_could_not_release_is_refused_before_it_trains(
    parameters: RetrainParameters, tmp_path: Path, release: dict[str, str], refusal: of_kind
) -> None:
    """Files that are not there, and a release that this ledger does not have."""
    asked = parameters.model_copy(update={"release": parameters.release.model_copy(update=release)})
    with pytest.raises(InputError, check=refusal):
        preflight.check(Context(home=str(tmp_path)), asked, {}, to_release=True)


def test_an_engine_that_cannot_compute_is_refused_in_the_first_second(
    parameters: RetrainParameters, tmp_path: Path
) -> None:
    """In any precision an engine gives what one process gives, so that nothing else is refused."""
    with pytest.raises(InputError, check=of_kind("engine-form", saying="0")):
        preflight.check(Context(home=str(tmp_path), engine="0"), parameters, {})


def test_a_coding_index_takes_time_once(tiny_roberta: Path, tmp_path: Path) -> None:
    """Its texts are encoded, and a head is found at them, before all fits: more for
    more entries.
    """
    data = tiny_jobs.demo(tmp_path / "data", population="demo")
    code = read_codelist(Path(data["codelist"]))[0].code
    told: dict[int, Estimate] = {}
    for number in (0, 100, 300):
        index = tmp_path / f"index-{number}.csv"
        index.write_text("text,code\n" + "".join(f"case {n},{code}\n" for n in range(number)))
        examples = {"examples": str(index)} if number else {}
        chosen = tiny_jobs.retrain(data | examples, tiny_roberta, model={"prior": "titles"})
        told[number] = Estimate.of(chosen, rows=10_000, device="cpu", fits=FITS, timed={})
    added = {number: each.seconds - told[0].seconds for number, each in told.items()}
    assert added[300] == pytest.approx(3 * added[100])
    labels = (INDEX_TEXTS, INDEX_HEAD)
    assert added[100] == pytest.approx(told[100].of_labels(labels) - told[0].of_labels(labels))
    assert added[100] > 0
    more = {seeds: estimate_seconds(told[100], seeds=seeds) for seeds in (1, 2)}
    plain = {seeds: estimate_seconds(told[0], seeds=seeds) for seeds in (1, 2)}
    assert more[1] - plain[1] == pytest.approx(more[2] - plain[2])
