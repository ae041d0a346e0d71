"""What workers measure is added up over processes, tells no count of records, and never stops a
run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from storage.artifacts import Store
from storage.errors import StorageError
from tasks.running import progress, worker_metrics
from tasks.running.stage import Context, Step, Work, run_step
from tasks.running.worker_metrics import MetricsListener

RECORDS = 1237


def body(work: Work) -> dict[str, int]:
    """Ten steps of a tenth of a second of a clock that the test moves."""
    work.sized(RECORDS)
    for done in range(11):
        work.progress(done, 10)
    return {"records": RECORDS}


def failing(work: Work) -> dict[str, int]:
    raise StorageError("no")


def step(run) -> Step:
    return Step(name="stage", label="a stage", config={"n": run.__name__}, inputs={}, body=run)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def look() -> float:
        now[0] += 0.1
        return now[0]

    monkeypatch.setattr("tasks.running.worker_metrics.time.monotonic", look)


def value(private: Path, name: str, **labels: str) -> float | None:
    wanted = {"host": "h", "flow": "f", "stage": "stage"} | labels
    samples = [sample for family in worker_metrics.families(private) for sample in family.samples]
    return next((one.value for one in samples if one.name == name and one.labels == wanted), None)


def test_a_stage_leaves_its_figures_and_no_count_of_records(tmp_path: Path, clock: None) -> None:
    """Computed, reused and failed are counted apart; the rate comes from progress,
    in two digits.
    """
    context = Context(home=str(tmp_path))
    with progress.listening(MetricsListener(context.workspace.private, "f", host="h")):
        run_step(context, step(body))
        run_step(context, step(body))
        private = context.workspace.private
        assert value(private, "autocoder_stage_progress_ratio") == 1
        with pytest.raises(StorageError):
            run_step(context, step(failing))
    for result, count in (("computed", 1), ("reused", 1), ("failed", 1)):
        assert value(private, "autocoder_stage_runs_total", result=result) == count
    # ten steps, each a tenth of the records, 0.1 s apart by this clock: 1,237 records a second,
    # told as 1,200
    assert value(private, "autocoder_stage_records_per_second") == 1200
    assert value(private, "autocoder_stage_progress_ratio") == 1
    assert worker_metrics.running_stages(private) == [], (
        "what ended in an error, and was told, is not interrupted"
    )
    seconds = value(private, "autocoder_stage_seconds_total")
    assert seconds is not None
    assert seconds == value(private, "autocoder_stage_last_seconds")
    (_,) = worker_metrics.folder(private).glob("*.prom")
    for file in worker_metrics.folder(private).iterdir():
        assert str(RECORDS) not in file.read_text()
    assert worker_metrics.folder(private).stat().st_mode & 0o077 == 0


def _run(private: Path, host: str) -> None:
    listener = MetricsListener(private, "f", host=host)
    for _ in range(20):
        listener.started("stage")
        listener.finished("stage", {}, reused=False, seconds=0.5)


def test_runs_are_added_up(tmp_path: Path) -> None:
    """Three runs on one host and one on another, 20 stages each; of gauges the
    newest run's stay.
    """
    for host in ("h", "h", "h", "other"):
        _run(tmp_path, host)
    assert value(tmp_path, "autocoder_stage_runs_total", result="computed") == 60
    assert value(tmp_path, "autocoder_stage_seconds_total") == 30
    assert value(tmp_path, "autocoder_stage_last_seconds") == 0.5
    assert value(tmp_path, "autocoder_stage_runs_total", result="computed", host="other") == 20


@dataclass(frozen=True)
class Read(Collector):
    private: Path

    def collect(self) -> Iterator[Metric]:
        yield from worker_metrics.families(self.private)


def test_two_hosts_are_one_family_for_prometheus(tmp_path: Path) -> None:
    """A name is reported once, or Prometheus refuses the whole page."""
    _run(tmp_path, "h")
    _run(tmp_path, "other")
    registry = CollectorRegistry()
    registry.register(Read(tmp_path))
    text = generate_latest(registry).decode()
    assert text.count("# TYPE autocoder_stage_runs_total") == 1
    assert text.count("autocoder_stage_runs_total{") == 2


@pytest.mark.parametrize(
    "torn", ['autocoder_stage_runs_total{flow="f"', "autocoder_stage_runs_total three", "\0"]
)
def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, torn: str) -> None:
    """A file where the folder should be; and a torn file of an earlier run is left out."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "metrics").write_text("")
    context = Context(home=str(tmp_path))
    with progress.listening(MetricsListener(context.workspace.private, "f", host="h")):
        ref = run_step(context, step(body))
    assert Store(context.workspace.private).open(ref).is_dir()

    other = tmp_path / "other"
    worker_metrics.folder(other).mkdir(parents=True)
    (worker_metrics.folder(other) / "h-1.prom").write_text(torn)
    _run(other, "h")
    assert value(other, "autocoder_stage_runs_total", result="computed") == 20


def test_seeds_make_no_new_series(tmp_path: Path) -> None:
    """A stage's figures go under its name; its label, with branch and seed, is for people."""
    context = Context(home=str(tmp_path))
    with progress.listening(MetricsListener(context.workspace.private, "f", host="h")):
        for seed in range(3):
            one = Step(
                name="fit", label=f"fit, seed {seed}", config={"seed": seed}, inputs={}, body=body
            )
            run_step(context, one)
    assert (
        value(
            context.workspace.private, "autocoder_stage_runs_total", stage="fit", result="computed"
        )
        == 3
    )
    assert {
        sample.labels["stage"]
        for family in worker_metrics.families(context.workspace.private)
        for sample in family.samples
    } == {"fit"}


def test_gpu_memory_is_told_where_there_is_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak of each stage: the count begins anew with it. Torch's own counter, made up here."""
    peak = [7 << 30]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda: peak.__setitem__(0, 1 << 30))
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: peak[0])
    listener = MetricsListener(tmp_path, "f", host="h")
    listener.started("stage")
    listener.finished("stage", {}, reused=False, seconds=1)
    assert value(tmp_path, "autocoder_stage_gpu_memory_peak_bytes") == 1 << 30
